"""How figures look: one place for size, colours, axes and files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRIVATE = "#1f5fa8"
NO_PRIVACY = "#8a8a8a"
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")
_WIDTH, _HEIGHT, _DPI = 6.4, 4.0, 150
_TITLE_COLUMNS = 64
_DARKEST, _LIGHTEST = 0.0, 0.82  # of viridis: its yellow is too light on white
_BAND = 0.18


def new_axes(title: str, x_label: str, y_label: str, *, wide: bool = False) -> tuple[Any, Any]:
    """Return figure and axes; a `wide` one has room for a legend beside the lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(_WIDTH + 1.6 * wide, _HEIGHT), layout="constrained")
    lines = [part for line in title.splitlines() for part in textwrap.wrap(line, _TITLE_COLUMNS)]
    axes.set_title("\n".join(lines), fontsize="medium")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def sequential_colours(count: int) -> list[Any]:
    """Return so many colours from dark to light, for values in their order."""
    import matplotlib

    step = (_LIGHTEST - _DARKEST) / max(count - 1, 1)
    return [matplotlib.colormaps["viridis"](_DARKEST + step * index) for index in range(count)]


def draw_curve(
    axes: Any,
    rounds: Sequence[int],
    mean: Sequence[float],
    error: Sequence[float],
    **style: Any,
) -> None:
    """Draw a curve, with a band of one standard error where that is known."""
    axes.plot(rounds, mean, lw=1.8, **style)
    if all(value == value for value in error):  # not nan
        low = [value - width for value, width in zip(mean, error, strict=True)]
        high = [value + width for value, width in zip(mean, error, strict=True)]
        axes.fill_between(rounds, low, high, color=style["color"], alpha=_BAND, lw=0)


def round_axis(axes: Any) -> None:
    """Mark rounds, which are whole numbers from 0."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend_beside(figure: Any, axes: Any) -> None:
    """Put the legend to the right of the axes, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 0:
        figure.legend(handles, labels, loc="outside right center", frameon=False)


def save(figure: Any, path: Path) -> Path:
    """Write the picture, and return its path."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
    pyplot.close(figure)
    return path
