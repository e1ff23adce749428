"""Figures from tables of results: the numbers behind them, that they are drawn, and what is not."""

import csv
import math

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from flwr_sdp.cli.app import app
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.results.curves import (
    baseline_curves,
    baseline_finals,
    finals,
    gap_curves,
    mean_and_error,
    private_curves,
)
from flwr_sdp.cli.results.trials import read_results

pytest.importorskip("matplotlib", reason="needs flwr-sdp[simulation]")

HEAD = "task,data,privacy,sdp-epsilon-direction,sdp-rule,trial,seed,round,accuracy,cdp-epsilon"
ROUNDS = 6


def curve(seed, epsilon, rule="tight"):
    """Return the accuracies of a made-up run; each its own, by seed, epsilon and rule."""
    rng = np.random.default_rng([seed, int(epsilon), len(rule)])
    return np.round(0.5 + 0.05 * np.arange(ROUNDS) + 0.02 * rng.standard_normal(ROUNDS), 6)


def table(folder, *, epsilons=(500.0, 50.0), rules=("tight",), seeds=(0, 1, 2), **options):
    """Write a table of results and the settings of its runs, and return their folder."""
    task, data = options.get("task", "toy"), options.get("data", "toy images (stand-in)")
    rows = []
    for trial, seed in enumerate(seeds):
        for rule in rules:
            for epsilon in epsilons:
                for number, value in enumerate(curve(seed, epsilon, rule)):
                    shown = "" if number in options.get("skip", ()) else value
                    row = (task, data, "private", epsilon, rule, trial, seed, number, shown, number)
                    rows.append(row)
        if options.get("baseline", True):
            for number, value in enumerate(curve(seed, 0)):
                rows.append((task, data, "none", "", "", trial, seed, number, value, ""))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD.split(","))
        writer.writerows(rows)
    config = {"task": task, "seed": seeds[0], "trials": len(seeds), "num-clients": 10}
    (folder / "config.toml").write_text(tomli_w.dumps({**config, **options.get("config", {})}))
    return folder


def plot(*arguments):
    return CliRunner().invoke(app, ["plot", *map(str, arguments)], catch_exceptions=False)


# ------------------------------------------------------------------ numbers
@pytest.mark.parametrize("epsilon", [500.0, 50.0])
def test_the_gap_is_to_the_final_baseline_of_the_same_trial(tmp_path, epsilon):
    curves = gap_curves(read_results([table(tmp_path)]))
    (found,) = [c for c in curves if dict(c.level)["sdp-epsilon-direction"] == str(epsilon)]
    gaps = np.array([curve(seed, 0)[-1] - curve(seed, epsilon) for seed in (0, 1, 2)])
    assert found.rounds == list(range(ROUNDS))
    assert found.mean == pytest.approx(gaps.mean(axis=0))
    assert found.error == pytest.approx(gaps.std(axis=0, ddof=1) / math.sqrt(3))
    assert found.trials == 3


def test_accuracy_with_and_without_privacy(tmp_path):
    results = read_results([table(tmp_path, skip=(1, 3))])
    found = private_curves(results)
    assert [dict(c.level)["sdp-epsilon-direction"] for c in found] == ["500.0", "50.0"]
    runs = np.array([curve(seed, 500) for seed in (0, 1, 2)])[:, [0, 2, 4, 5]]
    assert found[0].rounds == [0, 2, 4, 5]  # rounds that were not evaluated are none
    assert found[0].mean == pytest.approx(runs.mean(axis=0))
    (baseline,) = baseline_curves(results)
    assert baseline.mean == pytest.approx(np.mean([curve(seed, 0) for seed in (0, 1, 2)], axis=0))


def test_finals(tmp_path):
    results = read_results([table(tmp_path, rules=("tight", "paper"))])
    assert results.varied == ("sdp-epsilon-direction", "sdp-rule")
    made = finals(results)
    assert [tuple(dict(final.level).values()) for final in made] == [
        (epsilon, rule) for rule in ("paper", "tight") for epsilon in ("500.0", "50.0")
    ]
    assert made[1].values == [curve(seed, 50, "paper")[-1] for seed in (0, 1, 2)]
    assert made[1].gaps == pytest.approx(
        [curve(seed, 0)[-1] - curve(seed, 50, "paper")[-1] for seed in (0, 1, 2)]
    )
    assert made[1].central_epsilon == ROUNDS - 1
    assert baseline_finals(results)[0].values == [curve(seed, 0)[-1] for seed in (0, 1, 2)]


def test_the_standard_error_of_one_trial_is_not_known(tmp_path):
    (first, _) = gap_curves(read_results([table(tmp_path, seeds=(4,))]))
    assert first.trials == 1
    assert all(map(math.isnan, first.error))
    assert mean_and_error([2.0, 4.0]) == (3.0, 1.0)


