"""Random trees of any environment: an agent and a controller that draw lots, and a process that is killed in mid-tree.

As a program: ``random_tree_play.py ENVIRONMENT FOLDER ASKED SEED TRIALS TASK ...`` prints its owner's tag, plays the
trees, and kills itself once its controller was asked so often. Its parent takes it from there.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / folder) for folder in ("", "agents")]
from tree_play import play  # noqa: E402

from gymcp.agents.runner.run import RunEnd  # noqa: E402
from gymcp.agents.runner.trees.controller import (  # noqa: E402
    GO_ON,
    Branch,
    Choice,
    Played,
    Retry,
    Start,
    Stop,
    TreeBudget,
)
from gymcp.agents.strategies.scripted import SCRIPTED, applies  # noqa: E402
from gymcp.envs import load_env, load_spec  # noqa: E402
from gymcp.envs.spec import LoadedEnv  # noqa: E402
from gymcp.process_owner import owner  # noqa: E402
from gymcp.protocols import Agent  # noqa: E402
from gymcp.seeds import derive_seed  # noqa: E402
from gymcp.types import Action, Observation, Step, Task  # noqa: E402

BUDGET = TreeBudget(episodes=5)
STEPS = 10
"""Steps after which an episode is stopped: random ones are long in some environments."""
BRANCHES, RETRIES = 0.5, 0.05
"""Probabilities that an episode branches after a step, and that the step is undone."""
GOLD = 0.7
"""Probability that a step is the task's gold and not a random call."""


class Wanderer:
    """Plays the gold, but with random calls in the place of some steps; the seed and the record decide which."""

    def __init__(self, task: Task, seed: int) -> None:
        self._gold = SCRIPTED["oracle"](task, seed) if applies("oracle", task) else None
        self._random = SCRIPTED["random"](task, seed)
        self._lots = random.Random(derive_seed("wanderer", seed))
        self._number = 0

    def resume(self, steps: Sequence[Step]) -> None:
        """Go on behind these steps."""
        for agent in self._agents:
            agent.resume(steps)  # type: ignore[attr-defined]
        self._number = len(steps)

    async def act(self, observation: Observation) -> Action:
        self._number += 1
        actions = [await agent.act(observation) for agent in self._agents]
        chosen = actions[-1] if self._lots.random() < GOLD else actions[0]
        assert isinstance(chosen, Action)
        calls = [
            replace(call, id=f"call_{self._number}_{number}") for number, call in enumerate(chosen.tool_calls)
        ]  # the two agents number their calls each for itself
        return replace(chosen, tool_calls=tuple(calls))

    @property
    def _agents(self) -> list[Agent]:
        return [self._random, *([self._gold] if self._gold is not None else [])]


class Lots:
    """A controller that draws after each step: go on, branch two or three ways, or undo the step."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        """Task -> number of steps that it has seen."""

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> list[Start]:
        return [Start(task=task.id, trees=budget.trials) for task in tasks]

    def after(self, played: Played) -> Choice:
        self.asked[played.task] += 1
        if played.number >= STEPS:
            return Stop("long enough")
        lots = random.Random(derive_seed("lots", played.seed, played.branch, played.number, played.spent.undone))
        drawn = lots.random()
        if drawn < BRANCHES:
            return Branch(lots.choice((2, 3)))
        return Retry() if drawn < BRANCHES + RETRIES else GO_ON


class Fatal(Lots):
    """Draws the same lots, but kills this process in place of one answer: a tree is then in the middle."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def after(self, played: Played) -> Choice:
        choice = super().after(played)
        if self.asked.total() >= self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return choice


def play_trees(
    env: LoadedEnv, folder: Path, controller: Lots, *, seed: int, trials: int, tasks: Sequence[str]
) -> RunEnd:
    """Play random trees of the tasks into the folder."""
    return play(env, folder, controller, Wanderer, BUDGET, seed=seed, trials=trials, tasks=tuple(tasks))


def main() -> None:
    name, folder, asked, seed, trials, *tasks = sys.argv[1:]
    print(owner(), flush=True)
    env = load_env(load_spec(name))
    play_trees(env, Path(folder), Fatal(int(asked)), seed=int(seed), trials=int(trials), tasks=tasks)


if __name__ == "__main__":
    main()
