"""Cores and memory of machines and containers, from the files that Linux would show."""

import os

import pytest

from flwr_sdp.cli.engines.machine import Machine, this_machine

GIB = 2**30
MEMINFO = f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable:   {32 * 2**20} kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that reads a machine of 64 cores and 32 free GiB, with more files."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)

    def read(files=None):
        for name, text in {"proc/meminfo": MEMINFO, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return this_machine(tmp_path)

    return read


def version_2(folder, limit, usage, cache=0):
    folder = f"sys/fs/cgroup/{folder}".rstrip("/")
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 7\n",
    }


def test_a_machine_without_groups(machine):
    assert machine() == Machine(cores=64, memory=32 * GIB, shared_memory=None)


def test_a_system_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert this_machine(tmp_path) == Machine(cores=1)


def test_shared_memory_is_what_is_free_there(machine, tmp_path):
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    facts = os.statvfs(tmp_path)
    found = machine().shared_memory
    assert 0 < found <= facts.f_frsize * facts.f_blocks


# ------------------------------------------------------------------ memory
@pytest.mark.parametrize(
    ("limit", "usage", "cache", "free"),
    [
        (8 * GIB, 3 * GIB, 0, 5 * GIB),
        (8 * GIB, 3 * GIB, GIB, 6 * GIB),  # cached files give way
        (8 * GIB, 9 * GIB, 0, 0),
        (128 * GIB, 3 * GIB, 0, 32 * GIB),  # more than the machine has
        ("max", 3 * GIB, 0, 32 * GIB),
    ],
)
def test_the_limit_of_a_container_and_not_the_hosts(machine, limit, usage, cache, free):
    files = {"proc/self/cgroup": "0::/\n", **version_2("", limit, usage, cache)}
    assert machine(files).memory == free


def test_every_group_around_a_process_counts(machine):
    files = {
        "proc/self/cgroup": "0::/user.slice/job\n",
        **version_2("user.slice", 6 * GIB, 2 * GIB),
        **version_2("user.slice/job", "max", GIB),
    }
    assert machine(files).memory == 4 * GIB


@pytest.mark.parametrize("path", ["/", "/docker/0123"])
def test_groups_of_version_1(machine, path):
    """In a container the group lies at the root, whatever path the host gives it."""
    files = {
        "proc/self/cgroup": f"5:cpu:/\n4:memory:{path}\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
    }
    assert machine(files).memory == 3 * GIB


# ------------------------------------------------------------------ cores
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "400000 100000"}, 4),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({"cpuset/cpuset.cpus": "0-3,8,10-11"}, 7),
        ({"cpuset/cpuset.cpus": ""}, 64),
        ({"cpuset/cpuset.cpus": "0-7", "cpu.max": "300000 100000"}, 3),
    ],
)
def test_cores_are_those_that_ray_counts(machine, files, cores):
    assert machine({f"sys/fs/cgroup/{name}": text for name, text in files.items()}).cores == cores
