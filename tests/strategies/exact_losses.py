"""Exact hockey-stick divergences of the sampled Gaussian, in mpmath, written independently."""

from mpmath import erfc, exp, linspace, log, mp, mpf, quad, sqrt

mp.dps = 50


def cdf(x):
    return erfc(-x / sqrt(mpf(2))) / 2


def cut(q, z, epsilon):
    """Return the outcome at which the loss is epsilon, or None if it is always larger."""
    odds = (exp(epsilon) - 1 + q) / q
    return z * z * log(odds) + mpf(1) / 2 if odds > 0 else None


def delta_remove(q, z, epsilon):
    """Return the divergence of (1-q) N(0, z^2) + q N(1, z^2) from N(0, z^2)."""
    x = cut(q, z, epsilon)
    if x is None:
        return 1 - exp(epsilon)
    return (1 - q - exp(epsilon)) * cdf(-x / z) + q * cdf((1 - x) / z)


def delta_add(q, z, epsilon):
    """Return the divergence of N(0, z^2) from (1-q) N(0, z^2) + q N(1, z^2)."""
    x = cut(q, z, -epsilon)
    if x is None:
        return mpf(0)
    return cdf(x / z) - exp(epsilon) * ((1 - q) * cdf(x / z) + q * cdf((x - 1) / z))


def exact_delta(q, z, epsilon):
    """Return delta of one release: the larger of the two directions."""
    q, z, epsilon = mpf(q), mpf(z), mpf(epsilon)
    return max(delta_remove(q, z, epsilon), delta_add(q, z, epsilon))


def exact_delta_of_two(q, z, epsilon):
    """Return delta of two releases, by integrating over the outcome of the first.

    The integration is good to about 1e-7 of the result.
    """
    q, z, epsilon = mpf(q), mpf(z), mpf(epsilon)

    def density(x, mean):
        return exp(-((x - mean) ** 2) / (2 * z * z)) / (z * sqrt(2 * mp.pi))

    def loss(x):
        return log(1 - q + q * exp((2 * x - 1) / (2 * z * z)))

    def remove(x):
        mixture = (1 - q) * density(x, 0) + q * density(x, 1)
        return mixture * delta_remove(q, z, epsilon - loss(x))

    def add(x):
        return density(x, 0) * delta_add(q, z, epsilon + loss(x))

    with mp.workdps(25):
        points = linspace(-12 * z, 1 + 14 * z, 50)
        return max(quad(direction, points, maxdegree=5) for direction in (remove, add))
