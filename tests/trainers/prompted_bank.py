"""The bank with three messages of the user, so that episodes of any model have three steps, and a verdict like a coin.

An episode succeeds if its texts have an even number of characters together.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gymcp.envs import EnvSpec, load_env, load_spec
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory

_BANK = load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py"))
_SUITE = load_env(_BANK).suite


def _grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    return Score(value=float(sum(len(step.action.text) for step in trajectory.steps) % 2 == 0))


_TASKS = tuple(replace(task, prompts=(*task.prompts, "Is it done?", "Thank you."), gold=()) for task in _SUITE.tasks)
ENV: EnvSpec = replace(_BANK, name="prompted", suite=replace(_SUITE, tasks=_TASKS), grade=_grade)
