"""Requests that leave something out: asked when it must be, not asked when not, and every question has a price."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, jobs_of, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.envs import EnvSpec, LoadedEnv, load_env
from gymcp.envs.catalog import backoffice_asking, workbench_asking
from gymcp.envs.episodes.user_turn import UserSession
from gymcp.envs.suites.backoffice import underspecified as backoffice
from gymcp.envs.suites.generation.underspecified import COMPLETE, UNDERSPECIFIED
from gymcp.envs.suites.workbench import underspecified as workbench
from gymcp.envs.users import ASK_WITH_TOOL, DO_NOT_KNOW, AskableUser
from gymcp.envs.wrappers.ask_user import MAX_QUESTION_CHARS, QUESTION_COST, add_ask_user
from gymcp.envs.wrappers.stress import add_stressors
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.matching import arguments_of
from gymcp.evaluators.graders.questions import ASK_USER, asked_for
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import AgentFactory
from gymcp.trainers.credit.shapers import Sum, Trackers
from gymcp.trainers.credit.step_batch import batch_of
from gymcp.types import Action, Fact, Json, Message, Suite, Task, ToolCall, Trajectory, UserView

CITY = Fact(name="city", words=("city", "town"), says="It is Rome.")
USER = AskableUser(prompts=("Change the city.",), facts=(CITY,))


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    """Pairs of the back office in which something else is left out each: a name, two orders, a city, a sum."""
    return some(
        backoffice_asking.ENV, "contact-2-100", "contact-3-100", "cancel-1-100", "correct-1-100", "credit-2-100"
    )


def some(spec: EnvSpec, *names: str) -> LoadedEnv:
    """Of the environment, the tasks with one of the names in their id."""
    loaded = load_env(spec)
    tasks = tuple(task for task in loaded.suite.tasks if any(name in task.id for name in names))
    assert len(tasks) == 2 * len(names)
    return replace(loaded, suite=replace(loaded.suite, tasks=tasks))


def played(env: LoadedEnv, agent: str) -> dict[str, list[Trajectory]]:
    """By kind of request, by the agent of that name."""
    ended: dict[str, list[Trajectory]] = {UNDERSPECIFIED: [], COMPLETE: []}
    for trajectory in run(env, SCRIPTED[agent], Plan(agent=agent)):
        ended[trajectory.task.rpartition("-")[2]].append(trajectory)
    return ended


def run(env: LoadedEnv, make_agent: AgentFactory, plan: Plan) -> list[Trajectory]:
    ended: list[Trajectory] = []

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended.append(rollout.trajectory)

    jobs = list(jobs_of(plan, select_tasks(env.suite, plan)))
    asyncio.run(run_jobs(env, get_sandbox("bwrap"), make_agent, jobs, Schedule(concurrency=4), note))
    return ended


def run_one(env: LoadedEnv, task: str, actions: Callable[[Task], Iterable[Action]]) -> Trajectory:
    """The task whose id has `task` in it, underspecified, with these actions."""
    plan = Plan(agent="oracle", tasks=f"*{task}*{UNDERSPECIFIED}")
    (ended,) = run(env, lambda task, seed: Replay(iter(actions(task))), plan)
    return ended


def step(*calls: ToolCall) -> Action:
    return Action(tool_calls=calls)


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
        needing = {call.name for call in rest} & set(fact.needed_by)
        assert needing  # so that something must wait for the answer
        if fact.name in ("order", "ticket", "name"):  # of what is asked for, or whom: nothing can be done before
            assert needing == {call.name for call in rest}
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


def test_who_acts_first_and_asks_afterwards_never_passes_even_where_the_guess_is_right(env: LoadedEnv) -> None:
    ended = played(env, "asks_late")
    assert ended[COMPLETE] == []  # there it is the oracle
    assert figures(ended[UNDERSPECIFIED], "score") == {0.0}
    assert figures(ended[UNDERSPECIFIED], "state") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {0.0}
    assert {each.reason.split("asked for too late: ")[1] for each in ended[UNDERSPECIFIED]} == {
        "name, which find_customer needs",
        "order, which get_order needs",
        "order, which cancel_order needs",
        "city, which set_city needs",
        "amount, which add_credit needs",
    }


def test_a_wrong_guess_is_not_made_good_by_asking_and_doing_it_again(env: LoadedEnv) -> None:
    def guess(task: Task) -> list[Action]:
        ask, right = task.gold[0].calls
        known = arguments_of(right)
        assert known is not None
        wrong = replace(right, id="guess", arguments={**known, "city": "Paris"})
        return [step(wrong), step(ask), step(right), Action(text="done")]

    ended = run_one(env, "correct-1", guess)
    assert (ended.score, ended.components["state"], ended.components["questions"]) == (0.0, 1.0, 1.0)


def test_what_is_done_in_the_step_of_the_question_was_guessed(env: LoadedEnv) -> None:
    ended = run_one(env, "correct-1", lambda task: [step(*task.gold[0].calls), Action(text="done")])
    assert [result.is_error for result in ended.steps[0].results] == [False, False]
    assert (ended.score, ended.components["state"], ended.components["asked_when_needed"]) == (0.0, 1.0, 0.0)


def test_what_does_not_need_the_answer_may_be_done_before_it() -> None:
    """Who leaves is known, and who comes after them is not."""
    env = some(workbench_asking.ENV, "leaver-1")

    def honest(task: Task) -> list[Action]:
        ask, *calls = task.gold[0].calls
        needing = [call for call in calls if call.name == "assign_ticket"]
        others = [call for call in calls if call.name != "assign_ticket"]
        assert {call.name for call in others} > {"remove_attendee", "add_observations"}
        return [*map(step, others), step(ask), *map(step, needing), Action(text=task.gold[0].final_text)]

    assert run_one(env, "leaver-1", honest).score == 1.0
    (late,) = played(env, "asks_late")[UNDERSPECIFIED]
    assert (late.score, late.components["desk"]) == (0.0, 1.0)


def test_a_question_counts_whatever_the_tool_is_called_by_whom_it_is_asked(env: LoadedEnv) -> None:
    ended = played(replace(env, spec=add_stressors(env.spec, ["renamed"])), "adaptive")
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {1.0}


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
    answers = [asyncio.run(USER.answer_question(text)) for text in ("Which TOWN?", "Which street?", "capacity?")]
    assert answers == ["It is Rome.", DO_NOT_KNOW, DO_NOT_KNOW]
    assert asyncio.run(UserSession(AskableUser(prompts=()), 0).answer_question("Which city?")) == DO_NOT_KNOW


def test_who_asks_aloud_is_told_once_how_to_ask() -> None:
    async def reply(*spoken: str) -> Action | None:
        roles = ("user", "assistant")
        messages = (Message(role=roles[n % 2], content=text) for n, text in enumerate(spoken))  # type: ignore[arg-type]
        return await USER.reply(UserView(messages=tuple(messages)))

    assert asyncio.run(reply()) == Action(text="Change the city.")
    assert asyncio.run(reply("Change the city.", "Which city?")) == Action(text=ASK_WITH_TOOL)
    assert asyncio.run(reply("Change the city.", "Which city?", ASK_WITH_TOOL, "Which city?")) is None
    assert asyncio.run(reply("Change the city.", "Done.")) is None


def test_what_is_no_question_costs_nothing(env: LoadedEnv) -> None:
    wrong: list[dict[str, Json]] = [
        {},
        {"question": " "},
        {"question": "x" * (MAX_QUESTION_CHARS + 1)},
        {"question": "Who?", "urgent": True},
    ]
    calls = tuple(ToolCall(id=str(n), name=ASK_USER, arguments=each) for n, each in enumerate(wrong))

    def bad(task: Task, seed: int) -> Replay:
        return Replay(iter([Action(tool_calls=calls), Action(text="Done.")]))

    (ended,) = run(env, bad, Plan(agent="oracle", limit=1))
    assert [result.is_error for result in ended.steps[0].results] == [True] * 4
    assert (ended.usage.cost, ended.components["questions"]) == (0.0, 0.0)


def test_a_question_cannot_be_paid_for_by_the_user() -> None:
    with pytest.raises(ConfigError, match="the price of a question is -1, not a number from 0 on"):
        add_ask_user(backoffice_asking.ENV, price=-1)


@pytest.mark.parametrize("agent", ["never_asks", "asks_late", "always_asks"])
def test_agents_of_questions_refuse_tasks_without_any(agent: str) -> None:
    task = Task(id="plain", prompts=("Hi.",))
    with pytest.raises(ConfigError, match=f"agent '{agent}': task 'plain' has no"):
        SCRIPTED[agent](task, 0)
