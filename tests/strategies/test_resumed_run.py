"""A resumed run is the run: every message of a run cut anywhere is that of a run in one go."""

import contextlib
import json
import os
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from flwr_sdp.strategies import CheckpointError, Checkpoints
from flwr_sdp.strategies.optimizer_state import decode
from flwr_sdp.strategies.surroundings import Surroundings
from tests.messages import FakeGrid, flat, private_reply
from tests.strategies.resumable import NODES, build, initial_model
from tests.strategies.test_checkpoint import Killed, rewrite

ROUNDS = 3


class Scheduled(FedAdam):
    """Changes its configs as it goes, by the round, by evaluations and by chance."""

    def __init__(self, **options):
        super().__init__(**options)
        self.best, self.metrics = 0.0, None

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            config["lr"] *= 0.5
        config["rates"] = [*config.get("rates", []), config["lr"]]
        config["best"], config["secret"] = self.best, bytes([server_round])
        config["luck"] = [random.random(), float(np.random.random())]  # noqa: NPY002, S311
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(self, server_round, arrays, config, grid):
        config["threshold"] = config.get("threshold", float("-inf")) + self.best
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        self.metrics = super().aggregate_evaluate(server_round, replies)
        self.best = max(self.best, 0.0 if self.metrics is None else self.metrics["accuracy"])
        return self.metrics


INNER = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.5),
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.5),
    "Scheduled": lambda: Scheduled(fraction_evaluate=0.5),
    "Scheduled, not evaluated": lambda: Scheduled(fraction_evaluate=0.0),
}


def content_of(message):
    """Return all that a message asks, byte by byte, in its order."""
    return [
        (name, [(key, each.data if isinstance(each, Array) else each) for key, each in rec.items()])
        for name, rec in message.content.items()
    ]


class Fleet(FakeGrid):
    """Nodes that write down what they are asked, and kill the server at `kill_at`."""

    def __init__(self, kill_at=None):
        super().__init__(range(NODES), self.reply)
        self.kill_at, self.asked = kill_at, []

    def push_messages(self, messages):
        listed = list(messages)
        for message in listed:
            to = (message.metadata.message_type, message.metadata.dst_node_id)
            self.asked.append((self.place(message), *to, repr(content_of(message))))
        return super().push_messages(listed)

    def place(self, message):
        return message.content["config"]["server-round"], message.metadata.message_type

    def reply(self, message):
        if self.place(message) == self.kill_at:
            raise Killed
        sent = flat(message.content["arrays"])
        if message.metadata.message_type == "train":
            return private_reply(message, 0.1 * (message.metadata.dst_node_id / NODES - sent))
        accuracy = float(np.abs(sent).sum()) + message.metadata.dst_node_id
        metrics = MetricRecord({"num-examples": 1, "accuracy": accuracy})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)


def run(strategy, *, rounds=ROUNDS, resume=False, kill_at=None, seed=5):
    """Return all messages, the metrics of evaluations, and the strategy."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    fleet, config = Fleet(kill_at), ConfigRecord({"lr": 0.1, "warm": True})

    def evaluate(server_round, _model):
        if (server_round, "server") == kill_at:
            raise Killed
        config["temperature"] = config.get("temperature", 1.0) * 0.9
        return MetricRecord({"luck": random.random()})  # noqa: S311

    go, result = (strategy.resume if resume else strategy.start), None
    try:
        result = go(
            fleet,
            initial_model(),
            num_rounds=rounds,
            train_config=config,
            evaluate_config=ConfigRecord({"batch": 8}),
            evaluate_fn=evaluate,
        )
    except Killed:
        assert kill_at is not None
    return fleet.asked, result, strategy


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """What is on disk when is the matter of test_checkpoint."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def after(asked, place):
    """Return the messages from a place of the run on."""
    at = next((i for i, each in enumerate(asked) if each[0] == place), len(asked))
    return asked[at:]


CUTS = [(r, kind) for r in range(1, ROUNDS + 1) for kind in ("train", "evaluate", "server")]


