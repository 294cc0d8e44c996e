"""Plug-ins: agents and environments that installed packages bring, found by their entry points.

A package names them in its ``pyproject.toml``::

    [project.entry-points."gymcp.agents"]
    careful = "my_package.agents:careful"

    [project.entry-points."gymcp.envs"]
    shop = "my_package.shop:ENV"

Finding them reads the metadata of the installed packages and runs none of their code; only the plug-in that is used is
imported. The names of gymcp itself come first.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from gymcp.errors import ConfigError
from gymcp.user_code import describe_error

AGENTS = "gymcp.agents"
ENVIRONMENTS = "gymcp.envs"
_NAME = re.compile("[A-Za-z0-9_-]+")


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Name -> entry point of each plug-in of the group; of two with the same name, the first one on the path."""
    return _scan(group, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _scan(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """`path`: the folders in which packages are installed, which the result depends on."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if _NAME.fullmatch(point.name):
            found.setdefault(point.name, point)
    return {name: found[name] for name in sorted(found)}


def describe_plugin(point: EntryPoint) -> str:
    """The plug-in for people: "plug-in 'shop' of package 'my-package' (my_package.shop:ENV)"."""
    package = "" if point.dist is None else f" of package '{point.dist.name}'"
    return f"plug-in '{point.name}'{package} ({point.value})"


def load_plugin(point: EntryPoint) -> object:
    """The object that the entry point names. Raises ConfigError, which names the plug-in, if that is not possible."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # the package's code, which may raise anything
        raise ConfigError(f"{describe_plugin(point)}: {describe_error(error)}") from error
