"""A bank in which even a random model is right now and then: there is something to learn from its episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory

BANK = Path(__file__).parents[2] / "examples" / "bank.py"


def even_answers() -> LoadedEnv:
    """The bank, graded by whether what was said has an even number of characters."""
    env = load_env(load_spec(str(BANK)))
    return replace(env, spec=replace(env.spec, grade=_even))


def _even(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    said = sum(len(step.action.text) for step in trajectory.steps)
    return Score(value=float(said % 2 == 0), components={"said": float(said)})
