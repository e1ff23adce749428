"""The picture of a single run."""

from __future__ import annotations

import tomllib
from pathlib import Path

from flwr_sdp.cli.results import figure_style as style
from flwr_sdp.cli.results.metrics import read_rows
from flwr_sdp.cli.results.table import data_name
from flwr_sdp.cli.runs.grid import REPORT

_PRIVATE, _BASELINE = "private", "no privacy (same seeds)"
_COLOURS = {_PRIVATE: style.PRIVATE, _BASELINE: style.NO_PRIVACY}


def draw_run(run_dir: Path) -> Path | None:
    """Draw accuracy against rounds, private beside non-private; return the picture's path.

    Returns None if there is nothing to draw.
    """
    files = {_BASELINE: "baseline-metrics.csv", _PRIVATE: "metrics.csv"}
    curves = {label: _accuracy(run_dir / name) for label, name in files.items()}
    if not any(curves.values()):
        return None
    figure, axes = style.new_axes(_title(run_dir), "round", "accuracy on held-out data")
    for label, curve in curves.items():
        if curve:
            rounds, accuracy = zip(*curve, strict=True)
            axes.plot(
                rounds,
                accuracy,
                color=_COLOURS[label],
                label=f"{label}: {accuracy[-1]:.3f}",
                lw=1.8,
            )
    highest = max(value for curve in curves.values() for _, value in curve)
    axes.set_ylim(0.0, min(1.02, 1.25 * highest) or 1.0)
    style.round_axis(axes)
    axes.legend(loc="lower right", frameon=False)
    return style.save(figure, run_dir / "accuracy.png")


def _title(run_dir: Path) -> str:
    config = tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
    try:
        direction, magnitude = config["sdp-epsilon-direction"], config["sdp-epsilon-magnitude"]
        name = data_name(run_dir / REPORT) or config["task"]
        clients = f"{name}, {config['num-clients']} clients"
    except KeyError:  # an app that names its budgets otherwise
        return run_dir.parent.name
    return f"{clients}: ε₁ = {direction:g}, ε₂ = {magnitude:g} a report"


def _accuracy(path: Path) -> list[tuple[int, float]]:
    """Return round and accuracy where the model was evaluated."""
    rows = read_rows(path)
    return [(int(row["round"]), float(row["accuracy"])) for row in rows if row.get("accuracy")]
