"""Numbers for people, rounded so that an upper bound stays one."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context


def round_up(value: float, digits: int) -> str:
    """Return `value` with so many digits, never below it by more than 1e-12 of it."""
    if not math.isfinite(value):
        return str(value)
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(
        value - 1e-12 * abs(value)
    )
    return f"{float(rounded):.{digits}g}"


def power_of_ten(log_bound: float) -> str:
    """Return ``exp(log_bound)`` as a power of ten, never below it; 1 where it says nothing."""
    if log_bound >= 0.0:
        return "1 (no protection)"
    return f"10^{round_up(log_bound / math.log(10.0), 3)}"
