"""Attacks on the mechanism as shipped, each beside the bound that is claimed against it.

One attack a file: :mod:`~simulations.audit.linear` and :mod:`~simulations.audit.inversion` recover
an image from an update, :mod:`~simulations.audit.look_alike` does so for an onlooker who has images
like it, :mod:`~simulations.audit.confined` does so for a server that makes the model for it,
:mod:`~simulations.audit.low_frequency` recovers the coarse content of an image and
:mod:`~simulations.audit.words` a set of words from a release of the data itself, and
:mod:`~simulations.audit.distinguish` bounds epsilon from below by telling two inputs apart.
"""
