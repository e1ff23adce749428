"""Client apps that would tell what they must not, the secrets they hold, and the search for them.

Every way of attaching the mod is tried against the same apps.
"""

import pickle
import struct

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from tests.messages import everything, numpy_dict, record

WITHHELD = "SeparatedDPMod: the device withheld its reply, see its log"
SETTINGS = {
    "num-examples",
    "ldp-epsilon-direction",
    "ldp-epsilon-magnitude",
    "ldp-max-norm",
    "ldp-max-output-norm",
}
"""Names of all the numbers that a private reply carries beside its arrays."""

SEEDED = SETTINGS | {"ldp-insecure-generator"}
"""The same, of a mod whose generator is seeded."""


def assert_withheld(reply):
    assert reply.has_error()
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (6, WITHHELD)


class Secret:
    """What must not leave: recognisable text, numbers and arrays, in every form they may take."""

    text = "s3cr3t-patient-4711"
    number = 0.123456789012345678
    count = 0x5EC2E75EC2E7

    def __init__(self):
        generator = np.random.default_rng(20240229)
        received = numpy_dict(self.received())
        self.update = {
            name: generator.uniform(0.05, 0.15, array.shape) for name, array in received.items()
        }
        self.trained = {}
        for name, array in received.items():
            if array.dtype == np.float64:
                self.trained[name] = array + self.update[name]
            else:
                self.trained[name] = np.full(array.shape, self.count, array.dtype)

    @staticmethod
    def received():
        return record(
            {
                "weight": np.linspace(-1.0, 1.0, 6).reshape(2, 3),
                "bias": np.array([0.25, -0.5]),
                "bn.running_var": np.array([1.0, 2.0]),
                "steps": np.array([1, 2, 3], np.int64),
            }
        )

    def metrics(self):
        return {
            "num-examples": 4711,
            "loss": self.number,
            "losses": [self.number, 2 * self.number],
            self.text: self.count,
        }

    def model(self, **changes):
        arrays = self.trained | changes
        return record({name: array for name, array in arrays.items() if array is not None})

    def reply(self, message, **changes):
        content = {
            "arrays": self.model(**changes),
            self.text: MetricRecord(self.metrics()),
            "metrics": MetricRecord(self.metrics()),
            "config": ConfigRecord({"note": self.text, self.text: self.text.encode()}),
        }
        return Message(RecordDict(content), reply_to=message)

    def as_sent(self):
        """The secrets in the forms in which an app without the mod sends them."""
        numbers = [self.number, 2 * self.number, float(self.count), 4711.0]
        yield self.text.encode()
        yield from (struct.pack("<d", number) for number in numbers)
        yield from (repr(number).encode() for number in [self.number, self.count])
        yield struct.pack("<q", self.count)
        for array in self.trained.values():
            yield array.tobytes()
            yield from (value.tobytes() for value in array.ravel())

    def derived(self):
        """What can be computed from the secrets and is as secret."""
        for name, array in Secret.received().items():
            if array.dtype == "float64":
                difference = self.trained[name] - array.numpy()
                for values in (self.update[name], difference):
                    yield values.tobytes()
                    yield from (value.tobytes() for value in values.ravel())
                yield from (
                    values.astype(dtype).tobytes()
                    for values in (self.trained[name], difference)
                    for dtype in (np.float32, np.float16)
                )

    def needles(self):
        yield from self.as_sent()
        yield from self.derived()


SECRET = Secret()


def returns(**changes):
    return lambda message, _context: SECRET.reply(message, **changes)


def returns_value(value):
    return lambda _message, _context: value


def raises(error):
    def handler(message, _context):
        SECRET.reply(message)
        raise error

    return handler


def raises_from(message, _context):
    try:
        raise KeyError(SECRET.text)
    except KeyError as cause:
        raise RuntimeError(f"{SECRET.trained} {SECRET.text}") from cause


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError(SECRET.text)


def replies_error(message, _context):
    return Message(Error(4711, f"{SECRET.text} {SECRET.trained}"), reply_to=message)


