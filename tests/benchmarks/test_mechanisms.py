"""Batches are not loops over rows."""

from tests.benchmarks.mechanisms import batches


def test_batches_cost_no_more_than_those_of_the_other_mechanisms():
    """Three times the limits of the benchmark, for busy machines; loops cost 30 and 200 times."""
    limits = {name: (value, limit) for name, value, limit in batches(5) if " over " in name}
    assert len(limits) == 2
    for name, (value, limit) in limits.items():
        assert value < 3.0 * limit, name
