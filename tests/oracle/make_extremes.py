"""Write ``extremes.json``: the ends of the promised range, at 60 digits, without the package.

python tests/oracle/make_extremes.py

Formulas are those of Bhowmick et al., arXiv:1812.00984v2: Section 4.1 (Algorithm 1, Theorem 1,
Eq. norm-of-W), Section 4.2 (Algorithm 2, Theorem privacy-infinity), Section 4.3 (Algorithm 3) and
the appendix on relative error (Algorithm 4). The best splits are not in the paper. With Q the
probability of the cap, M = E[T; cap] and both densities at their ratio e^eps,

    m = M (e^eps - 1) / (1 + Q (e^eps - 1)).

Moving the threshold gamma on takes f dgamma from Q and gamma f dgamma from M, so that
m' = f (m - gamma) m / M: m rises where it is above gamma, falls where it is below, and cannot come
back. On the hypercube the same holds of steps, with (2t - d) / d for gamma. Every probability and
every optimum is computed in two ways; an assertion fails where they differ.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from pathlib import Path

import mpmath as mp
from mpmath import mpf

mp.mp.dps = 60
PATH = Path(__file__).with_name("extremes.json")
ABOUT = (
    "Made by make_extremes.py. `budget`, `max_norm` and r stand for the doubles nearest to them. "
    "`values` has the properties of the mechanism by their names, `variances` those at each r; "
    "integers are exact. scalar_rel: the outputs and variances are those of the grid that the "
    "doubles nearest to accuracy and ratio span."
)
MAX_THRESHOLD = 1 - mpf(10) ** -6  # where the package stops
SPHERES = [
    (dim, epsilon)
    for dim, epsilons in {
        2: (1e-3, 1.0, 2.0),
        3: (1e-3, 3.0),
        10: (1e-3, 10.0),
        1000: (1e-3, 1000.0),
        20_000: (2e4,),
        10**6: (1e-3, 2e4),
        10**8: (1e-3, 1.0, 50.0, 2e4),
    }.items()
    for epsilon in epsilons
]
CUBES = [
    (dim, epsilon)
    for dim in (2, 3, 10, 1001, 10**6, 10**8)
    for epsilon in sorted({1e-3, 1.0, 50.0, 1000.0, 2e4, min(float(dim), 2e4)})
    if epsilon <= dim
]
SCALARS = (1e-3, 1.0, 15.0, 30.0, 40.0)
MAX_NORM = 5.0
SHARES = (0.0, 0.123456789, 0.5, 1.0)


def text(value):
    return value if isinstance(value, int) else mp.nstr(value, 30)


def texts(**values):
    return {name: text(value) for name, value in values.items()}


def same(a, b, digits=40):
    return abs(a - b) <= mpf(10) ** -digits * abs(b)


def turn(rises, low, high):
    """Return where `rises` turns false, to all digits."""
    while high - low > high * mp.eps:
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) else (low, middle)
    return low


def mean(tail, moment, flip):
    """Eq. norm-of-W: of p = e^flip / (1 + e^flip)."""
    p, q = 1 / (1 + mp.exp(-flip)), 1 / (1 + mp.exp(flip))
    return moment * (p / tail - q / (1 - tail))


def price(tail):
    return mp.log((1 - tail) / tail)


# ------------------------------------------------------------------ PrivUnit
def density(dim):
    """Return c of the density c (1 - t^2)^((d-3)/2) of a coordinate."""
    return mp.exp(mp.loggamma(mpf(dim) / 2) - mp.loggamma(mpf(dim - 1) / 2)) / mp.sqrt(mp.pi)


def sphere_moment(dim, gamma):
    """E[T; T >= gamma], which the paper writes (1-gamma^2)^a / (2^(d-2) (d-1) B(a, a))."""
    return density(dim) * (1 - gamma**2) ** (mpf(dim - 1) / 2) / (dim - 1)


def sphere_tail(dim, gamma):
    """P(T >= gamma): a half less a series of positive terms, or half of I_x((d-1)/2, 1/2)."""
    moment = sphere_moment(dim, gamma)
    if dim * gamma**2 < 200:  # at most 45 digits cancel
        with mp.extradps(60):
            series = mp.hyp2f1(1, mpf(dim) / 2, mpf(3) / 2, gamma**2)
            return mpf(1) / 2 - (dim - 1) * sphere_moment(dim, gamma) * gamma * series
    return moment * gamma * beta_fraction(mpf(dim - 1) / 2, mpf(1) / 2, 1 - gamma**2)


def beta_fraction(a, b, x):
    """Return the continued fraction of the incomplete beta function, DLMF 8.17.22, by Lentz."""
    value, c, d, n, step = mpf(1), mpf(1), mpf(0), 0, mpf(0)
    while abs(step - 1) > mp.eps:
        n += 1
        m = n // 2
        top = -(a + m) * (a + b + m) if n % 2 else m * (b - m)
        top *= x / ((a + n - 1) * (a + n))
        d = 1 / (1 + top * d)
        c = 1 + top / c
        step = c * d
        value *= step
    return 1 / value


def check_sphere_tail(dim, gamma, tail):
    """Compare with the integral of the density."""
    if dim == 2:
        assert same(tail, mp.acos(gamma) / mp.pi)
        return
    x = 1 - gamma**2
    unit = x / (dim * gamma + mp.sqrt(dim))  # about what it takes to fall by e
    ends = [mpf(end) for end in (0, 1, 3, 6, 10, 20, 40, 80, 160) if gamma + end * unit < 1]
    ends.append(min((1 - gamma) / unit, mpf(200)))
    power = mpf(dim - 3) / 2
    integral = mp.quad(lambda s: ((1 - (gamma + s * unit) ** 2) / x) ** power, ends)
    assert same(tail, density(dim) * x**power * unit * integral), (dim, gamma)


def sphere_values(dim, gamma, flip):
    tail = sphere_tail(dim, gamma)
    check_sphere_tail(dim, gamma, tail)
    scale = 1 / mean(tail, sphere_moment(dim, gamma), flip)
    return texts(
        epsilon=flip + price(tail),
        cap_threshold=gamma,
        epsilon_flip=flip,
        scale=scale,
        expected_squared_error=scale**2 - 1,
    )


def tight_sphere(dim, budget):
    def split(gamma):
        tail = sphere_tail(dim, gamma)
        flip = budget - price(tail)
        return mean(tail, sphere_moment(dim, gamma), flip), flip

    gamma = turn(lambda gamma: split(gamma)[0] > gamma, mpf(0), mpf(1))
    best, flip = split(gamma)
    assert flip > 0
    assert gamma < MAX_THRESHOLD
    for step in (mpf(10) ** -3, mpf(10) ** -9, mpf(10) ** -18):
        assert split(gamma * (1 - step))[0] < best > split(gamma * (1 + step))[0]
    return sphere_values(dim, gamma, flip)


def paper_sphere(dim, budget):
    """Theorem 1: the larger gamma of the two inequalities, a hundredth of the budget on p."""
    flip = budget / 100
    epsilon = budget - flip
    small = (mp.exp(epsilon) - 1) / (mp.exp(epsilon) + 1) * mp.sqrt(mp.pi / (2 * mpf(dim - 1)))

    def admissible(gamma):
        bound = mp.log(dim) / 2 + mp.log(6) + mp.log(gamma)
        return bound - mpf(dim - 1) / 2 * mp.log(1 - gamma**2) <= epsilon

    least = mp.sqrt(mpf(2) / dim)
    big = turn(admissible, least, mpf(1)) if admissible(least) else mpf(0)
    return sphere_values(dim, min(max(small, big), MAX_THRESHOLD), flip)


# ------------------------------------------------------------------ PrivUnitInfinity
def cube_tail(dim, matches):
    """P(N >= t): C(d, t) / 2^d times a series of ratios, in integers of 320 bits."""
    term = total = 1 << 320
    for n in range(matches, dim):
        term = term * (dim - n) // (n + 1)
        if term == 0:
            break
        total += term
    return binomial(dim, matches) * mpf(total) / (1 << 320)


def binomial(dim, matches):
    log = mp.loggamma(dim + 1) - mp.loggamma(matches + 1) - mp.loggamma(dim - matches + 1)
    return mp.exp(log - dim * mp.log(2))


def cube_split(dim, matches, budget):
    """Return m, which needs C(d-1, t-1) / 2^d, and the flip that makes up the loss."""
    tail = cube_tail(dim, matches)
    if dim < 10**4:
        exact = mpf(sum(math.comb(dim, n) for n in range(matches, dim + 1))) / 2**dim
        assert same(tail, exact)
    flip = budget - price(tail)
    return mean(tail, binomial(dim, matches) * matches / dim, flip), flip


def tight_cube(dim, budget):
    def m(matches):
        return cube_split(dim, matches, budget)[0]

    low, high = dim // 2 + 1, dim
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if m(middle) < m(middle + 1) else (low, middle)
    near = range(dim // 2 + 1, dim + 1) if dim < 10**4 else range(low - 3, low + 4)
    others = {*near, low - 1000, low + 1000} - {low}
    assert all(m(low) > m(t) for t in others if dim // 2 < t <= dim)
    best, flip = cube_split(dim, low, budget)
    return texts(
        agreement_threshold=2 * low - 1 - dim,  # the larger of the two with ceil((d+k+1)/2) = t
        epsilon_flip=flip,
        epsilon=budget,
        scale=1 / best,
    )


# ------------------------------------------------------------------ ScalarDP, ScalarRelDP
def scalar_case(epsilon, grid, **values):
    """Return outputs and variances of randomized response on a grid, from the law itself."""
    grow, k = mp.exp(epsilon), len(grid) - 1
    sums = [mp.fsum(point**power for point in grid) for power in (0, 1, 2)]
    # Index j is released as a grid[j] - shift; it is drawn with probability
    # (1 + (e^eps - 1) P(r is rounded to j)) / (e^eps + k).
    a, shift = (grow + k) / (grow - 1), sums[1] / (grow - 1)
    variances = {}
    for r in (mpf(share * MAX_NORM) for share in SHARES):
        low = min(bisect_right(grid, r) - 1, k - 1)
        below, above = grid[low : low + 2]
        up = (r - below) / (above - below)
        first, second = (
            (sums[power] + (grow - 1) * ((1 - up) * below**power + up * above**power)) / (grow + k)
            for power in (1, 2)
        )
        assert same(1 + a * first - shift, 1 + r)
        variances[repr(float(r))] = text(a**2 * (second - first**2))
    least, most = -shift, a * grid[-1] - shift
    return {
        "budget": repr(float(epsilon)),
        "max_norm": repr(MAX_NORM),
        "values": texts(num_bins=k, **values, min_output=least, max_output=max(-least, most)),
        "variances": variances,
    }


def scalar_dp(epsilon):
    """Algorithm 3 with k = ceil(e^(eps/3))."""
    k = int(mp.ceil(mp.exp(epsilon / 3)))
    return scalar_case(epsilon, [mpf(MAX_NORM) * j / k for j in range(k + 1)])


def scalar_rel(epsilon):
    """Algorithm 4 with alpha = r_max e^(-eps/4), nu = 1 + (alpha/r_max)^(-2/3) e^(-eps/3).

    The grid is that of the nearest doubles, as a device has them: its points are far along at
    epsilon 40, and rounding nu alone moves the variance at one of the numbers by 1e-9.
    """
    alpha = MAX_NORM * mp.exp(-epsilon / 4)
    nu = 1 + (alpha / MAX_NORM) ** (-mpf(2) / 3) * mp.exp(-epsilon / 3)
    k = int(mp.ceil(mp.log(MAX_NORM / alpha) / mp.log(nu)))
    a, v = mpf(float(alpha)), mpf(float(nu))
    grid = [mpf(0), *(a * v**j for j in range(1, k + 1))]
    return scalar_case(epsilon, grid, accuracy=alpha, ratio=nu)


def make():
    def cases(values, places):
        return [
            {"dim": dim, "budget": repr(budget), "values": values(dim, mpf(budget))}
            for dim, budget in places
        ]

    return {
        "about": ABOUT,
        "privunit_tight": cases(tight_sphere, SPHERES),
        "privunit_paper": cases(paper_sphere, [place for place in SPHERES if place[0] >= 3]),
        "privunit_infinity_tight": cases(tight_cube, CUBES),
        "scalar_dp": [scalar_dp(mpf(epsilon)) for epsilon in SCALARS],
        "scalar_rel": [scalar_rel(mpf(epsilon)) for epsilon in SCALARS],
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")
