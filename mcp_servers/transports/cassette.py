"""Cassettes: recordings of remote servers, as files of JSON lines that can be read, reviewed and committed.

::

    {"cassette": 1, "server": "weather", "url": "https://...", "serverInfo": {...}}
    {"tool": {"name": "forecast", "inputSchema": {...}}}
    {"task": "oslo", "call": "forecast", "arguments": {"city": "Oslo"}, "result": {"content": [...]}}

A call is found by task, tool and canonical arguments; the n-th such call of an episode gets the n-th answer on the
cassette. For a stateless server the task does not count, and one answer serves every time: the same question has the
same answer. Any other call is a `CassetteMiss`: during a replay no server is ever called.

Recording adds new answers when an episode ends, all of them or none. An answer that is on the cassette already stays as
it is. Values of environment variables, such as a token that the server repeats, are written as ``${NAME}``
(`gymcp.mcp_servers.redaction`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError, IntegrityError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.native.runtime import canonical_json
from gymcp.mcp_servers.redaction import Redaction
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json

FORMAT = 1
RECORD = "record it with: gymcp eval ENV --cassette record"
Key = tuple[str | None, str, str]
"""(task, or None for a stateless server; tool; canonical arguments)."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Cassette:
    """Content of a cassette, or the part that one session adds to it."""

    server_info: dict[str, Json] = field(default_factory=dict)
    tools: list[Json] = field(default_factory=list)
    """Tools as the server lists them."""
    answers: dict[Key, list[dict[str, Json]]] = field(default_factory=dict)
    """``{"result": ...}`` or ``{"error": ...}``, in order of occurrence."""


def key_of(spec: ServerSpec, task: str, tool: str, arguments: Json) -> Key:
    """Key of a call's answers."""
    return (None if spec.is_stateless else task, tool, canonical_json(arguments or {}))


def cassette_sha256(path: Path) -> str:
    """sha256 of the file. Raises ConfigError."""
    return hashlib.sha256(_read_bytes(path)).hexdigest()


def read_cassette(path: Path) -> Cassette:
    """Content of the file. Raises ConfigError, naming the line, if it is missing, malformed, or of a newer format."""
    cassette = Cassette()
    for number, line in enumerate(_read_bytes(path).splitlines(), 1):
        try:
            row = json.loads(line)
            if number == 1:
                if row["cassette"] != FORMAT:
                    raise ValueError(f"format {row['cassette']!r}; this gymcp reads format {FORMAT}")
                cassette.server_info = dict(row["serverInfo"])
            elif "tool" in row:
                cassette.tools.append(row["tool"])
            else:
                key = (row.get("task"), row["call"], canonical_json(row["arguments"]))
                answer = {name: row[name] for name in ("result", "error") if isinstance(row.get(name), dict)}
                if len(answer) != 1:
                    raise ValueError("it has no result and no error")
                cassette.answers.setdefault(key, []).append(answer)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"cassette '{path}': line {number}: {what}") from error
    if not cassette.tools:
        raise ConfigError(f"cassette '{path}': lists no tools; {RECORD}")
    return cassette


def check_tools(spec: ServerSpec, heard: Cassette) -> None:
    """Raise IntegrityError if the server now lists other tools than its cassette has."""
    if spec.cassette is not None and spec.cassette.exists():
        on_file = {_name(tool): digest(tool) for tool in read_cassette(spec.cassette).tools}
        listed = {_name(tool): digest(tool) for tool in heard.tools}
        if other := sorted(name for name in on_file.keys() | listed if on_file.get(name) != listed.get(name)):
            raise IntegrityError(
                f"server '{spec.name}': its tools are not those of cassette '{spec.cassette}': {', '.join(other)}; to "
                "record it anew remove the file"
            )


def add_to_cassette(spec: ServerSpec, heard: Cassette, redaction: Redaction | None) -> None:
    """Add the answers that a session has heard and the cassette does not hold yet: all of them, or none."""
    path = spec.cassette
    if path is None or not heard.tools or (path.exists() and not heard.answers):
        return
    with _lock_folder(path):
        cassette = read_cassette(path) if path.exists() else Cassette(server_info=heard.server_info, tools=heard.tools)
        differing = 0
        for key, answers in heard.answers.items():
            known = cassette.answers.setdefault(key, [])
            clean = [json.loads(_to_line(answer, redaction)) for answer in answers]
            if key[0] is None:
                differing += any(digest(answer) != digest((known or clean)[0]) for answer in clean)
                clean = clean[:1]
            else:
                differing += sum(digest(old) != digest(new) for old, new in zip(known, clean, strict=False))
            known += clean[len(known) :]
        _write(path, spec, cassette, redaction)
    if differing:
        log.warning(
            "server '%s': answered %d calls in other words than on cassette '%s', which stays as it is; to record it "
            "anew remove the file",
            *(spec.name, differing, path),
        )


def _write(path: Path, spec: ServerSpec, cassette: Cassette, redaction: Redaction | None) -> None:
    rows: list[Json] = [
        {"cassette": FORMAT, "server": spec.name, "url": spec.url, "serverInfo": cassette.server_info},
        *({"tool": tool} for tool in cassette.tools),
    ]
    for (task, call, arguments), answers in cassette.answers.items():
        about = {"task": task} if task is not None else {}
        rows += [{**about, "call": call, "arguments": json.loads(arguments), **answer} for answer in answers]
    text = "".join(_to_line(row, redaction) + "\n" for row in rows)
    try:
        write_atomically(path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cassette '{path}': cannot be written: {error.strerror}") from error


def _to_line(value: Json, redaction: Redaction | None) -> str:
    """The value as one line of JSON. A lone surrogate stays escaped, because UTF-8 cannot encode it."""
    value = value if redaction is None else redaction.json(value)
    text = json.dumps(value, ensure_ascii=False)
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        text = json.dumps(value)
    return text


@contextlib.contextmanager
def _lock_folder(path: Path) -> Iterator[None]:
    try:
        folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"cassette '{path}': its folder cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"cassette '{path}': not found; {RECORD}") from None
    except OSError as error:
        raise ConfigError(f"cassette '{path}': cannot be read: {error.strerror}") from error


def _name(tool: Any) -> str:
    return str(tool.get("name")) if isinstance(tool, dict) else "?"
