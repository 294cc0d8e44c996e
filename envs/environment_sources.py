"""Sources of environments: names and files, as the user or a record (``run.json``, ``training.json``) gives them.

An environment file is code. A record from someone else may name any file, so a file is only run if the user has named
it: on this command line, or in an earlier run on this machine, by the same user, with the same content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from gymcp.envs import catalog
from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError
from gymcp.paths import gymcp_home

RUN_FILES = "environment-files"
"""File in the cache with a line of JSON, [path, sha256], for each environment file that the user has run."""
MAX_FILE_BYTES = 10_000_000
"""Most bytes of an environment file that are read."""


def load_recorded(source: str, *, given: str | None, where: str, flag: str = "--env") -> EnvSpec:
    """The environment that a record names as `source`, or the one that the user has `given` instead.

    `where`: path of the record. `flag`: option of the command line with which the user gives an environment. Raises
    ConfigError, without running anything, for a file that the user has neither given nor run before with its present
    content.
    """
    if given is not None:
        return load_named(given)
    if catalog.is_file(source) and not _was_run(Path(source)):
        there = "" if Path(source).is_file() else ", and is not there"
        raise ConfigError(
            f"{where}: names the environment file '{source}', which is code that you have not run here as it is"
            f"{there}; look at it first, then give it yourself: {flag} FILE"
        )
    if not catalog.is_file(source) and source not in (*catalog.names(), *catalog.plugin_names()):
        told = f" of the catalog, but '{source[:60]}'" if source else ""
        raise ConfigError(f"{where}: names no environment{told}; name one with {flag}")
    return catalog.load_spec(source)


def load_named(env: str) -> EnvSpec:
    """The environment that the user has named; a file is remembered as run by the user. Raises ConfigError."""
    spec = catalog.load_spec(env)
    if catalog.is_file(env):
        _remember(env)
    return spec


def _remember(env: str) -> None:
    with contextlib.suppress(OSError, UnicodeError):  # without a writable cache, the user must name the file again
        line = _make_line(Path(env))
        path = gymcp_home() / RUN_FILES
        if line not in _read_lines(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _was_run(path: Path) -> bool:
    try:
        return _make_line(path) in _read_lines(gymcp_home() / RUN_FILES)
    except (OSError, UnicodeError):
        return False


def _make_line(path: Path) -> str:
    with path.resolve().open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    return json.dumps([str(path.resolve()), hashlib.sha256(content).hexdigest()])


def _read_lines(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return frozenset()
