"""The README's examples run as they stand."""

import re
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def scopes():
    """Run every Python block, and return what each defines."""
    found = []
    for block in blocks("python"):
        scope = {}
        exec(block, scope)  # noqa: S102 - it is our own README
        found.append(scope)
    return found


def test_the_examples_run_and_say_what_they_claim():
    app, function, test = scopes()
    assert app["strategy"].expected_cohort == 100.0
    assert app["strategy"].clip_norm == app["mechanism"].max_output_norm
    assert app["budget"].total == 510.0
    assert {name: array.shape for name, array in function["private"].items()} == {
        name: array.shape for name, array in function["update"].items()
    }
    for name, array in function["update"].items():
        assert (function["private"][name] != array).all()
    test["test_nothing_but_private_numbers_leaves"]()


def test_every_file_the_readme_names_exists():
    root = README.parent
    for name in re.findall(r"\]\((docs/[^)]+)\)", README.read_text()):
        assert (root / name).exists(), name
    assert (root / "simulations/conf/digits.toml").exists()
