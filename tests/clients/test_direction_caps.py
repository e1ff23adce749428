"""What a device allows to be told of its direction, sdp-min-dim and sdp-cosine-cap: by the mod."""

import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from flwr_sdp import PrivUnit, SeparatedBudget
from flwr_sdp.clients import DeviceLedger, Request, SeparatedDPMod
from flwr_sdp.clients.caps import DeviceCaps
from flwr_sdp.clients.testing import context, message
from flwr_sdp.reconstruction import confined_cosine, max_epsilon_confined
from flwr_sdp.separated import SeparatedEvent
from tests.messages import client_app, record, reply_with, shifted

PIXELS = 784
DIM = 101_770  # weights of a network 784-128-10
REACHED = (
    "SeparatedDPMod: sdp-min-dim of this device: with what it has reported before, one more "
    "report would tell more of its direction than sdp-cosine-cap allows"
)


class Device:
    """An app behind the mod; counts how often it has trained."""

    def __init__(self, node_config, dim=DIM, **options):
        self.node_config, self.dim, self.trained = node_config, dim, 0
        self.app = client_app(SeparatedDPMod(**options), self._train)

    def _train(self, asked, _context):
        self.trained += 1
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    def __call__(self, epsilon_direction, number=0, **more):
        arrays = record({"w": np.zeros(self.dim, np.float32)})
        asked = message({"arrays": arrays}, message_id=f"message-{number}")
        asks = {
            "sdp-epsilon-direction": epsilon_direction,
            "sdp-epsilon-magnitude": 10.0,
            "sdp-max-norm": 2.0,
            **more,
        }
        return self.app(asked, context(asks, self.node_config))


def refused(reply):
    """Return the text of a refusal."""
    assert reply.has_error()
    assert reply.error.code == 6
    return reply.error.reason


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


# ------------------------------------------------------------------ the keys
def test_keys_are_read():
    assert (DeviceCaps.of({}).min_dim, DeviceCaps.of({}).cosine) == (None, None)
    caps = DeviceCaps.of({"sdp-min-dim": 784})
    assert (caps.min_dim, caps.cosine) == (784, 0.5)
    caps = DeviceCaps.of({"sdp-min-dim": 2, "sdp-cosine-cap": 0.9})
    assert (caps.min_dim, caps.cosine) == (2, 0.9)


@pytest.mark.parametrize("value", [1, 0, -3, 784.0, "784", True, None, math.nan, 2**41])
def test_other_dimensions_are_refused(value):
    with pytest.raises(ValueError, match=re.escape("sdp-min-dim must be an integer >= 2 and <= ")):
        DeviceCaps.of({"sdp-min-dim": value})


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, -0.5, 1.5, "0.5", True, None, math.nan])
def test_other_cosines_are_refused(value):
    with pytest.raises(ValueError, match="sdp-cosine-cap must be a finite number > 0 and < 1; got"):
        DeviceCaps.of({"sdp-min-dim": 784, "sdp-cosine-cap": value})


def test_a_cosine_alone_says_nothing_and_is_refused():
    device = Device({"sdp-cosine-cap": 0.5})
    assert "sdp-cosine-cap needs sdp-min-dim" in refused(device(1.0))
    assert device.trained == 0


# ------------------------------------------------------------------ one report
@pytest.mark.parametrize(("dim", "is_allowed"), [(783, False), (2, False), (784, True)])
def test_a_report_of_fewer_coordinates_is_refused(dim, is_allowed):
    """However little it would cost."""
    device = Device({"sdp-min-dim": PIXELS}, dim)
    reply = device(0.1)
    assert reply.has_content() == is_allowed
    assert device.trained == is_allowed
    if not is_allowed:
        text = refused(reply)
        assert f"sdp-min-dim of this device is 784; a report was asked of {dim} coord" in text


def test_released_coordinates_count_and_not_those_that_are_received():
    device = Device({"sdp-min-dim": PIXELS}, PIXELS, excluded=("w",), trainable=("*",))
    arrays = record({"w": np.zeros(PIXELS, np.float32), "b": np.zeros(10, np.float32)})
    asked = message({"arrays": arrays}, message_id="1")
    asks = {"sdp-epsilon-direction": 0.1, "sdp-epsilon-magnitude": 1.0, "sdp-max-norm": 1.0}
    assert "asked of 10 coord" in refused(device.app(asked, context(asks, device.node_config)))
    assert device.trained == 0


def test_the_report_that_shows_the_pixels_is_refused_whatever_the_dimension():
    """At 510 a report has a cosine of 0.75 with an update that lies in 784 pixels' weights."""
    for dim in (PIXELS, 10_000, DIM):
        device = Device({"sdp-min-dim": PIXELS}, dim)
        text = refused(device(500.0))
        assert "sdp-cosine-cap of this device is 0.5, in the 784 dimensions of sdp-min-dim" in text
        assert "asked at epsilon_direction 500.0: ask for at most 1" in text
        assert device.trained == 0
        assert Device({}, dim)(500.0).has_content()
        assert Device({"sdp-min-dim": PIXELS, "sdp-cosine-cap": 0.9}, dim)(500.0).has_content()


