"""The keystream, what is made of it, and that no two processes share it."""

import copy
import hashlib
import itertools
import math
import os
import pickle
import warnings
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import special

from flwr_sdp import KeystreamGenerator, secure_generator, seeded_generator
from flwr_sdp.randomness import BLOCK, as_generator
from tests.statistics_helpers import (
    assert_counts,
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_mean_close,
)

DTYPES = [np.float32, np.float64]
ALL_ONES = 2**64 - 1


class GivenWords(KeystreamGenerator):
    """A generator whose keystream is given, and repeats."""

    def __init__(self, *words):
        super().__init__(bytes(32), secure=False)
        self._words = itertools.cycle(words)

    def _keystream(self, buffer, count):
        return np.array(list(itertools.islice(self._words, count)), dtype=np.uint64)


class GivenLogUniform(KeystreamGenerator):
    """A generator whose logarithm of a uniform number is given."""

    def __init__(self, value):
        super().__init__(bytes(32), secure=False)
        self._value = value

    def log_uniform(self):
        return self._value


def aes_ctr_words(key, count):
    """Return the keystream: AES-256 in counter mode over zeros, from a zero counter."""
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8")


# ------------------------------------------------------------------ bits
def test_bits_are_the_keystream():
    """Read in pieces, odd ones and one of more than a mebibyte included."""
    key = bytes(range(32))
    rng = KeystreamGenerator(key, secure=False)
    pieces = [rng.bits(count) for count in (1, 3, 0, 140_001, 2)]
    assert [piece.size for piece in pieces] == [1, 3, 0, 140_001, 2]
    np.testing.assert_array_equal(np.concatenate(pieces), aes_ctr_words(key, 140_007))


def test_bits_known_answer():
    """First block under the zero key: AES-256 of the zero block (H of the GCM test case 13)."""
    words = KeystreamGenerator(bytes(32), secure=False).bits(2)
    assert words.tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_seeded_key_is_a_hash_of_its_tagged_parts():
    text = b"flwr-sdp seeded stream" + b"int:1:7" + b"str:6:cohort" + b"int:2:12"
    expected = aes_ctr_words(hashlib.sha256(text).digest(), 4)
    np.testing.assert_array_equal(seeded_generator(7, "cohort", 12).bits(4), expected)


