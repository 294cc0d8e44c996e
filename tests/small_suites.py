"""Environments of the catalog, with a few tasks of those suites that take a minute or more to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymcp.envs import LoadedEnv, load_env, load_spec
from gymcp.types import Suite

FEW: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "scienceworld": ("test", {"families": ["power-component"]}),
    "textworld": ("seeds", {"levels": [1]}),
}
"""Name of an environment -> split and arguments of its `more_tasks`: the simulator plays the gold of all 30 tasks of
ScienceWorld's suite, and TextWorld makes the 92 games of its own, if they are not in the cache."""


def load_with_few_tasks(name: str) -> LoadedEnv:
    """The environment `name`, or the one of the file `name`; with all tasks if making them is cheap."""
    spec = load_spec(name)
    if name not in FEW:
        return load_env(spec)
    split, arguments = FEW[name]
    assert spec.more_tasks is not None
    tasks = tuple(spec.more_tasks(split, count=1, **arguments))
    return load_env(replace(spec, suite=Suite(name=name, version="few", tasks=tasks)))
