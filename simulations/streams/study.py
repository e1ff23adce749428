"""What the studies have in common: the first keys of their run files, and what is asked of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulations.config_reader import ConfigReader
from simulations.streams.outcome import Job

ENGINES = ("stream",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study(ABC):
    """Checked settings, and the parts they ask for; one field for each key of the run file.

    Parameters
    ----------
    seed, trials : int
        Trials differ in their true parameter, their users and their noise.
    num_users, dim : int
        Users that are asked, and coordinates of the parameter.
    epsilons : tuple of float
        Levels: pure-DP loss of one report.
    stepsize_exponent : float
        The k-th step shrinks as ``k**-stepsize_exponent``.
    records : int
        Points of every curve.
    """

    seed: int
    trials: int
    num_users: int
    dim: int
    epsilons: tuple[float, ...]
    stepsize_exponent: float
    records: int

    @abstractmethod
    def jobs(self) -> list[Job]:
        """Return the parts of the study, the longest first."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what is the same in every part."""


def reader(config: Mapping[str, Any], task: str) -> ConfigReader:
    """Return access to the run file of a study, of which ``conf/<task>/paper.toml`` has every key.

    Raises
    ------
    ValueError
        If it is the run file of something else.
    """
    read = ConfigReader(config, f"the run file: see conf/{task}/paper.toml")
    read.choice("engine", ENGINES)
    read.choice("task", (task,))
    return read


def common_settings(read: ConfigReader, *, least_dim: int, epsilons_above: float) -> dict[str, Any]:
    """Return the fields of :class:`Study`, from a run file."""
    num_users = read.integer("num-users", minimum=1)
    return {
        "seed": read.integer("seed", minimum=0),
        "trials": read.integer("trials", minimum=2),
        "num_users": num_users,
        "dim": read.integer("dim", minimum=least_dim),
        "epsilons": read.numbers("epsilons", above=epsilons_above),
        "stepsize_exponent": read.number("stepsize-exponent", minimum=0.0, below=1.0),
        "records": read.integer("records", minimum=1, maximum=num_users),
    }
