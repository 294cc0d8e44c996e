"""Workbench: 270 tasks over six real servers. `make nightly` plays the gates of all tasks, these tests of a sample."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace

import pytest

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.envs import LoadedEnv, load_env
from gymcp.envs.catalog.workbench import ENV
from gymcp.envs.suites.workbench import FAMILIES, LEVELS, categories, make_suite, make_tasks
from gymcp.envs.suites.workbench.office import SERVER_OF, TOOLS
from gymcp.envs.suites.workbench.tasks import task_and_draft
from gymcp.envs.suites.workbench.wordings import wordings
from gymcp.errors import ConfigError
from gymcp.evaluators.metrics.measure import axes_of
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import Action, Task, ToolOffer, Trajectory

SUITE = make_suite()
SAMPLE = (
    "single-sequential-culprit-2-0",
    "multi-parallel-newcomer-3-1",
    "multi-conditional-office_hours-3-0",
)
"""Tasks that together have every server."""


def test_there_are_270_tasks_in_six_categories_at_three_levels() -> None:
    cells = Counter((task.tags[0], task.tags[1]) for task in SUITE.tasks)
    assert len(SUITE.tasks) == 270
    assert sorted(categories()) == sorted({category for category, _ in cells})
    assert set(cells.values()) == {15}
    assert {level for _, level in cells} == {f"level {level}" for level in LEVELS}


def test_reports_break_down_by_scope_structure_level_and_server() -> None:
    axes = {axis for task in SUITE.tasks for axis, _ in axes_of(task.tags)}
    assert axes == {"category", "difficulty", "scope", "structure", "server"}


def test_scope_is_the_number_of_servers_that_a_task_needs() -> None:
    for task in SUITE.tasks:
        needed = {tag.removeprefix("server ") for tag in task.tags if tag.startswith("server ")}
        assert ("scope single" in task.tags) == (len(needed) == 1), task.id
        assert {SERVER_OF[call.name] for call in task.gold[0].calls} <= needed <= (task.offer.servers or frozenset())


def test_the_servers_of_a_task_do_not_depend_on_what_it_asks() -> None:
    for name in FAMILIES:
        for level in LEVELS:
            there = {task_and_draft("train", name, level, number)[0].offer.servers for number in range(8)}
            assert len(there) == 1, (name, level)


def test_structure_says_how_the_calls_depend_on_each_other() -> None:
    for name, family in FAMILIES.items():
        for level in LEVELS:
            _, draft = task_and_draft("test", name, level, 0)
            widest = max(len(stage) for stage in draft.stages)
            if family.structure == "parallel":
                assert widest >= 2, name
            if family.structure == "sequential":
                assert len(draft.stages) >= 3, name


def test_conditional_families_have_different_calls_in_different_tasks() -> None:
    for name, family in FAMILIES.items():
        if family.structure == "conditional":
            drafts = [task_and_draft("train", name, 2, number)[1] for number in range(12)]
            assert len({tuple(call for call, _ in draft.calls) for draft in drafts}) > 1, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_many_wordings_some_of_which_are_held_out(family: str) -> None:
    seen, unseen = ({*wordings(FAMILIES[family].bodies, held_out=held_out)} for held_out in (False, True))
    assert (len(seen) >= 30, len(unseen) >= 18, seen & unseen) == (True, True, set())


def test_the_same_arguments_make_the_same_tasks() -> None:
    assert make_suite() == SUITE


def test_there_is_no_last_task_and_training_shares_no_office_with_the_test() -> None:
    late = [*make_tasks("train", families=["multi-parallel"], levels=[3], count=1, first=12_345)]
    assert len(late) == 5
    tested = {str(task.initial_state) for task in SUITE.tasks}
    assert not tested & {str(task.initial_state) for task in make_tasks("train", count=3)}


def test_no_request_contains_its_answer() -> None:
    asked = [task for task in SUITE.tasks if "answer" in task.target]
    assert len(asked) >= 40
    for task in asked:
        answer = re.escape(task.target["answer"])
        assert not re.search(rf"(?<![\w-]){answer}(?![\w-])", task.prompts[0].partition("\n")[2]), task.id


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"families": ["multi-random"]}, "no family or category 'multi-random'; have the categories single-sequential"),
        ({"levels": [4]}, "no level 4; have 1, 2, 3"),
        ({"split": "dev"}, "no split 'dev'; have train, test"),
    ],
)
def test_an_unknown_family_level_or_split_is_named(arguments: dict[str, list[str]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        next(make_tasks(**{"split": "test", **arguments}))  # type: ignore[arg-type]


def test_a_task_with_an_unknown_server_is_refused() -> None:
    env = replace(
        ENV, suite=replace(SUITE, tasks=(replace(SUITE.tasks[0], offer=ToolOffer(servers=frozenset({"fax"}))),))
    )
    with pytest.raises(ConfigError, match="its servers are fax; have calendar, desk, filesystem, git, memory, time"):
        load_env(env)


@pytest.fixture(scope="module")
def env(node: None) -> LoadedEnv:
    loaded = load_env(ENV)
    tasks = tuple(task for task in loaded.suite.tasks if task.id in SAMPLE)
    return replace(loaded, suite=replace(loaded.suite, tasks=tasks))


def play(env: LoadedEnv, make: AgentFactory) -> list[Trajectory]:
    sandbox = get_sandbox("bwrap")
    plan = Plan(agent="oracle", sandbox=sandbox.name)
    ended: list[Trajectory] = []

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended.append(rollout.trajectory)

    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    asyncio.run(run_jobs(env, sandbox, make, jobs, Schedule(concurrency=4), note))
    return ended


def scores(env: LoadedEnv, make: AgentFactory) -> dict[str, float | None]:
    return {trajectory.task: trajectory.score for trajectory in play(env, make)}


def at_once(task: Task, seed: int) -> Replay:
    """An oracle that makes the calls of a stage in one step, the last call first."""
    name, level, number = task.id.split("-")[2:]
    _, draft = task_and_draft("test", name, int(level), int(number))
    calls, actions = list(task.gold[0].calls), []
    for stage in draft.stages:
        actions.append(Action(tool_calls=tuple(reversed(calls[: len(stage)]))))
        del calls[: len(stage)]
    return Replay(iter([*actions, Action(text=task.gold[0].final_text)]))


def test_scripted_agents_have_the_expected_scores(env: LoadedEnv) -> None:
    assert {server for task in env.suite.tasks for server in task.offer.servers or ()} == set(TOOLS)
    assert scores(env, SCRIPTED["oracle"]) == dict.fromkeys(SAMPLE, 1.0)
    assert scores(env, SCRIPTED["mutated"]) == dict.fromkeys(SAMPLE, 0.0)


def test_calls_of_one_stage_may_be_made_at_once_and_in_any_order(env: LoadedEnv) -> None:
    assert scores(env, at_once) == dict.fromkeys(SAMPLE, 1.0)


def test_an_agent_sees_only_the_tasks_servers_and_unasked_changes_fail(env: LoadedEnv) -> None:
    def careless(task: Task, seed: int) -> Replay:
        (turn,) = task.gold
        extra = replace(turn.calls[0], id="extra", name="create_ticket", arguments={"title": "By the way"})
        return Replay(iter([Action(tool_calls=(*turn.calls, extra)), Action(text=turn.final_text)]))

    for trajectory in play(env, careless):
        names = {tool.name for tool in trajectory.steps[0].observation.tools}
        (task,) = (task for task in env.suite.tasks if task.id == trajectory.task)
        assert names == {tool for server in task.offer.servers or () for tool in TOOLS[server]}
        assert (trajectory.score, trajectory.components["desk"]) == (0.0, 0.0)
