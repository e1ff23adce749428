r"""The linear attack: the gradient of a fully connected layer is its input, scaled.

On one example, a layer :math:`Wx + b` has the gradients :math:`\delta x^T` and :math:`\delta`, for
whatever :math:`\delta` the rest of the network sends back: each row shows the data. It is the
reason that Bhowmick et al., arXiv:1812.00984v2, section 1, give for protecting an update at all.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from simulations.audit.images import PIXELS, Floats, unit
from simulations.models.mlp import mlp
from simulations.models.torch_model import seeded

HIDDEN = 128


def network(seed: int) -> nn.Module:
    """Return the untrained network of the digits task, in double precision."""
    return seeded(lambda: mlp(PIXELS, HIDDEN, 10), seed).double()


def recover(updates: Floats, guess: Floats) -> Floats:
    r"""Return the unit vectors along the images behind updates of one example each.

    The matrix :math:`[\delta x^T, \delta]` has rank one, and its right singular vector is along
    (x, 1). Of a matrix with noise the first right singular vector is taken: the best fit of rank
    one (Eckart and Young 1936), hence the maximum of the likelihood for isotropic noise, which is
    what PrivUnit's is but for the component along the update itself.

    Parameters
    ----------
    updates : ndarray
        ``(n, weights)`` of :func:`network`, times any number: step size and sign play no part.
    guess : ndarray
        An image expected beforehand, or zeros. (guess, 1) decides the sign.
    """
    weights = updates[:, : HIDDEN * PIXELS].reshape(-1, HIDDEN, PIXELS)
    bias = updates[:, HIDDEN * PIXELS : HIDDEN * (PIXELS + 1), None]
    matrices = np.concatenate([weights, bias], axis=2)
    # The last eigenvector of the Gram matrix is the first right singular vector.
    vectors = np.linalg.eigh(matrices.transpose(0, 2, 1) @ matrices)[1][:, :, -1]
    signs = np.where(vectors @ np.append(guess, 1.0) < 0.0, -1.0, 1.0)
    return unit(signs[:, None] * vectors[:, :PIXELS])
