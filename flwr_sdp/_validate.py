"""Checks of user input, shared by all packages.

Every check is positive (``not lower < value``), so that NaN fails it, and every message names
the field, the value and the range that would have been accepted. Flower sends the text of an error
to the server, so no message has anything of what was to be privatized: of data it names the type.
"""

from __future__ import annotations

import math
from numbers import Integral, Number, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


def number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    minimum: float = -math.inf,
    maximum: float = math.inf,
) -> float:
    """Return `value` as a finite float inside the range, or raise ``ValueError``.

    ``above`` and ``below`` exclude their end point; ``minimum`` and ``maximum`` include it.
    """
    # The float is what counts: a fraction may be above 0 and too small for one.
    number = _as_float(value)
    if not (math.isfinite(number) and above < number < below and minimum <= number <= maximum):
        allowed = _range(value, above, below, minimum, maximum)
        raise ValueError(f"{name} must be a finite number{allowed}; got {shown(value)}")
    return number


def datum(name: str, value: Any, *, minimum: float = -math.inf) -> float:
    """Return a number of the data as a finite float, or raise ``ValueError``."""
    number = _as_float(value)
    if not (math.isfinite(number) and minimum <= number):
        allowed = _range(None, -math.inf, math.inf, minimum, math.inf)  # whatever the datum is
        raise ValueError(
            f"{name} must be a finite number{allowed}; got a value of type {type(value).__name__}"
        )
    return number


def numbers(name: str, values: Any) -> NDArray[np.float64]:
    """Return an array of data as float64, or raise ``ValueError`` if an entry is not finite."""
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be an array of numbers; got {dtype_name(values.dtype)}")
    if isinstance(values, np.ma.MaskedArray):  # what is masked would be released
        raise ValueError(
            f"{name} must be an array of numbers, all of them to be released; got a MaskedArray"
        )
    with np.errstate(over="ignore"):  # of long doubles, which are refused below
        array: NDArray[np.float64] = values.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite in every entry; it has an infinite or NaN one")
    return array


def integer(name: str, value: Any, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int inside ``[minimum, maximum]``, or raise ``ValueError``."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_integer and minimum <= value and (maximum is None or value <= maximum)):
        upper = math.inf if maximum is None else maximum
        allowed = _range(value, -math.inf, math.inf, minimum, upper)
        raise ValueError(f"{name} must be an integer{allowed}; got {shown(value)}")
    return int(value)


def store(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass to what a check returned.

    A number of a caller's own type, such as ``numpy.float16``, would set the precision of
    everything that is computed from it.
    """
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def within(value: float, limit: float) -> bool:
    """Return whether a computed number keeps to a limit that was written as a decimal.

    What is equal on paper is equal here: 0.1 + 0.2 and 3 x 0.1 keep to 0.3. Nothing passes the
    limit by more than four units in its last place.
    """
    # Relative to u = 2^-53: each decimal, the limit too, was rounded by u at most, a product by u
    # more, and math.fsum by u once, however many it adds. That is 4 u, and an ulp is above u.
    return value <= limit + 4.0 * math.ulp(limit)


def apart(*values: float, digits: int = 6) -> list[str]:
    """Return numbers as text of so many digits, or of as many as it takes to tell them apart."""
    while True:
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)) or digits >= 17:
            return texts
        digits += 1


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    """Return `value` if it is one of `options`, or raise ``ValueError``."""
    if not (isinstance(value, str) and value in options):
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name} must be one of {listed}; got {shown(value)}")
    return str(value)


def shown(value: Any) -> str:
    """Return a number or a short text as a text; of all else, which may be data, the type."""
    is_setting = value is None or isinstance(value, Number | np.bool_)
    is_setting |= isinstance(value, str) and len(value) <= 100
    return repr(value) if is_setting else type(value).__name__


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype; of texts and records without their lengths and fields."""
    is_plain = not isinstance(dtype, np.dtype) or dtype.kind in "biufcO"
    return str(dtype).removeprefix("torch.") if is_plain else dtype.type.__name__


def _as_float(value: Any) -> float:
    """Return NaN for what is no number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        return float(value) if is_number else math.nan
    except OverflowError:  # an int beyond every float
        return math.inf


def _range(value: Any, above: float, below: float, minimum: float, maximum: float) -> str:
    """Return what is admitted as text, which `value` must not look like unless it is equal."""
    is_real = isinstance(value, Real)  # of arrays no comparison is a truth value
    bounds = [
        f"{sign} {bound:g}"
        if (is_real and bound == value) or f"{bound:g}" != shown(value)
        else f"{sign} {bound!r}"
        for sign, bound in ((">", above), ("<", below), (">=", minimum), ("<=", maximum))
        if math.isfinite(bound)
    ]
    return " " + " and ".join(bounds) if bounds else ""