def test_tables_are_merged_by_level_and_seed(tmp_path):
    one = table(tmp_path / "one", epsilons=(500.0,))
    # Other levels of the same seeds, compared with the first one's baselines; other seeds.
    two = table(tmp_path / "two", epsilons=(50.0,), baseline=False)
    three = table(tmp_path / "three", seeds=(7, 8))
    both = gap_curves(read_results([one, two]))
    assert [c.mean for c in both] == [
        c.mean for c in gap_curves(read_results([table(tmp_path / "all")]))
    ]
    results = read_results([one, three])
    assert [c.trials for c in private_curves(results)] == [5, 2]
    assert baseline_curves(results)[0].trials == 5
    # The baseline of each table counts, once for a seed.
    assert (
        baseline_curves(read_results([one, table(tmp_path / "four", epsilons=(1.0,))]))[0].trials
        == 3
    )


def test_what_makes_no_difference_may_differ_between_folders(tmp_path):
    aside = {"engine": "local", "data-dir": "/elsewhere", "fail-fast": False, "num-nodes": 2}
    aside |= {"sweep": {"sdp-epsilon-direction": [500.0, 50.0]}, "sdp-epsilon-direction": 7.0}
    one, two = table(tmp_path / "one"), table(tmp_path / "two", seeds=(7,), config=aside)
    assert [c.trials for c in private_curves(read_results([one, two]))] == [4, 4]


def test_a_folder_without_its_settings_is_drawn_alone(tmp_path):
    one, two = table(tmp_path / "one"), table(tmp_path / "two", seeds=(7,))
    (two / "config.toml").unlink()
    assert len(private_curves(read_results([two]))) == 2
    with pytest.raises(CommandError, match=r"cannot read .*two/config.toml"):
        read_results([one, two])


def swap_columns(folder):
    """Write the two keys of a table in the other order."""
    path = folder / "results.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    swapped = [[*row[:3], row[4], row[3], *row[5:]] for row in rows]
    path.write_text("\n".join(map(",".join, swapped)) + "\n")
    return folder


def test_the_order_of_columns_makes_no_level(tmp_path):
    one, two = table(tmp_path / "one"), swap_columns(table(tmp_path / "two", seeds=(7,)))
    assert [c.trials for c in private_curves(read_results([one, two]))] == [4, 4]
    with pytest.raises(CommandError, match="both hold seed 0"):
        read_results([one, swap_columns(table(tmp_path / "three"))])


def test_a_key_that_one_folder_varies_has_the_others_fixed_value(tmp_path):
    """Otherwise the baseline of five local steps would stand for that of one as well."""
    one = table(tmp_path / "one", epsilons=(50.0,), seeds=(0,), baseline=False)
    path = one / "results.csv"
    head, *rows = path.read_text().splitlines()
    head = head.replace("sdp-rule", "sdp-rule,local-steps")
    varied = [row.replace("tight", f"tight,{steps}") for steps in (1, 5) for row in rows]
    path.write_text("\n".join([head, *varied]) + "\n")
    two = table(tmp_path / "two", epsilons=(500.0,), seeds=(0,), config={"local-steps": 5})
    made = {
        (dict(final.level)["sdp-epsilon-direction"], dict(final.level)["local-steps"]): final.gaps
        for final in finals(read_results([one, two]))
    }
    assert {point: len(gaps) for point, gaps in made.items()} == {
        ("50.0", "1"): 0,
        ("50.0", "5"): 1,
        ("500.0", "5"): 1,
    }


def test_trials_of_other_lengths_meet_where_all_have_rounds(tmp_path):
    folder = table(tmp_path, epsilons=(50.0,), seeds=(0, 1))
    text = (folder / "results.csv").read_text().splitlines()
    kept = [line for line in text if not ("private" in line and ",1,1,5," in line)]
    (folder / "results.csv").write_text("\n".join(kept) + "\n")
    (found,) = private_curves(read_results([folder]))
    assert found.rounds == list(range(ROUNDS - 1))


# ------------------------------------------------------------------ pictures
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, ["gap", "accuracy", "frontier", "box"]),
        ({"rules": ("tight", "paper")}, ["gap", "accuracy", "frontier", "box"]),
        ({"seeds": (0,)}, ["gap", "accuracy", "frontier"]),
        ({"seeds": (0,), "epsilons": (50.0,)}, ["gap", "accuracy"]),
        ({"seeds": (0,), "epsilons": (50.0,), "baseline": False}, ["accuracy"]),
        ({"epsilons": (50.0,), "rules": ("tight", "paper")}, ["gap", "accuracy", "box"]),
    ],
)
def test_all_that_make_sense_are_drawn(tmp_path, options, kinds):
    result = plot(table(tmp_path, **options))
    assert result.exit_code == 0, result.output
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == sorted(kinds)
    assert all(f"{kind}.png" in result.output for kind in kinds)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("seeds", "words"),
    [((0,), ["single seed"]), ((0, 1, 2), ["3 trials", "standard error"])],
)
def test_the_title_names_the_data_and_how_many_trials(tmp_path, monkeypatch, seeds, words):
    from flwr_sdp.cli.results import figure_style

    titles = []
    monkeypatch.setattr(
        figure_style, "save", lambda figure, path: titles.append(figure.axes[0].get_title()) or path
    )
    plot(table(tmp_path, seeds=seeds))
    assert len(titles) >= 3
    assert all("toy images (stand-in)" in title for title in titles)
    assert all(word in titles[0] for word in words)


