"""Episodes allocated among tasks: against brute force and by hand, in interrupted runs, and what is refused."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coin_flip_bank import BANK, make_coin_flip_bank
from interrupted_training import assert_interruption_changes_nothing, list_played
from page_blocks import DOCS

from gymcp.agents import AllocateEpisodes, Plan, Schedule, Start, TreeBudget, run_plan
from gymcp.agents.runner.trees.allocation import allocate_episodes, expected_rate, group_value
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers import get_sandbox
from gymcp.protocols import StateReader
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curricula.choose import make_curriculum
from gymcp.trainers.rollouts.curricula.explanation import explain_experience
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState, GroupResult
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Action, Observation, Score, Task, Trajectory

PAGE = DOCS / "curricula.md"
TABLE: dict[str, Any] = {
    "env": str(BANK),
    "name": "shared-out",
    "deterministic": True,
    "rollout": {
        "groups": 3, "episodes": 3, "max_tokens": 2, "max_turns": 1, "concurrency": 4, "slots": 4,
        "controller": "knapsack",
    },
    "credit": {"preset": "grpo"},
    "learn": {"iterations": 4},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip


def split(total: int, tasks: int, fewest: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every way to give `total` episodes to the tasks within the bounds."""
    if tasks == 1:
        yield from [(total,)] if fewest <= total <= most else []
        return
    for count in range(fewest, min(most, total) + 1):
        yield from ((count, *others) for others in split(total - count, tasks - 1, fewest, most))


def value_of(rates: list[float], counts: tuple[int, ...] | list[int]) -> float:
    return math.fsum(map(group_value, rates, counts))


@pytest.mark.parametrize("seed", range(60))
def test_no_other_allocation_has_a_larger_value(seed: int) -> None:
    draw = random.Random(seed)
    tasks, fewest = draw.randint(1, 4), draw.randint(1, 3)
    most = fewest + draw.randint(0, 6)
    total = draw.randint(fewest * tasks, min(most * tasks, 18))
    rates = [draw.choice((0.0, 1.0, 0.5, draw.random())) for _ in range(tasks)]
    counts = allocate_episodes(rates, total, fewest=fewest, most=most)
    assert (sum(counts), counts) == (total, [min(max(count, fewest), most) for count in counts])
    best = max(value_of(rates, other) for other in split(total, tasks, fewest, most))
    assert value_of(rates, counts) == pytest.approx(best, abs=1e-12)


def test_the_example_of_the_page_is_right() -> None:
    rates = [0.5, 0.1, 0.9]
    rows = [
        line.split("|")[1:-1]
        for line in PAGE.read_text().splitlines()
        if line.startswith(("| 1/2 |", "| 1/1", "| 9/1"))
    ]
    counts = [int(row[-2]) for row in rows]
    assert counts == allocate_episodes(rates, 12) == [5, 5, 2]
    for rate, row in zip(rates, rows, strict=True):
        rises = [group_value(rate, n + 1) - group_value(rate, n) for n in (2, 3, 4, 5)]
        assert [float(cell) for cell in row[2:6]] == pytest.approx(rises, abs=6e-6)
        assert float(row[-1]) == pytest.approx(group_value(rate, int(row[-2])), abs=6e-6)
    assert [value_of(rates, each) for each in (counts, [4, 4, 4])] == pytest.approx([0.151977, 0.140317], abs=1e-6)


def test_a_plan_is_a_function_of_rates_and_budget() -> None:
    tasks = [Task(id=id, prompts=("?",)) for id in "abc"]
    controller = AllocateEpisodes(rates={"a": expected_rate(4, 4), "b": expected_rate(0, 8), "c": expected_rate(8, 0)})
    plan = controller.plan(tasks, TreeBudget(trials=4))
    assert plan == tuple(Start(task=id, trees=count) for id, count in zip("abc", (5, 5, 2), strict=True))
    assert AllocateEpisodes().plan(tasks, TreeBudget(trials=4)) == tuple(Start(task=id, trees=4) for id in "abc")


def test_a_run_has_the_episodes_of_the_plan_also_without_an_agent_that_resumes(tmp_path: Path) -> None:
    env = make_coin_flip_bank()
    first, second = (task.id for task in env.suite.tasks[:2])
    schedule = Schedule(controller=AllocateEpisodes(rates={first: 1.0, second: 0.5}))
    plan = Plan(agent="mine", limit=2, trials=3)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        run_plan(env, get_sandbox("bwrap"), plan, store, schedule, make_agent=lambda task, seed: Silent())
    assert list_played(tmp_path) == Counter([(first, 0), (first, 1), *((second, trial) for trial in range(4))])


class Silent:
    """An agent that says one thing and cannot go on from a record."""

    async def act(self, observation: Observation) -> Action:
        return Action(text="done")


