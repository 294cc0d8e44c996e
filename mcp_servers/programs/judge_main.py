"""The command line of a program that holds a third party's graders: its tasks as JSON, and verdicts on demand.

``--tasks`` writes the tasks, gold among them, as one JSON object. ``--judge`` answers one question a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = Any
Judge = Callable[[Json], Json]


def run_judge(describe_tasks: Callable[[], Json], judge: Judge, *, fork: bool = False) -> None:
    """Write the tasks or answer questions, as the command line says.

    `fork`: answer each question in a process of its own, so that no answer depends on the questions before it.
    """
    if sys.argv[1:] == ["--tasks"]:
        json.dump(describe_tasks(), sys.stdout)
    elif sys.argv[1:] == ["--judge"]:
        for line in sys.stdin:
            if fork:
                _answer_in_child(judge, line)
            else:
                _write(_answer(judge, line))
    else:
        sys.exit("usage: --tasks | --judge")


def _answer_in_child(judge: Judge, line: str) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _write(_answer(judge, line))
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        _write({"error": "the grader's process died"})


def _answer(judge: Judge, line: str) -> Json:
    try:
        return judge(json.loads(line))
    except Exception as error:  # the boundary to upstream's graders
        return {"error": f"{type(error).__name__}: {error}"}


def _write(answer: Json) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
