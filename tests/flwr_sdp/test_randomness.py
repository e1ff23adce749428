"""The keystream, what is made of it, and that no two processes share it."""

import ast
import copy
import hashlib
import itertools
import math
import os
import pickle
import re
import warnings
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import special

from flwr_sdp import KeystreamGenerator, randomness, secure_generator, seeded_generator
from flwr_sdp.randomness import BLOCK, as_generator
from tests.statistics_helpers import (
    DotLaw,
    assert_counts,
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_mean_close,
    random_unit,
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

    def log_uniforms(self, count):
        return np.full(count, self._value)


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
def test_a_child_knows_that_it_is_one_by_its_id_and_by_a_count():
    """An id may be used again, and the count may not be kept on every system: there are both."""
    process_id, forks = randomness.process()
    answer = in_child(lambda: repr(randomness.process()).encode())
    child_id, child_forks = ast.literal_eval(answer.decode())
    assert child_forks == forks + 1
    assert child_id != process_id == os.getpid()


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


# ------------------------------------------------------------------ uniforms
def test_uniform():
    """KS test of 10,000 draws; false alarms: 6e-7. The mutant is a power of them."""
    rng = seeded_generator(10)
    samples = rng.uniforms(10_000)
    assert_follows(samples, lambda x: x)
    assert_detects(assert_follows, samples**1.1, lambda x: x)


def test_uniform_is_inside_the_open_interval():
    assert GivenWords(0).uniform() == 2.0**-53
    assert GivenWords(ALL_ONES).uniform() == 1.0 - 2.0**-53


def test_log_uniform():
    """KS test of 10,000 draws; false alarms: 6e-7. The mutant is 10 % too large."""
    rng = seeded_generator(11)
    samples = -rng.log_uniforms(10_000)
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


@pytest.mark.parametrize("log_odds", [0.0, 1.0, 3.0, -3.0])
def test_bernoulli_frequency(log_odds):
    """Exact binomial test of 5,000 draws; false alarms: 6e-7 a case.

    The mutants are a coin of the opposite log-odds and coins whose log-odds are 1 off.
    """
    rng = seeded_generator(12, str(log_odds))

    def check(log_odds_drawn):
        successes = np.count_nonzero(rng.bernoullis(log_odds_drawn, 5000))
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
    samples = rng.integers(high, 10_000).astype(np.int64)
    assert samples.min() >= 0
    assert samples.max() < high

    def check(samples):
        assert_counts(np.bincount(samples, minlength=high), np.full(high, 1 / high))

    check(samples)
    if high <= 7:
        assert_detects(check, samples % (high - 1))


def test_integer_rejects_the_words_that_would_favour_small_numbers():
    """2^64 = 1 mod 3, so exactly the last word has no place."""
    assert GivenWords(ALL_ONES, 5).integers(3, 1) == 2
    assert GivenWords(ALL_ONES - 1, 5).integers(3, 1) == (2**64 - 2) % 3
    assert GivenWords(ALL_ONES, ALL_ONES, 2**62).integers(2**62 + 1, 1) == 2**62
    assert GivenWords(ALL_ONES).integers(1, 1) == 0


def test_one_number_is_the_first_of_many():
    for name, arguments in (("uniform", ()), ("log_uniform", ()), ("bernoulli", (0.3,))):
        one = getattr(seeded_generator(15), name)(*arguments)
        many = getattr(seeded_generator(15), name + "s")(*arguments, 1)
        assert many.shape == (1,)
        assert one == many[0]


def test_numbers_are_replaced_where_they_stand():
    """What was refused is drawn again in its own place."""
    words = GivenWords(7, ALL_ONES, 8, ALL_ONES, 5)
    assert words.integers(3, 3).tolist() == [7 % 3, 5 % 3, 8 % 3]
    logs = GivenWords(2**63, 0, 2**62, 1, 0, 0, 0).log_uniforms(3) / math.log(2.0)
    np.testing.assert_allclose(logs, [-1.0, -128.0, -2.0], rtol=1e-15)


def test_spawned_generators_are_keyed_by_the_stream():
    key = bytes(range(32))
    rng = KeystreamGenerator(key, secure=False)
    first, second = rng.spawn(2)
    words = aes_ctr_words(key, 9)
    for child, own in ((first, words[:4]), (second, words[4:8])):
        np.testing.assert_array_equal(child.bits(3), aes_ctr_words(own.tobytes(), 3))
        assert not child.is_secure
    assert rng.bits(1)[0] == words[8]
    assert secure_generator().spawn(1)[0].is_secure
    assert rng.spawn(0) == []


# ------------------------------------------------------------------ normals
COUNT = 2_000_000
KEY = 2  # the first of 32 bytes


def box_muller(words, dtype):
    """Return the normals of a block: radii from the first half of its words, angles from the rest.

    The lowest bit of an angle's word turns its cosine round.
    """
    bits = 8 * np.dtype(dtype).itemsize
    radius_words, angle_words = np.split(words.view(f"<i{bits // 8}"), 2)
    magnitude = (radius_words & (2 ** (bits - 1) - 1)).astype(np.longdouble)
    radius = np.sqrt(-2.0 * np.log(magnitude * 2.0 ** (1 - bits)))
    angle = np.pi / 2 * (angle_words * 2.0 ** (1 - bits))
    cosine = np.cos(angle) * (1 - 2 * (angle_words & 1))
    return np.concatenate([radius * cosine, radius * np.sin(angle)])


@pytest.mark.parametrize("size", [1, 2, 7, 1000, BLOCK + 5])
def test_normals_known_answer(size):
    """Box-Muller of the keystream, block by block: every word is used, and used once.

    A number without a partner, the last of an odd count, is the cosine of one more pair. With
    float32, one radius in 2^20 takes another word; the last size has one such.
    """
    key = bytes(range(KEY, KEY + 32))
    for dtype, tolerance in ((np.float32, 2e-5), (np.float64, 1e-13)):
        even, expected, used = size - size % 2, [], 0
        counts = [min(BLOCK, even - start) for start in range(0, even, BLOCK)]
        for count in counts + [2] * (size % 2):
            need = count * np.dtype(dtype).itemsize // 8
            words = aes_ctr_words(key, used + need)[used:]
            used += need
            expected.append(box_muller(words, dtype))
            if dtype is np.float32:
                small = words.view("<i4")[: count // 2] & (2**31 - 1)
                rare = np.flatnonzero(small < 2**11)
                more = aes_ctr_words(key, used + rare.size)[used:]
                used += rare.size
                fraction = (more + 0.5) * 2.0**-64
                exact = np.sqrt(-2.0 * np.log((small[rare] + fraction) * 2.0**-31))
                coarse = np.sqrt(-2.0 * np.log(small[rare] * 2.0**-31))
                for half in np.split(expected[-1], 2):
                    half[rare] *= exact / coarse
                assert (rare.size > 0) == (count == BLOCK)
        rng = KeystreamGenerator(key, secure=False)
        np.testing.assert_allclose(
            rng.normal(size, dtype), np.concatenate(expected)[:size], rtol=0, atol=tolerance
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


@pytest.mark.parametrize(
    "word",
    [2**11, 2**20, 2**26, 2**31 - 2**22 - 65] + [2**31 - less for less in (2**22, 2**20, 77, 8, 1)],
)
def test_float32_radius_follows_its_word(word):
    """The largest radius of a word alone lies beyond 5 standard deviations, the smallest near 0.

    Were u a float32 number, words above 2^31 - 65 would have no radius at all. The least exact
    radius is 0.06, just before that is seen to.
    """
    exact = 8e-6 if word == 2**31 - 2**22 - 65 else 1e-6
    out = np.empty(6, dtype=np.float32)
    for sign in (0, 2**31):
        GivenWords((word | sign) * (1 + 2**32)).fill_normal(out)
        radius = np.hypot(out[:3].astype(np.float64), out[3:])
        expected = math.sqrt(-2.0 * math.log(word * 2.0**-31))
        np.testing.assert_allclose(radius, expected, rtol=exact)


@pytest.mark.parametrize("size", [0, 1, 2**11 - 1])
@pytest.mark.parametrize("more", [0, 2**40, 2**63, ALL_ONES])
def test_float32_tail_takes_another_word(size, more):
    """Below 2^11 another word says where in its interval the radius lies: to 11 deviations."""
    out = np.empty(2, dtype=np.float32)
    GivenWords(size, more).fill_normal(out)  # angle 0
    expected = math.sqrt(-2.0 * math.log((size + (more + 0.5) * 2.0**-64) * 2.0**-31))
    np.testing.assert_allclose(np.hypot(*out.astype(np.float64)), expected, rtol=1e-6)
    if size == more == 0:
        assert expected > 11.0


@pytest.mark.parametrize("word", [2**27, 2**46, 2**62, 2**63 - 2**40, 2**63 - 3, 2**63 - 1])
def test_float64_radius_follows_its_word(word):
    out = np.empty(6)
    for sign in (0, 2**63):
        GivenWords(word | sign).fill_normal(out)
        log_u = math.log(word * 2.0**-63) if word < 2**62 else math.log1p((word - 2**63) * 2.0**-63)
        expected = math.sqrt(-2.0 * log_u)
        np.testing.assert_allclose(np.hypot(out[:3], out[3:]), expected, rtol=1e-14)


@pytest.mark.parametrize("size", [0, 1, 2**27 - 1])
@pytest.mark.parametrize("more", [0, 2**40, 2**63, ALL_ONES])
def test_float64_tail_takes_another_word(size, more):
    """Below 2^27: to 13 deviations."""
    out = np.empty(2)
    GivenWords(size, 0, more).fill_normal(out)  # angle 0
    expected = math.sqrt(-2.0 * math.log((size + (more + 0.5) * 2.0**-64) * 2.0**-63))
    np.testing.assert_allclose(np.hypot(*out), expected, rtol=1e-14)
    if size == more == 0:
        assert expected > 13.0


def test_radii_far_in_the_tail_follow_their_law():
    """KS test of 2,000 float32 radii of probability below 2^-20; false alarms: 6e-7.

    To be met with, they would take two billion pairs: here the first words are given. The mutant
    has the resolution of four bits.
    """
    rng = seeded_generator(23)
    radii = []
    for word, fraction in zip(rng.integers(2**11, 2000), rng.bits(2000), strict=True):
        out = np.empty(2, dtype=np.float32)
        GivenWords(int(word), int(fraction)).fill_normal(out)
        radii.append(np.hypot(*out.astype(np.float64)))
    tail = np.exp(-0.5 * np.array(radii) ** 2) * 2.0**20
    assert_follows(tail, lambda u: np.clip(u, 0.0, 1.0))
    assert_detects(assert_follows, np.floor(tail * 16) / 16, lambda u: np.clip(u, 0.0, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5, 1001])
def test_extreme_words_give_finite_normals(size, dtype):
    for word in (0, 1, 2**31, 2**63, ALL_ONES, ALL_ONES - 1, 2**32 - 1, 2**64 - 2**11):
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
    assert len(np.unique(samples)) >= 0.98 * size  # float32 has few enough to meet twice


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


@pytest.mark.parametrize(
    "out",
    [np.empty(4, ">f4"), np.empty(4, ">f8"), np.empty((2, 2)), np.empty(8)[::2]],
    ids=["float32, swapped", "float64, swapped", "two dimensions", "strided"],
)
def test_normals_are_not_put_where_they_would_be_wrong(out):
    with pytest.raises(TypeError, match=r"native order|contiguous array of one dimension"):
        seeded_generator(1).fill_normal(out)


# ------------------------------------------------------------------ points of a sphere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3, 4, 7, 1000, 4097, BLOCK, BLOCK + 1])
def test_a_point_of_a_sphere_is_a_normal_vector_divided_by_its_length(size, dtype):
    point = np.full(size, np.nan, dtype)
    rng, same = (seeded_generator(25, size) for _ in range(2))
    rng.fill_sphere(point, 3.5)
    normals = same.normal(size - size % 2, dtype)[: size - 1].astype(np.float64)
    tolerance = 1e-6 if dtype is np.float32 else 1e-13
    expected = 3.5 * normals / np.linalg.norm(normals)
    np.testing.assert_allclose(point[:-1], expected, rtol=tolerance, atol=tolerance**2)
    assert point[-1] == 0.0
    np.testing.assert_array_equal(rng.bits(1), same.bits(1))


@pytest.mark.parametrize("size", [4, 5, 12])
def test_points_are_uniform_on_the_sphere(size):
    """2,000 points: KS tests of each coordinate and of a cosine; false alarms: 6e-7 each.

    The mutants are a normal vector, one drawn towards the axes, and one from one half.
    """
    rng = seeded_generator(26, size)
    points = np.empty((2000, size))
    for point in points:
        rng.fill_sphere(point, 1.0)
    points = points[:, :-1]
    law = DotLaw(size - 1)

    def check(points):
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, rtol=1e-14)
        for coordinate in points.T:
            assert_follows(coordinate, law.uniform_cdf)
        assert_follows(points @ random_unit(size - 1), law.uniform_cdf)

    check(points)
    assert_detects(check, np.random.default_rng(1).normal(size=points.shape))
    assert_detects(check, points**3 / np.linalg.norm(points**3, axis=1, keepdims=True))
    assert_detects(check, np.abs(points))


@pytest.mark.parametrize(
    ("radius", "dtype"),
    [(radius, dtype) for radius in (1e-10, 1e-5, 1.0, 1e7) for dtype in DTYPES]
    + [(1e13, np.float64)],
)
def test_radii_of_spheres(radius, dtype):
    point = np.empty(10, dtype)
    seeded_generator(27).fill_sphere(point, radius)
    assert np.linalg.norm(point.astype(np.float64)) == pytest.approx(radius, rel=1e-6)


@pytest.mark.parametrize("radius", [0.0, -1.0, 9e-11, math.inf, math.nan])
@pytest.mark.parametrize(("dtype", "longest"), [(np.float32, 1e7), (np.float64, 1e13)])
def test_radii_whose_squares_may_leave_the_type_are_refused(radius, dtype, longest):
    for wrong in (radius, 1.01 * longest):
        with pytest.raises(
            ValueError, match=re.escape(f"radius must be from 1e-10 to {longest:g}")
        ):
            seeded_generator(27).fill_sphere(np.empty(10, dtype), wrong)


def test_a_point_without_a_length_is_drawn_again():
    """The number that is kept is a cosine of 0, and then another one."""
    point, quarter, other = np.empty(2, np.float32), 2**20 + (2**31 << 32), 2**20 + (2**29 << 32)
    GivenWords(quarter, other).fill_sphere(point, 2.0)
    np.testing.assert_array_equal(point, [2.0, 0.0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_shortest_point_stays_in_the_type(dtype):
    """The smallest radius there is times the smallest cosine, brought to the longest length."""
    bits = 8 * np.dtype(dtype).itemsize
    words = (2 ** (bits - 1) - 1, 2 ** (bits - 1) + 2 ** (bits // 2 - 3))
    given = words if bits == 64 else (words[0] + (words[1] << 32),)
    longest = 1e7 if bits == 32 else 1e13
    point = np.empty(2, dtype)
    GivenWords(*given).fill_sphere(point, longest)
    assert abs(point[0]) == pytest.approx(longest, rel=1e-3)


@pytest.mark.parametrize("size", [0, 1, BLOCK + 2])
def test_spheres_of_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"must have 2 to {BLOCK + 1} numbers; got {size}"):
        seeded_generator(1).fill_sphere(np.empty(size), 1.0)


def test_a_process_id_that_is_used_again_is_another_process(monkeypatch):
    rng = secure_generator()
    before = rng.bits(2)
    monkeypatch.setattr(randomness, "_forks", randomness._forks + 1)
    twin = seeded_generator(1)
    monkeypatch.setattr(randomness, "_forks", randomness._forks + 1)
    with pytest.raises(RuntimeError, match="carried into a forked process"):
        twin.bits(1)
    assert not np.array_equal(rng.bits(2), before)


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
