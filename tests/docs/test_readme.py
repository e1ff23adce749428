"""The README's example runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_example_runs_and_says_what_it_claims():
    (example,) = blocks("python")
    scope = {}
    exec(example, scope)  # noqa: S102 - it is our own README
    assert scope["strategy"].expected_cohort == 100.0
    assert scope["strategy"].clip_norm == scope["mechanism"].max_output_norm
    assert scope["budget"].total == 510.0


def test_every_file_the_readme_names_exists():
    root = README.parent
    for name in re.findall(r"\]\((docs/[^)]+)\)", README.read_text()):
        assert (root / name).exists(), name
    assert (root / "simulations/conf/digits.toml").exists()
