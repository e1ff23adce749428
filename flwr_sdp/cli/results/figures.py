"""The figures of trials and sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.results import figure_style as style
from flwr_sdp.cli.results.curves import (
    Curve,
    baseline_curves,
    baseline_finals,
    finals,
    gap_curves,
    mean_and_error,
    private_curves,
)
from flwr_sdp.cli.results.labels import baseline_label, level_label
from flwr_sdp.cli.results.trials import EPSILON, Level, Results

_HELD_OUT = "on held-out data"
_EPSILON_AXIS = "ε₁, the budget of the direction"
_SPREAD = 0.12  # of a box's width, between the points over it


def draw_gap(results: Results, path: Path) -> Path:
    """Draw the gap to the final non-private model against rounds (the paper's Figure 1).

    Raises
    ------
    CommandError
        If there is no run without privacy to compare with.
    """
    curves = gap_curves(results)
    if not curves:
        raise CommandError(
            "no gap to draw: the results hold no run without privacy on the same seeds (they were "
            "made with --no-baseline)"
        )
    figure, axes = style.new_axes(
        _title(results, "gap", curves, "bands"),
        "round",
        "gap to the final model without privacy",
        wide=True,
    )
    _draw_levels(axes, results, curves)
    axes.axhline(0.0, color=style.NO_PRIVACY, lw=1.0)
    style.round_axis(axes)
    style.legend_beside(figure, axes)
    return style.save(figure, path)


def draw_accuracy(results: Results, path: Path) -> Path:
    """Draw the metric against rounds, with and without privacy."""
    curves, baselines = private_curves(results), baseline_curves(results)
    figure, axes = style.new_axes(
        _title(results, "", [*curves, *baselines], "bands"), "round", _axis(results), wide=True
    )
    for curve, line in zip(baselines, _cycle(style.LINE_STYLES, len(baselines)), strict=True):
        style.draw_curve(
            axes,
            curve.rounds,
            curve.mean,
            curve.error,
            color=style.NO_PRIVACY,
            ls=line,
            label=baseline_label(curve.level, [other.level for other in baselines]),
        )
    _draw_levels(axes, results, curves)
    style.round_axis(axes)
    style.legend_beside(figure, axes)
    return style.save(figure, path)


def draw_frontier(results: Results, path: Path) -> Path:
    """Draw the final metric against epsilon, with standard errors.

    Raises
    ------
    CommandError
        If there is one epsilon only.
    """
    if EPSILON not in results.varied:
        raise CommandError(
            f"no frontier to draw: all runs have the same {EPSILON}, sweep it to see one"
        )
    others = [key for key in results.varied if key != EPSILON]
    lines: dict[str, list[tuple[float, float, float]]] = {}
    made = finals(results)
    for final in made:
        point = (float(dict(final.level)[EPSILON]), *mean_and_error(final.values))
        lines.setdefault(level_label(final.level, others), []).append(point)
    figure, axes = style.new_axes(
        _title(results, "after the last round", made, "bars"),
        _EPSILON_AXIS,
        _axis(results),
        wide=len(lines) > 1 or bool(results.baselines),
    )
    _draw_baseline_bands(axes, results)
    colours = [style.PRIVATE] if len(lines) == 1 else style.sequential_colours(len(lines))
    for (label, points), colour, marker in zip(
        lines.items(), colours, _cycle(style.MARKERS, len(lines)), strict=True
    ):
        epsilons, means, errors = zip(*sorted(points), strict=True)
        axes.errorbar(
            epsilons,
            means,
            yerr=[0.0 if math.isnan(error) else error for error in errors],
            color=colour,
            marker=marker,
            ms=5,
            lw=1.8,
            capsize=3,
            label=label or "private",
        )
    _epsilon_axis(axes, sorted({point[0] for points in lines.values() for point in points}))
    style.legend_beside(figure, axes)
    return style.save(figure, path)


def draw_box(results: Results, path: Path) -> Path:
    """Draw the spread of the final metric over the trials, a box for each level.

    Raises
    ------
    CommandError
        If there are no trials to spread.
    """
    made = finals(results)
    if max(len(final.values) for final in made) < 2:
        raise CommandError("no spread to draw: there is one trial of each level, see --trials")
    boxes = [
        (level_label(final.level, results.varied, "\n") or "private", final.values)
        for final in made
    ]
    colours = [_colours(results)[final.level] for final in made]
    baselines = baseline_finals(results)
    for final in baselines:
        boxes.append(
            (baseline_label(final.level, [other.level for other in baselines], "\n"), final.values)
        )
        colours.append(style.NO_PRIVACY)
    figure, axes = style.new_axes(
        _title(results, "after the last round", made, None),
        "",
        _axis(results),
        wide=len(boxes) > 5,
    )
    drawn = axes.boxplot(
        [values for _, values in boxes],
        widths=0.5,
        showfliers=False,
        patch_artist=True,
        medianprops={"color": "black"},
    )
    for number, ((_, values), box, colour) in enumerate(
        zip(boxes, drawn["boxes"], colours, strict=True), start=1
    ):
        box.set(facecolor=colour, alpha=0.45, edgecolor=colour)
        offsets = [_SPREAD * (index % 3 - 1) for index in range(len(values))]
        axes.plot(
            [number + offset for offset in offsets], values, "o", color=colour, ms=3.5, zorder=3
        )
    axes.set_xticks(
        range(1, len(boxes) + 1),
        [label for label, _ in boxes],
        fontsize="small" if len(boxes) > 6 else "medium",
        rotation=45 if len(boxes) > 10 else 0,
    )
    axes.grid(visible=False, axis="x")
    return style.save(figure, path)


FIGURES: dict[str, Callable[[Results, Path], Path]] = {
    "gap": draw_gap,
    "accuracy": draw_accuracy,
    "frontier": draw_frontier,
    "box": draw_box,
}


def _draw_levels(axes: Any, results: Results, curves: Sequence[Curve]) -> None:
    """Draw a curve a level: the colour says epsilon, the line style whatever else was varied."""
    others = [key for key in results.varied if key != EPSILON]
    colours = _colours(results)
    rest = list(dict.fromkeys(level_label(curve.level, others) for curve in curves))
    lines = dict(zip(rest, _cycle(style.LINE_STYLES, len(rest)), strict=True))
    for curve in curves:
        by_style = EPSILON in results.varied
        style.draw_curve(
            axes,
            curve.rounds,
            curve.mean,
            curve.error,
            color=colours[curve.level],
            ls=lines[level_label(curve.level, others)] if by_style else "-",
            label=level_label(curve.level, results.varied) or "private",
        )


def _colours(results: Results) -> dict[Level, Any]:
    """Return a colour for each level: by epsilon, or by what else was varied if that was not."""
    levels = list(dict.fromkeys(run.level for run in results.private))
    if len(levels) == 1:
        return {levels[0]: style.PRIVATE}
    if EPSILON not in results.varied:
        return dict(zip(levels, style.sequential_colours(len(levels)), strict=True))
    epsilons = sorted({float(dict(level)[EPSILON]) for level in levels}, reverse=True)
    colours = dict(zip(epsilons, style.sequential_colours(len(epsilons)), strict=True))
    return {level: colours[float(dict(level)[EPSILON])] for level in levels}


def _draw_baseline_bands(axes: Any, results: Results) -> None:
    baselines = baseline_finals(results)
    for final, line in zip(baselines, _cycle(style.LINE_STYLES, len(baselines)), strict=True):
        mean, error = mean_and_error(final.values)
        label = baseline_label(final.level, [other.level for other in baselines])
        axes.axhline(mean, color=style.NO_PRIVACY, ls=line, lw=1.5, label=label)
        if not math.isnan(error):
            axes.axhspan(mean - error, mean + error, color=style.NO_PRIVACY, alpha=0.18, lw=0)


def _epsilon_axis(axes: Any, epsilons: Sequence[float]) -> None:
    """Mark the budgets themselves on a logarithmic axis."""
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    if len(epsilons) > 8:
        axes.tick_params(axis="x", rotation=45)


def _axis(results: Results) -> str:
    return f"{results.metric} {_HELD_OUT}"


def _title(results: Results, what: str, drawn: Sequence[Any], errors: str | None) -> str:
    """Return the title: data and model by the task's name for them, and how many trials."""
    counts = {item.trials if isinstance(item, Curve) else len(item.values) for item in drawn}
    if counts == {1}:
        trials = "single seed"
    else:
        number = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
        trials = f"{number} trials" + (f", {errors}: standard error" if errors else "")
    data = results.data or results.task
    fixed = ""
    epsilon = dict(results.private[0].level).get(EPSILON)
    if EPSILON not in results.varied and epsilon:
        fixed = f", ε₁ = {float(epsilon):g}"
    return f"{data}{fixed}\n{results.metric} {what}".rstrip() + f" ({trials})"


def _cycle(items: Sequence[str], count: int) -> list[str]:
    return [items[index % len(items)] for index in range(count)]
