"""The example and the page about it say what the fleet of the tests does; nothing is started."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from flwr_sdp.clients.caps import DeviceCaps
from tests.deployment.credentials import Certificates
from tests.deployment.fleet import superlink_command, supernode_command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "logistic"
PAGE = ROOT / "docs" / "deployment.md"

FILES = Certificates(Path("ca.crt"), Path("superlink.crt"), Path("superlink.key"))
TESTED = {
    "flower-superlink": superlink_command("127.0.0.1:8000", FILES, Path("state.db")),
    "flower-supernode": supernode_command("127.0.0.1:8000", FILES, Path("node.key"), {}),
}


def commands(text, program):
    """Return the commands of a page's shell blocks, or of a unit, that start `program`."""
    joined = text.replace("\\\n", " ")
    lines = re.findall(rf"^(?:ExecStart=\S*/)?({program} +--(?:[^\n']|'[^']*')*)", joined, re.M)
    return [shlex.split(line) for line in lines]


def options(command):
    return {word for word in command if word.startswith("--")}


def node_configs():
    (page,) = commands(PAGE.read_text(), "flower-supernode")
    unit = (EXAMPLE / "supernode.service").read_text().replace("\\\n", " ")
    (setting,) = re.findall(r"^Environment='NODE_CONFIG=(.*)'$", unit, re.M)
    return {"page": page[page.index("--node-config") + 1], "unit": setting}


@pytest.mark.parametrize(
    ("file", "program"),
    [
        (PAGE, "flower-superlink"),
        (PAGE, "flower-supernode"),
        (EXAMPLE / "supernode.service", "flower-supernode"),
    ],
    ids=["superlink", "supernode", "unit"],
)
def test_commands_that_are_shown_are_those_that_are_tested(file, program):
    """Fails if an option is documented and not tested, or the other way round."""
    (command,) = commands(file.read_text(), program)
    assert options(command) == options(TESTED[program])


@pytest.mark.parametrize("where", ["page", "unit"])
def test_node_configs_that_are_shown_are_read_as_caps(where):
    """Fails if Flower or the mod would refuse the node config, or a cap is missing from it."""
    config = parse_config_args([node_configs()[where]])
    caps = DeviceCaps.of(config)
    assert config["data-path"] == "/var/lib/flwr-sdp/data.csv"
    assert (caps.epsilon, caps.total_epsilon, caps.max_norm) == (12.0, 1000.0, 10.0)
    assert (caps.ledger, caps.data_set) == ("/var/lib/flwr-sdp/ledger.db", "readings")


def test_caps_that_are_shown_allow_what_the_app_asks():
    """Fails if the example as it is would be refused by the device as it is shown."""
    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    caps = DeviceCaps.of(parse_config_args([node_configs()["unit"]]))
    asked = config["sdp-epsilon-direction"] + config["sdp-epsilon-magnitude"]
    assert asked <= caps.epsilon
    assert asked * config["num-server-rounds"] <= caps.total_epsilon
    assert config["sdp-max-norm"] <= caps.max_norm


def test_the_device_side_needs_nothing_of_the_server_side():
    """Fails if a device would need the server's dependencies to import the app."""
    code = (
        "import sys, logistic.client_app\n"
        "unwanted = ('flwr_sdp.strategies', 'dp_accounting', 'torch', 'ray', 'sklearn')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
        capture_output=True,
        text=True,
        timeout=60.0,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
