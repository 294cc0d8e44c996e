"""A bank that grades answers like a coin flip, so that even a random model has successes to learn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory

BANK = Path(__file__).parents[1] / "examples" / "bank.py"


def make_coin_flip_bank() -> LoadedEnv:
    """The bank environment, graded 1 if the agent's text has an even number of characters, else 0."""
    env = load_env(load_spec(str(BANK)))
    return replace(env, spec=replace(env.spec, grade=_grade_even))


def _grade_even(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    characters = sum(len(step.action.text) for step in trajectory.steps)
    return Score(value=float(characters % 2 == 0), components={"characters": float(characters)})