@pytest.mark.parametrize("name", list(INNER))
def test_every_message_is_that_of_a_run_in_one_go(tmp_path, name):
    """Killed at a question, at one of an evaluation, or at the server's own, in any round.

    The resumed process has other seeds. The first messages that it sends are those of the question
    it was killed at, and nobody is asked anything else twice. The mutant forgets the configs and
    the generators: what it sends differs.
    """
    whole, result, uncut = run(build(strategy=INNER[name]()))
    assert len({place for place, *_ in whole}) == (1 if "not" in name else 2) * ROUNDS
    differences = 0

    def resumed(folder, cut):
        asked, metrics, again = run(build(folder, strategy=INNER[name]()), resume=True, seed=6)
        assert asked == after(whole, cut if cut[1] != "server" else (cut[0] + 1, "train"))
        assert dict(again.train_config) == dict(uncut.train_config)
        repeated = ROUNDS + (cut[1] == "train")  # the devices' reports of a lost round are spent
        assert again.report() == replace(uncut.report(), max_reports_per_client=repeated)
        for ours, all_of_them in (
            (metrics.evaluate_metrics_clientapp, result.evaluate_metrics_clientapp),
            (metrics.evaluate_metrics_serverapp, result.evaluate_metrics_serverapp),
        ):
            assert ours.items() <= all_of_them.items()

    for cut in CUTS:
        if "not" in name and cut[1] == "evaluate":
            continue
        folder = tmp_path / f"{cut}"
        asked, *_ = run(build(folder, strategy=INNER[name]()), kill_at=cut)
        assert asked == whole[: len(asked)]
        resumed(folder, cut)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Surroundings, "restore", lambda *_: None)
            folder = tmp_path / f"{cut} mutant"
            run(build(folder, strategy=INNER[name]()), kill_at=cut)
            try:
                resumed(folder, cut)
            except AssertionError:
                differences += 1
    assert differences >= len(CUTS) // 2


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_ended_goes_on_as_if_it_had_not(tmp_path, rounds):
    """Its evaluation is over: nobody is asked for it again."""
    whole, _, _ = run(build(strategy=INNER["Scheduled"]()))
    first, *_ = run(build(tmp_path, strategy=INNER["Scheduled"]()), rounds=rounds)
    rest, *_ = run(build(tmp_path, strategy=INNER["Scheduled"]()), resume=True, seed=6)
    assert [*first, *rest] == whole


class Deleting(FedAdam):
    """Has an attribute in round 1 only."""

    def __init__(self, **options):
        super().__init__(**options)
        self.warm = True

    def configure_train(self, server_round, arrays, config, grid):
        config["warm"] = hasattr(self, "warm")
        if server_round == 1:
            del self.warm
        return super().configure_train(server_round, arrays, config, grid)


class Sharing(FedAdam):
    """Two names for one list, and for one array."""

    def __init__(self, **options):
        super().__init__(**options)
        self.one = self.other = []
        self.holder = {"numbers": np.zeros(2), "again": [self.one]}
        self.numbers = self.holder["numbers"]

    def configure_train(self, server_round, arrays, config, grid):
        self.one.append(server_round)
        self.numbers += 1.0
        config["seen"], config["again"] = list(self.other), list(self.holder["again"][0])
        config["numbers"] = self.holder["numbers"].tolist()
        return super().configure_train(server_round, arrays, config, grid)


class Evaluated(FedAdam):
    """The run's `evaluate_fn` halves its rate. Its luck is Torch's, its metric is no number."""

    def __init__(self, **options):
        super().__init__(train_metrics_aggr_fn=lambda *_: MetricRecord({"loss": np.nan}), **options)
        self.rate = 1.0

    def configure_train(self, server_round, arrays, config, grid):
        config["rate"], config["luck"] = self.rate, float(torch.rand(()))
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("kind", [Deleting, Sharing, Evaluated])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_what_a_strategy_keeps_is_kept_as_it_was(tmp_path, kind, cut):
    def go(folder, *, resume=False, kill_at=None):
        torch.manual_seed(1 if resume else 0)
        strategy = build(folder, strategy=kind(fraction_evaluate=0.0))
        fleet = Fleet(kill_at)

        def evaluate(*_):
            strategy.strategy.rate = getattr(strategy.strategy, "rate", 1.0) / 2.0

        with contextlib.suppress(Killed):
            (strategy.resume if resume else strategy.start)(
                fleet,
                initial_model(),
                num_rounds=ROUNDS,
                train_config=ConfigRecord({"clip": np.nan, "all": [1.0, np.nan, np.inf]}),
                evaluate_fn=evaluate,
            )
        return fleet.asked, strategy

    whole, uncut = go(tmp_path / "whole")
    go(tmp_path / "cut", kill_at=(cut, "train"))
    asked, strategy = go(tmp_path / "cut", resume=True)
    assert asked == after(whole, (cut, "train"))
    assert repr(strategy.last_round.get("loss")) == repr(uncut.last_round.get("loss"))


