"""Attacks on the update of one image, as a device would release it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.reconstruction import breach_probability, confined_cosine
from simulations.audit import confined, inversion, linear, look_alike
from simulations.audit.findings import Finding
from simulations.audit.gradients import gradients_of, small_cnn
from simulations.audit.images import PIXELS, Floats, Images, cosines, digits, uniform
from simulations.audit.settings import Settings

# What is known of the images but their pixels, and updates -> images.
Attack = Callable[[Images, Floats], Floats]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attacked:
    """Images and what was recovered of them.

    Attributes
    ----------
    name : str
        The attack.
    target : str
        What the images are.
    images : Images
        The truth.
    dim : int
        Coordinates of an update.
    recovered : dict
        By epsilon_1 (0: nothing was seen; infinity: no privacy), ``(n, PIXELS)``.
    losses : dict
        By epsilon_1, the whole loss of the release.
    """

    name: str
    target: str
    images: Images
    dim: int
    recovered: dict[float, Floats]
    losses: dict[float, float]

    def findings(self, settings: Settings, *, is_uniform: bool) -> list[Finding]:
        """Return the rate of recovered images at each budget.

        The bound is about a uniform prior. For real digits nothing is claimed (1): all of them
        are alike, and whoever answers with their average has a cosine of 0.83 without any release.
        """
        found = []
        for epsilon, images in self.recovered.items():
            loss = self.losses[epsilon]
            bound = 1.0
            if is_uniform and math.isfinite(loss):
                bound = breach_probability(
                    epsilon=loss,
                    dim_target=PIXELS,
                    tolerance=settings.tolerance,
                    rule="tight",
                )
            reached = cosines(images, self.images.pixels)
            found.append(
                Finding.of_rate(
                    reached >= settings.tolerance,
                    confidence=settings.confidence,
                    attack=self.name,
                    target=self.target,
                    measure=f"cosine >= {settings.tolerance:g}",
                    epsilon_direction=epsilon,
                    epsilon=loss,
                    bound=bound,
                    typical=float(np.median(reached)),
                )
            )
        return found


def linear_on_digits(settings: Settings) -> Attacked:
    """Attack the first layer of the digits task's network, on real digits."""
    images = digits(settings.linear_trials, seeded_generator(settings.seed, "audit", "images"))
    return _linear(images, "digits", settings)


def linear_on_uniform(settings: Settings) -> Attacked:
    """Attack the first layer, on images of which nothing is known beforehand."""
    rng = seeded_generator(settings.seed, "audit", "uniform images")
    # As long as a digit is: about half of the pixels are ink.
    images = uniform(settings.linear_trials, rng, norm=math.sqrt(PIXELS) / 2.0)
    return _linear(images, "uniform images", settings)


def inversion_on_digits(settings: Settings) -> Attacked:
    """Invert the gradients of a small convolutional network, on real digits."""
    images = digits(settings.inversion_trials, seeded_generator(settings.seed, "audit", "images"))
    network = small_cnn(settings.seed)

    def attack(images: Images, updates: Floats) -> Floats:
        return inversion.invert(
            network, updates, images.labels, steps=settings.inversion_steps, seed=settings.seed
        )

    updates = gradients_of(network, images.pixels, images.labels)
    return _attacked("gradient inversion", "digits", images, updates, attack, settings)


def look_alike_on_digits(settings: Settings, *, has_the_image: bool) -> Attacked:
    """Look for the likeliest image of an album: of other digits, or one with the private images."""
    images = digits(settings.linear_trials, seeded_generator(settings.seed, "audit", "images"))
    network = linear.network(settings.seed)
    updates = gradients_of(network, images.pixels, images.labels)
    album, causes = images.album, gradients_of(network, images.album, images.album_labels)
    if has_the_image:
        album, causes = np.concatenate([images.pixels, album]), np.concatenate([updates, causes])

    def attack(_: Images, updates: Floats) -> Floats:
        return look_alike.recover(updates, album, causes)

    target = "digits, in the album" if has_the_image else "digits, others in the album"
    return _attacked("look-alike", target, images, updates, attack, settings)


def confined_digits(settings: Settings) -> list[Finding]:
    """Return how near a server comes to updates that it has confined, and what is predicted."""
    images = digits(settings.confined_trials, seeded_generator(settings.seed, "audit", "images"))
    updates = gradients_of(confined.network(), images.pixels, images.labels)
    truth, found = updates[:, confined.COORDINATES], []
    for epsilon in settings.epsilon_directions:
        mechanism = _mechanism(updates.shape[1], epsilon, settings)
        rng = seeded_generator(settings.seed, "audit", "confined", repr(epsilon))
        read = np.zeros_like(truth)
        for count in range(1, settings.confined_reports + 1):
            read += confined.read(mechanism.privatize(updates, rng))
            if count not in (1, settings.confined_reports):
                continue
            # One report in 2 epsilon is drawn outside the cap, and tells nothing.
            lost = (1.0 - mechanism.direction.cap_probability) / count
            predicted = confined_cosine([mechanism.direction] * count, dim_target=truth.shape[1])
            found.append(
                Finding.of_mean(
                    cosines(read, truth),
                    lost * predicted**2,
                    confidence=settings.confidence,
                    attack="confined",
                    target="one report" if count == 1 else f"{count} reports",
                    measure=f"mean cosine in {truth.shape[1]} known coordinates, and as predicted",
                    epsilon_direction=epsilon,
                    epsilon=count * mechanism.event.epsilon,
                    bound=predicted,
                )
            )
    return found


def _linear(images: Images, target: str, settings: Settings) -> Attacked:
    def attack(images: Images, updates: Floats) -> Floats:
        return linear.recover(updates, images.guess)

    updates = gradients_of(linear.network(settings.seed), images.pixels, images.labels)
    return _attacked("linear", target, images, updates, attack, settings)


def _attacked(
    name: str,
    target: str,
    images: Images,
    updates: Floats,
    attack: Attack,
    settings: Settings,
) -> Attacked:
    dim = updates.shape[1]
    # Without an album any answer is as good: all ones.
    guess = images.guess if len(images.album) else np.ones(PIXELS)
    recovered = {
        0.0: np.tile(guess, (len(updates), 1)),
        math.inf: attack(images, updates),
    }
    losses = {0.0: 0.0, math.inf: math.inf}
    for epsilon in settings.epsilon_directions:
        mechanism = _mechanism(dim, epsilon, settings)
        rng = seeded_generator(settings.seed, "audit", name, target, repr(epsilon))
        recovered[epsilon] = attack(images, mechanism.privatize(updates, rng))
        losses[epsilon] = mechanism.event.epsilon
    return Attacked(
        name=name, target=target, images=images, dim=dim, recovered=recovered, losses=losses
    )


def _mechanism(dim: int, epsilon: float, settings: Settings) -> SeparatedMechanism:
    budget = SeparatedBudget(
        epsilon_direction=epsilon, epsilon_magnitude=settings.epsilon_magnitude
    )
    return SeparatedMechanism.from_budget(dim, budget, settings.max_norm)
