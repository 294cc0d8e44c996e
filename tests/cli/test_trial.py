"""The state kind that `gymcp new` writes fits the files that trial calls changed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gymcp.cli.servers.trial import describe_state, state_kind
from gymcp.mcp_servers.spec import FileState, StateSource
from gymcp.types import Json

TEXT: Json = {"kind": "file", "text": "hello"}
FOLDER: Json = {"kind": "folder"}
EMPTY: Json = {"kind": "file", "text": ""}
LARGE: Json = {"kind": "file", "sha256": "0" * 64, "size": 100_000}


@pytest.mark.parametrize(
    ("changed", "state", "code"),
    [
        ({}, "opaque", "'opaque'"),
        ({"kv.json": TEXT}, FileState(), "FileState()"),
        ({"a": FOLDER, "a/notes.db": LARGE}, FileState(kind="sqlite", path="a/notes.db"), None),
        ({"n.db": EMPTY, "n.db-wal": LARGE}, None, 'FileState(kind="sqlite", path="n.db")'),
        ({"notes.db": TEXT}, FileState(), None),
        ({"notes.db": LARGE, "kv.json": TEXT}, FileState(), None),
        ({"gone.txt": None}, FileState(), None),
        ({".git/HEAD": TEXT, "a.txt": TEXT}, FileState(kind="git"), 'FileState(kind="git")'),
        ({"repo/.git/HEAD": TEXT}, FileState(kind="git", path="repo"), None),
        ({"a/.git/HEAD": TEXT, "b/.git/HEAD": TEXT}, FileState(), None),
    ],
)
def test_the_kind_fits_the_changed_files(changed: dict[str, Json], state: StateSource | None, code: str | None) -> None:
    found = state_kind(changed)
    assert state is None or found == state
    assert code is None or describe_state(found) == code


def test_a_database_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "world")
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    text = (tmp_path / "world").read_bytes().decode("latin-1")
    assert state_kind({"world": {"kind": "file", "text": text}}) == FileState(kind="sqlite", path="world")
