"""Trial calls of `gymcp new` that fail, write elsewhere or hang: the user is told, and the other tools are tried."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from cli_runner import gymcp
from own_programs import write_kv

from gymcp.cli.servers import trial
from gymcp.cli.servers.trial import Trial, try_out
from gymcp.errors import ServerTimeout
from gymcp.mcp_servers.packages.lockfile import read_lock
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions import session

BESIDE = """\
from pathlib import Path

from wire import serve


def note(text):
    "Note a text."
    Path(__file__).with_name("notes.txt").write_text(text)
    return "noted"


serve(note)
"""


def test_a_server_that_writes_beside_itself_is_told_where_to_write(tmp_path: Path) -> None:
    write_kv(tmp_path)
    (tmp_path / "note_server.py").write_text(BESIDE)
    done = gymcp("new", "note", "--server", "python note_server.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, state, failure, _ = done.stdout.splitlines()
    assert state == 'state: "opaque": no trial call succeeded, so nothing is known of what it keeps'
    assert failure.startswith("trial call of note failed: OSError(30, 'Read-only file system')"), failure
    assert failure.endswith("let it write under the working directory")


OUTSIDE = BESIDE.replace('Path(__file__).with_name("notes.txt")', 'Path("/tmp/notes.txt")')


def test_files_outside_the_working_directory_are_said_not_to_be_watched(tmp_path: Path) -> None:
    write_kv(tmp_path)
    (tmp_path / "note_server.py").write_text(OUTSIDE)
    done = gymcp("new", "note", "--server", "python note_server.py", cwd=tmp_path)
    assert "changed a file in the working directory; no other place is watched" in done.stdout, done.stderr


SLOW = """import time

from wire import serve


def wait():
    "Wait for ever."
    time.sleep(1000)


def stay():
    "Say where."
    return "here"


serve(wait, stay)
"""


def try_slow(folder: Path, tools: str) -> Trial:
    """The trial calls of a server with these tools."""
    write_kv(folder)
    (folder / "slow_server.py").write_text(SLOW.replace("wait, stay", tools))
    added = gymcp("servers", "add", "python slow_server.py", cwd=folder)
    assert added.returncode == 0, added.stderr
    return asyncio.run(try_out(read_lock(folder / "servers.lock")["slow"], get_sandbox("bwrap")))


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr(session, "PING_TIMEOUT_S", 0.5)


HUNG = "server 'slow': tool 'wait': hung: no answer within 0.5 s, the limit of a trial call, nor to a ping"


def test_a_tool_that_hangs_does_not_keep_the_others_from_being_tried(tmp_path: Path, short_calls: None) -> None:
    found = try_slow(tmp_path, "wait, stay")
    assert (found.call.name, found.succeeded, dict(found.errors)) == ("stay", True, {"wait": HUNG})


def test_a_server_of_which_no_tool_answers_is_refused(tmp_path: Path, short_calls: None) -> None:
    with pytest.raises(ServerTimeout, match=re.escape(HUNG)):
        try_slow(tmp_path, "wait")
