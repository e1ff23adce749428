"""The device's mechanism written again from ``docs/client-spec.md``, in plain Python.

It shares no code with the package: only AES comes from elsewhere. The numbers in the comments are
those of the sections of the specification.
"""

from __future__ import annotations

import hashlib
import math
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def seeded_key(seed, *key):
    text = b"flwr-sdp seeded stream"
    for part in (seed, *key):
        encoded = str(part).encode()
        text += f"{type(part).__name__}:{len(encoded)}:".encode() + encoded
    return hashlib.sha256(text).digest()


class Stream:
    """1 and 2: words, and what is made of them."""

    def __init__(self, key):
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count):
        return list(struct.unpack(f"<{count}Q", self._encryptor.update(bytes(8 * count))))

    def spawn(self, count):
        return [Stream(struct.pack("<4Q", *self.words(4))) for _ in range(count)]

    def uniforms(self, count):
        return [((word >> 12) + 0.5) / 2**52 for word in self.words(count)]

    def log_uniforms(self, count):
        high, zeros = self.words(count), [0] * count
        while 0 in high:
            places = [i for i, word in enumerate(high) if word == 0]
            for i, word in zip(places, self.words(len(places)), strict=True):
                high[i], zeros[i] = word, zeros[i] + 64
        low = self.words(count)
        return [
            math.log(h / 2**64 + (w + 0.5) / 2**128) - z * math.log(2)
            for h, w, z in zip(high, low, zeros, strict=True)
        ]

    def bernoulli(self, log_odds):
        rare = -abs(log_odds) - math.log1p(math.exp(-abs(log_odds)))
        is_rare = self.log_uniforms(1)[0] < rare
        return is_rare if log_odds < 0 else not is_rare

    def integer(self, high):
        while (word := self.words(1)[0]) > 2**64 - 1 - 2**64 % high:
            pass
        return word % high

    def normals(self, count, bits=64, block=524_288):
        numbers = []
        while count - len(numbers) >= 2:
            size = min(block, (count - len(numbers)) // 2 * 2)
            numbers += self._normal_block(size // 2, bits)
        return numbers + (self._normal_block(1, bits)[:1] if count % 2 else [])

    def _normal_block(self, pairs, bits):
        words = self.words(2 * pairs * bits // 64)
        if bits == 32:
            words = [half for word in words for half in (word & (2**32 - 1), word >> 32)]
        size = [word & (2 ** (bits - 1) - 1) for word in words[:pairs]]
        rare = [i for i in range(pairs) if size[i] < 2 ** (bits // 2 - 5)]
        for i, word in zip(rare, self.words(len(rare)), strict=True):
            size[i] += (word + 0.5) / 2**64
        cosines, sines = [], []
        for i in range(pairs):
            rest = 2 ** (bits - 1) - size[i]  # 1 - u has more digits near 1
            radius = math.sqrt(
                -2 * math.log1p(-rest / 2 ** (bits - 1))
                if rest < 2 ** (bits - 10)
                else -2 * math.log(size[i] / 2 ** (bits - 1))
            )
            turn = words[pairs + i] - (2**bits if words[pairs + i] >> (bits - 1) else 0)
            angle = math.pi / 2 * (turn / 2 ** (bits - 1))
            cosines.append((-radius if turn % 2 else radius) * math.cos(angle))
            sines.append(radius * math.sin(angle))
        return cosines + sines


def scalar_dp(stream, epsilon, bins, max_norm, r):
    """3: the magnitude."""
    position = min(min(max(r, 0.0), max_norm) / max_norm * bins, bins)
    index = math.floor(position)
    index += stream.uniforms(1)[0] < position - index
    stays = stream.bernoulli(epsilon - math.log(bins))
    other = (index + 1 + stream.integer(bins)) % (bins + 1)
    index = index if stays else other
    decay = math.exp(-epsilon)
    share = (bins + 1) * decay / (1 + bins * decay)
    step = (1 + bins * decay) / -math.expm1(-epsilon) * (max_norm / bins)
    return step * (index - share * bins / 2)


def dot_products(stream, dim, threshold, wide):
    """4: inside the cap, outside, anywhere. `wide`: more than 15 % of the sphere lie in the cap."""

    def anywhere():
        while True:
            if dim <= 3:
                u = stream.uniforms(1)[0]
                return math.cos(math.pi * u) if dim == 2 else 2 * u - 1
            t = stream.normals(1)[0] / math.sqrt(dim - 3)
            log_u = stream.log_uniforms(1)[0]
            if t * t < 1 and log_u <= (dim - 3) / 2 * (math.log1p(-t * t) + t * t):
                return t

    def inside():
        while wide:
            t = abs(anywhere())
            if t >= threshold:
                return t
        while True:
            shrink = -math.expm1(stream.log_uniforms(1)[0] / ((dim - 1) / 2))
            t = math.sqrt(threshold**2 + (1 - threshold**2) * shrink)
            if stream.uniforms(1)[0] * t <= threshold:
                return min(t, 1.0)

    def outside():
        while True:
            t = anywhere()
            if t < threshold:
                return t

    return inside(), outside(), anywhere()


def chi_squares(stream, freedom):
    d = [f / 2 - 1 / 3 for f in freedom]
    draws, todo = [0.0] * len(d), list(range(len(d)))
    while todo:
        normals, logs, left = stream.normals(len(todo)), stream.log_uniforms(len(todo)), []
        for i, x, log_u in zip(todo, normals, logs, strict=True):
            cube = max(1 + x / math.sqrt(9 * d[i]), 0.0) ** 3
            if cube > 0 and log_u < x * x / 2 + d[i] * (1 - cube + math.log(cube)):
                draws[i] = 2 * d[i] * cube
            else:
                left.append(i)
        todo = left
    return draws


def inner(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def on_grid(numbers, grid):
    """5: the nearest numbers of the grid."""
    return [round(number / grid) * grid for number in numbers]


def grid_of(length, dim, bits):
    """5: of what an output's coordinates are multiples."""
    more = max(math.ceil((dim - 1).bit_length() / 2) - 8, 0)
    exponent = math.frexp(length)[1] - (17 if bits == 32 else 40) - more
    return max(2.0**exponent, 2.0**-149 if bits == 32 else 2.0**-1074)


def whole(stream, vector, dot, length, bits, block):
    """5: from one stream or cut into segments."""
    norm = math.sqrt(inner(vector, vector))
    if norm == 0:
        vector, norm = [0.0] * (len(vector) - 1) + [1.0], 1.0
    along, across = length * dot, abs(length) * math.sqrt((1 - dot) * (1 + dot))
    dim = len(vector)
    count = -(-dim // block)
    if count == 1:
        return segment(stream, vector, along, across, bits, block)
    count += count % 2
    starts = [i * (dim // 2) // count * 2 for i in range(count)] + [dim]
    parts = [vector[starts[i] : starts[i + 1]] for i in range(count)]
    share = [math.sqrt(inner(part, part)) / norm for part in parts]
    a = stream.normals(count)
    for _ in range(2):
        along_share = inner(a, share)
        a = [x - along_share * s for x, s in zip(a, share, strict=True)]
    chi = chi_squares(stream, [len(part) - 1 for part in parts])
    unit = across / math.sqrt(inner(a, a) + sum(chi))
    streams, out = stream.spawn(count), []
    for i, part in enumerate(parts):
        part_along, part_across = along * share[i] + unit * a[i], unit * math.sqrt(chi[i])
        out += segment(streams[i], part, part_along, part_across, bits, block)
    return out


def segment(stream, vector, along, across, bits, block):
    norm, dim = math.sqrt(inner(vector, vector)), len(vector)
    if norm == 0:
        vector, norm = [0.0] * (dim - 1) + [1.0], 1.0
    g = stream.normals(dim // 2 * 2, bits, block)[: dim - 1]
    u = [x / norm for x in vector]
    length = math.sqrt(inner(g, g))
    x = [across * a / length for a in g] + [0.0]
    k = inner(x, u) / (1 + abs(u[-1]))
    out = [a + (along - k) * b for a, b in zip(x, u, strict=True)]
    out[-1] -= math.copysign(k, k * u[-1])
    return out


def priv_unit(stream, case, vector, length):
    inside = stream.bernoulli(case["epsilon_flip"])
    dots = dot_products(stream, len(vector), case["cap_threshold"], case["wide_cap"])
    dot = dots[0 if inside else 1] if any(vector) else dots[2]
    numbers = whole(stream, vector, dot, length, case["noise_bits"], case["block"])
    return on_grid(numbers, grid_of(length, len(vector), case["bits"]))


def separated(stream, case, update):
    """6: the whole report."""
    norm = math.sqrt(inner(update, update))
    magnitude = scalar_dp(
        stream, case["epsilon_magnitude"], case["num_bins"], case["max_norm"], norm
    )
    return priv_unit(stream, case, update, case["scale"] * magnitude)
