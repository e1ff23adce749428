"""Run files with trials and sweeps: every key and value is checked, and typed, before a start."""

from pathlib import Path

import pytest

from flwr_sdp.cli.commands.simulate_streams import with_options
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.runs.grid import is_grid, point_name, points, runs_of
from flwr_sdp.cli.runs.run_file import Options, RunFile, read_engine, read_run_file
from tests.cli.fake_app import KEYS

APP = Path("/app")
ENGINES = ["ray", "local", "stream"]
DIRECTION = "sdp-epsilon-direction"


def read(content, defaults=KEYS, **options):
    return read_run_file(content, Options(**options), engine="ray", app_dir=APP, defaults=defaults)


# ------------------------------------------------------------------ values
def test_defaults_changes_and_options_in_their_order():
    file = read({"num-clients": 7, "seed": 3}, set_=["num-clients=9"], seed=4)
    assert (file.config["num-clients"], file.config["seed"]) == (9, 4)
    assert file.config["task"] == "toy"
    assert not {"baseline", "output-dir", "resume"} & set(file.config)
    assert (file.trials, file.sweep) == (1, {})
    assert not is_grid(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [("100", 100.0), ("1e2", 100.0), ("100.5", 100.5)],
)
def test_an_integer_is_a_float_where_the_default_is_one(text, value):
    found = read({}, set_=[f"{DIRECTION}={text}"]).config[DIRECTION]
    assert found == value
    assert type(found) is float
    (swept, _) = read({}, sweep=[f"{DIRECTION}={text},1"]).sweep[DIRECTION]
    assert swept == value
    assert type(swept) is float
    assert type(read({DIRECTION: 100}).config[DIRECTION]) is float


def test_a_relative_data_dir_is_the_callers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read({"data-dir": "data"}).config["data-dir"] == str(tmp_path / "data")
    assert read({}, set_=["data-dir=x y"]).config["data-dir"] == str(tmp_path / "x y")
    assert read({"data-dir": "/data"}).config["data-dir"] == "/data"
    assert read({"data-dir": ""}).config["data-dir"] == ""
    assert read({}).config["data-dir"] == ""


def test_a_sweep_of_the_command_line_replaces_that_of_the_file():
    content = {"sweep": {DIRECTION: [1, 2], "sdp-rule": ["tight", "paper"]}, "trials": 2}
    file = read(content, sweep=[f"{DIRECTION}=500,250"], trials=3)
    assert file.sweep == {DIRECTION: [500.0, 250.0], "sdp-rule": ["tight", "paper"]}
    assert file.trials == 3
    assert read(content).trials == 2
    assert read({}, sweep=['sdp-rule=["tight", "paper"]']).sweep == {"sdp-rule": ["tight", "paper"]}


def test_a_sweep_of_one_value_is_no_sweep():
    content = {"sweep": {DIRECTION: [100], "local-steps": [1, 2]}}
    file = read(content)
    assert file.config[DIRECTION] == 100.0
    assert file.sweep == {"local-steps": [1, 2]}
    assert read({}, sweep=[f"{DIRECTION}=100"]).to_toml() == read({DIRECTION: 100}).to_toml()


