"""An active server, which makes a model that shows it an image."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from flwr_sdp import PrivUnit, seeded_generator
from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.clients.testing import context, message
from flwr_sdp.reconstruction import confined_cosine
from simulations.audit import confined, images
from simulations.audit.gradients import gradients_of
from simulations.audit.settings import Settings
from simulations.audit.updates import confined_digits
from simulations.models.torch_model import dump
from tests.messages import client_app, flat, record, reply_with
from tests.statistics_helpers import assert_detects, assert_mean_close

CONF = Path(__file__).resolve().parents[3] / "simulations" / "conf" / "audit"
DIM, KNOWN = 9610, 65


@pytest.fixture(scope="module")
def private():
    return images.digits(200, seeded_generator(3))


@pytest.fixture(scope="module")
def updates(private):
    return gradients_of(confined.network(), private.pixels, private.labels)


def test_the_model_confines_the_update_of_every_digit_to_known_coordinates(updates, private):
    """All but a millionth of it; and what is there is the image, whatever its label."""
    assert updates.shape == (200, DIM)
    assert len(confined.COORDINATES) == KNOWN
    elsewhere = np.delete(updates, confined.COORDINATES, axis=1)
    assert np.all(np.linalg.norm(elsewhere, axis=1) < 1e-6 * np.linalg.norm(updates, axis=1))
    shown = np.abs(images.cosines(confined.read(updates)[:, :-1], private.pixels))
    assert shown.min() > 1.0 - 1e-9
    assert np.abs(images.cosines(updates[:, :64], np.roll(private.pixels, 1, 0))).mean() < 0.95


@pytest.fixture(scope="module")
def findings():
    settings = Settings.read(CONF / "digits.toml")
    return confined_digits(dataclasses.replace(settings, epsilon_directions=(500.0, 50.0)))


def test_the_audit_finds_what_is_predicted(findings):
    """300 digits, one report and ten; the interval errs once in a thousand, the seed is fixed."""
    assert [(each.epsilon_direction, each.target) for each in findings] == [
        (epsilon, target) for epsilon in (500.0, 50.0) for target in ("one report", "10 reports")
    ]
    for finding in findings:
        assert finding.low <= finding.bound <= finding.high
        assert finding.trials == 300
    assert [round(finding.bound, 2) for finding in findings[1:]] == [1.0, 0.75, 0.96]
    assert findings[3].epsilon == pytest.approx(10 * findings[2].epsilon)


@pytest.mark.parametrize("mutant", ["twice the dimensions", "half of epsilon"])
def test_a_wrong_prediction_is_outside_the_interval(findings, mutant):
    known, factor = (2 * KNOWN, 1.0) if mutant == "twice the dimensions" else (KNOWN, 0.5)
    for finding, reports in zip(findings[2:], (1, 10), strict=True):
        direction = PrivUnit.from_epsilon(DIM, factor * finding.epsilon_direction)
        predicted = confined_cosine([direction] * reports, dim_target=known)
        assert not finding.low <= predicted <= finding.high
        refuted = dataclasses.replace(finding, bound=predicted)
        assert not refuted.holds


def test_a_device_that_runs_the_mod_shows_as_much_and_its_cap_ends_it(private):
    """From the crafted model to the reply, at epsilon_1 = 50: a device with sdp-min-dim refuses."""
    network = confined.network().float()
    server = dump(network)
    truth = []

    def train(asked, _context):
        of_one = slice(len(truth), len(truth) + 1)  # another digit each time
        network.zero_grad()
        scores = network(torch.from_numpy(private.pixels[of_one]).float())
        labels = torch.from_numpy(private.labels[of_one])
        torch.nn.functional.cross_entropy(scores, labels).backward()
        step = {name: each.grad.numpy() for name, each in network.named_parameters()}
        truth.append(np.concatenate([each.ravel() for each in step.values()]))
        received = {name: each.numpy() for name, each in asked.content["arrays"].items()}
        return reply_with(asked, record({name: received[name] - step[name] for name in step}))

    mod = SeparatedDPMod(rng=lambda: seeded_generator(0, "device", len(truth)))
    app = client_app(mod, train)
    asks = {"sdp-epsilon-direction": 50.0, "sdp-epsilon-magnitude": 10.0, "sdp-max-norm": 5.0}
    replies = []
    for _ in range(100):
        reply = app(message({"arrays": server}), context(asks, {}))
        replies.append(flat(server) - flat(reply.content["arrays"]))
    cosines = images.cosines(
        confined.read(np.array(replies, float)), np.array(truth, float)[:, confined.COORDINATES]
    )
    predicted = confined_cosine(PrivUnit.from_epsilon(DIM, 50.0), dim_target=KNOWN)
    assert_mean_close(cosines, predicted)
    other = confined_cosine(PrivUnit.from_epsilon(DIM, 50.0), dim_target=2 * KNOWN)
    assert_detects(assert_mean_close, cosines, other)
    refusal = app(message({"arrays": server}), context(asks, {"sdp-min-dim": KNOWN}))
    assert "sdp-cosine-cap of this device is 0.5" in refusal.error.reason
    assert len(truth) == 100
