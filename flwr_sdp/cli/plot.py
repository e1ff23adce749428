"""Pictures of a run."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path


def plot_accuracy(run_dir: Path) -> Path | None:
    """Draw accuracy against rounds, private beside non-private; return the picture's path.

    Returns None if there is nothing to draw.
    """
    curves = {
        label: _column(run_dir / name)
        for label, name in (
            ("no privacy (same seeds)", "baseline-metrics.csv"),
            ("private", "metrics.csv"),
        )
        if (run_dir / name).exists()
    }
    curves = {label: curve for label, curve in curves.items() if curve[0]}
    if not curves:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    colours = {"private": "#1f5fa8", "no privacy (same seeds)": "#8a8a8a"}
    for label, (rounds, accuracy) in curves.items():
        axes.plot(
            rounds, accuracy, color=colours[label], label=f"{label}: {accuracy[-1]:.3f}", lw=1.8
        )
    axes.set_title(_title(run_dir / "config.toml"), fontsize="medium")
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy on held-out data")
    axes.set_ylim(0.0, 1.02)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    picture = run_dir / "accuracy.png"
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
    return picture


def _title(config_file: Path) -> str:
    config = tomllib.loads(config_file.read_text(encoding="utf-8"))
    direction, magnitude = config["sdp-epsilon-direction"], config["sdp-epsilon-magnitude"]
    return (
        f"{config['task']}, {config['num-clients']} clients: "
        f"ε₁ = {direction:g}, ε₂ = {magnitude:g} a report"
    )


def _column(path: Path) -> tuple[list[int], list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [int(row["round"]) for row in rows], [float(row["accuracy"]) for row in rows]
