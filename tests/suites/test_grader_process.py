"""A grader that is a program: its answers, its failures, and its end with the process that started it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from gymcp.envs.suites.upstream.grader_process import GraderProcess
from gymcp.errors import GraderError
from gymcp.mcp_servers.sandbox import Limits
from gymcp.mcp_servers.spec import ServerSpec

PROGRAM = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "die":
        sys.exit("as it was told")
    print(json.dumps({"error": "no"} if asked == "fail" else {"length": len(asked)}), flush=True)
"""


def program() -> ServerSpec:
    return ServerSpec(name="counter", argv=("python3", "-c", PROGRAM), limits=Limits(memory_mb=128))


def test_a_grader_answers_again_after_it_has_died() -> None:
    grader = GraderProcess(program)
    try:
        assert grader.ask("abc") == {"length": 3}
        with pytest.raises(GraderError, match="grader 'counter': no"):
            grader.ask("fail")
        with pytest.raises(GraderError, match="grader 'counter': ended: as it was told"):
            grader.ask("die")
        assert grader.ask([1, 2]) == {"length": 2}
    finally:
        grader.end()
    assert grader.ask("ab") == {"length": 2}
    grader.end()


def test_a_process_that_has_asked_ends_at_once_and_leaves_nothing() -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import test_grader_process\n"
        "print(test_grader_process.GraderProcess(test_grader_process.program).ask('abc'), time.monotonic())"
    )
    argv = [sys.executable, "-c", code, __file__.rpartition("/")[0]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    answered_at = float(done.stdout.split()[-1])
    assert done.stdout.startswith("{'length': 3}")
    assert time.monotonic() - answered_at < 40  # without this it would live for a minute