def replies_content(**records):
    def handler(message, _context):
        built = {name: make() for name, make in records.items()}
        return Message(RecordDict(built), reply_to=message)

    return handler


def replies_to_nobody(message, _context):
    content = SECRET.reply(message).content
    return Message(content, 4711, "train.twice", ttl=SECRET.number, group_id=SECRET.text)


def changes_metadata_of_its_reply(message, _context):
    reply = SECRET.reply(message)
    reply.metadata.group_id = SECRET.text
    reply.metadata.__dict__["_message_id"] = SECRET.text
    return reply


def changes_metadata_it_received(message, _context):
    message.metadata.group_id = SECRET.text
    message.metadata.__dict__["_message_id"] = SECRET.text
    return SECRET.reply(message)


def changes_metadata_and_raises(message, _context):
    message.metadata.group_id = SECRET.text
    raise RuntimeError(SECRET.text)


def changes_message_type(message, _context):
    message.metadata.message_type = "train.s3cr3t_patient"
    return SECRET.reply(message)


def changes_content_it_received(message, _context):
    reply = SECRET.reply(message)
    message.content["config"]["note"] = SECRET.text
    message.content[SECRET.text] = MetricRecord(SECRET.metrics())
    message.content["arrays"] = SECRET.model()
    return reply


def changes_context(message, context):
    context.state[SECRET.text] = MetricRecord(SECRET.metrics())
    context.run_config["sdp-max-norm"] = SECRET.number
    context.node_config["partition-id"] = SECRET.text
    return SECRET.reply(message)


def changes_context_and_raises(message, context):
    context.node_config["partition-id"] = SECRET.text
    context.node_config.clear()
    raise RuntimeError(SECRET.text)


def array_with(**fields):
    array = Array(SECRET.trained["weight"])
    for name, value in fields.items():
        setattr(array, name, value)
    return array


def pickled(array):
    """Return the bytes of an array that holds Python objects."""
    plain = Array(np.zeros(array.shape)).data
    header = plain[: plain.index(b"\n") + 1].replace(b"<f8", b"|O ")
    return header + pickle.dumps(array.astype(object))


def replies_damaged(**fields):
    def handler(message, _context):
        reply = SECRET.reply(message)
        reply.content["arrays"]["weight"] = array_with(**fields)
        return reply

    return handler


def raises_with_a_note(message, _context):
    error = ValueError("no text")
    error.add_note(f"{SECRET.text} {SECRET.trained}")
    raise error


def recurses(message, context, depth=SECRET.count):
    return recurses(message, context, depth + 1)


def sets_on_its_reply(**fields):
    """Write on the envelope of the reply."""

    def handler(message, _context):
        reply = SECRET.reply(message)
        for name, value in fields.items():
            setattr(reply.metadata, name, value)
        return reply

    return handler


def sets_on_what_it_received(**fields):
    """Write on the envelope from which that of a reply is made."""

    def handler(message, _context):
        for name, value in fields.items():
            setattr(message.metadata, name, value)
        return SECRET.reply(message)

    return handler


def limits_the_time_of_its_reply(message, _context):
    return Message(SECRET.reply(message).content, reply_to=message, ttl=SECRET.number)


def replies_content_and_error(message, _context):
    reply = SECRET.reply(message)
    reply.__dict__["_error"] = Error(4711, SECRET.text)
    return reply


def replies_what_is_no_content(value):
    def handler(message, _context):
        reply = SECRET.reply(message)
        reply.content = value
        return reply

    return handler


def claims_the_marks(message, _context):
    reply = SECRET.reply(message)
    reply.content["metrics"] = MetricRecord(dict.fromkeys(SETTINGS, SECRET.number))
    return reply


def replies_like_a_legacy_client(message, _context):
    content = {
        "fitres.parameters": SECRET.model(),
        "fitres.num_examples": MetricRecord({"num_examples": 4711}),
        "fitres.metrics": ConfigRecord({"note": SECRET.text, "loss": SECRET.number}),
        "fitres.status": ConfigRecord({"code": 0, "message": SECRET.text}),
    }
    return Message(RecordDict(content), reply_to=message)


