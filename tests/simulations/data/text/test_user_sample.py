"""A sample of users, while their texts stream by."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.data.text.user_sample import UserSample
from tests.statistics_helpers import PROPERTY, assert_detects, assert_frequency

PAIRS = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 99).map(str)), max_size=60)


def sampled(pairs, max_users=None):
    sample = UserSample(max_users)
    for user, text in pairs:
        sample.add(user, text)
    return dict(sample.texts())


@PROPERTY
@given(PAIRS)
def test_without_a_limit_all_texts_are_kept_by_user(pairs):
    texts = {}
    for user, text in pairs:
        texts.setdefault(user, []).append(text)
    assert sampled(pairs) == texts
    assert list(sampled(pairs)) == sorted(texts)


@PROPERTY
@given(PAIRS, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_order_of_the_texts_does_not_say_who_is_kept(pairs, max_users, random):
    kept = sampled(pairs, max_users)
    everything = sampled(pairs)
    assert len(kept) == min(max_users, len(everything))
    assert all(texts == everything[user] for user, texts in kept.items())
    random.shuffle(pairs)
    assert set(sampled(pairs, max_users)) == set(kept)


@PROPERTY
@given(PAIRS, st.integers(1, 5))
def test_what_is_wanted_is_kept_and_nothing_else(pairs, max_users):
    sample = UserSample(max_users)
    for user, text in pairs:
        wanted = sample.wants(user)
        sample.add(user, text)
        assert (text in dict(sample.texts()).get(user, [])) == wanted


def test_every_user_is_as_likely():
    """Of 4,000 users 1,000 are kept; the first half of the names has its share, at 5 sigma."""
    pairs = [(f"user-{number:04}", "text") for number in range(4000)]

    def check(kept):
        assert_frequency(sum(user < "user-2000" for user in kept), 1000, 0.5)

    check(sampled(pairs, 1000))
    assert_detects(check, dict(pairs[:1000]))


def test_no_more_than_the_sample_is_in_memory():
    """20,000 users of 1 kB each, ten of them kept: far below the 20 MB of all."""
    tracemalloc.start()
    try:
        sampled(((f"user-{n}", f"{n} " + "x" * 1000) for n in range(20_000)), 10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000


@pytest.mark.parametrize("max_users", [0, -1, 1.5, True])
def test_limits_out_of_range(max_users):
    with pytest.raises(ValueError, match="max_users must be an integer >= 1; got"):
        UserSample(max_users)
