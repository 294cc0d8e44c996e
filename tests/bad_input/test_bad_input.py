"""Every bad input of the table: no traceback, one line that says what to do, the exit code, and nothing lost."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from case import SECRET, Case
from cases import CASES
from endpoints import serve_model
from equipment import usable
from said import ACTS, errors

from gymcp.cli.app import run
from gymcp.store import TrajectoryStore

MIN_CASES = 113
MAX_LINE_CHARACTERS = 1000
"""Characters of a line that a person still reads."""
WITHOUT_SERVERS = [case for case in CASES if not case.plays]
WITH_SERVERS = [case for case in CASES if case.plays]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what gymcp installs and remembers, empty at first."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def bwrap() -> None:
    usable("bwrap")


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of loopback at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def here(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, which is the working folder; handlers of signals are put back."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GYMCP_HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("COLUMNS", "100")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield folder
    for number, handler in handlers.items():
        signal.signal(number, handler)


def type_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of ``gymcp WORDS``, in this process; an exception that is no exit is raised."""
    monkeypatch.setattr(sys, "argv", ["gymcp", *words])
    try:
        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


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


def read_tree(folder: Path) -> dict[str, bytes | str]:
    """Path -> content of a file, or the kind of anything else."""
    found: dict[str, bytes | str] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            mode = path.lstat().st_mode
            kind = str(path.readlink()) if stat.S_ISLNK(mode) else str(stat.S_IFMT(mode))
            found[str(path.relative_to(folder))] = path.read_bytes() if stat.S_ISREG(mode) else kind
    return found


def read_episodes(folder: Path) -> set[str]:
    with TrajectoryStore.open(folder) as store:
        return {row.id for row in store.summaries(latest=False)}


def assert_nothing_is_lost(case: Case, before: dict[str, bytes | str], folder: Path) -> None:
    after = read_tree(folder)
    may_change = {path for path in before if any(path == name or path.startswith(f"{name}/") for name in case.grows)}
    lost = [path for path in before if path not in may_change and after.get(path) != before[path]]
    assert lost == [], "changed or gone"
    new = [path for path in after if path not in before]
    allowed = (*case.makes, *(f"{name}/*" for name in case.grows))
    assert [path for path in new if not any(fnmatch(path, glob) for glob in allowed)] == [], "left behind"
    assert not [path for path, content in after.items() if isinstance(content, bytes) and SECRET.encode() in content]


def play(
    case: Case,
    folder: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_things(case, folder)
    for name, value in case.env.items():
        monkeypatch.setenv(name, value.replace("{here}", str(folder)))
    before = read_tree(folder)
    kept = {
        name: read_episodes(folder / name) for name in case.grows if (folder / name / "trajectories.sqlite").is_file()
    }
    capsys.readouterr()
    with serve_model(case.model) as address:
        line = case.typed.replace("{model}", address).replace("{port}", str(port))
        code = type_command(shlex.split(line), monkeypatch)
    out, err = capsys.readouterr()
    said = errors(err)
    assert code == case.code, (out, err)
    assert_plain_lines(case, said, out)
    assert_nothing_is_lost(case, before, folder)
    for name, ids in kept.items():
        assert read_episodes(folder / name) >= ids


def assert_plain_lines(case: Case, said: list[str], out: str) -> None:
    wanted = (case.says,) if isinstance(case.says, str) else case.says
    text = "\n".join(said)
    assert [each for each in wanted if each not in text] == [], text
    assert len(said) == case.lines, text
    assert [line for line in said if not line.startswith("gymcp: ")] == [], text
    assert [line for line in said if len(line) > MAX_LINE_CHARACTERS] == []
    assert case.prints in out
    for each in (text, out):
        assert ACTS.search(each) is None, ascii(each)
        assert "Traceback" not in each
        assert SECRET not in each


@pytest.mark.parametrize("case", WITHOUT_SERVERS, ids=lambda case: case.id)
def test_a_bad_input_is_one_line_and_loses_nothing(
    case: Case,
    here: Path,
    taken_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(case, here, taken_port, monkeypatch, capsys)


@pytest.mark.parametrize("case", WITH_SERVERS, ids=lambda case: case.id)
def test_a_bad_input_of_a_run_is_one_line_and_loses_nothing(
    case: Case,
    here: Path,
    bwrap: None,
    taken_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(case, here, taken_port, monkeypatch, capsys)


def test_the_table_is_as_long_as_it_must_be_and_tries_every_verb() -> None:
    assert len(CASES) >= MIN_CASES
    assert len({case.id for case in CASES}) == len(CASES)
