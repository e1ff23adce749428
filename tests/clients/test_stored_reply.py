"""A stored reply is the reply, to the last bit."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_sdp.clients.stored_reply import decode, encode
from tests.messages import record
from tests.statistics_helpers import PROPERTY

NAMES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "\n", "a\nb", "[]", '"', "\\n", "ü", "層", "\0", "🎲", "\u2028", "\ud800"]
    ),
)
DTYPES = st.sampled_from(
    ["float16", "float32", "float64", ">f4", "int8", "int64", "uint8", "bool", "complex64", "U3"]
)


def facts(content):
    """Return all that is in a RecordDict, with the types of numbers, in order."""
    found = []
    for name, rec in content.items():
        values = [
            (key, (value.dtype, value.shape, value.stype, value.data))
            if isinstance(value, Array)
            else (key, typed(value))
            for key, value in rec.items()
        ]
        found.append((name, type(rec), values))
    return found


def typed(value):
    """Return a value with its type; floats as bits, which tells -0.0 and nan apart."""
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value), value.hex() if isinstance(value, float) else value


def arrays():
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return hnp.arrays(DTYPES, shapes).map(Array)


def plain(*kinds):
    """Return values as Flower allows them: one of a kind, or a list of one kind."""
    return st.one_of(*kinds, *(st.lists(kind, max_size=4) for kind in kinds))


INTS, FLOATS = st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False)
CONTENTS = st.dictionaries(
    NAMES,
    st.one_of(
        st.dictionaries(NAMES, arrays(), max_size=3).map(ArrayRecord),
        st.dictionaries(NAMES, plain(INTS, FLOATS), max_size=3).map(MetricRecord),
        st.dictionaries(NAMES, plain(INTS, FLOATS, st.text(), st.booleans()), max_size=3).map(
            ConfigRecord
        ),
    ),
    max_size=4,
).map(RecordDict)


@PROPERTY
@given(CONTENTS)
def test_a_stored_reply_is_the_reply(content):
    before = facts(content)
    back = decode(b"".join(encode(content)))
    assert facts(back) == before
    assert facts(content) == before
    assert back == content
    # What is stored is stored the same way again.
    assert encode(back) == encode(content)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 1, 1.0, True, [], [0.1, math.inf]],
    ids=repr,
)
def test_numbers_keep_their_type_and_their_bits(value):
    kind = ConfigRecord if isinstance(value, bool) else MetricRecord
    content = RecordDict({"metrics": kind({"a": value})})
    assert facts(decode(b"".join(encode(content)))) == facts(content)


def test_arrays_are_stored_as_they_are_and_not_copied():
    content = RecordDict({"arrays": record({"w": np.arange(6.0).reshape(2, 3), "s": 1.5})})
    parts = encode(content)
    assert len(parts) == 3
    for part, array in zip(parts[1:], content["arrays"].values(), strict=True):
        assert part is array.data


def test_arrays_of_any_content_are_told_apart_by_their_length_alone():
    """Bytes that look like what they are stored with: line ends, JSON, nothing."""
    datas = [b"\n", b"", b"[]\n", b'{"name": "x"}\n', bytes(range(256)), b"\n\n"]
    records = {
        name: ArrayRecord(
            {str(i): Array("uint8", (len(d),), "numpy.ndarray", d) for i, d in enumerate(datas)}
        )
        for name in ("a", "b")
    }
    content = RecordDict({"metrics": MetricRecord({"n": 1}), **records})
    back = decode(b"".join(encode(content)))
    assert facts(back) == facts(content)
    assert [array.data for array in back["b"].values()] == datas


def test_arrays_of_legacy_clients_have_neither_dtype_nor_shape():
    data = Array(np.arange(3.0)).data
    content = RecordDict(
        {
            "fitres.parameters": ArrayRecord({"0": Array("", (), "numpy.ndarray", data)}),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
    back = decode(b"".join(encode(content)))
    assert facts(back) == facts(content)
    np.testing.assert_array_equal(back["fitres.parameters"]["0"].numpy(), np.arange(3.0))


def test_nothing_is_a_reply_too():
    assert facts(decode(b"".join(encode(RecordDict())))) == []
