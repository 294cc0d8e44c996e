"""Trial calls of `gymcp new` that fail, write elsewhere or hang: the user is told, and the other tools are tried."""

from __future__ import annotations

from pathlib import Path

from cli_runner import gymcp
from own_programs import write_kv

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


def test_a_tool_that_hangs_does_not_keep_the_others_from_being_tried(tmp_path: Path) -> None:
    write_kv(tmp_path)
    (tmp_path / "slow_server.py").write_text(SLOW)
    done = gymcp("new", "slow", "--server", "python slow_server.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'name="stay"' in (tmp_path / "slow.py").read_text()
    hung = (
        "trial call of wait failed: server 'slow': tool 'wait': hung: no answer within 10 s, the limit of a trial call"
    )
    assert hung in done.stdout
    (tmp_path / "slow_server.py").write_text(SLOW.replace("wait, stay", "wait"))
    done = gymcp("new", "slower", "--server", "python slow_server.py", "--server-name", "slower", cwd=tmp_path)
    assert (done.returncode, "s, the limit of a trial call, nor to a ping" in done.stderr) == (1, True), done.stderr
    assert "EpisodeLimits" not in done.stderr
    assert not (tmp_path / "slower.py").exists()
