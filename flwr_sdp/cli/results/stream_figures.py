"""Pictures of the studies in which every user is asked once."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_FAINT = "#8a8a8a"
_INK = "#222222"
_CONFIDENCE = 0.95

_METHODS = {  # of the sparse study: what to call it, colour, line
    "cube-separated": ("ℓ∞ direction × ScalarDP, mirror descent", "#1f5fa8", "-"),
    "cube-rounded": ("ℓ∞ on the gradient itself, mirror descent", "#7fb2e5", "-"),
    "sphere-mirror": ("ℓ₂ direction × ScalarDP, mirror descent", "#c8561b", "-"),
    "sphere-euclidean": ("ℓ₂ direction × ScalarDP, gradient descent", "#eaa46f", "-"),
    "none-mirror": ("no privacy, mirror descent", "#444444", "--"),
    "none-euclidean": ("no privacy, gradient descent", "#a5a5a5", "--"),
}


@dataclass(frozen=True, slots=True)
class _Series:
    """A method at a level: what its trials had, ``(trials, records)``."""

    method: str
    epsilon: float
    iterations: Floats
    values: Floats

    @property
    def mean(self) -> Floats:
        """Mean over the trials."""
        mean: Floats = self.values.mean(axis=0)
        return mean

    @property
    def half_width(self) -> Floats:
        """Half the confidence interval of the mean."""
        from scipy.stats import t

        trials = len(self.values)
        if trials < 2:
            return np.zeros(self.values.shape[1])
        quantile = float(t.ppf((1.0 + _CONFIDENCE) / 2.0, trials - 1))
        width: Floats = quantile * self.values.std(axis=0, ddof=1) / math.sqrt(trials)
        return width


def plot_streams(folder: Path) -> list[Path]:
    """Draw the study whose results.csv and averaged.csv lie in `folder`; return its pictures.

    Raises
    ------
    ValueError
        If results.csv holds none of the studies.
    """
    rows = _rows(folder / "results.csv")
    tasks = {row["task"] for row in rows}
    draw: dict[str, Callable[[Path, list[dict[str, str]]], Path]] = {
        "logistic": _draw_logistic,
        "sparse": _draw_sparse,
    }
    if len(tasks) != 1 or not tasks <= set(draw):
        raise ValueError(
            f"task must be 'logistic' or 'sparse' in every row of {folder / 'results.csv'}; "
            f"got {sorted(tasks)}"
        )
    import matplotlib

    matplotlib.use("Agg")
    return [draw[tasks.pop()](folder, rows)]


# ---------------------------------------------------------------------- logistic regression
def _draw_logistic(folder: Path, rows: list[dict[str, str]]) -> Path:
    from matplotlib import pyplot

    curves = _series(rows, "gap")
    colours = _colours([curve.epsilon for curve in curves])
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11.0, 4.6), layout="constrained", width_ratios=(1.15, 1.0)
    )
    for curve in curves:
        _band(left, curve, colours[curve.epsilon])
    zero = float(curves[0].mean[0])
    left.axhline(zero, color=_FAINT, lw=1.0, ls=":")
    last = float(curves[0].iterations[-1])
    _mark_users(left, last)
    _plain_log(left)
    ends = [
        (float(curve.mean[-1]), _level(curve.epsilon), colours[curve.epsilon]) for curve in curves
    ]
    _label_ends(left, [*ends, (zero, "θ = 0", _FAINT)])
    left.set_xlabel("users asked, one after the other (k)")
    left.set_title(
        r"$L(\theta_k) - L(\theta^*)$, with 95% intervals of the mean", fontsize="medium"
    )
    _finish(left)

    _draw_boxes(right, _rows(folder / "averaged.csv"), colours)
    error_of_zero = float(_series(rows, "error")[0].mean[0])
    right.axhline(error_of_zero, color=_FAINT, lw=1.0, ls=":", zorder=0)
    right.text(
        0.995, error_of_zero, "θ = 0 ", transform=right.get_yaxis_transform(),
        ha="right", va="bottom", fontsize=8.5, color=_FAINT,
    )  # fmt: skip
    right.set_title(
        r"error of the averaged iterate, $\|\bar\theta_N - \theta^*\|$", fontsize="medium"
    )
    _finish(right)
    trials = len(curves[0].values)
    figure.suptitle(
        f"Private logistic regression, {int(last):,} users, {trials} trials", fontsize="large"
    )
    picture = folder / "logistic.png"
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
    return picture


def _draw_boxes(axes: Any, rows: list[dict[str, str]], colours: dict[float, Any]) -> None:
    groups: dict[tuple[int, float], list[float]] = {}
    for row in rows:
        place = (1 if row["method"] == "mle" else 0, float(row["epsilon"]))
        groups.setdefault(place, []).append(float(row["error"]))
    places = sorted(groups)
    boxes = axes.boxplot(
        [groups[place] for place in places], widths=0.6, patch_artist=True,
        medianprops={"color": _INK, "lw": 1.2}, flierprops={"marker": ".", "ms": 4, "mec": _FAINT},
    )  # fmt: skip
    for box, (is_likelihood, epsilon) in zip(boxes["boxes"], places, strict=True):
        box.set_facecolor("white" if is_likelihood else colours.get(epsilon, "white"))
        box.set_alpha(0.75)
    axes.set_xticks(
        range(1, len(places) + 1),
        [r"$\hat\theta_{\rm mle}$" if mle else _number(epsilon) for mle, epsilon in places],
    )
    axes.set_xlabel("privacy level ε")
    values = [value for group in groups.values() for value in group]
    if max(values) > 4.0 * min(values):
        _plain_log(axes)


# ---------------------------------------------------------------------- sparse regression
def _draw_sparse(folder: Path, rows: list[dict[str, str]]) -> Path:
    from matplotlib import pyplot

    curves = _series(rows, "average_gap")
    levels = sorted({curve.epsilon for curve in curves if math.isfinite(curve.epsilon)})
    shown = levels[len(levels) // 2] if levels else math.inf
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11.0, 5.2), layout="constrained")
    methods = [name for name in _METHODS if any(curve.method == name for curve in curves)]
    handles = []
    for method in methods:
        label, colour, line = _METHODS[method]
        own = sorted((c for c in curves if c.method == method), key=lambda c: c.epsilon)
        for curve in own:
            if curve.epsilon in (shown, math.inf):
                handles.append(_band(left, curve, colour, line=line, label=label))
        means = np.array([curve.mean[-1] for curve in own])
        widths = np.array([curve.half_width[-1] for curve in own])
        if math.isinf(own[0].epsilon):
            right.axhline(means[0], color=colour, ls=line, lw=1.4)
        else:
            budgets = [curve.epsilon for curve in own]
            right.plot(budgets, means, color=colour, marker="o", ms=4, lw=1.8)
            right.fill_between(
                budgets, means - widths, means + widths, color=colour, alpha=0.2, lw=0
            )
    zero, last = float(curves[0].mean[0]), float(curves[0].iterations[-1])
    for axes in (left, right):
        axes.axhline(zero, color=_FAINT, lw=1.0, ls=":")
        axes.text(
            0.995, zero, "θ = 0", transform=axes.get_yaxis_transform(),
            ha="right", va="bottom", fontsize=8.5, color=_FAINT,
        )  # fmt: skip
        _plain_log(axes)
        _finish(axes)
    _mark_users(left, last)
    left.set_xlabel("users asked, one after the other")
    left.set_title(f"excess risk of the averaged iterate at ε = {shown:g}", fontsize="medium")
    if levels:
        right.set_xscale("log")
        right.set_xticks(levels, [f"{level:g}" for level in levels])
        right.minorticks_off()
    right.set_xlabel("privacy level ε")
    right.set_title(f"after {int(last):,} users", fontsize="medium")
    figure.suptitle(
        f"Sparse logistic regression, {len(curves[0].values)} trials; "
        "bands: 95% intervals of the mean",
        fontsize="large",
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    picture = folder / "sparse.png"
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
    return picture


# ---------------------------------------------------------------------- what both need
def _band(
    axes: Any, curve: _Series, colour: Any, *, line: str = "-", label: str | None = None
) -> Any:
    (drawn,) = axes.plot(curve.iterations, curve.mean, color=colour, ls=line, lw=1.6, label=label)
    low, high = curve.mean - curve.half_width, curve.mean + curve.half_width
    axes.fill_between(curve.iterations, low, high, color=colour, alpha=0.2, lw=0)
    return drawn


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, Any]]) -> None:
    """Write a label right of each curve's end, moved up or down where they would overlap."""
    axes.figure.canvas.draw()  # limits and the place of the axes are settled now
    low, high = (math.log(limit) for limit in axes.get_ylim())
    height = axes.get_window_extent().height / axes.figure.dpi * 72.0  # points
    gap = 11.0 / height
    ordered = sorted(ends, key=lambda end: end[0])
    places = [(math.log(value) - low) / (high - low) for value, _, _ in ordered]
    for _ in range(200):  # pairs that are too close push each other apart
        moved = False
        for i in range(len(places) - 1):
            short = gap - (places[i + 1] - places[i])
            if short > 1e-6:
                places[i] -= short / 2
                places[i + 1] += short / 2
                moved = True
        if not moved:
            break
    for place, (_, text, colour) in zip(places, ordered, strict=True):
        axes.text(
            1.015, place, text, transform=axes.transAxes, color=colour, fontsize=9, va="center"
        )