@pytest.mark.parametrize(
    ("rates", "total", "bounds", "says"),
    [
        ([0.5, 0.5], 0, {}, "0 episodes for 2 tasks, each of which gets 2 to 128; give 4 to 256 episodes"),
        ([0.5] * 9, 8, {}, "8 episodes for 9 tasks.* give 18 to 1152 episodes, or other bounds"),
        ([0.5], 129, {}, "129 episodes for 1 tasks"),
        ([0.5, math.nan], 8, {}, "nan is no success rate"),
        ([1.5], 8, {}, "1.5 is no success rate"),
        ([0.5], 8, {"fewest": 0}, "at least 0 and at most 128"),
        ([0.5], 8, {"fewest": 9, "most": 8}, "at least 9 and at most 8"),
    ],
)  # fmt: skip
def test_an_impossible_budget_is_one_error(rates: list[float], total: int, bounds: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        allocate_episodes(rates, total, **bounds)


def test_tasks_that_teach_get_more_episodes_once_their_success_is_known() -> None:
    rollout = {"groups": 3, "episodes": 8, "controller": "knapsack"}
    recipe = make_recipe({"env": "rounds", "tasks": {"pool": 3}, "rollout": rollout, "curriculum": {"memory": 1.0}})
    curriculum, state = make_curriculum(load_env(load_spec("rounds")), recipe), CurriculumState()
    planned, state = curriculum.plan(state, 3)
    assert [(group.episodes, group.first_trial) for group in planned] == [(8, 0)] * 3
    chances = {group.task.id: chance for group, chance in zip(planned, (0.5, 0.0, 1.0), strict=True)}
    results = [
        GroupResult(kind=group.kind, scores=tuple(float(n < 8 * chances[group.task.id]) for n in range(8)))
        for group in planned
    ]
    again, state = curriculum.plan(curriculum.observe(state, results), 3)
    counts = {chances[group.task.id]: group.episodes for group in again}
    assert (sum(counts.values()), counts[1.0]) == (24, 2)
    assert counts[0.0] > counts[0.5] > 2
    assert {group.first_trial for group in again} == {8}
    assert {group.task.id: state.tally(group.task.id).made for group in again} == {
        group.task.id: 8 + group.episodes for group in again
    }


def test_an_interrupted_run_plays_the_episodes_of_an_uninterrupted_one(model: Path, tmp_path: Path) -> None:
    """Each iteration has as many episodes as without the controller, and no trial of a task is played twice."""
    recipe, env = make_recipe({**TABLE, "model": {"path": str(model)}}), make_uneven_bank()
    assert_interruption_changes_nothing(recipe, env, tmp_path)
    rows = read_metrics(tmp_path / "whole")[1:]
    assert [sum(row[key] for key in row if key.startswith("outcome/")) for row in rows] == [9] * 4
    assert (rows[0]["allocation/fewest"], rows[0]["allocation/most"]) == (3, 3)
    assert [(row["allocation/fewest"], row["allocation/most"]) for row in rows[1:]] == [(2, 4)] * 3


def make_uneven_bank() -> LoadedEnv:
    """The bank, in which one task cannot be failed."""
    env = make_coin_flip_bank()
    easy = env.suite.tasks[0].id

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        return Score(value=float(task.id == easy))

    return replace(env, spec=replace(env.spec, grade=grade))


def test_the_dry_run_says_what_is_allocated() -> None:
    table = {"env": "rounds", "tasks": {"pool": 4}, "rollout": {"groups": 4, "episodes": 8, "controller": "knapsack"}}
    assert explain_experience(make_recipe(table), load_env(load_spec("rounds")))[1:] == [
        "episodes: 2 to 128 of each task, 32 an iteration: the N with the largest sum of"
        " (1 - p^N - (1 - p)^N) p (1 - p)^2",
        "  p = (solved + 1) / (solved + failed + 2) of the task; with each group earlier ones count 0.9 times",
    ]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"rollout": {"episodes": 1}}, "rollout.episodes is 1, .* it must be from 2 .* to 128"),
        ({"rollout": {"branching": {"min_episodes_per_task": 9}}}, "rollout.episodes is 8, .* from 9 .*min_episodes"),
        ({"rollout": {"branching": {"ways": 3}}}, "branching.ways is set, and .* 'knapsack' does not read it"),
        ({"credit": {"preset": "treepo"}}, "rollout.controller is 'knapsack', so no episode branches"),
        ({"rollout": {"staleness": 1}}, "rollout.controller needs rollout.staleness = 0.*groups have one size"),
    ],
)  # fmt: skip
def test_a_recipe_that_nothing_can_be_allocated_in_is_one_error(table: dict[str, Any], says: str) -> None:
    rollout = {"controller": "knapsack", **table.pop("rollout", {})}
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "rounds", "rollout": rollout, **table})


def test_tasks_that_never_come_again_are_refused() -> None:
    recipe = make_recipe({"env": "rounds", "rollout": {"controller": "knapsack"}})
    with pytest.raises(ConfigError, match="every task is a new one; set tasks"):
        make_curriculum(load_env(load_spec("rounds")), recipe)
