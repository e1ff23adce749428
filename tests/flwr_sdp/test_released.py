"""Which arrays of a model are an update."""

import dataclasses
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp.released import BATCH_NORM_STATISTICS, Selection, check_patterns

MODEL = {
    "encoder.weight": ("float32", (5, 2)),
    "encoder.bias": ("float32", (2,)),
    "encoder.lora_A.weight": ("bfloat16", (1, 2)),
    "encoder.lora_B.weight": ("float16", (5, 1)),
    "bn.running_mean": ("float32", (2,)),
    "bn.running_var": ("float64", (2,)),
    "bn.num_batches_tracked": ("int64", ()),
    "bn.weight": ("float64", (2,)),
    "mask": ("bool", (2,)),
    "head.weight": ("float32", (2, 3)),
    "head.bias": ("float32", (3,)),
    "decoder.weight": ("float32", (5, 2)),
}
STATISTICS = {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
FLOATS = [name for name, (dtype, _) in MODEL.items() if "float" in dtype]


def released(model=None, **options):
    return Selection(**options).released(MODEL if model is None else model)


# ------------------------------------------------------------------ which arrays
def test_by_default_all_floats_but_the_statistics_of_batch_normalisation():
    assert released() == tuple(name for name in FLOATS if name not in STATISTICS)


def test_statistics_of_batch_normalisation_are_averages_of_data():
    assert {
        name
        for name in MODEL
        if any(fnmatchcase(name, pattern) for pattern in BATCH_NORM_STATISTICS)
    } == STATISTICS


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("head.*", ("head.weight", "head.bias")),
        (["head.bias", "head.weight"], ("head.weight", "head.bias")),
        ("*.lora_?.*", ("encoder.lora_A.weight", "encoder.lora_B.weight")),
        ("encoder.lora_[AC].weight", ("encoder.lora_A.weight",)),
        (("head.*", "encoder.bias"), ("encoder.bias", "head.weight", "head.bias")),
        (("head.*", "*.bias"), ("encoder.bias", "head.weight", "head.bias")),
        (("*", "head.*"), tuple(name for name in FLOATS if name not in STATISTICS)),
        ((), ()),
    ],
)
def test_trainable_arrays_in_the_order_of_the_model(trainable, expected):
    assert released(trainable=trainable) == expected


@pytest.mark.parametrize("name", ["head", "Head.*", "weight", "head.", "ead.*", "head.weight "])
def test_patterns_match_whole_names_with_case(name):
    with pytest.raises(ValueError, match="matches none of them"):
        released(trainable=name)


def test_excluded_wins_over_trainable():
    assert released(trainable="head.*", excluded="*.bias") == ("head.weight",)
    assert released(trainable="head.weight", excluded="head.weight") == ()
    assert released(trainable="bn.*") == ("bn.weight",)


def test_excluded_replaces_the_default():
    assert released(trainable="bn.*", excluded=()) == (
        "bn.running_mean",
        "bn.running_var",
        "bn.weight",
    )


def test_excluded_may_match_nothing():
    """As the default does on most models."""
    assert released(excluded="nothing.*") == tuple(FLOATS)


@pytest.mark.parametrize(
    "dtype",
    ["int8", "uint8", "int64", "bool", "complex64", "|V2", "<U3", "|S4", "object", "<M8[s]"],
)
def test_what_is_not_floating_point_is_never_released(dtype):
    model = {"w": ("float32", (2,)), "x": (dtype, (2,))}
    assert released(model) == ("w",)
    assert released(model, trainable="x") == ()
    assert released(model, trainable=("x", "w"), excluded=()) == ("w",)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", ">f4"])
def test_floating_point_is(dtype):
    assert released({"w": (dtype, (2,))}) == ("w",)


def test_a_model_without_arrays_has_no_update():
    assert released({}) == ()


