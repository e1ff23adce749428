r"""The best reconstruction of the coarse content of an image from its private release.

The target is :math:`f_A(x) = Ax / |Ax|` of Bhowmick et al., arXiv:1812.00984v2, Eq. (reconstruct),
A being the k lowest frequencies of the cosine transform, and the release Z is PrivUnit of x / |x|.

**The estimator A Z / |A Z| is the best there is** for an onlooker whose prior over directions is
uniform, at every tolerance. Let u = x / |x|. PrivUnit's density at z is a nondecreasing function
of :math:`\langle z, u\rangle`, so under the uniform prior that is also the posterior density of u.
Hold |A u| and the rest of u fixed: then :math:`\langle z, u\rangle` is a constant plus a positive
multiple of :math:`\langle A z, f_A\rangle`. So the posterior density of :math:`f_A` depends on its
cosine with A z alone, and does not fall as that grows: of all caps of one size, none holds more of
the posterior than the cap around A z / |A z|. What it reaches is therefore not the success of one
attack but the most any onlooker reaches on average.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import dct

from simulations.audit.images import Floats, unit


def lowest_frequencies(side: int, count: int) -> Floats:
    """Return A: orthonormal rows, the `count` slowest waves on images of ``side x side`` pixels.

    By the sum of their two frequencies, the order in which JPEG scans a block.
    """
    waves = dct(np.eye(side), axis=0, norm="ortho")  # row f: the wave of frequency f
    order = sorted(
        ((down, across) for down in range(side) for across in range(side)),
        key=lambda pair: (sum(pair), max(pair), pair),
    )
    return np.array([np.outer(waves[i], waves[j]).ravel() for i, j in order[:count]])


def target(directions: Floats, basis: Floats) -> Floats:
    """Return f_A of each row; of private releases, the best estimate of it."""
    return unit(directions @ basis.T)
