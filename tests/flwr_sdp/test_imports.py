"""What the packages import, and what they leave alone."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Folder in the repository, and the import name of what lies there.
PACKAGES = {
    "flwr_sdp": "flwr_sdp",
    "strategies": "flwr_sdp.strategies",
    "clients": "flwr_sdp.clients",
    "simulations": "simulations",
    "tests": "tests",
}


def python(code):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
        cwd=ROOT,
    ).stdout


def test_core_leaves_the_heavy_packages_alone():
    modules = python(
        "import sys, flwr_sdp, flwr_sdp.reconstruction\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    ).split()
    heavy = {"flwr", "torch", "ray", "matplotlib", "pandas", "dp_accounting", "sklearn", "grpc"}
    assert not {*heavy, "scipy"} & set(modules)
    assert {"numpy", "cryptography"} <= set(modules)


def test_device_leaves_the_heavy_packages_alone():
    """A device has neither torch nor Ray nor dp-accounting, and loads nothing to do without them.

    Run to the end of a reply, since imports may hide in functions.
    """
    modules = python(
        "import sys, numpy, flwr_sdp.clients as clients\n"
        "from flwr.app import Array, ArrayRecord, Message, RecordDict\n"
        "from flwr.clientapp import ClientApp\n"
        "from flwr_sdp import SeparatedBudget\n"
        "from flwr_sdp.clients.testing import context, message\n"
        "budget = SeparatedBudget(epsilon_direction=5.0, epsilon_magnitude=5.0)\n"
        "app = clients.protect(ClientApp(), budget=budget, max_norm=1.0)\n"
        "def train(m, c):\n"
        "    return Message(RecordDict({'arrays': m.content['arrays']}), reply_to=m)\n"
        "app.train()(train)\n"
        "model = ArrayRecord({'w': Array(numpy.zeros(5))})\n"
        "assert app(message({'arrays': model}), context()).has_content()\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    ).split()
    heavy = {"torch", "ray", "matplotlib", "pandas", "dp_accounting", "sklearn", "scipy"}
    assert not heavy & set(modules)
    assert {"flwr", "flwr_sdp"} <= set(modules)


def test_what_serves_other_stacks_does_without_flower():
    """`privatize_update` and the ledger are used where there is no Flower: nothing of it is loaded.

    Beside what `import flwr_sdp` loads there are only modules of ours, and SQLite for the ledger.
    """
    lines = python(
        "import sys, numpy, flwr_sdp\n"
        "def load(names):\n"
        "    before = set(sys.modules)\n"
        "    exec(f'from flwr_sdp.clients import {names}', globals())\n"
        "    return set(sys.modules) - before\n"
        "print(*load('privatize_update'))\n"
        "budget = flwr_sdp.SeparatedBudget(epsilon_direction=5.0, epsilon_magnitude=5.0)\n"
        "privatize_update([numpy.ones(5)], budget=budget, max_norm=1.0)\n"
        "print(*load('DeviceLedger, Request, LedgerError, Selection, BATCH_NORM_STATISTICS'))\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ).splitlines()
    first, second, packages = map(str.split, lines)
    assert "flwr_sdp.clients.privatize" in first
    assert all(name.startswith("flwr_sdp.") for name in first)
    assert len(first) < 10
    others = {name.partition(".")[0] for name in second} - sys.stdlib_module_names
    assert others == {"flwr_sdp"}
    assert not {"flwr", "grpc", "google", "httpx", "typer", "rich", "pydantic"} & set(packages)


def test_names_of_the_device_are_there_when_asked_for():
    """All that is promised, whichever way: by name, by star, in any order, modules first."""
    answer = python(
        "import flwr_sdp.clients as c\n"
        "print(set(c.__all__) <= set(dir(c)), c.__all__ == sorted(c.__all__))\n"
        "import flwr_sdp.clients.protect, flwr_sdp.clients.mod\n"
        "from flwr_sdp.clients import *\n"
        "print([name for name in c.__all__ if getattr(c, name) is not globals()[name]])\n"
        "print(type(protect).__name__, SeparatedDPMod.__module__, hasattr(c, 'nothing'))"
    )
    assert answer == "True True\n[]\nfunction flwr_sdp.clients.mod False\n"


def test_import_has_no_side_effects():
    """No output, no handlers of the log, and the global generators as they were."""
    answer = python(
        "import logging, random, numpy\n"
        "random.seed(1); numpy.random.seed(1)\n"
        "before = random.getstate(), numpy.random.get_state()[1].tobytes()\n"
        "import flwr_sdp, flwr_sdp.clients.privatize\n"
        "mechanism = flwr_sdp.SeparatedMechanism.from_budget(\n"
        "    5, flwr_sdp.SeparatedBudget(epsilon_direction=1.0, epsilon_magnitude=1.0), 1.0)\n"
        "mechanism.privatize(numpy.ones(5))\n"
        "after = random.getstate(), numpy.random.get_state()[1].tobytes()\n"
        "print(before == after, logging.getLogger().handlers,\n"
        "    logging.getLogger('flwr_sdp.device').handlers)"
    )
    assert answer == "True [] []\n"


def test_public_names_exist():
    answer = python(
        "import flwr_sdp\n"
        "missing = [name for name in flwr_sdp.__all__ if not hasattr(flwr_sdp, name)]\n"
        "print(missing, flwr_sdp.__all__ == sorted(flwr_sdp.__all__))"
    )
    assert answer == "[] True\n"


# ------------------------------------------------------------------ who may import whom
def imported_names(source, package):
    """Return the dotted names that a module of `package` imports, relative ones resolved.

    ``from a import b`` counts as both a and a.b, since b may be a module.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [base])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def modules_of(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        inside = path.relative_to(ROOT / folder).parent.parts
        yield path, ".".join([PACKAGES[folder], *inside])


def imports_of(folder):
    return {
        path.relative_to(ROOT).as_posix(): imported_names(path.read_text("utf-8"), package)
        for path, package in modules_of(folder)
    }


def within(name, packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def offenders(imports, *forbidden):
    return sorted(
        f"{path} imports {name}"
        for path, names in imports.items()
        for name in names
        if within(name, forbidden)
    )


@pytest.mark.parametrize("folder", PACKAGES)
def test_packages_go_by_their_installed_names(folder):
    """`strategies` and `clients` are folders; the packages are below flwr_sdp."""
    assert offenders(imports_of(folder), "strategies", "clients") == []


def test_core_knows_nothing_of_flower():
    core = {
        path: names
        for path, names in imports_of("flwr_sdp").items()
        if not path.startswith("flwr_sdp/cli/")
    }
    assert "flwr_sdp/privunit.py" in core
    assert offenders(core, "flwr", "flwr_sdp.strategies", "flwr_sdp.clients") == []
    assert offenders(core, "torch", "ray", "matplotlib", "dp_accounting", "simulations") == []


def test_server_and_device_sides_do_not_know_each_other():
    assert offenders(imports_of("strategies"), "flwr_sdp.clients") == []
    assert offenders(imports_of("clients"), "flwr_sdp.strategies") == []


def test_packages_do_not_import_what_is_not_shipped():
    for folder in ("flwr_sdp", "strategies", "clients"):
        assert offenders(imports_of(folder), "simulations", "tests") == []


@pytest.mark.parametrize(
    ("source", "package", "name"),
    [
        ("import strategies", "tests", "strategies"),
        ("import strategies.accounting as x", "tests", "strategies"),
        ("from clients import mod", "simulations", "clients"),
        ("def f():\n    from clients.mod import x", "simulations", "clients"),
        ("from flwr_sdp import clients", "flwr_sdp.strategies", "flwr_sdp.clients"),
        ("from flwr_sdp.clients.mod import x", "flwr_sdp.strategies", "flwr_sdp.clients"),
        ("from ..clients import x", "flwr_sdp.strategies", "flwr_sdp.clients"),
        ("from .. import clients", "flwr_sdp.strategies", "flwr_sdp.clients"),
        ("from . import strategies", "flwr_sdp", "flwr_sdp.strategies"),
        ("try:\n    import flwr\nexcept ImportError:\n    pass", "flwr_sdp", "flwr"),
    ],
)
def test_scan_finds_what_it_looks_for(source, package, name):
    assert offenders({"file.py": imported_names(source, package)}, name)


@pytest.mark.parametrize(
    ("source", "package", "name"),
    [
        ("from flwr_sdp.strategies import x", "tests", "strategies"),
        ("import flwr_sdp", "flwr_sdp", "flwr"),
        ("from . import x", "flwr_sdp.strategies", "strategies"),
        ("x = 'import clients'", "tests", "clients"),
        ("from .clients_of import x", "flwr_sdp", "flwr_sdp.clients"),
    ],
)
def test_scan_finds_nothing_else(source, package, name):
    assert not offenders({"file.py": imported_names(source, package)}, name)
