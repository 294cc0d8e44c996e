"""Several environments as one: tasks, families, grading, and what cannot be mixed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs import load_env, load_spec
from gymcp.envs.mixture import mix_environments
from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curricula.task_kinds import find_kinds
from gymcp.types import Task

ROUNDS, LOOKS = load_spec("rounds"), load_spec("looks")


@pytest.fixture(scope="module")
def mixed() -> LoadedEnv:
    return load_env(mix_environments("laboratories", (ROUNDS, LOOKS)))


def make_tasks(env: LoadedEnv, **wanted: Any) -> list[Task]:
    assert env.spec.more_tasks is not None
    return list(env.spec.more_tasks("train", **{"families": None, "levels": None, "count": 1, "first": 0, **wanted}))


def test_a_mixture_has_the_tasks_of_all(mixed: LoadedEnv) -> None:
    own = [load_env(spec).suite.tasks for spec in (ROUNDS, LOOKS)]
    assert len(mixed.suite.tasks) == sum(map(len, own))
    first = mixed.suite.tasks[0]
    assert (first.id, first.tags[0]) == (f"rounds.{own[0][0].id}", "rounds")
    assert first.initial_state == {"rounds": own[0][0].initial_state}
    assert first.offer.servers == frozenset({"rounds"})
    assert first.limits == (own[0][0].limits or ROUNDS.limits)
    assert [server.name for server in mixed.servers] == ["rounds", "looks"]


def test_tasks_that_a_suite_names_have_their_new_ids() -> None:
    own = load_env(ROUNDS).suite
    task = own.tasks[0].id
    named = replace(ROUNDS, suite=replace(own, gold_fails=frozenset({task}), pass_at_once=frozenset({task})))
    suite = load_env(mix_environments("laboratories", (named, LOOKS))).suite
    assert (suite.gold_fails, suite.pass_at_once) == (frozenset({f"rounds.{task}"}),) * 2


def test_families_name_an_environment_or_one_of_its_families(mixed: LoadedEnv) -> None:
    assert {task.tags[0] for task in make_tasks(mixed)} == {"rounds", "looks"}
    assert {task.tags[0] for task in make_tasks(mixed, families=["looks"])} == {"looks"}
    family = make_tasks(mixed, families=["rounds"])[0].tags[1]
    assert make_tasks(mixed, families=[f"rounds.{family}"]) == make_tasks(mixed, families=["rounds"])
    with pytest.raises(ConfigError, match=r"no family 'bank'; have rounds, rounds\.FAMILY, looks"):
        make_tasks(mixed, families=["bank"])


def test_a_curriculum_chooses_among_the_environments(mixed: LoadedEnv) -> None:
    recipe = make_recipe({"env": "laboratories", "tasks": {"levels": [1]}, "curriculum": {"order": "frontier"}})
    kinds = find_kinds(mixed, recipe)
    assert [name.partition(",")[0] for name in kinds.names] == ["rounds", "looks"]
    assert [kinds.make_task(name, 3).tags[0] for name in kinds.names] == ["rounds", "looks"]


@pytest.mark.parametrize("agent", ["oracle", "null"])
def test_each_task_is_played_and_graded_as_in_its_own_environment(agent: str, mixed: LoadedEnv) -> None:
    async def play(env: LoadedEnv, task: Task) -> tuple[float | None, dict[str, float]]:
        job = Job(task=task, trial=0, seed=0)
        done = await rollout(env, get_sandbox("bwrap"), SCRIPTED[agent], job, timeout_s=60)
        return done.trajectory.score, dict(done.trajectory.components)

    for spec in (ROUNDS, LOOKS):
        task = make_tasks(load_env(spec), levels=[2])[0]
        together = make_tasks(mixed, families=[spec.name], levels=[2])[0]
        alone = asyncio.run(play(load_env(spec), task))
        assert asyncio.run(play(mixed, together)) == alone
        assert alone[0] == float(agent == "oracle")


def change_looks(**changes: Any) -> EnvSpec:
    return replace(LOOKS, **changes)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ROUNDS, "needs two or more environments of different names"),
        (change_looks(lazy=True), "environment 'looks' has layers, a list of tools, tools of the user or lazy servers"),
        (change_looks(tools=frozenset({"look"})), "environment 'looks' has layers, a list of tools"),
        (change_looks(costs=ToolCosts()), "have different costs for tools that they do not name"),
        (
            change_looks(costs=replace(LOOKS.costs, tools={"take": CallCost(money=1.0)})),
            "have different costs for a call of 'take'",
        ),
    ],
)
def test_settings_that_would_hold_for_the_others_too_are_refused(other: EnvSpec, message: str) -> None:
    priced = replace(ROUNDS, costs=replace(ROUNDS.costs, tools={"take": CallCost(money=2.0)}))
    with pytest.raises(ConfigError, match=message):
        mix_environments("mixed", (priced, other) if "a call of" in message else (ROUNDS, other))
