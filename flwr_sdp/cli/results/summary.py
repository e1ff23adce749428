"""What a call ends with on the screen: how accurate the models are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from flwr_sdp._rounding import round_up
from flwr_sdp.cli.results.curves import baseline_finals, finals, mean_and_error
from flwr_sdp.cli.results.labels import key_label, value_label
from flwr_sdp.cli.results.trials import read_results
from flwr_sdp.cli.tables import table


def summary_table(run_dir: Path) -> Table:
    """Return accuracy, gap and central epsilon of every point, over its trials.

    Where the average of the models was evaluated too, its accuracy stands beside theirs.

    Raises
    ------
    CommandError
        If no run was evaluated.
    """
    results = read_results([run_dir])
    private, baselines = finals(results), baseline_finals(results)
    keys = results.varied
    averaged = any(final.averaged for final in (*private, *baselines))
    made = table(
        "Final accuracy over the trials, and the gap to no privacy: mean ± standard error",
        "privacy",
        *(key_label(key) for key in keys),
        "trials",
        "accuracy",
        *(["averaged accuracy"] if averaged else []),
        "gap",
        "central ε",
    )
    for final in private:
        spent = final.central_epsilon
        made.add_row(
            "private",
            *(value_label(dict(final.level).get(key, "")) for key in keys),
            str(len(final.values)),
            _spread(final.values),
            *([_spread(final.averaged)] if averaged else []),
            _spread(final.gaps),
            "" if spent is None else round_up(spent, 4),
        )
    for final in baselines:
        made.add_row(
            "none",
            *(value_label(dict(final.level).get(key, "")) for key in keys),
            str(len(final.values)),
            _spread(final.values),
            *([_spread(final.averaged)] if averaged else []),
            "",
            "",
        )
    for column in made.columns[1 + len(keys) :]:
        column.no_wrap = True  # where it is narrow, names are folded, and numbers are not
    return made


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean, error = mean_and_error(values)
    return f"{mean:.4f}" if len(values) == 1 else f"{mean:.4f} ± {error:.4f}"
