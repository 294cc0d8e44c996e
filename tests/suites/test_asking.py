"""Requests that leave something out: asked when it must be, not asked when not, and every question has a price."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gymcp.agents.rollout import Rollout
from gymcp.agents.runs import Plan, jobs_of, select_tasks
from gymcp.agents.scheduler import Schedule, run_jobs
from gymcp.agents.scripted import SCRIPTED, Replay
from gymcp.envs import LoadedEnv, load_env
from gymcp.envs.catalog import backoffice_asking
from gymcp.envs.suites.asking import COMPLETE, UNDERSPECIFIED
from gymcp.envs.suites.backoffice import underspecified as backoffice
from gymcp.envs.suites.workbench import underspecified as workbench
from gymcp.envs.talking import Counterpart
from gymcp.envs.users import ASK_WITH_TOOL, DO_NOT_KNOW, AskableUser
from gymcp.envs.wrappers.asking import MAX_QUESTION, QUESTION_COST, asking
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.asking import ASK_USER, asked_for
from gymcp.evaluators.graders.matching import arguments_of
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.trainers.batch import batch_of
from gymcp.trainers.shapers import Sum, Trackers
from gymcp.types import Action, Fact, Json, Message, Suite, Talk, Task, ToolCall, Trajectory

CITY = Fact(name="city", words=("city", "town"), says="It is Rome.")
USER = AskableUser(prompts=("Change the city.",), facts=(CITY,))


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    """Five pairs of the back office."""
    loaded = load_env(backoffice_asking.ENV)
    return replace(loaded, suite=replace(loaded.suite, tasks=loaded.suite.tasks[16:26]))


def played(env: LoadedEnv, agent: str) -> dict[str, list[Trajectory]]:
    """By kind of request, by the agent of that name."""
    sandbox = get_sandbox("bwrap")
    plan = Plan(agent=agent, sandbox=sandbox.name)
    ended: dict[str, list[Trajectory]] = {UNDERSPECIFIED: [], COMPLETE: []}

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended[rollout.trajectory.task.rpartition("-")[2]].append(rollout.trajectory)

    jobs = list(jobs_of(plan, select_tasks(env.suite, plan)))
    asyncio.run(run_jobs(env, sandbox, SCRIPTED[agent], jobs, Schedule(concurrency=4), note))
    return ended


@pytest.fixture(scope="module")
def by_oracle(env: LoadedEnv) -> dict[str, list[Trajectory]]:
    return played(env, "oracle")


def figures(ended: list[Trajectory], name: str) -> set[float | None]:
    return {each.score if name == "score" else each.components.get(name) for each in ended}


@pytest.mark.parametrize("make_suite", [backoffice.make_suite, workbench.make_suite])
def test_twins_differ_in_the_request_and_in_the_question(make_suite: Callable[[], Suite]) -> None:
    tasks = {task.id: task for task in make_suite().tasks}
    assert len(tasks) >= 90
    for task in tasks.values():
        if not task.id.endswith(UNDERSPECIFIED):
            continue
        twin = tasks[task.id.removesuffix(UNDERSPECIFIED) + COMPLETE]
        ask, *rest = task.gold[0].calls
        assert (ask.name, tuple(rest)) == (ASK_USER, twin.gold[0].calls)
        assert (task.initial_state, task.target) == (twin.initial_state, twin.target)
        (fact,), (told,) = task.facts, twin.facts
        assert (fact.needed, told.needed) == (True, False)
        assert asked_for(str(arguments_of(ask)), task.facts) == [fact]
        value = fact.says.removeprefix("It is ").removesuffix(".")
        assert value in twin.prompts[0]
        assert task.prompts[0] != twin.prompts[0]


def test_who_asks_when_it_is_needed_passes_and_pays_for_that_alone(
    by_oracle: dict[str, list[Trajectory]],
) -> None:
    ended = by_oracle
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "needless") == {0.0}
    assert figures(ended[COMPLETE], "asked_when_not_needed") == {0.0}
    assert {each.usage.cost for each in ended[UNDERSPECIFIED]} == {QUESTION_COST}
    assert {each.usage.cost for each in ended[COMPLETE]} == {0.0}


def test_who_never_asks_never_passes_even_where_the_guess_is_right(env: LoadedEnv) -> None:
    ended = played(env, "never_asks")
    assert ended[COMPLETE] == []  # there it is the oracle
    assert figures(ended[UNDERSPECIFIED], "score") == {0.0}
    assert figures(ended[UNDERSPECIFIED], "state") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {0.0}


def test_who_always_asks_passes_and_is_charged_for_what_was_needless(env: LoadedEnv) -> None:
    ended = played(env, "always_asks")
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[COMPLETE], "asked_when_not_needed") == {1.0}
    assert figures(ended[COMPLETE], "needless") == {1.0}
    assert figures(ended[COMPLETE], "question_cost") == {QUESTION_COST}
    assert {each.usage.tools[ASK_USER]["cost"] for each in ended[COMPLETE]} == {QUESTION_COST}


def test_trainers_can_take_the_price_off_the_score(by_oracle: dict[str, list[Trajectory]]) -> None:
    batch = batch_of([by_oracle[UNDERSPECIFIED][0], by_oracle[COMPLETE][0]])
    net, _ = Sum(name="net", weights=(("reward", 1.0), ("cost", -1.0)))(batch, Trackers())
    assert np.allclose(net.totals(net.column("net")), [1 - QUESTION_COST, 1.0])


def test_the_user_says_what_is_asked_for_and_nothing_else() -> None:
    answers = [asyncio.run(USER.tell(text)) for text in ("Which TOWN?", "Which street?", "capacity?")]
    assert answers == ["It is Rome.", DO_NOT_KNOW, DO_NOT_KNOW]
    assert asyncio.run(Counterpart(AskableUser(prompts=()), 0).tell("Which city?")) == DO_NOT_KNOW


def test_who_asks_aloud_is_told_once_how_to_ask() -> None:
    async def reply(*spoken: str) -> Action | None:
        roles = ("user", "assistant")
        messages = (Message(role=roles[n % 2], content=text) for n, text in enumerate(spoken))  # type: ignore[arg-type]
        return await USER.reply(Talk(messages=tuple(messages)))

    assert asyncio.run(reply()) == Action(text="Change the city.")
    assert asyncio.run(reply("Change the city.", "Which city?")) == Action(text=ASK_WITH_TOOL)
    assert asyncio.run(reply("Change the city.", "Which city?", ASK_WITH_TOOL, "Which city?")) is None
    assert asyncio.run(reply("Change the city.", "Done.")) is None


def test_what_is_no_question_costs_nothing(env: LoadedEnv) -> None:
    wrong: list[dict[str, Json]] = [
        {},
        {"question": " "},
        {"question": "x" * (MAX_QUESTION + 1)},
        {"question": "Who?", "urgent": True},
    ]
    calls = tuple(ToolCall(id=str(n), name=ASK_USER, arguments=each) for n, each in enumerate(wrong))

    def bad(task: Task, seed: int) -> Replay:
        return Replay(iter([Action(tool_calls=calls), Action(text="Done.")]))

    ended: list[Trajectory] = []
    plan = Plan(agent="oracle", limit=1)
    jobs = list(jobs_of(plan, select_tasks(env.suite, plan)))
    run = run_jobs(env, get_sandbox("bwrap"), bad, jobs, Schedule(), lambda r, last: ended.append(r.trajectory))
    asyncio.run(run)
    assert [result.is_error for result in ended[0].steps[0].results] == [True] * 4
    assert (ended[0].usage.cost, ended[0].components["questions"]) == (0.0, 0.0)


def test_a_question_cannot_be_paid_for_by_the_user() -> None:
    with pytest.raises(ConfigError, match="the price of a question is -1, not a number from 0 on"):
        asking(backoffice_asking.ENV, price=-1)


@pytest.mark.parametrize("agent", ["never_asks", "always_asks"])
def test_agents_of_questions_refuse_tasks_without_any(agent: str) -> None:
    task = Task(id="plain", prompts=("Hi.",))
    with pytest.raises(ConfigError, match=f"agent '{agent}': task 'plain' has no"):
        SCRIPTED[agent](task, 0)
