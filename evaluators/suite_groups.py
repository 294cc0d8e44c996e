"""Suites and models of runs: the rows and columns of the table that the report and the viewer show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gymcp.evaluators.names import model_name, natural_order
from gymcp.types import Json

T = TypeVar("T")
Config = Mapping[str, Json]
"""A run's `Run.config`, or the part of it that `COMPARED_KEYS`, ``policy`` and ``agent`` name."""

COMPARED_KEYS = ("env", "env_version", "suite", "suite_version", "suite_digest")
"""Keys of a run's config that must agree for two runs to be compared."""


def group_by_suite(
    runs: Iterable[T], config_of: Callable[[T], Config], name_of: Callable[[T], str]
) -> list[tuple[str, tuple[T, ...]]]:
    """(name of the suite, its runs), suites by name; versions tell suites of one name apart.

    `name_of`: name of a run, for a suite that the run's config does not name.
    """
    groups: dict[str, list[T]] = {}
    for run in runs:
        groups.setdefault(repr([config_of(run).get(key) for key in COMPARED_KEYS]), []).append(run)
    names = _name_suites([(config_of(of_suite[0]), name_of(of_suite[0])) for of_suite in groups.values()])
    suites = [(name, tuple(of_suite)) for name, of_suite in zip(names, groups.values(), strict=True)]
    return sorted(suites, key=lambda each: natural_order(each[0]))


def model_of(config: Config) -> str:
    """The model of a run; the agent of a run without one."""
    return model_name(str(config["policy"])) if config.get("policy") else str(config.get("agent") or "unknown agent")


def list_models(configs: Iterable[Config]) -> list[str]:
    """The models of these runs, each once, in natural order."""
    return sorted({model_of(config) for config in configs}, key=natural_order)


def _name_suites(firsts: Sequence[tuple[Config, str]]) -> list[str]:
    """A name for each suite: with its version, its digest or a run of it, as far as names would repeat.

    `firsts`: config and name of the first run of each suite.
    """
    forms: list[list[str]] = []
    for config, name in firsts:
        suite = str(config.get("suite") or config.get("env") or name)
        version = f"{suite} {config.get('suite_version', 'of unknown version')}"
        forms.append([suite, version, f"{version} ({str(config.get('suite_digest', ''))[:8]})", f"{suite} of {name}"])
    names = []
    for form in forms:
        unique = (name for at, name in enumerate(form) if [other[at] for other in forms].count(name) == 1)
        names.append(next(unique, form[-1]))
    return names
