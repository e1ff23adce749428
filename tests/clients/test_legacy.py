"""Legacy clients behind the mod, read back as a legacy server reads them."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.compat.common.parameter import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    getparametersins_to_recorddict,
    getpropertiesins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
    recorddict_to_getpropertiesres,
)
from flwr.compat.common.typing import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    Status,
)
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.clients import DeviceLedger, SeparatedDPMod, protect
from tests.adversaries import (
    APPS,
    SECRET,
    SEEDED,
    WITHHELD,
    Secret,
    assert_no_secret,
    assert_withheld,
)
from tests.messages import FakeGrid, context, everything, numpy_dict

BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
MAX_NORM = 2.0
MARKS = SEEDED - {"num-examples"}
OK = Status(Code.OK, "Success")


def model():
    """Return weights of every width, and two arrays that are not trained."""
    return [
        np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4),
        np.array([3, 4], np.int64),
        np.array([0.25, -0.5], np.float64),
        np.array([[0.5, 0.25]], np.float16),
        np.array([True, False]),
        np.array(0.125, np.float32),
    ]


FLOATS, OTHERS = (0, 2, 3, 5), (1, 4)


def trained(weights):
    return [weight + 0.01 if weight.dtype.kind == "f" else ~weight for weight in weights]


# ------------------------------------------------------------------ clients and their server
class Numbers(NumPyClient):
    def get_parameters(self, config):
        return model()

    def get_properties(self, config):
        return {"disk": 0.5, "owner": SECRET.text}

    def fit(self, parameters, config):
        return trained(parameters), 4711, {"accuracy": 0.75, "note": SECRET.text}

    def evaluate(self, parameters, config):
        return SECRET.number, 4711, {"accuracy": 0.75, "note": SECRET.text}


class Typed(Client):
    def get_parameters(self, ins):
        return GetParametersRes(OK, ndarrays_to_parameters(model()))

    def get_properties(self, ins):
        return GetPropertiesRes(OK, {"disk": 0.5, "owner": SECRET.text})

    def fit(self, ins):
        weights = trained(parameters_to_ndarrays(ins.parameters))
        metrics = {"accuracy": 0.75, "note": SECRET.text}
        return FitRes(OK, ndarrays_to_parameters(weights), 4711, metrics)

    def evaluate(self, ins):
        return EvaluateRes(OK, SECRET.number, 4711, {"accuracy": 0.75, "note": SECRET.text})


CLIENTS = {
    "NumPyClient": Numbers,
    "NumPyClient converted": lambda: Numbers().to_client(),
    "Client": Typed,
}


def mod(seed=0, **options):
    return SeparatedDPMod(BUDGET, MAX_NORM, rng=lambda: seeded_generator(seed), **options)


def unprotected(make):
    return ClientApp(client_fn=lambda context: make())


def behind_mod(make, **options):
    return ClientApp(client_fn=lambda context: make(), mods=[mod(**options)])


def behind_protect(make, **options):
    return protect(unprotected(make), mod(**options))


@pytest.fixture(params=[behind_mod, behind_protect], ids=["mod", "protect"])
def app_of(request):
    return request.param


REQUESTS = {
    "fit": ("train", lambda w: fitins_to_recorddict(FitIns(_parameters(w), {"lr": 0.1}), True)),
    "evaluate": (
        "evaluate",
        lambda w: evaluateins_to_recorddict(EvaluateIns(_parameters(w), {}), True),
    ),
    "get_parameters": (
        "get_parameters",
        lambda w: getparametersins_to_recorddict(GetParametersIns({})),
    ),
    "get_properties": (
        "get_properties",
        lambda w: getpropertiesins_to_recorddict(GetPropertiesIns({})),
    ),
}


def _parameters(weights):
    return ndarrays_to_parameters(model() if weights is None else weights)


def ask(app, what, weights=None, *, node_config=None, message_id="message-1"):
    message_type, make = REQUESTS[what]
    message = Message(make(weights), 1, message_type)
    message.metadata.__dict__["_message_id"] = message_id
    device = context()
    device.node_config.update(node_config or {})
    return app(message, device)


def fit(app, weights=None, **options):
    reply = ask(app, "fit", weights, **options)
    assert reply.has_content(), reply.error
    return recorddict_to_fitres(reply.content, keep_input=True)


def weights_of(result):
    return parameters_to_ndarrays(result.parameters)


# ------------------------------------------------------------------ fit
@pytest.mark.parametrize("kind", list(CLIENTS))
def test_reply_to_fit_is_a_private_model(kind, app_of):
    result = fit(app_of(CLIENTS[kind]))
    received, got = model(), weights_of(result)
    assert len(got) == len(received)
    for before, after in zip(received, got, strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
    for index in FLOATS:
        assert np.all(got[index] != received[index])
        assert np.all(np.isfinite(got[index]))
        # A shift of 0.01 is far below the noise: what was trained is not what leaves.
        assert not np.any(got[index] == trained(received)[index])
    for index in OTHERS:
        np.testing.assert_array_equal(got[index], received[index])


@pytest.mark.parametrize("kind", list(CLIENTS))
def test_reply_to_fit_says_nothing_beside_the_marks(kind, app_of):
    reply = ask(app_of(CLIENTS[kind]), "fit")
    result = recorddict_to_fitres(reply.content, keep_input=True)
    mechanism = SeparatedMechanism.from_budget(17, BUDGET, MAX_NORM)
    assert result.num_examples == 1
    assert result.status == Status(Code.OK, "")
    assert result.metrics == {
        "ldp-epsilon-direction": mechanism.event.epsilon_direction,
        "ldp-epsilon-magnitude": mechanism.event.epsilon_magnitude,
        "ldp-max-norm": MAX_NORM,
        "ldp-max-output-norm": mechanism.max_output_norm,
        "ldp-insecure-generator": 1.0,
    }
    assert set(reply.content) == {
        "fitres.parameters",
        "fitres.num_examples",
        "fitres.metrics",
        "fitres.status",
    }
    assert_no_secret(reply)


def test_the_clients_tell_all_without_the_mod():
    for what in ("fit", "evaluate", "get_properties"):
        for make in CLIENTS.values():
            reply = ask(unprotected(make), what)
            with pytest.raises(AssertionError, match="secrets leave"):
                assert_no_secret(reply)


@pytest.mark.parametrize("kind", list(CLIENTS))
def test_released_metric_of_fit_leaves(kind, app_of):
    result = fit(app_of(CLIENTS[kind], released_metrics=["accuracy", "missing"]))
    assert set(result.metrics) == MARKS | {"accuracy"}
    assert result.metrics["accuracy"] == 0.75


def test_released_text_of_fit_leaves(app_of):
    assert fit(app_of(Numbers, released_metrics="note")).metrics["note"] == SECRET.text


def test_released_loss_of_fit_leaves(app_of):
    class Losing(Numbers):
        def fit(self, parameters, config):
            return trained(parameters), 1, {"loss": 0.5}

    assert fit(app_of(Losing, released_metrics="loss")).metrics["loss"] == 0.5


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: [data]], ids=["one", "list"])
def test_released_bytes_are_withheld(app_of, wrap):
    class Bytes(Numbers):
        def fit(self, parameters, config):
            return trained(parameters), 1, {"key": wrap(SECRET.text.encode())}

    reply = ask(app_of(Bytes, released_metrics="key"), "fit")
    assert_withheld(reply)
    assert_no_secret(reply)


@pytest.mark.parametrize(
    ("dtypes", "bits"),
    [
        (["float16", "float16"], 16),
        (["float32", "float16"], 32),
        (["float64", "float32"], 64),
        (["float16", "float64", "float32"], 64),
    ],
)
def test_widths_may_be_mixed(dtypes, bits):
    # Small enough for float16 to show every change.
    weights = [np.full(5, 0.01 * i, dtype) for i, dtype in enumerate(dtypes)]
    got = weights_of(fit(behind_mod(Numbers), weights))
    assert [array.dtype for array in got] == dtypes
    assert max(array.dtype.itemsize * 8 for array in got) == bits
    for before, after in zip(weights, got, strict=True):
        assert np.all(after != before)


def test_order_is_kept_beyond_ten_arrays():
    """Names are numbers written out, and "10" sorts before "2"."""
    weights = [np.full(2, 1000.0 * i) for i in range(13)]
    got = weights_of(fit(behind_mod(Numbers), weights))
    assert np.array_equal(np.round(np.array(got) / 1000.0), np.array(weights) / 1000.0)


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"excluded": ("0", "3")}, {2, 5}),
        ({"trainable": ("2",)}, {2}),
        ({"trainable": ("2", "5"), "excluded": "5"}, {2}),
        ({"trainable": ("[0-3]",)}, {0, 2, 3}),
    ],
)
def test_arrays_are_chosen_by_their_numbers(options, moved, app_of):
    got = weights_of(fit(app_of(Numbers, **options)))
    changed = {i for i, array in enumerate(model()) if not np.array_equal(array, got[i])}
    assert changed == moved


def test_number_that_is_no_array_of_the_model_is_refused(app_of):
    reply = ask(app_of(Numbers, trainable=("17",)), "fit")
    assert "'17' matches none" in reply.error.reason


def test_tied_arrays_stay_equal(app_of):
    weights = [np.linspace(0.0, 1.0, 4), np.array([2.0, 3.0]), np.linspace(0.0, 1.0, 4)]
    got = weights_of(fit(app_of(Numbers, tied={"2": "0"}), weights))
    assert np.all(got[0] != weights[0])
    np.testing.assert_array_equal(got[2], got[0])


def test_update_that_is_not_finite_is_a_zero_update(app_of):
    class Diverged(Numbers):
        def fit(self, parameters, config):
            return [w * np.nan if w.dtype.kind == "f" else w for w in parameters], 1, {}

    class Idle(Numbers):
        def fit(self, parameters, config):
            return parameters, 1, {}

    assert weights_of(fit(app_of(Diverged)))[0].tobytes() == (
        weights_of(fit(app_of(Idle)))[0].tobytes()
    )


def test_message_delivered_twice_is_answered_once(tmp_path, app_of):
    """The stored reply is one that a legacy server reads, too."""
    app, device = app_of(Numbers), {"sdp-ledger": str(tmp_path / "ledger")}
    app_again = app_of(Numbers, seed=1)
    first = fit(app, node_config=device)
    second = fit(app_again, node_config=device)
    assert second == first
    assert len(DeviceLedger(tmp_path / "ledger").entries()) == 1
    third = fit(app_again, node_config=device, message_id="message-2")
    assert third.parameters != first.parameters


# ------------------------------------------------------------------ what a client may say in fit
def fits_with(**fields):
    """Return a client that trains the secrets, with some fields of its answer replaced."""

    class Custom(Client):
        def fit(self, ins):
            weights = list(numpy_dict(SECRET.model()).values())
            answer = {
                "status": OK,
                "parameters": ndarrays_to_parameters(weights),
                "num_examples": 4711,
                "metrics": SECRET.metrics() | {"losses": SECRET.number, "note": SECRET.text},
            }
            changed = {k: v() if callable(v) else v for k, v in fields.items()}
            return FitRes(**answer | changed)

    return Custom


def tensors(*arrays, kind="numpy.ndarray"):
    """Return what makes them: Flower empties those it sends."""
    data = [a if isinstance(a, bytes) else Array(np.asarray(a)).data for a in arrays]
    return lambda: Parameters(list(data), kind)


W, B, VAR, STEPS = (SECRET.trained[name] for name in ("weight", "bias", "bn.running_var", "steps"))

# name: (client, whether a private reply comes out of it)
LEGACY_APPS = {
    "says more than it should": (fits_with(), True),
    "status with a text": (fits_with(status=Status(Code.OK, SECRET.text)), True),
    "status that is a failure": (
        fits_with(status=Status(Code.FIT_NOT_IMPLEMENTED, SECRET.text)),
        False,
    ),
    "no examples": (fits_with(num_examples=0), True),
    "NaN": (fits_with(parameters=tensors(W * np.nan, B, VAR, STEPS)), True),
    "huge": (fits_with(parameters=tensors(W * 1e300, B, VAR, STEPS)), True),
    "one array less": (fits_with(parameters=tensors(W, B, VAR)), True),
    "no bias": (fits_with(parameters=tensors(W)), False),
    "one array more": (fits_with(parameters=tensors(W, B, VAR, STEPS, W)), False),
    "no arrays": (fits_with(parameters=tensors()), False),
    "another order": (fits_with(parameters=tensors(B, W, VAR, STEPS)), False),
    "another shape": (fits_with(parameters=tensors(W.T, B, VAR, STEPS)), False),
    "another dtype": (fits_with(parameters=tensors(W.astype("f4"), B, VAR, STEPS)), True),
    "texts": (fits_with(parameters=tensors(np.full((2, 3), SECRET.text), B, VAR, STEPS)), False),
    "damaged bytes": (fits_with(parameters=tensors(SECRET.text.encode(), B)), False),
    "no bytes": (fits_with(parameters=tensors(b"", B)), False),
    "another serialisation": (fits_with(parameters=tensors(W, B, kind=SECRET.text)), False),
    "not an answer": (lambda: type("Odd", (Client,), {"fit": lambda *_: SECRET.text})(), False),
    "not a client": (lambda: SECRET, False),
    "not trained": (lambda: type("Idle", (Client,), {})(), False),
    **{
        f"NumPyClient returns {name}": (
            lambda answer=answer: type("Odd", (NumPyClient,), {"fit": lambda *_: answer})(),
            False,
        )
        for name, answer in {
            "a text": SECRET.text,
            "too little": ([W, B], 4711),
            "a text for a number": ([W, B, VAR, STEPS], SECRET.text, {}),
            "a list in its metrics": ([W, B, VAR, STEPS], 1, {SECRET.text: [None]}),
            "objects": ([np.array([SECRET.text, None])], 1, {}),
        }.items()
    },
    **{
        f"fit {name}": (
            lambda raiser=raiser: type(
                "Failing",
                (NumPyClient,),
                {"fit": lambda self, p, c: raiser(Message(RecordDict(), 1, "train"), None)},
            )(),
            False,
        )
        for name, (raiser, _) in APPS.items()
        if name.startswith(("raises", "exits", "recur", "runs out", "stops"))
    },
    "client_fn raises": (lambda: APPS["raises"][0](Message(RecordDict(), 1, "train"), None), False),
}


@pytest.mark.parametrize("name", list(LEGACY_APPS))
def test_no_secret_leaves_in_fit(name, app_of):
    make, is_answered = LEGACY_APPS[name]
    received = list(numpy_dict(Secret.received()).values())
    reply = ask(app_of(make, excluded="2"), "fit", received)
    assert_no_secret(reply)
    if not is_answered:
        assert_withheld(reply)
        return
    result = recorddict_to_fitres(reply.content, keep_input=True)
    assert (result.status, result.num_examples) == (Status(Code.OK, ""), 1)
    assert set(result.metrics) == MARKS
    got = weights_of(result)
    assert [(a.dtype, a.shape) for a in got] == [(a.dtype, a.shape) for a in received]
    assert np.all(got[0] != received[0])
    assert np.all(got[1] != received[1])
    np.testing.assert_array_equal(got[2], received[2])
    np.testing.assert_array_equal(got[3], received[3])


def test_failures_are_the_same_for_the_server_and_told_in_the_log(caplog):
    assert sum(not is_answered for _, is_answered in LEGACY_APPS.values()) > 20
    make, _ = LEGACY_APPS["status that is a failure"]
    received = list(numpy_dict(Secret.received()).values())
    assert_withheld(ask(behind_mod(make, excluded="2"), "fit", received))
    assert SECRET.text in caplog.text


# ------------------------------------------------------------------ evaluate
@pytest.mark.parametrize("kind", list(CLIENTS))
def test_reply_to_evaluate_says_nothing(kind, app_of):
    reply = ask(app_of(CLIENTS[kind]), "evaluate")
    result = recorddict_to_evaluateres(reply.content)
    assert np.isnan(result.loss)
    assert (result.num_examples, result.metrics) == (1, {})
    assert result.status == Status(Code.OK, "")
    assert_no_secret(reply)


@pytest.mark.parametrize("kind", list(CLIENTS))
def test_released_loss_of_evaluate_leaves_and_nothing_else(kind, app_of):
    reply = ask(app_of(CLIENTS[kind], released_metrics="loss"), "evaluate")
    result = recorddict_to_evaluateres(reply.content)
    assert result.loss == SECRET.number
    assert (result.num_examples, result.metrics) == (1, {})
    assert SECRET.text.encode() not in everything(reply)


def test_released_metric_of_evaluate_leaves_without_the_loss(app_of):
    reply = ask(app_of(Numbers, released_metrics="accuracy"), "evaluate")
    result = recorddict_to_evaluateres(reply.content)
    assert np.isnan(result.loss)
    assert result.metrics == {"accuracy": 0.75}


@pytest.mark.parametrize("code", [Code.EVALUATE_NOT_IMPLEMENTED, Code.FIT_NOT_IMPLEMENTED])
def test_failed_evaluation_is_withheld(code, app_of):
    class Failing(Client):
        def evaluate(self, ins):
            return EvaluateRes(Status(code, SECRET.text), SECRET.number, 4711, {})

    reply = ask(app_of(Failing), "evaluate")
    assert_withheld(reply)
    assert_no_secret(reply)


@pytest.mark.parametrize("what", ["evaluate", "get_parameters", "get_properties"])
def test_exceptions_and_missing_methods_are_withheld(what, app_of):
    def fail(*_args, **_named):
        raise ValueError(SECRET.text)

    for base in (NumPyClient, Client):
        for methods in ({what: fail}, {}):
            reply = ask(app_of(type("Failing", (base,), methods)), what)
            assert_withheld(reply)
            assert_no_secret(reply)


# ------------------------------------------------------------------ parameters and properties
@pytest.mark.parametrize("kind", list(CLIENTS))
def test_parameters_never_leave(kind, app_of):
    assert_withheld(ask(app_of(CLIENTS[kind], released_metrics="*"), "get_parameters"))


@pytest.mark.parametrize(
    ("released", "expected"),
    [((), {}), ("disk", {"disk": 0.5}), (["disk", "owner"], {"disk": 0.5, "owner": SECRET.text})],
    ids=["none", "one", "both"],
)
@pytest.mark.parametrize("kind", list(CLIENTS))
def test_properties_leave_where_they_are_released(kind, released, expected, app_of):
    reply = ask(app_of(CLIENTS[kind], released_metrics=released), "get_properties")
    result = recorddict_to_getpropertiesres(reply.content)
    assert result == GetPropertiesRes(Status(Code.OK, ""), expected)
    assert (SECRET.text.encode() in everything(reply)) == ("owner" in expected)


def test_failed_properties_are_withheld(app_of):
    class Failing(Client):
        def get_properties(self, ins):
            status = Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, SECRET.text)
            return GetPropertiesRes(status, {"disk": 0.5})

    assert_withheld(ask(app_of(Failing, released_metrics="disk"), "get_properties"))


# ------------------------------------------------------------------ a legacy server
def proxies(apps):
    """Return Flower's own stand-ins for clients at a legacy server."""
    by_node = dict(enumerate(apps, start=1))
    grid = FakeGrid(by_node, lambda m: by_node[m.metadata.dst_node_id](m, context()))
    return [GridClientProxy(node_id, grid, run_id=1) for node_id in by_node]