names = st.lists(st.sampled_from("abw."), min_size=1, max_size=3).map("".join)
patterns = st.lists(st.sampled_from("abw.*?"), min_size=1, max_size=3).map("".join)
models = st.dictionaries(
    names,
    st.tuples(
        st.sampled_from(["float16", "bfloat16", "float32", "float64", "int32", "bool"]),
        st.sampled_from([(), (2,), (2, 3)]),
    ),
    max_size=6,
)


@given(
    model=models,
    trainable=st.lists(patterns, max_size=2),
    excluded=st.lists(patterns, max_size=2),
    data=st.data(),
)
def test_released_arrays_are_those_that_the_rules_say(model, trainable, excluded, data):
    tied = {}
    pairs = [(a, b) for a in model for b in model if a != b and model[a] == model[b]]
    if pairs:
        tied = dict(data.draw(st.lists(st.sampled_from(pairs), max_size=1)))
    selection = Selection(trainable=trainable, excluded=excluded, tied=tied)

    def matches(name, listed):
        return any(fnmatchcase(name, pattern) for pattern in listed)

    useless = [p for p in trainable if p != "*" and not any(fnmatchcase(n, p) for n in model)]
    if useless:
        with pytest.raises(ValueError, match="matches none of them"):
            selection.released(model)
        return
    if any(matches(a, trainable) and not matches(b, trainable) for a, b in tied.items()):
        with pytest.raises(ValueError, match="trainable must match the first of tied names"):
            selection.released(model)
        return
    expected = [
        name
        for name, (dtype, _) in model.items()
        if "float" in dtype
        and name not in tied
        and matches(name, trainable)
        and not matches(name, excluded)
    ]
    assert selection.released(model) == tuple(expected)


# ------------------------------------------------------------------ a pattern that matches nothing
@pytest.mark.parametrize("pattern", ["haed.*", "", "head.weight.*", "[!a-z]*"])
def test_pattern_that_matches_nothing_is_refused(pattern):
    with pytest.raises(ValueError, match="trainable must match") as caught:
        released(trainable=("head.*", pattern))
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize("model", [MODEL, {"steps": ("int64", ())}, {}])
def test_everything_may_be_nothing(model):
    assert isinstance(released(model, trainable="*"), tuple)


def test_a_selection_is_for_many_models():
    """The same one is refused by one model and taken by the next."""
    selection = Selection(trainable="head.*")
    with pytest.raises(ValueError, match="matches none"):
        selection.released({"w": ("float32", (2,))})
    assert selection.released(MODEL) == ("head.weight", "head.bias")


# ------------------------------------------------------------------ tied
TIED = {"decoder.weight": "encoder.weight"}


def test_tied_weights_count_once():
    assert "decoder.weight" in released()
    assert released(tied=TIED) == tuple(name for name in released() if name != "decoder.weight")


def test_tied_weights_count_by_their_first_name():
    assert released(trainable="encoder.weight", tied=TIED) == ("encoder.weight",)
    assert released(trainable="*.weight", excluded="decoder.*", tied=TIED) == tuple(
        name for name in FLOATS if name.endswith("weight") and name != "decoder.weight"
    )
    assert "encoder.weight" not in released(excluded="encoder.*", tied=TIED)


def test_second_name_alone_is_not_a_way_to_train_tied_weights():
    """It has to be refused, or to train them: nothing else says that the array stays as it is."""
    try:
        chosen = released(trainable=("decoder.*", "head.*"), tied=TIED)
    except ValueError:
        return
    assert "encoder.weight" in chosen


def test_three_names_for_one_array():
    model = dict.fromkeys("abcd", ("float32", (2,)))
    assert released(model, tied={"b": "a", "c": "a"}) == ("a", "d")
    assert released(model, tied={"a": "d", "c": "d"}) == ("b", "d")


def test_arrays_that_are_not_released_may_be_tied():
    model = {"w": ("float32", (2,)), "i": ("int64", (2,)), "j": ("int64", (2,))}
    assert released(model, tied={"j": "i"}) == ("w",)