@pytest.mark.parametrize("given", [True, False])
def test_one_config_for_both_stays_one(tmp_path, given):
    def go(folder, *, give=True, resume=False, kill_at=None):
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        config = ConfigRecord({"lr": 0.1}) if give else None
        strategy = build(folder, strategy=INNER["Scheduled"]())
        fleet, configs = Fleet(kill_at), {"train_config": config, "evaluate_config": config}
        with contextlib.suppress(Killed):
            go = strategy.resume if resume else strategy.start
            go(fleet, initial_model(), num_rounds=ROUNDS, **configs)
        return fleet.asked

    whole = go(tmp_path / "whole")
    go(tmp_path / "cut", kill_at=(2, "evaluate"))
    asked = go(tmp_path / "cut", give=given, resume=True)
    assert asked == after(whole, (2, "evaluate"))


def test_a_loop_of_ones_own_takes_the_configs_from_the_strategy(tmp_path):
    whole, _, _ = run(build(strategy=INNER["Scheduled, not evaluated"]()))
    run(build(tmp_path, strategy=INNER["Scheduled, not evaluated"]()), kill_at=(3, "train"))
    strategy, fleet = build(tmp_path, strategy=INNER["Scheduled, not evaluated"]()), Fleet()
    model = strategy.restore(initial_model())
    strategy.train_config["temperature"] *= 0.9  # what the evaluation of the run does
    random.random()  # noqa: S311
    fleet.push_messages(strategy.configure_train(3, model, strategy.train_config, fleet))
    assert fleet.asked == after(whole, (3, "train"))


# ------------------------------------------------------------------ the configs of a resumed run
def go_on(folder, **configs):
    strategy, fleet = build(folder, strategy=INNER["Scheduled"]()), Fleet()
    try:
        strategy.resume(fleet, initial_model(), num_rounds=ROUNDS, **configs)
    finally:
        asked = fleet.asked
    return asked


def test_who_is_refused_for_its_configs_has_touched_nothing_and_can_try_again(tmp_path):
    strategy = build(tmp_path, strategy=FedAvg(fraction_evaluate=0.0))
    config = ConfigRecord({"clip": np.nan, "lr": 0.1})
    strategy.start(Fleet(), initial_model(), num_rounds=1, train_config=config)
    strategy, before = build(tmp_path, strategy=FedAvg(fraction_evaluate=0.0)), random.getstate()
    with pytest.raises(CheckpointError, match=r"train_config: lr must be .* 0\.1; got 0\.2"):
        strategy.resume(
            Fleet(),
            initial_model(),
            num_rounds=2,
            train_config=ConfigRecord({"clip": np.nan, "lr": 0.2}),
        )
    assert random.getstate() == before
    assert strategy.accountant.num_releases == 0
    config = ConfigRecord({"clip": np.nan, "lr": 0.1})
    strategy.resume(Fleet(), initial_model(), num_rounds=2, train_config=config)
    assert strategy.privacy_spent().num_releases == 2


def test_configs_left_out_are_those_of_the_run(tmp_path):
    run(build(tmp_path, strategy=INNER["Scheduled"]()), kill_at=(3, "train"))
    asked = go_on(tmp_path)
    assert "('lr', 0.05), ('warm', True)" in asked[0][-1]
    assert "('batch', 8)" in asked[-1][-1]