def _mark_users(axes: Any, last: float) -> None:
    ticks = [round(last * quarter / 4) for quarter in range(5)]
    axes.set_xlim(0, last)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])


def _plain_log(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 3.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _colours(levels: Sequence[float]) -> dict[float, Any]:
    """Return a colour for each level: from light to dark as privacy is given up."""
    from matplotlib import colormaps

    finite = sorted(level for level in set(levels) if math.isfinite(level))
    shades = np.linspace(0.85, 0.05, max(len(finite), 2))
    found = {
        level: colormaps["plasma"](shade) for level, shade in zip(finite, shades, strict=False)
    }
    return {**found, math.inf: _INK}


def _level(epsilon: float) -> str:
    return f"ε = {_number(epsilon)}"


def _number(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"


def _series(rows: list[dict[str, str]], column: str) -> list[_Series]:
    """Return a series for each method and level, in the order of the file."""
    found: dict[tuple[str, float], dict[int, list[tuple[int, float]]]] = {}
    for row in rows:
        trials = found.setdefault((row["method"], float(row["epsilon"])), {})
        trials.setdefault(int(row["trial"]), []).append((int(row["iteration"]), float(row[column])))
    return [
        _Series(
            method=method,
            epsilon=epsilon,
            iterations=np.array([iteration for iteration, _ in next(iter(trials.values()))], float),
            values=np.array([[value for _, value in trial] for trial in trials.values()]),
        )
        for (method, epsilon), trials in found.items()
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
