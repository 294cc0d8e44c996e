"""`gymcp check` plays gold twice, and compares two fresh starts of a server whose state it cannot see."""

from __future__ import annotations

import json
from pathlib import Path

from cli_runner import gymcp
from own_programs import SERVE

NOTES = '''
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import as_target, calls_made
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import GoldTurn, Suite, Task, ToolCall


class Notes:
    def __init__(self, ids: dict[str, str]) -> None:
        self.ids = ids

    def add(self, text: str) -> str:
        """Keep a note under an id that is new every time."""
        import uuid

        self.ids[text] = uuid.uuid4().hex
        return "kept"


CALL = ToolCall(id="call_1", name="add", arguments={"text": "milk"})
TASK = Task(
    id="milk",
    prompts=("Note: milk.",),
    initial_state={"ids": {}},
    target=as_target([CALL]),
    gold=(GoldTurn(calls=(CALL,)),),
    last_necessary=(0, 0),
)
ENV = EnvSpec(
    name="notes",
    servers=(native_server("notes", Notes),),
    suite=Suite(name="notes", version="1", tasks=(TASK,)),
    grade=calls_made(),
)
'''
CASINO = '''
import os
import time

from wire import serve


def play():
    """The price of a game."""
    return "5"


def roll():
    """A number that is never the same."""
    return int.from_bytes(os.urandom(8))


def now():
    """The time."""
    time.sleep(0.001)
    return f"it is {time.time():.6f}"


serve(play, roll, now)
'''
CASINO_ENV = """
from pathlib import Path, PurePosixPath

from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import as_target, calls_made
from gymcp.mcp_servers.sandbox import Mount
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import GoldTurn, Suite, Task, ToolCall

CALL = ToolCall(id="call_1", name="play")
GOLD = (GoldTurn(calls=(CALL,)),)
TASK = Task(id="t", prompts=("Play.",), target=as_target([CALL]), gold=GOLD, last_necessary=(0, 0))
SOURCE = Mount(source=Path(__file__).with_name("program"), target=PurePosixPath("/srv/program"))
ENV = EnvSpec(
    name="casino",
    servers=(ServerSpec(name="casino", argv=("python3", "/srv/program/casino.py"), mounts=(SOURCE,)),),
    suite=Suite(name="casino", version="1", tasks=(TASK,)),
    grade=calls_made(),
)
"""


def test_gold_that_ends_in_another_state_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    done = gymcp("check", "notes.py", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    failed = [name for name, check in result["checks"].items() if not check["passed"]]
    assert (done.returncode, failed) == (1, ["repeat"]), done.stdout
    detail = result["checks"]["repeat"]["detail"]
    assert detail.startswith(
        "0/1 tasks ended with the same state when gold was played twice; first: milk: ids.milk is "
    )
    assert result["not_checked"] == []


def test_an_opaque_server_is_compared_by_its_answers(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "wire.py").write_text(SERVE)
    (tmp_path / "program" / "casino.py").write_text(CASINO)
    (tmp_path / "casino.py").write_text(CASINO_ENV)
    done = gymcp("check", "casino.py", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "n/a reset not applicable: no server shows its state; the check 'answers' compares what they answer" in said
    assert "pass repeat 1/1 tasks ended with the same score when gold was played twice" in said
    assert (
        "FAIL answers 2/3 calls of casino had the same answer on two fresh starts; not of roll; first: roll: '" in said
    )
    assert "; not compared: now: a time (1" in said
    assert "not checked: server 'casino': its state is opaque: only answers were compared" in said