def test_seeded_streams_repeat():
    first, second = (seeded_generator(1, "cohort", 2).bits(8) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_seeded_streams_differ_when_any_part_does():
    parts = [
        (1, "ab", "c"),
        (1, "a", "bc"),
        (1, "abc"),
        (1, "ab", "c", ""),
        (1, "ab", "c", 0),
        (2, "ab", "c"),
        (-1, "ab", "c"),
        (1, "c", "ab"),
        (1,),
        (1, 1),
        (1, "1"),
        (11,),
        (1, "a:1:b"),
        (1, "é"),
        (2**80,),
    ]
    streams = {seeded_generator(*part).bits(2).tobytes() for part in parts}
    assert len(streams) == len(parts)


@pytest.mark.parametrize("part", [True, 1.5, None, b"1", np.float64(1.0)])
def test_seeded_generator_refuses_other_parts(part):
    with pytest.raises(ValueError, match="seed or key"):
        seeded_generator(part)
    with pytest.raises(ValueError, match="seed or key"):
        seeded_generator(1, part)


def test_only_the_secure_generator_says_so():
    assert secure_generator().is_secure
    assert as_generator(None).is_secure
    assert not seeded_generator(1).is_secure
    assert not as_generator(np.random.default_rng(1)).is_secure


def test_secure_streams_differ():
    assert secure_generator().bits(2).tobytes() != secure_generator().bits(2).tobytes()


# ------------------------------------------------------------------ one process, one stream
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
@pytest.mark.parametrize("make", [secure_generator, lambda: seeded_generator(1)])
def test_generator_cannot_be_duplicated(make, duplicate):
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        duplicate(make())


def in_child(action):
    """Return the bytes that `action` gives in a forked process."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, action())
        except RuntimeError as error:
            os.write(writer, f"RuntimeError: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@needs_fork
def test_secure_generator_takes_a_new_key_after_a_fork():
    rng = secure_generator()
    rng.bits(5)
    streams = [in_child(lambda: rng.bits(8).tobytes()) for _ in range(2)]
    streams.append(rng.bits(8).tobytes())
    assert [len(stream) for stream in streams] == [64, 64, 64]
    assert len(set(streams)) == 3


@needs_fork
def test_secure_generator_goes_on_after_a_fork():
    rng = secure_generator()
    answer = in_child(lambda: rng.bits(4).tobytes() + rng.bits(4).tobytes())
    assert len(answer) == 64
    assert answer[:32] != answer[32:]


@needs_fork
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.uniform(),
        lambda rng: rng.bernoulli(1.0),
        lambda rng: rng.normal(3),
    ],
    ids=["uniform", "bernoulli", "normal"],
)
def test_seeded_generator_refuses_after_a_fork(draw):
    rng = seeded_generator(1)

    def action():
        draw(rng)
        return b"drew"

    assert in_child(action).startswith(b"RuntimeError: a seeded generator was carried")
    draw(rng)  # the parent goes on


@needs_fork
def test_seeded_generator_made_in_the_child_works():
    answer = in_child(lambda: seeded_generator(1, 5).bits(2).tobytes())
    assert answer == seeded_generator(1, 5).bits(2).tobytes()


# ------------------------------------------------------------------ scalars
def test_uniform():
    """KS test of 10,000 draws; false alarms: 6e-7. The mutant is a power of them."""
    rng = seeded_generator(10)
    samples = np.array([rng.uniform() for _ in range(10_000)])
    assert_follows(samples, lambda x: x)
    assert_detects(assert_follows, samples**1.1, lambda x: x)


def test_uniform_is_inside_the_open_interval():
    assert GivenWords(0).uniform() == 2.0**-53
    assert GivenWords(ALL_ONES).uniform() == 1.0 - 2.0**-53


def test_log_uniform():
    """KS test of 10,000 draws; false alarms: 6e-7. The mutant is 10 % too large."""
    rng = seeded_generator(11)
    samples = np.array([-rng.log_uniform() for _ in range(10_000)])
    assert_follows(samples, lambda x: -np.expm1(-x))
    assert_detects(assert_follows, 1.1 * samples, lambda x: -np.expm1(-x))


def test_log_uniform_far_in_the_tail():
    """However many leading words are zero, the logarithm is right."""
    log_two = math.log(2.0)
    assert GivenWords(1, 0).log_uniform() == pytest.approx(-64 * log_two, rel=1e-15)
    assert GivenWords(1, 2**63).log_uniform() == pytest.approx(
        math.log(1.5) - 64 * log_two, rel=1e-15
    )
    assert GivenWords(0, 2**63, 0).log_uniform() == pytest.approx(-65 * log_two, rel=1e-15)
    assert GivenWords(0, 0, 0, 2**62, 0).log_uniform() == pytest.approx(-194 * log_two, rel=1e-15)


def test_log_uniform_never_positive():
    assert GivenWords(ALL_ONES).log_uniform() <= 0.0
    assert math.isfinite(GivenWords(ALL_ONES).normal_scalar())


@pytest.mark.parametrize("log_odds", [0.0, 1.0, 3.0, -3.0])
def test_bernoulli_frequency(log_odds):
    """Exact binomial test of 5,000 draws; false alarms: 6e-7 a case.

    The mutants are a coin of the opposite log-odds and coins whose log-odds are 1 off.
    """
    rng = seeded_generator(12, str(log_odds))

    def check(log_odds_drawn):
        successes = sum(rng.bernoulli(log_odds_drawn) for _ in range(5000))
        assert_frequency(successes, 5000, special.expit(log_odds))

    check(log_odds)
    assert_detects(check, log_odds + 1.0)
    assert_detects(check, log_odds - 1.0)
    if log_odds != 0:
        assert_detects(check, -log_odds)


@pytest.mark.parametrize("size", [0.0, 1.0, 36.0, 40.0, 100.0, 700.0, 5000.0, 1e6])
def test_bernoulli_is_exact_at_large_log_odds(size):
    """The rare side is drawn exactly when log U is below its log-probability."""
    rare = -float(np.logaddexp(0.0, size))  # -log(1 + e^size), without overflow
    below, above = rare * (1 + 1e-14), rare * (1 - 1e-14)
    assert GivenLogUniform(below).bernoulli(size) is False
    assert GivenLogUniform(above).bernoulli(size) is True
    if size > 0:
        assert GivenLogUniform(below).bernoulli(-size) is True
        assert GivenLogUniform(above).bernoulli(-size) is False


def test_bernoulli_at_log_odds_a_hundred():
    rare = -math.log1p(math.exp(100.0))
    assert GivenLogUniform(math.nextafter(rare, -math.inf)).bernoulli(100.0) is False
    assert GivenLogUniform(rare).bernoulli(100.0) is True


@pytest.mark.parametrize("high", [2, 3, 7, 1000])
def test_integer_is_uniform(high):
    """Chi-square test of 10,000 draws; false alarms: 6e-7 a case.

    The mutant never draws the largest integer.
    """
    rng = seeded_generator(13, high)
    samples = np.array([rng.integer(high) for _ in range(10_000)])
    assert samples.min() >= 0
    assert samples.max() < high

    def check(samples):
        assert_counts(np.bincount(samples, minlength=high), np.full(high, 1 / high))

    check(samples)
    if high <= 7:
        assert_detects(check, samples % (high - 1))


def test_integer_rejects_the_words_that_would_favour_small_numbers():
    """2^64 = 1 mod 3, so exactly the last word has no place."""
    assert GivenWords(ALL_ONES, 5).integer(3) == 2
    assert GivenWords(ALL_ONES - 1, 5).integer(3) == (2**64 - 2) % 3
    assert GivenWords(ALL_ONES, ALL_ONES, 2**63).integer(2**63 + 1) == 2**63
    assert GivenWords(ALL_ONES).integer(2**64) == ALL_ONES
    assert GivenWords(ALL_ONES).integer(1) == 0


def test_normal_scalar():
    """KS test and moments of 10,000 draws; false alarms: 2e-6. The mutant is 10 % too wide."""
    rng = seeded_generator(14)

    def check(samples):
        assert_mean_close(samples, 0.0)
        assert_mean_close(samples**2, 1.0)
        assert_follows(samples, special.ndtr)

    samples = np.array([rng.normal_scalar() for _ in range(10_000)])
    check(samples)
    assert_detects(check, 1.1 * samples)


def test_normal_scalar_reaches_far_into_the_tail():
    assert abs(GivenWords(0, 0, 1, 0, 0).normal_scalar()) > 13.0


# ------------------------------------------------------------------ arrays of normals
COUNT = 2_000_000


@pytest.mark.parametrize("size", [1, 2, 7, 1000, BLOCK + 5])
def test_normals_known_answer(size):
    """Box-Muller of the keystream, block by block: every word is used, and used once.

    The first words of a block give the radii, the next ones (two angles a word for float32) the
    angles; cosines come before sines.
    """
    key = bytes(range(1, 33))
    for dtype, tolerance in ((np.float32, 2e-5), (np.float64, 1e-14)):
        expected, used = [], 0
        for start in range(0, size, BLOCK):
            count = min(BLOCK, size - start)
            pairs = -(-count // 2)
            angles = pairs if dtype is np.float64 else -(-pairs // 2)
            words = aes_ctr_words(key, used + pairs + angles)[used:]
            used += pairs + angles
            radius = np.sqrt(-2.0 * np.log((words[:pairs] + 0.5) * 2.0**-64))
            if dtype is np.float64:
                angle = 2 * np.pi * words[pairs:] * 2.0**-64
            else:  # half a circle from the signed word, the other half from its last bit
                turns = words[pairs:].view("<i4")[:pairs]
                angle = np.pi / 2 * (turns * 2.0**-31) + np.pi * (turns & 1)
            halves = [radius * np.cos(angle), (radius * np.sin(angle))[: count - pairs]]
            expected.append(np.concatenate(halves))
        rng = KeystreamGenerator(key, secure=False)
        np.testing.assert_allclose(
            rng.normal(size, dtype), np.concatenate(expected), rtol=0, atol=tolerance
        )
        np.testing.assert_array_equal(rng.bits(1), aes_ctr_words(key, used + 1)[used:])


@cache
def normals(dtype):
    return seeded_generator(20, dtype.__name__).normal(COUNT, dtype)


def irwin_hall():
    """Return sums of 12 uniforms, a common substitute for a normal: its tails are too light."""
    rng = np.random.default_rng(5)
    return sum((rng.random(COUNT) for _ in range(12)), np.full(COUNT, -6.0))


def check_moments(samples):
    samples = samples.astype(np.float64)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert_mean_close(samples**power, expected, variance=variance)


def check_tails(samples):
    for bound in (3, 4, 5):
        expected = special.ndtr(-bound)
        assert_frequency(np.count_nonzero(samples > bound), len(samples), expected)
        assert_frequency(np.count_nonzero(samples < -bound), len(samples), expected)


def check_normal_law(samples):
    assert_follows(samples, special.ndtr)


def check_pairs(samples):
    """Check that cosine and sine halves of each block of Box-Muller pairs are independent."""
    blocks = samples[: len(samples) // BLOCK * BLOCK].astype(np.float64).reshape(-1, 2, BLOCK // 2)
    x, y = blocks[:, 0].ravel(), blocks[:, 1].ravel()
    assert_mean_close(x * y, 0.0, variance=1.0)
    assert_mean_close((x**2 - 1) * (y**2 - 1), 0.0, variance=4.0)
    assert_mean_close(x[1:] * y[:-1], 0.0, variance=1.0)
    assert_mean_close(x[1:] * x[:-1], 0.0, variance=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", [check_moments, check_tails, check_normal_law, check_pairs])
def test_normals(check, dtype):
    """2,000,000 draws: moments to the 4th, counts beyond 3 to 5, KS, independence of the halves.

    False alarms: 6e-7 for each of 4 moments, 6 counts, 1 law and 4 products.
    """
    samples = normals(dtype)
    assert samples.dtype == dtype
    check(samples)


def test_normals_mutants():
    """Each check sees a defect of its own kind in as many samples."""
    samples = normals(np.float64)
    assert_detects(check_moments, irwin_hall())
    assert_detects(check_tails, irwin_hall())
    assert_detects(check_tails, np.clip(samples, -4.0, 4.0))
    assert_detects(check_moments, 1.01 * samples)
    assert_detects(check_normal_law, 1.02 * samples)
    blocks = samples[: COUNT // BLOCK * BLOCK].reshape(-1, 2, BLOCK // 2)
    repeated = blocks.copy()
    repeated[:, 1] = repeated[:, 0]  # the cosine used twice
    assert_detects(check_pairs, repeated.ravel())
    fixed = blocks * np.sqrt(2.0 / np.sum(blocks**2, axis=1, keepdims=True))  # a fixed radius
    assert_detects(check_pairs, fixed.ravel())
    reused = blocks.copy()
    reused[:, 1, :-1] = np.abs(blocks[:, 1, :-1]) * np.sign(blocks[:, 0, 1:])
    assert_detects(check_pairs, reused.ravel())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", [0, 1, 2**10, 2**30, 2**46, 2**63])
def test_normal_radius_follows_its_word(word, dtype):
    """The smallest word lies beyond 9 standard deviations, a middling one beyond 6."""
    out = np.empty(6, dtype=dtype)
    GivenWords(word).fill_normal(out)
    radius = np.hypot(out[:3].astype(np.float64), out[3:])
    expected = math.sqrt(-2.0 * math.log((word + 0.5) * 2.0**-64))
    np.testing.assert_allclose(radius, expected, rtol=1e-6 if dtype is np.float32 else 1e-14)
    if word == 0:
        assert out.max() > 9.0
    if word == 2**30:
        assert expected > 6.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5, 1001])
def test_extreme_words_give_finite_normals(size, dtype):
    for word in (0, 1, ALL_ONES, ALL_ONES - 1, 2**32 - 1, 2**64 - 2**11):
        out = np.full(size, np.nan, dtype=dtype)
        GivenWords(word).fill_normal(out)
        assert np.all(np.isfinite(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_normals_of_any_size(size, dtype):
    samples = seeded_generator(21, size).normal(size, dtype)
    assert samples.shape == (size,)
    assert samples.dtype == dtype
    assert np.all(np.isfinite(samples))
    assert len(np.unique(samples)) >= 0.99 * size


def test_normals_of_odd_sizes_have_the_right_law():
    """KS test of 6,000 draws in triples, and their pairwise products; false alarms: 2e-6.

    The mutant's last number, the one without a partner, repeats the first.
    """
    rng = seeded_generator(22)
    triples = np.array([rng.normal(3) for _ in range(2000)])

    def check(triples):
        assert_follows(triples.ravel(), special.ndtr)
        assert_mean_close(triples * np.roll(triples, 1, axis=1), 0.0, variance=1.0)

    check(triples)
    repeated = triples.copy()
    repeated[:, 2] = repeated[:, 0]
    assert_detects(check, repeated)


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.complex128])
def test_normals_of_other_types_are_refused(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        seeded_generator(1).normal(4, dtype)


# ------------------------------------------------------------------ what a caller may pass
def test_as_generator_passes_a_generator_through():
    rng = seeded_generator(1)
    assert as_generator(rng) is rng


def test_as_generator_takes_a_key_from_numpy():
    numpy_rng = np.random.default_rng(1)
    first, second = as_generator(numpy_rng), as_generator(numpy_rng)
    again = as_generator(np.random.default_rng(1))
    words = first.bits(4)
    np.testing.assert_array_equal(words, again.bits(4))
    assert words.tobytes() != second.bits(4).tobytes()
    key = np.random.default_rng(1).bytes(32)
    np.testing.assert_array_equal(words, aes_ctr_words(key, 4))


@pytest.mark.parametrize("rng", [0, 42, "seed", 1.5, True, np.random.PCG64(1)])
def test_as_generator_refuses_seeds(rng):
    with pytest.raises(TypeError, match="rng must be"):
        as_generator(rng)
