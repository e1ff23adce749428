"""Models, messages, contexts, client apps and grids for tests."""

import pickle
import struct
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

MARKS = {"ldp-epsilon-direction": 8.0, "ldp-epsilon-magnitude": 2.0}
"""What a strategy recognises a private reply by."""


# ------------------------------------------------------------------ models
def record(arrays: dict[str, Any]) -> ArrayRecord:
    """Return an ArrayRecord of NumPy arrays."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def numpy_dict(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def is_float(array: Array) -> bool:
    return np.issubdtype(np.dtype(array.dtype), np.floating)


def flat(arrays: ArrayRecord, names: Iterable[str] | None = None) -> np.ndarray:
    """Return the floating-point arrays (or those named) as one float64 vector."""
    chosen = [name for name in arrays if is_float(arrays[name])] if names is None else names
    return np.concatenate([arrays[name].numpy().astype(np.float64).ravel() for name in chosen])


def shifted(arrays: ArrayRecord, update: Any) -> ArrayRecord:
    """Return `arrays` with `update` added: a dict of arrays, a flat vector, or one number."""
    moved, start = {}, 0
    for name, array in arrays.items():
        value = array.numpy()
        if is_float(array):
            if isinstance(update, dict):
                step = np.asarray(update.get(name, 0.0))
            elif np.ndim(update) == 1:
                step = np.asarray(update)[start : start + value.size].reshape(value.shape)
                start += value.size
            else:
                step = np.asarray(update)
            with np.errstate(all="ignore"):
                value = np.asarray(value + step, dtype=value.dtype)
        moved[name] = value
    return record(moved)


# ------------------------------------------------------------------ messages
def request(model: ArrayRecord, message_type: str = "train", node_id: int = 1) -> Message:
    """Return a server's message that carries `model` and a config."""
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})})
    message = Message(content, node_id, message_type)
    message.metadata.__dict__["_message_id"] = f"message-{node_id}"
    return message


def context(run_config: dict[str, Any] | None = None, partition: int = 3) -> Context:
    return Context(
        run_id=1,
        node_id=11,
        node_config={"partition-id": partition, "num-partitions": 10},
        state=RecordDict(),
        run_config=run_config or {},
    )


def reply_with(message: Message, arrays: ArrayRecord, **metrics: Any) -> Message:
    """Return an ordinary reply of an app: a model and metrics."""
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": 32, **metrics})}
    )
    return Message(content, reply_to=message)


def private_reply(
    message: Message,
    update: Any = 0.0,
    *,
    num_examples: float = 1,
    marks: dict[str, Any] | None = None,
) -> Message:
    """Return what a device with the mod would answer: the model moved by `update`, and the mark."""
    model = next(iter(message.content.array_records.values()))
    metrics = MetricRecord({"num-examples": num_examples, **(MARKS if marks is None else marks)})
    content = RecordDict({"arrays": shifted(model, update), "metrics": metrics})
    return Message(content, reply_to=message)


def error_reply(message: Message, reason: str = "it broke") -> Message:
    return Message(Error(2, reason), reply_to=message)


# ------------------------------------------------------------------ client apps
Handler = Callable[[Message, Context], Any]


def client_app(mod: Any, handler: Handler, *, attach: str = "function") -> ClientApp:
    """Return an app that answers everything with `handler`, with `mod` attached in either way."""
    on_app, on_function = ([mod], None) if attach == "app" else (None, [mod])
    app = ClientApp(mods=on_app)
    for register in (app.train, app.evaluate, app.query):
        register(mods=on_function)(handler)
    app.train("twice", mods=on_function)(handler)
    return app


# ------------------------------------------------------------------ all that leaves a device
def _wire(item: Any) -> Iterator[bytes]:
    yield item.deflate()
    for child in (item.children or {}).values():
        yield from _wire(child)


def everything(reply: Message) -> bytes:
    """Return all that is in a message: as Flower sends it, and once more field by field."""
    parts = [pickle.dumps(reply.__dict__)]  # first: Flower caches views that cannot be pickled
    parts += [repr(reply.__dict__).encode(), repr(reply.metadata.__dict__).encode()]
    parts += _wire(reply)
    if reply.has_error():
        parts += [str(reply.error.code).encode(), str(reply.error.reason).encode()]
    for name, rec in (reply.content if reply.has_content() else {}).items():
        parts.append(name.encode())
        for key, value in rec.items():
            parts.append(key.encode())
            if isinstance(value, Array):
                parts += [value.dtype.encode(), repr(value.shape).encode(), value.stype.encode()]
                parts += [value.data, value.numpy().tobytes()]
            else:
                parts.append(repr(value).encode())
                for number in value if isinstance(value, list) else [value]:
                    if isinstance(number, int | float):
                        parts.append(struct.pack("<d", float(number)))
    return b"\0".join(parts)


# ------------------------------------------------------------------ grids
class FakeGrid(Grid):
    """Nodes without a network: `answer` makes the reply to each message, or None for no reply."""

    def __init__(
        self, node_ids: Iterable[int], answer: Callable[[Message], Message | None] | None = None
    ) -> None:
        self.node_ids = list(node_ids)
        self.answer = answer
        self.sent: list[Message] = []
        self.waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.node_ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        message_ids = []
        for message in messages:
            self.sent.append(message)
            message_ids.append(f"message-{len(self.sent)}")
            message.metadata.__dict__["_message_id"] = message_ids[-1]
            self.waiting[message_ids[-1]] = message
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answer what is asked for; a node without an answer is asked again with every pull."""
        replies = []
        for message_id in message_ids:
            reply = None if self.answer is None else self.answer(self.waiting[message_id])
            if reply is not None:
                del self.waiting[message_id]
                replies.append(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Answer at once; who has no answer is not waited for."""
        for message in messages:
            yield from self.pull_messages(self.push_messages([message]))


# ------------------------------------------------------------------ run configs
def default_run_config() -> dict[str, Any]:
    """Return the run config as Flower reads it from pyproject.toml."""
    path = Path(__file__).resolve().parents[1] / "pyproject.toml"
    return tomllib.loads(path.read_text())["tool"]["flwr"]["app"]["config"]