def test_what_is_written_says_the_same():
    content = {"sweep": {DIRECTION: [1, 2]}, "trials": 2, "local-steps": 3}
    file = read(content)
    assert read(file.to_toml()) == file
    assert set(read({}).to_toml()) == set(KEYS) - {"baseline", "output-dir", "resume"}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({"trials": 0}, {}, "trials must be an integer of at least 1; got 0"),
        ({"trials": 1.0}, {}, "trials must be an integer of at least 1; got 1.0"),
        ({"trials": True}, {}, "trials must be an integer of at least 1; got True"),
        ({}, {"trials": -2}, "trials must be an integer of at least 1; got -2"),
        ({"sweep": 3}, {}, r"sweep must be a table, \[sweep\], of keys with lists; got 3"),
        ({"sweep": {DIRECTION: 5.0}}, {}, "must be a list of values; got 5.0"),
        ({"sweep": {DIRECTION: []}}, {}, r"must be a list of values; got \[\]"),
        ({"sweep": {DIRECTION: [1, 1.0]}}, {}, f"sweep.{DIRECTION} has the value 1.0 twice"),
        ({"sweep": {"sdp-epsilon": [1]}}, {}, "unknown key 'sdp-epsilon': the app at /app has"),
        ({"sweep": {"seed": [1, 2]}}, {}, "seed cannot be swept: --trials runs every point"),
        ({"sweep": {"baseline": [True]}}, {}, "baseline is set by the launcher"),
        ({"sweep": {"sdp-rule": ["tight", 3]}}, {}, "sdp-rule must be text, .*'tight'; got 3"),
        ({"sweep": {DIRECTION: [1.0, [2.0]]}}, {}, "must be text, a finite number, true or false"),
        ({}, {"sweep": ["sdp-rule"]}, "--sweep wants KEY=V1,V2,...; got 'sdp-rule'"),
        ({}, {"sweep": ["sdp-rule="]}, "--sweep wants KEY=V1,V2,..."),
        ({}, {"sweep": ["=1,2"]}, "--sweep wants KEY=V1,V2,..."),
        ({}, {"set_": ["trials=3"]}, "trials is no key of the app: use --trials"),
        ({}, {"set_": ["engine=local"]}, "engine is no key of the app: use --engine"),
        (
            {"sweep": {DIRECTION: [1, 2]}},
            {"set_": [f"{DIRECTION}=3"]},
            f"{DIRECTION} is swept, and --set gives it one value: use --sweep {DIRECTION}=VALUE",
        ),
        ({DIRECTION: "fifty"}, {}, f"{DIRECTION} must be a number, .*50.0; got 'fifty'"),
        ({DIRECTION: True}, {}, "must be a number"),
        ({"num-clients": 10.0}, {}, "num-clients must be an integer, .*10; got 10.0"),
        ({"num-clients": True}, {}, "num-clients must be an integer"),
        ({"fail-fast": 1}, {}, "fail-fast must be true or false"),
        ({"task": 3}, {}, "task must be text"),
        ({"resume": True}, {}, "resume is set by the launcher"),
        ({"nest": {"key": 1}}, {}, "unknown key 'nest'"),
    ],
)
def test_mistakes_name_key_and_value(content, options, message):
    with pytest.raises(CommandError, match=message) as caught:
        read(content, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_trials_of_an_app_without_a_seed_would_be_one():
    defaults = {key: value for key, value in KEYS.items() if key != "seed"}
    with pytest.raises(CommandError, match="has no 'seed'"):
        read({"trials": 2}, defaults)


@pytest.mark.parametrize(
    ("content", "option", "found"),
    [
        ({}, None, "ray"),
        ({"engine": "local"}, None, "local"),
        ({"engine": "local"}, "ray", "ray"),
        ({"engine": "stream"}, None, "stream"),
    ],
)
def test_the_engine_is_of_file_or_option(content, option, found):
    assert read_engine(content, Options(engine=option), ENGINES) == found


@pytest.mark.parametrize(
    ("content", "option", "message"),
    [
        ({"engine": "spark"}, None, "engine must be one of ray, local, stream; got 'spark'"),
        ({"engine": 3}, None, "engine must be one of ray, local, stream; got 3"),
        ({}, "Ray", "got 'Ray'"),
        ({"engine": "stream"}, "local", "engine is 'stream' in the run file, and cannot be"),
        ({}, "stream", "engine is 'ray' in the run file, and cannot be 'stream'"),
    ],
)
def test_engines_that_are_none_are_named(content, option, message):
    with pytest.raises(CommandError, match=message):
        read_engine(content, Options(engine=option), ENGINES)


# ------------------------------------------------------------------ the grid
def grid(**fields):
    config = {key: KEYS[key] for key in KEYS if key not in ("baseline", "output-dir", "resume")}
    return RunFile(config=config, **fields)


def folders(file, **options):
    return [
        run.folder.relative_to(APP).as_posix()
        for run in runs_of(file, APP, **{"with_baseline": True, **options})
    ]


def test_one_point_and_one_trial_lie_in_the_folder_itself():
    assert folders(grid()) == [".", "."]
    (private, baseline) = runs_of(grid(), APP, with_baseline=True)
    assert private.metrics == APP / "metrics.csv"
    assert baseline.metrics == APP / "baseline-metrics.csv"
    assert private.report == APP / "report.json"
    assert baseline.log == APP / "baseline.log"
    assert folders(grid(sweep={DIRECTION: [5.0]})) == [".", "."]


def test_trial_by_trial_each_point_then_the_baseline_they_share():
    file = grid(sweep={DIRECTION: [500.0, 0.5], "sdp-rule": ["tight", "paper"]}, trials=2)
    names = [
        "epsilon-direction=500,rule=tight",
        "epsilon-direction=500,rule=paper",
        "epsilon-direction=0.5,rule=tight",
        "epsilon-direction=0.5,rule=paper",
        "baseline",
    ]
    assert folders(file) == [f"{name}/trial-{trial}" for trial in (0, 1) for name in names]
    assert folders(file, with_baseline=False) == [
        f"{name}/trial-{trial}" for trial in (0, 1) for name in names[:-1]
    ]
    assert [run.config["seed"] for run in runs_of(file, APP, with_baseline=True)] == [0] * 5 + [
        1
    ] * 5


def test_a_baseline_for_each_value_that_makes_a_difference_to_it():
    file = grid(sweep={DIRECTION: [5.0, 1.0], "local-steps": [1, 5], "projected-population": [0]})
    assert folders(file)[-2:] == [
        "baseline/local-steps=1/trial-0",
        "baseline/local-steps=5/trial-0",
    ]
    baselines = [run for run in runs_of(file, APP, with_baseline=True) if run.baseline]
    assert [run.config["local-steps"] for run in baselines] == [1, 5]
    assert [run.point for run in baselines] == [{"local-steps": 1}, {"local-steps": 5}]


@pytest.mark.parametrize(
    "key",
    [
        "sdp-epsilon-direction",
        "sdp-epsilon-magnitude",
        "sdp-max-norm",
        "sdp-rule",
        "sdp-clip-norm",
        "sdp-noise-multiplier",
        "sdp-delta",
        "sdp-max-epsilon",
        "projected-delta",
    ],
)
def test_keys_of_privacy_share_a_baseline(key):
    file = grid(sweep={key: [1.0, 2.0]})
    assert folders(file)[2:] == ["baseline/trial-0"]


@pytest.mark.parametrize("key", ["sdp-sampling-rate", "sdp-cohort-size", "sdp-local-learning-rate"])
def test_other_keys_do_not(key):
    assert len(folders(grid(sweep={key: [1.0, 2.0]}))) == 4


def test_names_are_safe_and_differ_where_points_do():
    values = ["a/b", "a_b", "a%2Fb", "..", "ä", "a=b,c", "A b", 1, 1.5, 1e-7, True]
    names = [point_name({"data": value}) for value in values]
    assert len({*names}) == len(values)
    assert all(set(name.removeprefix("data=")).isdisjoint("/\\=,: \0") for name in names)
    assert point_name({"sdp-delta": 1e-07, "fail-fast": False}) == "delta=1e-07,fail-fast=false"


def test_a_name_that_is_too_long_for_a_folder_is_refused():
    with pytest.raises(CommandError, match="too long for a folder: sweep fewer keys at once"):
        points(grid(sweep={"task": ["x" * 300, "y"]}))


# ------------------------------------------------------------------ streams
def test_a_streams_run_file_is_written_with_the_options():
    content = {"engine": "stream", "seed": 0, "data": {"dim": 5}, "sweep": {"m": [1]}}
    changed = with_options(
        content,
        Options(set_=["data.dim=7", "x=word"], sweep=["k=1,2"], trials=3, seed=9),
    )
    assert changed == {
        "engine": "stream",
        "seed": 9,
        "data": {"dim": 7},
        "x": "word",
        "trials": 3,
        "sweep": {"m": [1], "k": [1, 2]},
    }
    assert content["data"] == {"dim": 5}
