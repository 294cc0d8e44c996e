"""Play one case of the table in this process, and check all that must hold of any bad input."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
from case import SECRET, Case
from endpoints import serve_model
from stderr_lines import ACTS, errors

from gymcp.cli.app import run
from gymcp.store import TrajectoryStore

MAX_LINE_CHARACTERS = 1000
"""Characters of a line that a person still reads."""
STORE = "trajectories.sqlite"
SIDE_FILES = (f"*{STORE}-shm", f"*{STORE}-wal")
"""Files that SQLite keeps beside a database that is read."""

Tree = Mapping[str, bytes | str]
"""Path -> content of a file, or the kind of anything else."""


def play(
    case: Case, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Type the command in the user's folder; fail if anything of the case does not hold."""
    make_things(case, folder)
    for name, value in case.env.items():
        monkeypatch.setenv(name, value.replace("{here}", str(folder)))
    before = read_tree(folder)
    kept = {name: read_episodes(folder / name) for name in case.grows if (folder / name / STORE).is_file()}
    capfd.readouterr()
    with serve_model(case.model) as address:
        line = case.typed.replace("{model}", address).replace("{port}", str(port))
        code = type_command(shlex.split(line), monkeypatch)
    out, err = capfd.readouterr()
    assert_plain(out, err)
    assert_said(case, errors(err), out)
    assert code == case.code, (out, err)
    assert_nothing_lost(case, before, read_tree(folder))
    for name, ids in kept.items():
        assert read_episodes(folder / name) >= ids


def make_things(case: Case, folder: Path) -> None:
    for name, thing in case.given.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(thing, str):
            path.write_text(thing, encoding="utf-8")
        elif isinstance(thing, bytes):
            path.write_bytes(thing)
        else:
            thing(path)


def type_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of ``gymcp WORDS``. Raises what would be a traceback."""
    monkeypatch.setattr(sys, "argv", ["gymcp", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    return ended.value.code if isinstance(ended.value.code, int) else int(ended.value.code is not None)


def read_tree(folder: Path) -> Tree:
    found: dict[str, bytes | str] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            mode = path.lstat().st_mode
            kind = str(path.readlink()) if stat.S_ISLNK(mode) else str(stat.S_IFMT(mode))
            found[str(path.relative_to(folder))] = path.read_bytes() if stat.S_ISREG(mode) else kind
    return found


def read_episodes(folder: Path) -> set[str]:
    """Ids of all episodes of a run, replaced ones too."""
    with TrajectoryStore.open(folder) as store:
        return {row.id for row in store.summaries(latest=False)}


def assert_plain(*texts: str) -> None:
    """Fail if an output acts on a terminal, is a traceback, or holds the key."""
    for text in texts:
        assert ACTS.search(text) is None, ascii(text)
        assert "Traceback" not in text, text
        assert SECRET not in text


def assert_said(case: Case, said: list[str], out: str) -> None:
    text = "\n".join(said)
    wanted = (case.says,) if isinstance(case.says, str) else case.says
    assert [each for each in wanted if each not in text] == [], text
    assert len(said) == case.lines, text
    assert [line for line in said[-1:] if not line.startswith("gymcp: ")] == [], text
    assert [len(line) for line in said if len(line) > MAX_LINE_CHARACTERS] == []
    assert case.prints in out


def assert_nothing_lost(case: Case, before: Tree, after: Tree) -> None:
    """Every file is as it was, but for those that the case lets grow; nothing is new but what the case names."""
    grown = {path for path in before if any(path == name or path.startswith(f"{name}/") for name in case.grows)}
    changed = [path for path in before if path not in grown and after.get(path) != before[path]]
    assert changed == [], "changed or gone"
    assert [path for path in grown if path not in after] == [], "gone"
    allowed = (*SIDE_FILES, *case.makes, *(f"{name}/*" for name in case.grows))
    new = [path for path in after if path not in before and not any(fnmatch(path, glob) for glob in allowed)]
    assert new == [], "left behind"
    holding = [path for path, content in after.items() if isinstance(content, bytes) and SECRET.encode() in content]
    assert holding == [], "hold the key"
