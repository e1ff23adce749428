"""Three apps written as Flower's documentation shows them, without privacy and with it.

Each private run is held against the run of the same app as it is: at budgets of the patches it must
come within `DISTANCE` of it, and stay far above the one in ten that guessing finds. The runs here
are in one process; the slow test is what a user does, ``flwr run`` on Ray.
"""

import re

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord

from flwr_sdp.clients.testing import assert_only_private, context, message
from tests.apps.copies import NODES, copy_app, final_accuracy, imported, run_here
from tests.messages import numpy_dict

APPS = {
    "pytorch_batchnorm": ["private.patch"],
    "scikit_learn": ["private.patch"],
    "numpy_client": ["private.patch", "central.patch"],
}
# Every private run there is: an app, and how many of its patches are applied.
PRIVATE = [(name, count) for name, patches in APPS.items() for count in range(1, len(patches) + 1)]
CENTRAL = [(name, count) for name, count in PRIVATE if (name, count) != ("numpy_client", 1)]

ROUNDS = 6
DISTANCE, FLOOR = 0.1, 0.8
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs an app with so many of its patches, once for all tests."""
    runs = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def with_patches(name, count, caplog):
        if (name, count) not in runs:
            folder = tmp_path_factory.mktemp(name) / "app"
            copy_app(name, folder, *APPS[name][:count])
            torch.manual_seed(0)
            runs[name, count] = run_here(folder, caplog, **{"num-server-rounds": ROUNDS})
        return runs[name, count]

    yield with_patches
    torch.set_num_threads(threads)


def arrays_of(content):
    (arrays,) = (record for record in content.values() if isinstance(record, ArrayRecord))
    return arrays


# ------------------------------------------------------------------ what is learned
@pytest.mark.parametrize(("name", "count"), PRIVATE)
def test_private_run_learns_what_the_run_without_privacy_does(run, caplog, name, count):
    without, private = run(name, 0, caplog), run(name, count, caplog)
    assert without.accuracy > 0.85
    assert private.accuracy > FLOOR
    assert private.accuracy > without.accuracy - DISTANCE


def test_a_hundredth_of_the_budget_does_not(run, caplog, tmp_path):
    """Fails if the comparison could not tell a model that has learned from noise."""
    folder = copy_app("scikit_learn", tmp_path / "app", "private.patch")
    settings = {"num-server-rounds": ROUNDS, "sdp-epsilon-direction": 0.5}
    private = run_here(folder, caplog, **settings)
    assert private.accuracy < FLOOR
    assert private.accuracy < run("scikit_learn", 0, caplog).accuracy - DISTANCE


# ------------------------------------------------------------------ what leaves a device
@pytest.mark.parametrize(("name", "count"), PRIVATE)
def test_nothing_but_private_numbers_leaves(run, caplog, name, count):
    """The app without the patch is caught by the same check."""
    private = run(name, count, caplog)
    request, _ = private.grid.exchanged("train")[0]
    node_config = {"partition-id": 3, "num-partitions": NODES}
    content = dict(request.content)
    with imported(private.folder) as app:
        assert_only_private(app.client, content, run_config=app.run_config, node_config=node_config)
    with imported(run(name, 0, caplog).folder) as app, pytest.raises(AssertionError):
        assert_only_private(app.client, content, run_config=app.run_config, node_config=node_config)


@pytest.mark.parametrize(("name", "count"), PRIVATE)
def test_every_reply_of_a_run_is_marked_and_says_nothing_more(run, caplog, name, count):
    private = run(name, count, caplog)
    trained = private.grid.exchanged("train")
    assert len(trained) == NODES * ROUNDS
    for _, reply in trained:
        names = {key for record in reply.content.values() for key in record}
        names -= {"num-examples", "num_examples", "code", "message", *arrays_of(reply.content)}
        assert names == {
            "ldp-epsilon-direction",
            "ldp-epsilon-magnitude",
            "ldp-max-norm",
            "ldp-max-output-norm",
        }


def test_evaluations_go_on_and_tell_nothing(run, caplog):
    """The server of this app still asks for them; without the patch they say how a node does."""
    private = run("scikit_learn", 1, caplog).grid.exchanged("evaluate")
    assert len(private) == NODES * ROUNDS
    for _, reply in private:
        assert list(reply.content) == ["metrics"]
        assert reply.content["metrics"] == MetricRecord({"num-examples": 1})
    for _, reply in run("scikit_learn", 0, caplog).grid.exchanged("evaluate"):
        assert "accuracy" in reply.content["metrics"]


def test_mean_of_a_metric_that_does_not_leave_fails_the_legacy_server(caplog, tmp_path):
    """So the patch takes it out of the server."""
    client = ["numpydigits/client_app.py", "numpydigits/task.py"]
    folder = copy_app("numpy_client", tmp_path / "app", "private.patch", only=client)
    with pytest.raises(KeyError, match="accuracy"):
        run_here(folder, caplog, **{"num-server-rounds": 1})


def test_error_that_counts_the_classes_of_a_node_is_withheld(run, caplog):
    """scikit-learn cannot go on from ten classes where a node has examples of fewer."""
    private = run("scikit_learn", 1, caplog)
    content = dict(private.grid.exchanged("train")[0][0].content)
    few = {"partition-id": 0, "num-partitions": 300}
    with imported(private.folder) as app:
        reply = app.client(message(content), context(app.run_config, few))
    assert reply.error.reason == "SeparatedDPMod: the device withheld its reply, see its log"
    with (
        imported(run("scikit_learn", 0, caplog).folder) as app,
        pytest.raises(ValueError, match=r"expected shape \(4, 65\)"),
    ):
        app.client(message(content), context(app.run_config, few))


# ------------------------------------------------------------------ batch normalisation
def test_statistics_and_counters_return_as_they_were_sent(run, caplog):
    for request, reply in run("pytorch_batchnorm", 1, caplog).grid.exchanged("train"):
        sent, returned = (numpy_dict(each.content["arrays"]) for each in (request, reply))
        for name, array in sent.items():
            is_same = np.array_equal(array, returned[name])
            assert is_same == name.endswith(STATISTICS), name
    (counter,) = (each for name, each in sent.items() if name == "bn1.num_batches_tracked")
    assert counter.dtype == np.int64
    assert counter == 0


def test_statistics_of_the_app_as_it_is_do_leave(run, caplog):
    _, reply = run("pytorch_batchnorm", 0, caplog).grid.exchanged("train")[0]
    assert reply.content["arrays"]["bn1.num_batches_tracked"].numpy() > 0


def test_model_needs_statistics_that_are_estimated_again(run, caplog):
    """With those it was sent with, it is far below what it has learned."""
    private = run("pytorch_batchnorm", 1, caplog)
    with imported(private.folder):
        from torch.utils.data import DataLoader
        from torchdigits.task import Net, load_datasets, test

        net, images = Net(), DataLoader(load_datasets()[1], batch_size=100)
        net.load_state_dict(torch.load(private.folder / "final_model.pt"))
        assert test(net, images)[1] == pytest.approx(private.accuracy)
        for layer in (net.bn1, net.bn2):
            layer.reset_running_stats()
        assert test(net, images)[1] < private.accuracy - 0.15
    assert "such as 'bn1.running_mean', are excluded and stay as they are" in private.log


# ------------------------------------------------------------------ what is reported
@pytest.mark.parametrize(("name", "count"), CENTRAL)
def test_report_is_that_of_both_guarantees_without_an_exception(run, caplog, name, count):
    report = (run(name, count, caplog).folder / "report.txt").read_text()
    direction = 200 if name == "pytorch_batchnorm" else 50
    assert f"a report   epsilon {direction + 10}: {direction} direction, 10 magnitude" in report
    assert f"in total   epsilon {(direction + 10) * ROUNDS}" in report
    assert re.search(r"run        epsilon \d+ at delta 1e-05, population 20", report)
    assert "note" not in report


def test_local_guarantee_alone_has_no_report(run, caplog):
    """The legacy server knows nothing of it."""
    assert not (run("numpy_client", 1, caplog).folder / "report.txt").exists()


# ------------------------------------------------------------------ as a user runs them
@pytest.mark.slow
@pytest.mark.simulation
def test_flwr_run_on_ray(tmp_path, capsys):
    from flwr_sdp.cli.engines.superlink import LocalSuperLink

    accuracy, home = {}, tmp_path / "home"
    with LocalSuperLink(tmp_path / "superlink.log", home) as superlink:
        for name, patches in APPS.items():
            for count in range(len(patches) + 1):
                folder = copy_app(name, tmp_path / f"{name}-{count}", *patches[:count])
                nodes = f"num-supernodes={NODES} client-resources-num-cpus=1"
                started = superlink.flwr("run", str(folder), "--federation-config", nodes)
                log = superlink.stream_log(str(started["run-id"])).communicate()[0]
                assert superlink.wait_for_end(str(started["run-id"]))[0] == "finished:completed"
                accuracy[name, count] = final_accuracy(log)
                reports = list(home.rglob("report.txt"))
                assert len(reports) == ((name, count) in CENTRAL)
                with capsys.disabled():
                    print(f"\n{name}, {count} patches: accuracy {accuracy[name, count]:.3f}")
                    for report in reports:
                        print(report.read_text())
                        report.unlink()
    for name, count in PRIVATE:
        assert accuracy[name, count] > FLOOR
        assert accuracy[name, count] > accuracy[name, 0] - DISTANCE
