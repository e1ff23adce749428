"""Where the noise of simulated devices comes from."""

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")

import torch

from flwr_sdp import KeystreamGenerator
from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.clients.testing import enter_run
from simulations import client_app
from simulations.engine import report_generator as module
from simulations.engine.local_grid import LocalGrid
from simulations.server_app import run_training
from simulations.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def test_the_secure_generator_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(module, "device", lambda: torch.device("cpu"))
    generators = [module.report_generator() for _ in range(2)]
    assert all(isinstance(each, KeystreamGenerator) and each.is_secure for each in generators)
    assert generators[0].bits(1) != generators[1].bits(1)


def test_seeded_by_the_system_anew_for_every_report(monkeypatch):
    """With a stand-in for the generator of a GPU."""
    seeds = []

    class Generator:
        def __init__(self, device):
            assert device.type == "cuda"

        def manual_seed(self, seed):
            seeds.append(seed)
            return self

    monkeypatch.setattr(module, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "Generator", Generator)
    torch.manual_seed(0)
    for _ in range(20):
        assert isinstance(module.report_generator(), Generator)
    assert len(set(seeds)) == 20
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) > 2**60  # by chance, no seed in 10^23 runs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu():
    first, second = module.report_generator(), module.report_generator()
    assert first.device.type == "cuda"
    assert first.initial_seed() != second.initial_seed()


@pytest.mark.parametrize("num_nodes", [0, 2], ids=["a node each", "nodes that stand for many"])
@pytest.mark.parametrize("is_secure", [True, False])
def test_the_report_says_that_the_noise_is_not_secure(monkeypatch, num_nodes, is_secure):
    """With torch's generator on the CPU in place of a GPU's; without it, nothing is said."""
    if not is_secure:
        mod = SeparatedDPMod(rng=lambda: torch.Generator().manual_seed(3))
        monkeypatch.setattr(client_app, "_protect", mod)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    config = pyproject["tool"]["flwr"]["app"]["config"]
    config |= {"num-clients": 6, "num-nodes": num_nodes, "num-server-rounds": 1}
    settings = Settings.from_run_config(config)
    enter_run()
    grid = LocalGrid(client_app.app, settings.num_nodes, config)
    _, report = run_training(grid, settings)
    notes = [note for note in report.exceptions if "generator that is not secure" in note]
    assert len(notes) == (0 if is_secure else 1)
    assert all("a device drew its noise" in note for note in notes)
    assert (report.local is not None) == is_secure