@pytest.mark.parametrize(
    ("configs", "match"),
    [
        ({"train_config": {"lr": 0.2, "warm": True}}, "train_config: lr must be .*0.1; got 0.2"),
        ({"train_config": {"lr": 0.1}}, "train_config: warm must be .*True; got None"),
        ({"train_config": {}}, "train_config: lr must be .*0.1; got None"),
        ({"evaluate_config": {"batch": 8, "x": 1}}, "evaluate_config: x must be .*None; got 1"),
    ],
)
def test_configs_of_another_run_are_refused_naming_the_key(tmp_path, configs, match):
    run(build(tmp_path, strategy=INNER["Scheduled"]()), kill_at=(3, "train"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    records = {name: ConfigRecord(content) for name, content in configs.items()}
    with pytest.raises(CheckpointError, match=match):
        go_on(tmp_path, **records)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert {name: dict(record) for name, record in records.items()} == configs


def test_a_config_as_the_run_has_left_it_is_taken(tmp_path):
    """The same object in the same process, say in a notebook."""
    config, whole = ConfigRecord({"lr": 0.1}), Fleet()
    strategy = build(tmp_path, strategy=FedAvg(fraction_evaluate=0.0))
    strategy.start(Fleet(), initial_model(), num_rounds=1, train_config=config)
    assert dict(config) == {"lr": 0.1, "server-round": 1}
    strategy = build(tmp_path, strategy=FedAvg(fraction_evaluate=0.0))
    strategy.resume(whole, initial_model(), num_rounds=2, train_config=config)
    assert dict(config) == {"lr": 0.1, "server-round": 2}
    assert strategy.train_config is config


def test_checkpoints_of_before_the_configs_were_kept_can_be_read(tmp_path):
    """Version 2: the configs are those that the resumed run is given."""
    run(build(tmp_path, strategy=INNER["FedAdam"]()), rounds=2)

    def older(manifest):
        del manifest["surroundings"], manifest["is_evaluated"]
        manifest["schema"] = 2
        facts = decode(manifest["facts"], None, None)
        manifest["facts"] = json.loads(json.dumps(facts))  # as they were written

    for path in tmp_path.glob("*.ckpt"):
        rewrite(path, older)
    ledger = tmp_path / "ledger.json"
    ledger.write_text(re.sub(r'"schema": 3,\s*"write": "\w+"', '"schema": 2', ledger.read_text()))
    assert '"schema": 2' in ledger.read_text()
    asked, _, strategy = run(build(tmp_path, strategy=INNER["FedAdam"]()), resume=True)
    assert [place for place, *_ in asked][:: NODES * 2] == [(3, "train")]
    assert "('lr', 0.1)" in asked[0][-1]
    assert strategy.privacy_spent().num_releases == ROUNDS
    assert Checkpoints(tmp_path).load()[1].server_round == ROUNDS


# ------------------------------------------------------------------ what cannot be kept
class Turning(FedAvg):
    """A strategy whose `turn` makes something of it that cannot be saved, in round 2."""

    def __init__(self, turn, place):
        super().__init__(fraction_evaluate=0.0)
        self._turned = (turn.__name__, place)
        type(self).turn = staticmethod(turn)

    def _turn(self, server_round, place):
        if (server_round, place) == (2, self._turned[1]):
            type(self).turn(self)

    def configure_train(self, server_round, arrays, config, grid):
        self._turn(server_round, "configure")
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        self._turn(server_round + 1, "evaluate")
        return super().aggregate_evaluate(server_round, replies)


def _generator(strategy):
    strategy.draws = np.random.default_rng(0)


def _function(strategy):
    strategy.train_metrics_aggr_fn = lambda *_: MetricRecord()


def _config(strategy):
    strategy.mine = ConfigRecord()


@pytest.mark.parametrize("place", ["configure", "evaluate"])
@pytest.mark.parametrize(
    ("turn", "match"),
    [
        (_generator, "Turning.draws holds a Generator"),
        (_function, "Turning.train_metrics_aggr_fn holds another function than before the run"),
        (_config, "Turning.mine holds a ConfigRecord"),
    ],
)
def test_what_cannot_be_saved_any_more_is_refused_before_anyone_is_asked(
    tmp_path, turn, match, place
):
    strategy, fleet = build(tmp_path, strategy=Turning(turn, place)), Fleet()
    with pytest.raises(ValueError, match=match):
        strategy.start(fleet, initial_model(), num_rounds=3)
    assert {place for place, *_ in fleet.asked} == {(1, "train")}
    assert Checkpoints(tmp_path).load()[0].num_charges == 1


def test_metrics_of_the_last_evaluation_are_in_the_report_of_a_resumed_run(tmp_path):
    """They have left the devices, whoever reads the report later."""
    strategy = build(tmp_path, strategy=FedAvg(fraction_evaluate=1.0))
    run(strategy, rounds=1)
    resumed = build(tmp_path, strategy=FedAvg(fraction_evaluate=1.0))
    resumed.restore(initial_model())
    assert resumed.report() == strategy.report()
    assert any("'accuracy' left devices" in text for text in resumed.report().exceptions)