TEXT_ARRAY = np.full((2, 3), SECRET.text)

# name: (train function, whether a private reply comes out of it)
APPS = {
    "says more than it should": (returns(), True),
    "NaN": (returns(weight=np.full((2, 3), np.nan)), True),
    "inf in one place": (returns(bias=np.array([np.inf, SECRET.number])), True),
    "minus inf": (returns(bias=np.array([-np.inf, SECRET.number])), True),
    "huge": (returns(weight=SECRET.trained["weight"] * 1e300), True),
    "float32": (returns(weight=SECRET.trained["weight"].astype(np.float32)), True),
    "buffers of another shape": (returns(steps=np.full(5, SECRET.count)), True),
    "buffers of another dtype": (returns(steps=np.full(3, SECRET.text)), True),
    "missing key": (returns(bias=None), False),
    "missing buffer": (returns(steps=None), True),
    "unknown key": (returns(**{SECRET.text: SECRET.trained["weight"]}), False),
    "wrong shape": (returns(weight=SECRET.trained["weight"].T), False),
    "flattened": (returns(weight=SECRET.trained["weight"].ravel()), False),
    "would broadcast": (returns(weight=SECRET.trained["weight"][:1]), False),
    "text array": (returns(weight=TEXT_ARRAY), False),
    "bytes array": (returns(weight=TEXT_ARRAY.astype("S")), False),
    "date array": (returns(weight=np.full((2, 3), "2024-02-29", "datetime64[D]")), False),
    "complex array": (returns(weight=SECRET.trained["weight"] * 1j), False),
    "integer array": (returns(weight=np.full((2, 3), SECRET.count)), True),
    "empty array": (returns(weight=np.empty((0, 3))), False),
    "one number": (returns(weight=np.array(SECRET.number)), False),
    "pickled objects": (replies_damaged(data=pickled(SECRET.trained["weight"])), False),
    "claims another dtype": (replies_damaged(dtype=SECRET.text), True),
    "claims another shape": (replies_damaged(shape=(4711, SECRET.count)), True),
    "damaged bytes": (replies_damaged(data=SECRET.text.encode()), False),
    "no bytes": (replies_damaged(data=b""), False),
    "other serialisation": (replies_damaged(stype=SECRET.text), False),
    "empty ArrayRecord": (replies_content(arrays=ArrayRecord), False),
    "no record": (replies_content(), False),
    "metrics only": (replies_content(metrics=lambda: MetricRecord(SECRET.metrics())), False),
    "two ArrayRecords": (
        replies_content(arrays=SECRET.model, **{SECRET.text: SECRET.model}),
        False,
    ),
    "claims the marks": (claims_the_marks, True),
    "like a legacy client": (replies_like_a_legacy_client, True),
    "content and error": (replies_content_and_error, False),
    "content is a text": (replies_what_is_no_content(SECRET.text), False),
    "content is an array": (replies_what_is_no_content(SECRET.trained["weight"]), False),
    "content is a dict": (
        replies_what_is_no_content({"arrays": SECRET.model(), "text": SECRET.text}),
        True,
    ),
    "None": (returns_value(None), False),
    "text": (returns_value(SECRET.text), False),
    "a dict": (returns_value({"arrays": SECRET.trained, "text": SECRET.text}), False),
    "arrays": (returns_value(SECRET.trained["weight"]), False),
    "a RecordDict": (returns_value(RecordDict({"arrays": SECRET.model()})), False),
    "an exception": (returns_value(ValueError(SECRET.text)), False),
    "raises": (raises(ValueError(f"{SECRET.text} {SECRET.trained}")), False),
    "raises from": (raises_from, False),
    "raises with a note": (raises_with_a_note, False),
    "raises a type of its own": (raises(type(SECRET.text, (Exception,), {})(SECRET.text)), False),
    "raises what cannot be printed": (raises(UnprintableError()), False),
    "raises a group": (raises(ExceptionGroup(SECRET.text, [ValueError(SECRET.text)])), False),
    "exits": (raises(SystemExit(SECRET.text)), False),
    "exits with a code": (raises(SystemExit(4711)), False),
    "stops iteration": (raises(StopIteration(SECRET.text)), False),
    "runs out of memory": (raises(MemoryError(SECRET.text)), False),
    "recurses without end": (recurses, False),
    "recursion error with a text": (raises(RecursionError(SECRET.text)), False),
    "replies with an error": (replies_error, False),
    "replies to nobody": (replies_to_nobody, True),
    "limits the time of its reply": (limits_the_time_of_its_reply, True),
    "sets times on its reply": (
        sets_on_its_reply(ttl=SECRET.number, created_at=2 * SECRET.number),
        True,
    ),
    "sets times on what it received": (
        sets_on_what_it_received(ttl=SECRET.number, created_at=2 * SECRET.number),
        True,
    ),
    "addresses its reply": (
        sets_on_its_reply(dst_node_id=SECRET.count, src_task_id=SECRET.count),
        True,
    ),
    "addresses what it received": (
        sets_on_what_it_received(dst_node_id=SECRET.count, dst_task_id=SECRET.count),
        True,
    ),
    "sets the type of its reply": (sets_on_its_reply(message_type="train.s3cr3t_patient"), True),
    "changes the metadata of its reply": (changes_metadata_of_its_reply, True),
    "changes the metadata it received": (changes_metadata_it_received, True),
    "changes the metadata and raises": (changes_metadata_and_raises, False),
    "changes the message type": (changes_message_type, True),
    "changes the content it received": (changes_content_it_received, True),
    "changes the context": (changes_context, True),
    "changes the context and raises": (changes_context_and_raises, False),
}


