"""What the wheel installs, and that the source archive makes the same wheel."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes

import pytest
from packaging.requirements import Requirement

from tests.packaging.work_tree import copy_work_tree

# Where the modules of the wheel are in the repository.
SOURCES = {
    "flwr_sdp": "flwr_sdp",
    "strategies": "flwr_sdp/strategies",
    "clients": "flwr_sdp/clients",
}


def build(source, kind, folder):
    """Have setuptools make a wheel or an sdist of a folder, without the network."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; from setuptools.build_meta import build_{kind} as build\n"
            "build(sys.argv[1])",
            folder,
        ],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [built] = folder.iterdir()
    return built


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def work_tree(tmp_path_factory):
    return copy_work_tree(tmp_path_factory.mktemp("packaging"))


@pytest.fixture(scope="module")
def wheel(work_tree, tmp_path_factory):
    return build(work_tree, "wheel", tmp_path_factory.mktemp("wheel"))


def test_wheel_holds_every_module_of_the_package_and_nothing_else(work_tree, wheel):
    expected = {"flwr_sdp/py.typed"}
    for source, package in SOURCES.items():
        modules = (work_tree / source).rglob("*.py")
        expected |= {
            f"{package}/{path.relative_to(work_tree / source).as_posix()}" for path in modules
        }
    assert {"flwr_sdp/privunit.py", "flwr_sdp/clients/mod.py"} <= expected
    about = {name for name in contents(wheel) if name.split("/")[0].endswith(".dist-info")}
    assert set(contents(wheel)) - about == expected
    assert len({name.split("/")[0] for name in about}) == 1


def test_device_needs_three_packages(wheel):
    [metadata] = [text for name, text in contents(wheel).items() if name.endswith("/METADATA")]
    requirements = map(Requirement, message_from_bytes(metadata).get_all("Requires-Dist"))
    assert {each.name for each in requirements if each.marker is None} == {
        "cryptography",
        "flwr",
        "numpy",
    }


def test_modules_import_from_the_wheel(wheel, tmp_path):
    """Outside the work tree, so that what is only there is missed."""
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import importlib, pkgutil, flwr_sdp\n"
            "for module in pkgutil.walk_packages(flwr_sdp.__path__, 'flwr_sdp.'):\n"
            "    print(importlib.import_module(module.name).__file__)",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    files = done.stdout.split("\n")[:-1]
    assert len(files) > 50
    assert [file for file in files if not file.startswith(str(tmp_path / "installed"))] == []


def test_source_archive_makes_the_same_wheel(work_tree, wheel, tmp_path):
    for name in ("archive", "wheel"):
        (tmp_path / name).mkdir()
    with tarfile.open(build(work_tree, "sdist", tmp_path / "archive")) as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):  # extractall(filter=): from 3.11.4
            path = tmp_path / "source" / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(member).read())
    [source] = (tmp_path / "source").iterdir()
    assert contents(build(source, "wheel", tmp_path / "wheel")) == contents(wheel)
