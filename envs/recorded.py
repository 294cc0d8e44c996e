"""Environments that a record names: a run's ``run.json``, a training run's ``training.json``.

An environment file is code. A record that somebody else has made may name any file, so one is only run if the user has
named it: on this command line, or when it was run before on this machine, by this user, with the same content.
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

BOOK = "environment-files"
"""In the cache: a line of JSON for each file that the user has run, [path, sha256]."""
MAX_FILE_BYTES = 10_000_000
"""Size of the longest environment file that is read."""


def load_recorded(source: str, *, given: str | None, where: str, flag: str = "--env") -> EnvSpec:
    """The environment that the record at `where` names as `source`; of a file that the user has not run, `given`.

    `flag`: the option of the command line with which the user gives the file. Raises ConfigError, before any of it is
    run, for a file that the user has neither given nor run before as it is now.
    """
    if given is not None:
        return load_named(given)
    if catalog.is_file(source) and not _was_run(Path(source)):
        there = "" if Path(source).is_file() else ", and is not there"
        raise ConfigError(
            f"{where}: names the environment file '{source}', which is code that you have not run here as it is"
            f"{there}; look at it first, then give it yourself: {flag} FILE"
        )
    if not catalog.is_file(source) and source not in catalog.names():
        raise ConfigError(f"{where}: names no environment of the catalog, but '{source[:60]}'; name one with {flag}")
    return catalog.load_spec(source)


def load_named(env: str) -> EnvSpec:
    """The environment that the user has named; of a file it is noted that the user has run it. Raises ConfigError."""
    spec = catalog.load_spec(env)
    if catalog.is_file(env):
        _remember(env)
    return spec


def _remember(env: str) -> None:
    with contextlib.suppress(OSError, UnicodeError):  # a cache that cannot be written: the file is named again
        line = _line(Path(env))
        book = gymcp_home() / BOOK
        if line not in _lines(book):
            book.parent.mkdir(parents=True, exist_ok=True)
            with book.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _was_run(path: Path) -> bool:
    try:
        return _line(path) in _lines(gymcp_home() / BOOK)
    except (OSError, UnicodeError):
        return False


def _line(path: Path) -> str:
    with path.resolve().open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    return json.dumps([str(path.resolve()), hashlib.sha256(content).hexdigest()])


def _lines(book: Path) -> frozenset[str]:
    try:
        return frozenset(book.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return frozenset()
