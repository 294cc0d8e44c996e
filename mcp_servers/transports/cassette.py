"""Recordings of servers elsewhere: a file of JSON lines that can be read, reviewed and committed.

::

    {"cassette": 1, "server": "weather", "url": "https://...", "serverInfo": {...}}
    {"tool": {"name": "forecast", "inputSchema": {...}}}
    {"task": "oslo", "call": "forecast", "arguments": {"city": "Oslo"}, "result": {"content": [...]}}

A call is found by task, tool and canonical arguments; the n-th such call of an episode gets the n-th answer on the
cassette. Of a server that is declared stateless the task does not count, and one answer serves every time: the same
question has the same answer. Anything else is a `CassetteMiss`: where a cassette is played, nothing is ever called.

Recording adds what is new when an episode ends, all of it or nothing; an answer that is on the cassette stays as it is.
What came as the value of an environment variable (a token that the server repeats) is written as ``${NAME}``
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
"""(task, or None of a stateless server; tool; canonical arguments)."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Cassette:
    """What a cassette holds, or what one session adds to it."""

    server_info: dict[str, Json] = field(default_factory=dict)
    tools: list[Json] = field(default_factory=list)
    """As the server lists them."""
    answers: dict[Key, list[dict[str, Json]]] = field(default_factory=dict)
    """``{"result": ...}`` or ``{"error": ...}``, in order of occurrence."""


def key_of(spec: ServerSpec, task: str, tool: str, arguments: Json) -> Key:
    """Where a call's answers are."""
    return (None if spec.state == "stateless" else task, tool, canonical_json(arguments or {}))


def cassette_sha256(path: Path) -> str:
    """Of the file. Raises ConfigError."""
    return hashlib.sha256(_bytes(path)).hexdigest()


def read_cassette(path: Path) -> Cassette:
    """Raises ConfigError for a file that is missing, malformed, or of a newer format, naming the line."""
    tape = Cassette()
    for number, line in enumerate(_bytes(path).splitlines(), 1):
        try:
            row = json.loads(line)
            if number == 1:
                if row["cassette"] != FORMAT:
                    raise ValueError(f"format {row['cassette']!r}; this gymcp reads format {FORMAT}")
                tape.server_info = dict(row["serverInfo"])
            elif "tool" in row:
                tape.tools.append(row["tool"])
            else:
                key = (row.get("task"), row["call"], canonical_json(row["arguments"]))
                answer = {name: row[name] for name in ("result", "error") if isinstance(row.get(name), dict)}
                if len(answer) != 1:
                    raise ValueError("it has no result and no error")
                tape.answers.setdefault(key, []).append(answer)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"cassette '{path}': line {number}: {what}") from error
    if not tape.tools:
        raise ConfigError(f"cassette '{path}': lists no tools; {RECORD}")
    return tape


def check_tools(spec: ServerSpec, tape: Cassette) -> None:
    """Raises IntegrityError where the server lists other tools than when its cassette was begun."""
    if spec.cassette is not None and spec.cassette.exists():
        on_file = {_name(tool): digest(tool) for tool in read_cassette(spec.cassette).tools}
        listed = {_name(tool): digest(tool) for tool in tape.tools}
        if other := sorted(name for name in on_file.keys() | listed if on_file.get(name) != listed.get(name)):
            raise IntegrityError(
                f"server '{spec.name}': its tools are not those of cassette '{spec.cassette}': {', '.join(other)}; to "
                "record it anew remove the file"
            )


def add_to_cassette(spec: ServerSpec, take: Cassette, redaction: Redaction | None) -> None:
    """Writes what a session has heard and the cassette does not hold yet: all of it, or nothing."""
    path = spec.cassette
    if path is None or not take.tools or (path.exists() and not take.answers):
        return
    with _locked(path):
        tape = read_cassette(path) if path.exists() else Cassette(server_info=take.server_info, tools=take.tools)
        kept = 0
        for key, answers in take.answers.items():
            known = tape.answers.setdefault(key, [])
            clean = [json.loads(_line(answer, redaction)) for answer in answers]
            if key[0] is None:
                kept += any(digest(answer) != digest((known or clean)[0]) for answer in clean)
                clean = clean[:1]
            else:
                kept += sum(digest(old) != digest(new) for old, new in zip(known, clean, strict=False))
            known += clean[len(known) :]
        _write(path, spec, tape, redaction)
    if kept:
        log.warning(
            "server '%s': answered %d calls in other words than on cassette '%s', which stays as it is; to record it "
            "anew remove the file",
            *(spec.name, kept, path),
        )


def _write(path: Path, spec: ServerSpec, tape: Cassette, redaction: Redaction | None) -> None:
    rows: list[Json] = [
        {"cassette": FORMAT, "server": spec.name, "url": spec.url, "serverInfo": tape.server_info},
        *({"tool": tool} for tool in tape.tools),
    ]
    for (task, call, arguments), answers in tape.answers.items():
        about = {"task": task} if task is not None else {}
        rows += [{**about, "call": call, "arguments": json.loads(arguments), **answer} for answer in answers]
    text = "".join(_line(row, redaction) + "\n" for row in rows)
    try:
        write_atomically(path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cassette '{path}': cannot be written: {error.strerror}") from error


def _line(value: Json, redaction: Redaction | None) -> str:
    """As one line of JSON; half of a character stays escaped, which UTF-8 cannot hold."""
    value = value if redaction is None else redaction.json(value)
    text = json.dumps(value, ensure_ascii=False)
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        text = json.dumps(value)
    return text


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"cassette '{path}': its folder cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"cassette '{path}': not found; {RECORD}") from None
    except OSError as error:
        raise ConfigError(f"cassette '{path}': cannot be read: {error.strerror}") from error


def _name(tool: Any) -> str:
    return str(tool.get("name")) if isinstance(tool, dict) else "?"
