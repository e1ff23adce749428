"""The tally of a cohort's replies."""

import json

import pytest
from flwr.app import MetricRecord, RecordDict

from flwr_sdp.strategies import LocalGuarantee
from flwr_sdp.strategies.tally import Tally
from tests.messages import MARKS

FIRST = Tally(
    used=3, failed=1, refused=2, unmarked_used=1, unmarked_refused=1, projected=2, kept=2.5,
    local=LocalGuarantee(epsilon_direction=50.0, epsilon_magnitude=10.0),
    declared=4.0, longest_report=4.5, exceptions={"a client failed: x": 1, "other": 2},
)  # fmt: skip
SECOND = Tally(
    used=4, projected=1, kept=4.0,
    local=LocalGuarantee(epsilon_direction=40.0, epsilon_magnitude=12.0),
    declared=5.0, longest_report=5.5, exceptions={"other": 3},
)  # fmt: skip


def added(*tallies):
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


def test_sum_counts_all_and_keeps_the_weakest():
    assert added(FIRST, SECOND) == Tally(
        used=7, failed=1, refused=2, unmarked_used=1, unmarked_refused=1, projected=3, kept=6.5,
        local=LocalGuarantee(epsilon_direction=50.0, epsilon_magnitude=12.0),
        declared=5.0, longest_report=5.5, exceptions={"a client failed: x": 1, "other": 5},
    )  # fmt: skip


def test_order_does_not_matter():
    assert added(FIRST, SECOND, Tally()) == added(SECOND, Tally(), FIRST)


@pytest.mark.parametrize("tally", [Tally(), FIRST, SECOND])
def test_tally_survives_json(tally):
    assert Tally.from_dict(json.loads(json.dumps(tally.to_dict()))) == tally


def test_kinds_of_exceptions_are_bounded_and_their_number_is_not():
    """Clients write the texts."""
    tally = Tally()
    for index in range(200):
        tally.note(f"a client failed: {index}")
    assert len(tally.exceptions) == 51
    assert sum(tally.exceptions.values()) == 200
    other = Tally()
    other.add(tally)
    assert sum(other.exceptions.values()) == 200
    assert len(other.exceptions) == 51


def test_noise_that_is_not_secure_is_an_exception_and_no_metric():
    tally = Tally()
    tally.note_metrics(RecordDict({"metrics": MetricRecord({**MARKS, "num-examples": 1})}))
    assert tally.exceptions == {}
    marks = {**MARKS, "num-examples": 1, "ldp-insecure-generator": 1.0}
    for _ in range(2):
        tally.note_metrics(RecordDict({"metrics": MetricRecord(marks)}))
    ((text, count),) = tally.exceptions.items()
    assert text.startswith("a device drew its noise from a generator that is not secure")
    assert count == tally.insecure == 2


def test_noise_that_is_not_secure_is_not_lost_among_other_kinds():
    """Of which clients may write any number; nor on the way to a checkpoint and back."""
    marks = MetricRecord({**MARKS, "ldp-insecure-generator": 1.0})
    for first in (True, False):
        seeded, flood = Tally(), Tally()
        seeded.note_metrics(RecordDict({"metrics": marks}))
        for index in range(200):
            flood.note(f"a client failed: {index}")
        total = added(*((seeded, flood) if first else (flood, seeded)))
        assert total.insecure == Tally.from_dict(json.loads(json.dumps(total.to_dict()))).insecure
        assert total.insecure == 1


def test_texts_are_one_short_line():
    tally = Tally()
    tally.note("a\n\tb " + "c" * 500)
    (text,) = tally.exceptions
    assert text.startswith("a b c")
    assert len(text) == 200
