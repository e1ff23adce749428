"""The look-alike attack: an onlooker with an album answers with the image that fits best.

The bounds are about an onlooker who knows little beforehand (a diffuse prior, Bhowmick et al.,
arXiv:1812.00984v2, section 2.3.1). This one knows much: images like the private one, and what
update each of them would cause. A release need not be clear to tell which of these comes closest,
and at a large epsilon it does: e^epsilon is more than there are images in any album.
"""

from __future__ import annotations

from simulations.audit.images import Floats, unit


def recover(updates: Floats, album: Floats, album_updates: Floats) -> Floats:
    """Return, for each update, the image of the album whose own update is closest in direction.

    PrivUnit's density grows with the cosine of output and input, so that is the likeliest one.

    Parameters
    ----------
    updates : ndarray
        ``(n, weights)``, of either sign: that of a private magnitude is nearly always positive.
    album, album_updates : ndarray
        ``(m, pixels)`` and ``(m, weights)``.
    """
    closest = (updates @ unit(album_updates).T).argmax(axis=1)
    found: Floats = album[closest]
    return found