# name: (evaluate or query function, whether an empty reply comes out of it)
OTHER_APPS = {
    "metrics and notes": (
        replies_content(
            metrics=lambda: MetricRecord(SECRET.metrics()),
            **{
                SECRET.text: lambda: MetricRecord(SECRET.metrics()),
                "notes": lambda: ConfigRecord({SECRET.text: SECRET.text}),
            },
        ),
        True,
    ),
    "claims the marks": (
        replies_content(
            metrics=lambda: MetricRecord(dict.fromkeys(SETTINGS, SECRET.number)),
        ),
        True,
    ),
    "like a legacy client": (
        replies_content(
            **{
                "evaluateres.loss": lambda: MetricRecord({"loss": SECRET.number}),
                "evaluateres.metrics": lambda: ConfigRecord({SECRET.text: SECRET.text}),
                "evaluateres.status": lambda: ConfigRecord({"code": 0, "message": SECRET.text}),
            }
        ),
        True,
    ),
    "limits the time of its reply": (
        lambda message, context: Message(
            RecordDict({SECRET.text: MetricRecord(SECRET.metrics())}),
            reply_to=message,
            ttl=SECRET.number,
        ),
        True,
    ),
    "nothing": (replies_content(), True),
    "arrays": (returns(), False),
    "an empty ArrayRecord": (replies_content(arrays=ArrayRecord), False),
    "changes the metadata it received": (
        lambda message, context: (
            setattr(message.metadata, "group_id", SECRET.text),
            Message(RecordDict(), reply_to=message),
        )[1],
        True,
    ),
    **{
        name: APPS[name]
        for name in (
            "None",
            "text",
            "a dict",
            "raises",
            "raises from",
            "raises with a note",
            "raises a type of its own",
            "raises a group",
            "exits",
            "runs out of memory",
            "recurses without end",
            "replies with an error",
            "content and error",
            "content is a text",
        )
    },
}


def assert_no_secret(reply):
    sent = everything(reply)
    found = [needle for needle in SECRET.needles() if needle in sent]
    assert not found, f"{len(found)} secrets leave, the first is {found[0]!r}"
    assert b"s3cr3t" not in sent
