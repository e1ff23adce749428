"""Which runs of a sweep go on from their checkpoints."""

import pytest

from flwr_sdp.cli.runs.grid import Run
from flwr_sdp.cli.runs.resume import take_up


@pytest.mark.parametrize(
    ("left", "goes_on"),
    [
        ([], False),
        ([".lock", ".ledger.json.part"], False),  # killed before the first round
        (["ledger.json"], False),
        (["ledger.json", ".lock", "round-00000000.ckpt"], True),
    ],
)
def test_a_run_goes_on_if_there_is_a_checkpoint(tmp_path, left, goes_on):
    run = Run(point={}, trial=0, baseline=False, config={"seed": 1}, folder=tmp_path, label="x")
    (tmp_path / "checkpoints").mkdir()
    for name in left:
        (tmp_path / "checkpoints" / name).touch()
    assert take_up(run) is goes_on
