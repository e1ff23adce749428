"""The log of a device where nobody has configured logging, and where somebody has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import logging, numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.clients.testing import context, message
budget = SeparatedBudget(epsilon_direction=5.0, epsilon_magnitude=5.0)
app = ClientApp(mods=[SeparatedDPMod(budget, 1.0)])
def train(m, c):
    nan = ArrayRecord({"w": Array(np.full(5, np.nan))})
    return Message(RecordDict({"arrays": nan}), reply_to=m)
app.train()(train)
log = logging.getLogger("flwr_sdp.device")
assert not log.handlers and not logging.getLogger().handlers
where = context(node_config={"sdp-epsilon-cap": 20.0})
def ask(number):
    model = ArrayRecord({"w": Array(np.zeros(5))})
    assert app(message({"arrays": model}, message_id=str(number)), where).has_content()
"""
LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) flwr_sdp\.device: (.*)"


def lines(code):
    """Return what a process prints on its standard error."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK + code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
    ).stderr.splitlines()


def test_lines_have_time_level_and_name():
    found = [re.fullmatch(LINE, line) for line in lines("ask(1); ask(2)")]
    assert all(found), found
    levels, texts = zip(*[match.groups() for match in found], strict=True)
    assert levels == ("INFO", "WARNING", "WARNING")
    assert texts[0].startswith("caps in force on this device: sdp-epsilon-cap = 20.0; ")
    assert set(texts[1:]) == {"the update is not finite: a zero update is released in its place"}


@pytest.mark.parametrize(
    "configure",
    [
        "logging.basicConfig(format='own %(message)s')",
        "log.addHandler(own)",
        "log.addHandler(own); log.propagate = False",
        "logging.getLogger('flwr_sdp').addHandler(own)",
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_nothing_is_said_twice(configure, after):
    """Whoever configures logging, before the first message or after it, has it alone."""
    own = "own = logging.StreamHandler(); own.setFormatter(logging.Formatter('own %(message)s'))\n"
    found = lines(own + ("ask(1)\n" if after else "") + configure + "\nask(2)")
    found = [line for line in found if "is not finite" in line]
    assert len(found) == 1 + after
    assert found[-1].startswith("own ")
