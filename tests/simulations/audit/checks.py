"""What the tests of the attacks share."""

import numpy as np
from scipy import stats

from tests.statistics_helpers import FALSE_ALARM


def assert_rate_at_most(succeeded, bound):
    """Check that a rate of success is consistent with a bound, at false alarms of 5.7e-7."""
    count, trials = int(np.count_nonzero(succeeded)), len(succeeded)
    p_value = stats.binom.sf(count - 1, trials, bound)
    assert p_value >= FALSE_ALARM, f"{count} of {trials}, bound {bound:.3g}: p-value {p_value:.2g}"