@pytest.mark.parametrize(
    "tied",
    [{"b": "a", "c": "b"}, {"c": "b", "b": "a"}, {"a": "b", "b": "a"}, {"a": "a"}],
    ids=["chain", "reversed", "circle", "itself"],
)
def test_chains_are_refused(tied):
    with pytest.raises(ValueError, match=r"tied must not tie to '[ab]', which is tied itself"):
        Selection(tied=tied)


@pytest.mark.parametrize(
    ("tied", "missing"),
    [
        ({"decoder.weight": "missing"}, "missing"),
        ({"missing": "encoder.weight"}, "missing"),
        ({"decoder.*": "encoder.*"}, "decoder.*"),
    ],
    ids=["first", "second", "patterns"],
)
def test_ties_to_missing_arrays_are_refused(tied, missing):
    with pytest.raises(ValueError, match="tied must name arrays of the model") as caught:
        released(tied=tied)
    assert repr(missing) in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        ("float32", (2, 5)),
        ("float32", (10,)),
        ("float32", ()),
        ("float64", (5, 2)),
        ("bfloat16", (5, 2)),
        ("int32", (5, 2)),
    ],
)
def test_ties_of_unlike_arrays_are_refused(other):
    model = {**MODEL, "decoder.weight": other}
    with pytest.raises(ValueError, match=r"of one dtype and shape; 'decoder.weight' and"):
        released(model, tied=TIED)


# ------------------------------------------------------------------ settings
@pytest.mark.parametrize("field", ["trainable", "excluded"])
@pytest.mark.parametrize(
    "patterns",
    [
        lambda: "head.*",
        lambda: ["head.*"],
        lambda: ("head.*",),
        lambda: {"head.*"},
        lambda: {"head.*": 1},
        lambda: iter(["head.*"]),
        lambda: (pattern for pattern in ["head.*"]),
    ],
    ids=["text", "list", "tuple", "set", "dict", "iterator", "generator"],
)
def test_patterns_are_a_text_or_texts(field, patterns):
    selection = Selection(**{field: patterns()})
    assert getattr(selection, field) == ("head.*",)
    for _ in range(2):  # an iterator would be empty the second time
        chosen = selection.released(MODEL)
        assert ("head.weight" in chosen) == (field == "trainable")
        assert ("encoder.weight" in chosen) == (field == "excluded")


@pytest.mark.parametrize("field", ["trainable", "excluded"])
@pytest.mark.parametrize(
    "patterns", [None, 5, 1.5, True, [1], ["w", None], [b"w"], b"w", [["w"]], ("w", ("b",))]
)
def test_other_patterns_are_refused(field, patterns):
    with pytest.raises(ValueError, match=f"{field} must be names; got"):
        Selection(**{field: patterns})


@pytest.mark.parametrize(
    "tied", [None, 5, "b", ["b", "a"], [("b", "a")], {("b", "a")}, {"b": 1}, {1: "a"}, {"b": None}]
)
def test_other_ties_are_refused(tied):
    with pytest.raises(ValueError, match=r"^tied must"):
        Selection(tied=tied)


@pytest.mark.parametrize("tied", [{"b": ["a"]}, {"b": ("a", "c")}, {("b",): "a"}])
def test_ties_to_lists_are_refused(tied):
    with pytest.raises(ValueError, match="tied must be names"):
        Selection(tied=tied)


def test_check_patterns_says_what_it_checked():
    assert check_patterns("released_metrics", "loss") == ("loss",)
    with pytest.raises(ValueError, match=r"released_metrics must be names; got one of type int"):
        check_patterns("released_metrics", [5])


def test_a_selection_does_not_change():
    trainable, excluded, tied = ["*"], ["bn.*"], dict(TIED)
    selection = Selection(trainable=trainable, excluded=excluded, tied=tied)
    before = selection.released(MODEL)
    trainable.append("missing")
    excluded.append("*")
    tied["mask"] = "missing"
    assert selection.released(MODEL) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        selection.excluded = ()


def test_selections_are_equal_by_their_settings():
    assert Selection(trainable="w") == Selection(trainable=["w"])
    assert Selection(tied={"b": "a"}) != Selection()