@pytest.mark.parametrize("k", [2, 50, 784])
@pytest.mark.parametrize("cosine", [0.01, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("dim", [784, 5000])
def test_what_the_refusal_advises_is_allowed_and_next_to_what_there_is(dim, k, cosine):
    """The advice in 4 digits: up to it a report is allowed, and a thousandth above it not."""
    caps = DeviceCaps.of({"sdp-min-dim": k, "sdp-cosine-cap": cosine})
    with pytest.raises(ValueError, match="ask for at most ") as caught:
        caps.check_direction(dim, 1e6)
    advice = float(str(caught.value).rpartition(" ")[2])
    caps.check_direction(dim, advice)
    most = max_epsilon_confined(cosine=cosine, dim=dim, dim_target=k)
    assert 0.998 * most < advice <= most
    with pytest.raises(ValueError, match="sdp-cosine-cap"):
        caps.check_direction(dim, 1.001 * most)


def test_the_budget_of_the_app_is_held_to_it_too():
    loose = SeparatedBudget(epsilon_direction=500.0, epsilon_magnitude=10.0)
    device = Device({"sdp-min-dim": PIXELS}, budget=loose, max_norm=1.0)
    assert "sdp-cosine-cap" in refused(device(1.0))
    assert device.trained == 0


def test_what_is_allowed_shows_no_more_than_the_cosine():
    """400 reports at the largest epsilon, each read alone; in half the dimensions more is seen."""
    caps = DeviceCaps.of({"sdp-min-dim": 100})
    most = max_epsilon_confined(cosine=0.5, dim=1000, dim_target=100)
    caps.check_direction(1000, most)
    for k in (100, 50):
        update = np.zeros((400, 1000))
        update[:, :k] = k**-0.5
        sent = PrivUnit.from_epsilon(1000, most).privatize(update, np.random.default_rng(0))
        cosines = sent[:, :k].sum(axis=1) * k**-0.5 / np.linalg.norm(sent[:, :k], axis=1)
        error = cosines.std() / 20.0
        assert (abs(cosines.mean() - 0.5) <= 5.0 * error) == (k == 100)


# ------------------------------------------------------------------ all reports
def test_reports_add_up_in_the_ledger(path, caplog):
    """Under 0.5 in 784 dimensions, one of 139 is allowed, or several of 50: I is about k / 3."""
    node_config = {"sdp-min-dim": PIXELS, "sdp-ledger": str(path)}
    device = Device(node_config)
    assert refused(device(50.0)).endswith("ledger of this device cannot be used, see its log")
    DeviceLedger.create(path)
    allowed = 0
    while (reply := device(50.0, allowed)).has_content():
        allowed += 1
    mechanism = PrivUnit.from_epsilon(DIM, 50.0)
    assert confined_cosine([mechanism] * allowed, dim_target=PIXELS) <= 0.5
    assert confined_cosine([mechanism] * (allowed + 1), dim_target=PIXELS) > 0.5
    assert refused(reply) == REACHED  # and nothing of what is spent
    assert "reports of data set 'default' would tell" in caplog.text
    assert device.trained == allowed == len(DeviceLedger(path).entries())
    assert device(50.0, allowed - 1).has_content()  # the last message again: it was paid for
    assert device.trained == allowed
    assert device(0.1, 99).has_content()  # what is left may be told
    assert Device(node_config | {"sdp-data-set": "others"})(50.0, 100).has_content()
    assert Device({"sdp-min-dim": PIXELS})(50.0, 101).has_content()  # no ledger, no memory


def test_earlier_reports_count_whatever_their_dimension(path):
    """Also one that was sent before there was a cap, of fewer coordinates than it protects."""
    request = Request(data_set="default", run_id="0", message_id="0")
    event = SeparatedEvent(epsilon_direction=138.0, epsilon_magnitude=1.0)
    DeviceLedger(path).charge(request, event, [b"reply"], max_norm=1.0, dim=100)
    device = Device({"sdp-min-dim": PIXELS, "sdp-ledger": str(path)})
    assert refused(device(50.0)) == REACHED
    assert device.trained == 0


def test_reports_that_are_charged_while_the_app_trains_count(path):
    """Two at once, of which one alone is allowed: one leaves, and one is charged."""
    DeviceLedger.create(path)
    device = Device({"sdp-min-dim": PIXELS, "sdp-ledger": str(path)})
    with ThreadPoolExecutor(1) as pool:

        def train(asked, _context):
            assert pool.submit(device, 100.0, 1).result().has_content()
            return reply_with(asked, shifted(asked.content["arrays"], 0.1))

        slow = Device(device.node_config)
        slow.app = client_app(SeparatedDPMod(), train)
        assert refused(slow(100.0, 2)).endswith("withheld its reply, see its log")
    (entry,) = DeviceLedger(path).entries()
    assert entry.request.message_id == "message-1"
