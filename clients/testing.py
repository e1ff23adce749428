"""Test your own app with the mod, under pytest and without a network."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from secrets import token_hex
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    RecordDict,
)
from flwr.clientapp import ClientApp

from flwr_sdp import _validate
from flwr_sdp.clients.update import UpdateLayout
from flwr_sdp.marks import INSECURE_GENERATOR, MARKS, MAX_OUTPUT_NORM, WEIGHTS
from flwr_sdp.model_rounding import Rounding
from flwr_sdp.records import records_of
from flwr_sdp.released import Selection


def enter_run() -> None:
    """Let ``flwr.app.Message`` be built outside a run; the functions below do it by themselves."""
    from flwr.supercore.task_identity import TaskIdentity

    try:
        _ = TaskIdentity.task_id
    except RuntimeError:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def message(
    content: Mapping[str, Any],
    message_type: str = "train",
    *,
    message_id: str = "message-1",
) -> Message:
    """Return a message as a server sends it.

    Parameters
    ----------
    content : mapping
        Its records: ``{"arrays": ArrayRecord(...), "config": ConfigRecord(...)}``.
    message_type : str
        ``"train"``, ``"evaluate"``, ``"query"``, or one of them with an action.
    message_id : str
        By which the ledger knows a message that is delivered twice.
    """
    enter_run()
    made = Message(RecordDict(dict(content)), 1, message_type)
    made.metadata.__dict__["_message_id"] = message_id
    return made


def context(
    run_config: Mapping[str, Any] | None = None, node_config: Mapping[str, Any] | None = None
) -> Context:
    """Return the context of a device."""
    return Context(
        run_id=1,
        node_id=1,
        node_config=dict(node_config or {}),
        state=RecordDict(),
        run_config=dict(run_config or {}),
    )


def reply_bytes(reply: Message) -> bytes:
    """Return every byte that leaves the device with a reply: names, numbers, texts, envelope."""
    parts = [repr(vars(reply.metadata)).encode()]
    if reply.has_error():
        parts.append(str(reply.error.reason).encode())
    else:
        for name, record in reply.content.items():
            parts.append(name.encode())
            for key, value in record.items():
                parts.append(key.encode())
                parts += _array_bytes(value) if isinstance(value, Array) else _value_bytes(value)
    return b"\0".join(parts)


def assert_only_private(
    app: ClientApp,
    content: Mapping[str, Any],
    *,
    run_config: Mapping[str, Any] | None = None,
    node_config: Mapping[str, Any] | None = None,
    message_type: str = "train",
    selection: Selection | None = None,
    released_metrics: Iterable[str] = (),
    secrets: Iterable[str | bytes | float | np.ndarray[Any, Any]] = (),
) -> Message:
    """Train an app twice, and check that nothing but private numbers would leave a device.

    Parameters
    ----------
    app : ClientApp
        The app, with its mod.
    content : mapping
        What the server sends, as for :func:`message`.
    run_config, node_config : mapping, optional
        Settings of the server and of the device.
    message_type : str
        The train message to send.
    selection : Selection, optional
        Which arrays are meant to be private, as given to the mod.
    released_metrics : iterable of str
        Metrics that are meant to leave.
    secrets : iterable
        Texts, numbers or arrays, such as an example of the data or a trained layer, that must not
        be found in the replies, in any of the usual widths. Let numbers have eight digits or so:
        short ones occur by chance.

    Returns
    -------
    Message
        The second reply.

    Raises
    ------
    AssertionError
        Saying what is wrong: an error reply, a missing mark, a record or a metric too many, an
        array that was trained and is not noised, one that should be as received and is not, a
        report beyond the declared length, or a secret.
    """
    selection = selection or Selection()
    secrets, allowed = list(secrets), {*released_metrics}  # they are gone through twice
    replies = []
    for attempt in range(2):
        asked = message(content, message_type, message_id=f"attempt-{attempt}-{token_hex(4)}")
        sent = records_of(asked.content, ArrayRecord)
        if len(sent) != 1:
            raise ValueError(f"content must have one ArrayRecord; it has {len(sent)}")
        layout = UpdateLayout.of(sent[0], selection)
        rounding = Rounding.on(layout.received, selection)
        reply = app(asked, context(run_config, node_config))
        for secret in secrets:
            for form in _forms(secret):
                assert form not in reply_bytes(reply), f"a secret leaves the device: {secret!r}"
        _check_reply(reply, layout, rounding, allowed)
        replies.append(reply)
    first, second = (records_of(reply.content, ArrayRecord)[0] for reply in replies)
    for name in layout.released:
        same = first[name].numpy() == second[name].numpy()
        # float16 has few numbers: two draws may meet.
        assert not same.size or same.mean() < 0.5, (
            f"array {name!r} is not random: it was the same twice"
        )
    return replies[1]


def _check_reply(
    reply: Message, layout: UpdateLayout, rounding: Rounding, allowed: set[str]
) -> None:
    assert not reply.has_error(), f"the device refused: {reply.error.reason}"
    records = records_of(reply.content, ArrayRecord)
    assert len(records) == 1, f"a reply has one ArrayRecord; this one has {len(records)}"
    marks = _check_values(reply.content, allowed)
    arrays = records[0]
    assert list(arrays) == list(layout.received), "the reply has other arrays than the message"
    for name, array in arrays.items():
        sent = layout.received[name]
        facts = [(each.dtype, tuple(each.shape), each.stype) for each in (array, sent)]
        assert facts[0] == facts[1], (
            f"array {name!r} has another dtype, shape or kind than was sent"
        )
        if name not in layout.released and name not in layout.tied:
            assert array.data == sent.data, f"array {name!r} leaves as it was trained"
    try:
        update = layout.difference(arrays).astype(np.float64)
    except ValueError as error:
        raise AssertionError(f"the reply is no model: {error}") from error
    longest = rounding.of(marks[MAX_OUTPUT_NORM])
    length = float(np.linalg.norm(update))
    length_, longest_ = _validate.apart(length, longest)
    assert length <= longest, f"the report is {length_} long, beyond {longest_}"


def _check_values(content: RecordDict, allowed: set[str]) -> dict[str, Any]:
    """Check each record that is not of arrays, and return the marks."""
    values: list[tuple[str, Any]] = []
    for record_name, record in content.items():
        if isinstance(record, ArrayRecord):
            continue
        if record_name.endswith("res.status"):  # of legacy clients
            assert dict(record) == {"code": 0, "message": ""}, "the client's status leaves"
        else:
            values += record.items()
    marks = {key: value for key, value in values if key in MARKS}
    numbers = all(isinstance(value, float) for key, value in values if key in MARKS)
    assert numbers, "a mark of SeparatedDPMod is not a number"
    missing = [name for name in MARKS if name not in marks]
    assert not missing, f"the reply was not made by SeparatedDPMod: {missing} are missing"
    is_secure = INSECURE_GENERATOR not in {key for key, _ in values}
    assert is_secure, "the noise is not from the secure generator: leave rng out"
    weights = [value for key, value in values if key in WEIGHTS]
    assert all(weight == 1 for weight in weights), "the number of examples leaves the device"
    others = sorted({key for key, _ in values} - {*MARKS, *WEIGHTS, *allowed})
    assert not others, f"metrics leave: {others}"
    return marks


def _array_bytes(array: Array) -> Iterator[bytes]:
    yield from (array.dtype.encode(), repr(array.shape).encode(), array.stype.encode(), array.data)


def _value_bytes(value: Any) -> Iterator[bytes]:
    yield repr(value).encode()
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, bytes):
            yield each
        elif isinstance(each, str):
            yield each.encode()
        else:
            yield struct.pack("<d", float(each))


def _forms(secret: Any) -> Iterator[bytes]:
    """Yield what a secret may look like in a message."""
    if isinstance(secret, bytes):
        yield secret
    elif isinstance(secret, str):
        yield secret.encode()
    elif isinstance(secret, int | float):
        yield repr(secret).encode()
        yield struct.pack("<d", secret)
        yield struct.pack("<f", secret)
    else:
        array = np.ascontiguousarray(secret)
        for dtype in (array.dtype, np.float32, np.float64):
            yield array.astype(dtype).tobytes()
