"""The installed Flower does what docs/comparison.md says of it, and this package what is right."""

from importlib.metadata import version

import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from tests.peers.compare import PEERS
from tests.peers.flower import FLOWER
from tests.peers.gaussian import DELTA, needed_noise, spent_delta


@pytest.mark.parametrize("claim", FLOWER.claims, ids=lambda claim: claim.call)
def test_flower_does_what_is_said_of_it(claim):
    if not version("flwr").startswith("1.42."):
        pytest.skip("the page is about Flower 1.42: ask tests.peers.compare about this one")
    found = claim.theirs(FLOWER.load(None))
    assert found.as_stated, f"{claim.outcome!r} is no longer so: {found.text}"


@pytest.mark.parametrize(
    "claim", [claim for peer in PEERS for claim in peer.claims], ids=lambda claim: claim.call
)
def test_we_do_what_is_right(claim):
    found = claim.ours()
    assert found.as_stated, f"{claim.right!r} is not so: {found.text}"


@pytest.mark.parametrize("epsilon", [0.5, 10.0, 100.0, 500.0])
def test_delta_of_a_gaussian_is_that_of_dp_accounting(epsilon):
    needed = needed_noise(epsilon)
    for noise in (0.5 * needed, needed):
        exact = GaussianPrivacyLoss(noise).get_delta_for_epsilon(epsilon)
        assert spent_delta(epsilon, noise) == pytest.approx(exact, rel=1e-9)
    assert spent_delta(epsilon, needed) == pytest.approx(DELTA, rel=1e-6)