def test_output_is_a_picture_or_a_folder(tmp_path):
    folder, other = table(tmp_path / "one"), table(tmp_path / "two", seeds=(8, 9))
    assert plot(folder, "--kind", "gap", "--output", tmp_path / "a.png").exit_code == 0
    assert plot(folder, other, "--output", tmp_path / "new" / "pictures").exit_code == 0
    assert (tmp_path / "a.png").exists()
    assert len(list((tmp_path / "new" / "pictures").iterdir())) == 4
    assert {path.name for path in folder.iterdir()} == {"results.csv", "config.toml"}


def test_another_metric_is_drawn_beside_accuracy(tmp_path):
    """Its numbers are those of its own column, and its pictures have names of their own."""
    folder = table(tmp_path)
    path = folder / "results.csv"
    head, *rows = path.read_text().splitlines()
    rows = [f"{row},{0.5 * float(row.split(',')[8])}" for row in rows]
    path.write_text("\n".join([f"{head},top-5-accuracy", *rows]))
    halves = private_curves(read_results([folder], "top-5-accuracy"))
    for half, whole in zip(halves, private_curves(read_results([folder])), strict=True):
        assert half.mean == pytest.approx([0.5 * value for value in whole.mean])
    assert plot(folder, "--metric", "top-5-accuracy").exit_code == 0
    assert {path.name for path in folder.glob("*.png")} == {
        f"{name}top-5-accuracy.png" for name in ("", "gap-", "frontier-", "box-")
    }


def test_a_stream_is_drawn_by_its_own_figures(tmp_path, monkeypatch):
    from flwr_sdp.cli.commands import plot as command

    (tmp_path / "results.csv").write_text("iteration,value\n0,1\n")
    monkeypatch.setattr(command, "draw_streams", lambda folder: [folder / "stream.png"])
    assert "stream.png" in plot(tmp_path).output
    with pytest.raises(CommandError, match="drawn one folder at a time, without other"):
        plot(tmp_path, "--kind", "gap")
    with pytest.raises(CommandError, match="drawn one folder at a time, without other"):
        plot(tmp_path, "--metric", "loss")


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, ["--output", "a.png"], "--output a.png is one picture: say which with --kind"),
        ({"baseline": False}, ["--kind", "gap"], "no gap to draw"),
        ({"seeds": (0,)}, ["--kind", "box"], "no spread to draw"),
        ({"epsilons": (5.0,)}, ["--kind", "frontier"], "no frontier to draw"),
        ({"epsilons": ()}, [], "holds no private run that was evaluated"),
        ({}, ["--metric", "f1"], "--metric must be a column of .*; got 'f1'"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path, options, arguments, message):
    with pytest.raises(CommandError, match=message):
        plot(table(tmp_path, **options), *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": (9,)}, "--output must say where the pictures of several folders go"),
        ({"data": "others"}, "is of toy on toy images .* draw them apart"),
        ({"task": "others"}, "draw them apart"),
        ({}, "both hold seed 0 of sdp-epsilon-direction = 500.0"),
        (
            {"seeds": (9,), "config": {"num-clients": 20}},
            "num-clients is 10 in .*one and 20 in .*two: runs of other settings",
        ),
        ({"seeds": (9,), "config": {"lr": 0.5}}, "lr is None in .*one and 0.5 in .*two"),
        # No trials, but a baseline that the first would borrow.
        ({"epsilons": (), "seeds": (0,), "config": {"num-clients": 20}}, "num-clients is 10"),
    ],
)
def test_folders_that_cannot_be_merged_are_named(tmp_path, options, message):
    one, two = table(tmp_path / "one"), table(tmp_path / "two", **options)
    output = [] if "output" in message else ["--output", tmp_path / "out"]
    with pytest.raises(CommandError, match=message):
        plot(one, two, *output)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no results.csv: pass the folder that a run printed"),
        ("", "has no column"),
        ("a,b\n1,2\n", "has no column 'accuracy': it is not a table of results"),
        (HEAD + "\nt,d,private,5,tight,0,0,0,high,\n", "is not a table of results: could not"),
        (HEAD + "\nt,d,private,five,tight,0,0,0,1.0,\n", "is not a table of results"),
        (HEAD + "\nt,d,private\n", "is not a table of results"),
        (HEAD + "\n", "holds no private run"),
    ],
)
def test_what_is_no_table_of_results_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "results.csv").write_text(text)
    with pytest.raises(CommandError, match=message) as caught:
        plot(tmp_path)
    assert "\n" not in str(caught.value)
