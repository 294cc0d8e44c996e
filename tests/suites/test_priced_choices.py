"""Ask, look or act: each is the best in a third of the tasks, each has a price, and a guess is no success."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, applies
from gymcp.cli.evaluation.gates import find_failures
from gymcp.envs import LoadedEnv, load_env
from gymcp.envs.catalog.backoffice_choosing import ENV
from gymcp.envs.suites.backoffice.choosers import CHOOSERS
from gymcp.envs.suites.backoffice.priced_choices import KINDS, SPLITS, make_suite, make_tasks, make_three
from gymcp.envs.tool_costs import episode_costs
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import Trajectory

ACT, LOOK, ASK = 0.02, 0.05, 0.2
GATES = ("oracle", "null", "mutated", "never_asks", "asks_late", "always_asks")


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    """One task of each kind for each of the four jobs."""
    loaded = load_env(ENV)
    return replace(loaded, suite=replace(loaded.suite, tasks=loaded.suite.tasks[:12]))


def run(env: LoadedEnv, make_agent: AgentFactory, name: str = "oracle") -> list[Trajectory]:
    ended: list[Trajectory] = []

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended.append(rollout.trajectory)

    tasks = [task for task in env.suite.tasks if applies(name, task)]
    jobs = list(make_jobs(Plan(agent=name), tasks))
    asyncio.run(run_jobs(env, get_sandbox("bwrap"), make_agent, jobs, Schedule(concurrency=4), note))
    return ended


def by_kind(ended: list[Trajectory], name: str) -> dict[str, set[float | None]]:
    """Kind of the task -> values of the score, or of a component, rounded to cents."""
    found: dict[str, set[float | None]] = {kind: set() for kind in KINDS}
    for each in ended:
        value = each.score if name == "score" else each.components[name]
        found[each.task.rpartition("-")[2]].add(None if value is None else round(value, 2))
    return found


def each_kind(act: float, look: float, ask: float) -> dict[str, set[float]]:
    return {"act": {act}, "look": {look}, "ask": {ask}}


def test_each_choice_is_the_best_in_a_third_of_the_tasks() -> None:
    tasks = make_suite().tasks
    assert Counter(task.tags[0] for task in tasks) == dict.fromkeys(KINDS, len(tasks) // 3)
    for number in range(0, len(tasks), 3):
        act, look, ask = tasks[number : number + 3]
        (done,) = act.gold
        assert (look.gold[0].calls[1:], ask.gold[0].calls[1:]) == (done.calls, done.calls)
        assert (ask.gold[0].calls[0].name, {act.initial_state["seed"]}) == (
            ASK_USER,
            {look.initial_state["seed"], ask.initial_state["seed"]},
        )
        value = look.target["to_find"]["value"]
        assert [value in task.prompts[0] for task in (act, look, ask)] == [True, False, False]
        assert act.target["state"] == look.target["state"] == ask.target["state"]
        assert look.user.facts[0].says == ask.user.facts[0].says == f"It is {value}."


@pytest.mark.parametrize("split", SPLITS)
def test_tasks_without_end_come_in_all_splits(split: str) -> None:
    chosen = list(make_tasks(split, families=("look", "ask"), count=2, first=7))
    made = [make_three(split, number)[kind] for number in (7, 8) for kind in ("look", "ask")]
    assert chosen == made
    assert {task.split for task in chosen} == {"train" if split == "train" else "test"}


@pytest.mark.parametrize(
    ("split", "options", "says"),
    [
        ("families", {}, "no split 'families'; have train, seeds, wordings, values"),
        ("train", {"families": ("cancel",)}, "no family 'cancel'; have act, look, ask"),
        ("train", {"levels": (2,)}, "no level '2'; have 1"),
    ],
)
def test_an_unknown_kind_of_task_is_refused(split: str, options: dict[str, tuple[str]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        list(make_tasks(split, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", GATES)
def test_the_gates_hold(env: LoadedEnv, agent: str) -> None:
    ended = run(env, SCRIPTED[agent], agent)
    assert ended
    assert find_failures(env, agent, ended) == []


def test_the_oracle_pays_the_least(env: LoadedEnv) -> None:
    ended = run(env, SCRIPTED["oracle"])
    assert by_kind(ended, "price") == each_kind(ACT, LOOK + ACT, ASK + ACT)
    assert by_kind(ended, "cheapest") == each_kind(1, 1, 1)
    assert by_kind(ended, NET_OF_PRICE) == each_kind(0.98, 0.93, 0.78)
    costs = episode_costs(next(each for each in ended if each.task.endswith("ask")).steps, ENV.costs)
    assert (costs["asking"], costs["money"], costs["calls"]) == (ASK, ACT, 2.0)


@pytest.mark.parametrize(
    ("chooser", "scores", "prices"),
    [
        ("acts_at_once", (1, 0, 0), (ACT, ACT, ACT)),
        ("always_looks", (1, 1, 0), (LOOK + ACT,) * 3),
        ("looks_then_asks", (1, 1, 1), (LOOK + ACT, LOOK + ACT, LOOK + ASK + ACT)),
        ("always_asks", (1, 1, 1), (ASK + ACT,) * 3),
    ],
)
def test_an_agent_that_always_chooses_alike_fails_or_pays_too_much(
    env: LoadedEnv, chooser: str, scores: tuple[float, float, float], prices: tuple[float, float, float]
) -> None:
    ended = run(env, CHOOSERS[chooser])
    assert by_kind(ended, "score") == each_kind(*scores)
    assert by_kind(ended, "price") == each_kind(*(round(price, 2) for price in prices))
    mean = sum(each.components["price"] for each in ended) / len(ended)
    solved = all(scores)
    assert not solved or mean > (3 * ACT + LOOK + ASK) / 3 + 0.01, "what solves everything costs more than the oracle"


def test_a_right_call_without_a_look_is_a_guess(env: LoadedEnv) -> None:
    ended = [each for each in run(env, CHOOSERS["acts_at_once"]) if each.task.endswith("look")]
    assert {each.components["state"] for each in ended} == {1.0}
    assert all("guessed: " in each.reason and "came before anything had shown" in each.reason for each in ended)


def test_the_random_agent_is_scored(env: LoadedEnv) -> None:
    assert all(each.score is not None for each in run(env, SCRIPTED["random"], "random"))
