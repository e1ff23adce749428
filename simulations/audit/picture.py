"""The picture: private images, and what an onlooker gets of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flwr_sdp import seeded_generator
from flwr_sdp.reconstruction import tolerance_for
from simulations.audit.images import PIXELS, SIDE, Floats, cosines, uniform_directions, unit
from simulations.audit.updates import Attacked

_INK = "#222222"
_FAINT = "#8a8a8a"
_FOUND = "#1f5fa8"

# Inches.
_CELL, _GAP, _GROUP_GAP = 0.92, 0.13, 0.20
_NUMBER, _BLOCK_GAP = 0.27, 0.20
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.12, 0.86, 0.36


@dataclass(frozen=True, slots=True)
class _Column:
    group: str
    title: str
    images: Floats


def at_cosine(images: Floats, cosine: float, *, seed: int) -> Floats:
    """Return images at exactly this cosine with the given ones, and otherwise random."""
    along = unit(images)
    noise = uniform_directions(len(images), PIXELS, seeded_generator(seed, "audit", "picture"))
    across = unit(noise - np.sum(noise * along, axis=1, keepdims=True) * along)
    made: Floats = cosine * along + math.sqrt(1.0 - cosine * cosine) * across
    return made


def draw(
    path: Path,
    attacks: list[Attacked],
    *,
    rows: int,
    probability: float,
    tolerance: float,
    seed: int,
) -> None:
    """Draw a block of rows for each attack on digits.

    Parameters
    ----------
    path : Path
        The PNG.
    attacks : list of Attacked
        On the same images.
    rows : int
        How many of these, of different labels as far as there are.
    probability : float
        The last column is at the cosine that is reached with at most this probability.
    tolerance : float
        Cosine from which on an image counts as recovered: printed in colour.
    seed : int
        Of the last column.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    blocks = [_columns(attack, rows, probability, seed) for attack in attacks]
    lefts, right = _places(blocks[0])
    lines = len(blocks[0][0].images)
    block_height = lines * (_CELL + _NUMBER)
    width = right + _RIGHT
    height = _TOP + len(blocks) * block_height + (len(blocks) - 1) * _BLOCK_GAP + _BOTTOM
    figure = pyplot.figure(figsize=(width, height))
    for number, (attack, block) in enumerate(zip(attacks, blocks, strict=True)):
        top = height - _TOP - number * (block_height + _BLOCK_GAP)
        for left, column in zip(lefts, block, strict=True):
            for line in range(lines):
                bottom = top - line * (_CELL + _NUMBER) - _CELL
                axes = figure.add_axes(
                    (left / width, bottom / height, _CELL / width, _CELL / height)
                )
                _draw_image(axes, column.images[line])
                if column is not block[0]:
                    cosine = float(cosines(column.images[line], block[0].images[line]))
                    _draw_cosine(axes, cosine, tolerance)
        figure.text(
            0.26 / width, (top - (block_height - _NUMBER) / 2) / height,
            f"{attack.name}\n{attack.dim:,} weights",
            rotation=90, ha="center", va="center", fontsize=9.5, color=_INK, linespacing=1.4,
        )  # fmt: skip
    _draw_heads(figure, blocks[0], lefts, width, height)
    figure.text(
        lefts[0] / width, 0.13 / height,
        f"Below each image: its cosine with the private one; from {tolerance:g} on it counts as "
        "recovered (blue).",
        fontsize=8.5, color=_FAINT, va="center",
    )  # fmt: skip
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _columns(attack: Attacked, rows: int, probability: float, seed: int) -> list[_Column]:
    shown = _first_of_each_label(attack.images.labels, rows)
    truth = attack.images.pixels[shown]
    budgets = sorted((e for e in attack.recovered if 0.0 < e < math.inf), reverse=True)
    smallest = budgets[-1]
    allowed = at_cosine(truth, _allowed(attack.losses[smallest], probability), seed=seed)
    onlooker, comparison = "what an onlooker recovers", "for comparison"
    return [
        _Column("", "private\nimage", truth),
        _Column(onlooker, "no\nprivacy", attack.recovered[math.inf][shown]),
        *(_Column(onlooker, f"ε₁ = {e:g}", attack.recovered[e][shown]) for e in budgets),
        _Column(comparison, "average\ndigit", attack.recovered[0.0][shown]),
        _Column(comparison, f"bound at\nε₁ = {smallest:g}", allowed),
    ]


def _places(columns: list[_Column]) -> tuple[list[float], float]:
    """Return the left edge of each column, and the right edge of the last."""
    lefts = [_LEFT]
    for before, after in pairwise(columns):
        gap = _GAP if before.group == after.group else _GAP + _GROUP_GAP
        lefts.append(lefts[-1] + _CELL + gap)
    return lefts, lefts[-1] + _CELL


def _draw_heads(
    figure: Any, columns: list[_Column], lefts: list[float], width: float, height: float
) -> None:
    for left, column in zip(lefts, columns, strict=True):
        for number, text in enumerate(reversed(column.title.splitlines())):
            figure.text(
                (left + _CELL / 2) / width, (height - _TOP + 0.1 + 0.17 * number) / height, text,
                fontsize=9.5, color=_INK, ha="center", va="baseline",
            )  # fmt: skip
    for group in dict.fromkeys(column.group for column in columns if column.group):
        own = [left for left, column in zip(lefts, columns, strict=True) if column.group == group]
        start, end = own[0], own[-1] + _CELL
        figure.text(
            (start + end) / 2 / width, (height - 0.27) / height, group,
            fontsize=9.5, color=_INK, ha="center", va="bottom", fontstyle="italic",
        )  # fmt: skip
        level = (height - 0.32) / height
        figure.add_artist(
            _line([start / width, end / width], [level, level], color=_FAINT, linewidth=0.8)
        )


def _line(x: list[float], y: list[float], **style: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(x, y, **style)


def _allowed(epsilon: float, probability: float) -> float:
    try:
        return tolerance_for(
            probability=probability, epsilon=epsilon, dim_target=PIXELS, rule="tight"
        )
    except ValueError:  # even the exact image may be found with more
        return 1.0


def _first_of_each_label(labels: Any, count: int) -> list[int]:
    """Return indices of images, of different labels as far as there are."""
    _, firsts = np.unique(labels, return_index=True)
    rest = np.setdiff1d(np.arange(len(labels)), firsts)
    return [int(i) for i in np.concatenate([firsts, rest])[:count]]


def _draw_image(axes: Any, pixels: Floats) -> None:
    """Draw an image as ink on paper; only its direction is known, so its own peak is black."""
    ink = np.clip(pixels, 0.0, None)
    axes.imshow(ink.reshape(SIDE, SIDE), cmap="gray_r", vmin=0.0, vmax=max(float(ink.max()), 1e-12))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(color=_FAINT, linewidth=0.6)


def _draw_cosine(axes: Any, cosine: float, tolerance: float) -> None:
    recovered = cosine >= tolerance
    axes.set_xlabel(
        f"{cosine:.2f}",
        fontsize=9,
        labelpad=2.5,
        color=_FOUND if recovered else _FAINT,
        fontweight="bold" if recovered else "normal",
    )