@pytest.mark.parametrize("in_place", [True, False])
def test_legacy_fedavg_averages_the_private_models(in_place):
    clients = proxies([behind_mod(Numbers, seed=seed) for seed in range(5)])
    ins = FitIns(ndarrays_to_parameters(model()), {})
    results = [(client, client.fit(ins, None, 1)) for client in clients]
    private = [weights_of(result) for _, result in results]
    assert len({weights[0].tobytes() for weights in private}) == 5
    parameters, metrics = FedAvg(inplace=in_place).aggregate_fit(1, results, [])
    got = parameters_to_ndarrays(parameters)
    assert metrics == {}
    assert len(got) == len(model())
    away = []
    for index in FLOATS:
        expected = np.mean([weights[index].astype(np.float64) for weights in private], axis=0)
        tolerance = 4 * float(np.finfo(private[0][index].dtype).eps)
        np.testing.assert_allclose(got[index], expected, rtol=tolerance, atol=tolerance)
        away.append(np.ravel(np.abs(got[index] - trained(model())[index]) > 4 * tolerance))
    assert np.mean(np.concatenate(away)) > 0.8  # the average of what was trained is another one
    if not in_place:  # in place, Flower itself rounds the weighted integers down
        np.testing.assert_allclose(got[1], model()[1])


