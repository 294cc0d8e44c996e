"""Reflection: which tasks are shown an earlier failure, what it says, and that a resumed run says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coin_flip_bank import BANK, make_coin_flip_bank
from interruption import train_until

from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curricula.protocol import PlannedGroup
from gymcp.trainers.run.experience.reflection import add_reflections, write_reflection
from gymcp.trainers.run.experience.replay_buffer import KeptEpisode, ReplayBuffer
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Action, Observation, Step, Task, ToolCall, Trajectory

FAILED = KeptEpisode(id="1", score=0.0, iteration=0)
NEWER = KeptEpisode(id="2", score=0.5, iteration=1)
SOLVED = KeptEpisode(id="3", score=1.0, iteration=0)


def play(id: str, *names: str) -> Trajectory:
    """A record with a step for each call."""
    steps = tuple(
        Step(
            turn=0,
            observation=Observation(messages=(), tools=()),
            action=Action(tool_calls=(ToolCall(id=str(n), name=name, arguments={"place": n}),)),
        )
        for n, name in enumerate(names)
    )
    return Trajectory(id=id, env="bank", task="a", steps=steps, score=0.0)


@pytest.mark.parametrize(
    ("kept", "begins"),
    [((), False), ((FAILED, NEWER), True), ((FAILED, SOLVED), False), ((SOLVED, NEWER), False)],
)
def test_a_task_of_which_all_kept_episodes_failed_begins_with_the_newest(
    kept: tuple[KeptEpisode, ...], begins: bool
) -> None:
    group = PlannedGroup(task=Task(id="a", prompts=("Go home.", "And back."), target=3))
    (shown,) = add_reflections([group], ReplayBuffer(tasks={"a": kept}), 2, lambda each: play(each.id, "walk", each.id))
    said = "An earlier try at this failed. It made: walk(place=0), then 2(place=1). Do something else.\n\nGo home."
    assert shown.task.prompts == (said if begins else "Go home.", "And back.")
    assert (shown is group) != begins
    assert (shown.task.id, shown.task.target) == ("a", 3)


def test_only_the_last_calls_are_shown() -> None:
    assert "It made: 2 other calls, then c(place=2). Do" in write_reflection(play("1", "a", "b", "c"), 1)
    assert "It made: no call. Do" in write_reflection(play("1"), 1)


def test_episodes_are_learnt_with_the_reflection_and_a_resumed_run_writes_the_same(model: Path, tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "env": str(BANK),
        "name": "again",
        "model": {"path": str(model)},
        "deterministic": True,
        "rollout": {"groups": 4, "episodes": 2, "max_tokens": 2, "max_turns": 1, "concurrency": 4, "slots": 4},
        "learn": {"iterations": 4},
        "evaluation": {"every": 0, "tasks": 1},
        "credit": {"preset": "r3"},
        "replay": {"keep": 2, "recall": "alike", "reflect": 4},
    }
    bank = make_coin_flip_bank()
    bank = replace(bank, suite=replace(bank.suite, tasks=tuple(bank.suite.tasks[:4])))
    recipe = make_recipe(table)
    train(recipe, bank, tmp_path / "whole", resume=False)
    rows = read_metrics(tmp_path / "whole")[1:]
    assert sum(row["replay/reflected"] for row in rows) > 0
    with TrajectoryStore.open(tmp_path / "whole") as store:
        firsts = [store.load(row.id).steps[0].observation.messages[-1].content for row in store.summaries()]
    assert sum("An earlier try" in each for each in firsts) == 2 * sum(row["replay/reflected"] for row in rows)

    train_until(3, recipe, bank, tmp_path / "cut")
    train(recipe, bank, tmp_path / "cut", resume=True)
    assert read_metrics(tmp_path / "cut") == read_metrics(tmp_path / "whole")