def test_legacy_fedavg_aggregates_evaluations_without_numbers():
    ins = EvaluateIns(ndarrays_to_parameters(model()), {})
    results = [
        (client, client.evaluate(ins, None, 1)) for client in proxies([behind_mod(Numbers)] * 3)
    ]
    loss, metrics = FedAvg().aggregate_evaluate(1, results, [])
    assert np.isnan(loss)
    assert metrics == {}


def test_legacy_server_sees_a_withheld_reply_as_a_failure():
    (client,) = proxies([behind_mod(Numbers)])
    with pytest.raises(ValueError, match=WITHHELD):
        client.get_parameters(GetParametersIns({}), None, 1)


def test_names_of_a_request_say_how_the_reply_is_laid_out():
    """A modern server gets a modern reply, whatever records the client makes."""
    content = {"arrays": ArrayRecord({"w": Array(np.zeros(3))})}
    legacy = {
        "fitres.parameters": content["arrays"],
        "fitres.metrics": ConfigRecord({"accuracy": 0.75}),
        "fitres.num_examples": MetricRecord({"num_examples": 4711}),
    }
    app = ClientApp(mods=[mod(released_metrics="accuracy")])
    app.train()(lambda message, context: Message(RecordDict(legacy), reply_to=message))
    reply = app(Message(RecordDict(content), 1, "train"), context())
    assert set(reply.content) == {"arrays", "metrics"}
    assert reply.content["metrics"]["num-examples"] == 1
    assert reply.content["metrics"]["accuracy"] == 0.75


def test_request_without_arrays_is_refused():
    """Flower sends an empty array in their place."""
    request = FitIns(ndarrays_to_parameters([]), {})
    message = Message(fitins_to_recorddict(request, True), 1, "train")
    reply = behind_mod(Numbers)(message, context())
    assert reply.error.reason.startswith("SeparatedDPMod: array '_empty' cannot be read")
