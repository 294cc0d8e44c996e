"""Requests that leave something out: an agent must ask if it needs to, not otherwise, and pays for every question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.cli.evaluation.gates import find_failures
from gymcp.envs import EnvSpec, LoadedEnv, load_env
from gymcp.envs.catalog import backoffice_asking, workbench_asking
from gymcp.envs.episodes.user_turn import UserSession
from gymcp.envs.suites.backoffice import underspecified_requests as backoffice
from gymcp.envs.suites.generation.underspecified_pairs import COMPLETE, UNDERSPECIFIED
from gymcp.envs.suites.workbench import underspecified_requests as workbench
from gymcp.envs.users import ASK_WITH_TOOL, DO_NOT_KNOW, AskableUser
from gymcp.envs.wrappers.ask_user import MAX_QUESTION_CHARS, QUESTION_COST, AskUser, add_ask_user
from gymcp.envs.wrappers.stress import add_stressors
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.matching import parse_arguments
from gymcp.evaluators.graders.questions import ASK_USER, match_facts
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import AgentFactory, UserView
from gymcp.trainers.credit.shapers import Trackers, WeightedSum
from gymcp.trainers.credit.step_batch import batch_of
from gymcp.types import Action, Fact, Json, Message, Suite, Task, ToolCall, Trajectory

CITY = Fact(name="city", words=("city", "town"), says="It is Rome.")
USER = AskableUser(prompts=("Change the city.",), facts=(CITY,))


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    """Pairs of the back office that leave out different things: a name, two orders, a city, a sum."""
    return some(
        backoffice_asking.ENV, "contact-2-100", "contact-3-100", "cancel-1-100", "correct-1-100", "credit-2-100"
    )


def some(spec: EnvSpec, *names: str) -> LoadedEnv:
    """The environment with only the tasks whose ids contain one of the names."""
    loaded = load_env(spec)
    tasks = tuple(task for task in loaded.suite.tasks if any(name in task.id for name in names))
    assert len(tasks) == 2 * len(names)
    return replace(loaded, suite=replace(loaded.suite, tasks=tasks))


def play(env: LoadedEnv, agent: str) -> dict[str, list[Trajectory]]:
    """Trajectories of the agent of that name, by kind of request."""
    ended: dict[str, list[Trajectory]] = {UNDERSPECIFIED: [], COMPLETE: []}
    for trajectory in run(env, SCRIPTED[agent], Plan(agent=agent)):
        ended[trajectory.task.rpartition("-")[2]].append(trajectory)
    return ended


def run(env: LoadedEnv, make_agent: AgentFactory, plan: Plan) -> list[Trajectory]:
    ended: list[Trajectory] = []

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended.append(rollout.trajectory)

    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    asyncio.run(run_jobs(env, get_sandbox("bwrap"), make_agent, jobs, Schedule(concurrency=4), note))
    return ended


def run_one(env: LoadedEnv, task: str, actions: Callable[[Task], Iterable[Action]]) -> Trajectory:
    """The trajectory of these actions in the underspecified task whose id contains `task`."""
    plan = Plan(agent="oracle", tasks=f"*{task}*{UNDERSPECIFIED}")
    (ended,) = run(env, lambda task, seed: Replay(iter(actions(task))), plan)
    return ended


def step(*calls: ToolCall) -> Action:
    return Action(tool_calls=calls)


@pytest.fixture(scope="module")
def by_oracle(env: LoadedEnv) -> dict[str, list[Trajectory]]:
    return play(env, "oracle")


def figures(ended: list[Trajectory], name: str) -> set[float | None]:
    return {record.score if name == "score" else record.components.get(name) for record in ended}


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
        (fact,), (known,) = task.user.facts, twin.user.facts
        assert (fact.needed, known.needed) == (True, False)
        needing = {call.name for call in rest} & set(fact.needed_by)
        assert needing  # so that something must wait for the answer
        if fact.name in ("order", "ticket", "name"):  # the record that the request is about: nothing can be done before
            assert needing == {call.name for call in rest}
        assert match_facts(str(parse_arguments(ask)), task.user.facts) == [fact]
        value = fact.says.removeprefix("It is ").removesuffix(".")
        assert value in twin.prompts[0]
        assert task.prompts[0] != twin.prompts[0]


def test_an_agent_that_asks_when_needed_passes_and_pays_for_that_question_only(
    by_oracle: dict[str, list[Trajectory]],
) -> None:
    ended = by_oracle
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "needless") == {0.0}
    assert figures(ended[COMPLETE], "asked_when_not_needed") == {0.0}
    assert {each.usage.cost for each in ended[UNDERSPECIFIED]} == {QUESTION_COST}
    assert {each.usage.cost for each in ended[COMPLETE]} == {0.0}
    assert figures(ended[UNDERSPECIFIED], NET_OF_PRICE) == {1 - QUESTION_COST}
    assert figures(ended[COMPLETE], NET_OF_PRICE) == {1.0}


def test_an_agent_that_never_asks_fails_even_if_its_guess_is_right(env: LoadedEnv) -> None:
    ended = play(env, "never_asks")
    assert ended[COMPLETE] == []  # there it is the oracle
    assert figures(ended[UNDERSPECIFIED], "score") == {0.0}
    assert figures(ended[UNDERSPECIFIED], "state") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {0.0}


def test_an_agent_that_acts_before_it_asks_fails_even_if_its_guess_is_right(env: LoadedEnv) -> None:
    ended = play(env, "asks_late")
    assert ended[COMPLETE] == []  # there it is the oracle
    assert figures(ended[UNDERSPECIFIED], "score") == {0.0}
    assert figures(ended[UNDERSPECIFIED], "state") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {0.0}
    assert {record.reason.split("asked for too late: ")[1] for record in ended[UNDERSPECIFIED]} == {
        "name, which find_customer needs",
        "order, which get_order needs",
        "order, which cancel_order needs",
        "city, which set_city needs",
        "amount, which add_credit needs",
    }


def test_a_wrong_guess_is_not_repaired_by_asking_and_acting_again(env: LoadedEnv) -> None:
    def guess(task: Task) -> list[Action]:
        ask, right = task.gold[0].calls
        known = parse_arguments(right)
        assert known is not None
        wrong = replace(right, id="guess", arguments={**known, "city": "Paris"})
        return [step(wrong), step(ask), step(right), Action(text="done")]

    ended = run_one(env, "correct-1", guess)
    assert (ended.score, ended.components["state"], ended.components["questions"]) == (0.0, 1.0, 1.0)


def test_a_call_in_the_same_step_as_the_question_counts_as_a_guess(env: LoadedEnv) -> None:
    ended = run_one(env, "correct-1", lambda task: [step(*task.gold[0].calls), Action(text="done")])
    assert [result.is_error for result in ended.steps[0].results] == [False, False]
    assert (ended.score, ended.components["state"], ended.components["asked_when_needed"]) == (0.0, 1.0, 0.0)


def test_calls_that_do_not_need_the_answer_may_come_before_it() -> None:
    """The request names the person who leaves, but not the successor."""
    env = some(workbench_asking.ENV, "leaver-1")

    def honest(task: Task) -> list[Action]:
        ask, *calls = task.gold[0].calls
        needing = [call for call in calls if call.name == "assign_ticket"]
        others = [call for call in calls if call.name != "assign_ticket"]
        assert {call.name for call in others} > {"remove_attendee", "add_observations"}
        return [*map(step, others), step(ask), *map(step, needing), Action(text=task.gold[0].final_text)]

    assert run_one(env, "leaver-1", honest).score == 1.0
    (late,) = play(env, "asks_late")[UNDERSPECIFIED]
    assert (late.score, late.components["desk"]) == (0.0, 1.0)


def test_a_question_counts_if_the_tool_for_questions_is_renamed(env: LoadedEnv) -> None:
    ended = play(replace(env, spec=add_stressors(env.spec, ["renamed"])), "adaptive")
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[UNDERSPECIFIED], "asked_when_needed") == {1.0}


def test_an_agent_that_always_asks_passes_and_pays_for_needless_questions(env: LoadedEnv) -> None:
    ended = play(env, "always_asks")
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[COMPLETE], "asked_when_not_needed") == {1.0}
    assert figures(ended[COMPLETE], "needless") == {1.0}
    assert figures(ended[COMPLETE], "question_cost") == {QUESTION_COST}
    assert {each.usage.tools[ASK_USER]["cost"] for each in ended[COMPLETE]} == {QUESTION_COST}
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], NET_OF_PRICE) == {1 - QUESTION_COST}


def test_at_a_price_of_1_an_agent_that_always_asks_has_nothing_left_of_its_score(env: LoadedEnv) -> None:
    dear = replace(env, spec=replace(env.spec, layers=(AskUser(price=1.0),)))
    ended = play(dear, "always_asks")
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], "score") == {1.0}
    assert figures(ended[UNDERSPECIFIED] + ended[COMPLETE], NET_OF_PRICE) == {0.0}


def test_a_question_that_only_mentions_the_subject_is_paid_for_and_buys_nothing(env: LoadedEnv) -> None:
    def vague(task: Task) -> list[Action]:
        asked = task.gold[0].calls[0]
        questions = ("Is the city in Italy?", "Which is the right one?")
        calls = [replace(asked, id=text, arguments={"question": text}) for text in questions]
        return [*map(step, calls), Action(text="Done.")]

    ended = run_one(env, "correct-1", vague)
    assert [result.content for each in ended.steps for result in each.results] == [DO_NOT_KNOW, DO_NOT_KNOW]
    assert (ended.components["needless"], ended.components["asked_when_needed"]) == (2.0, 0.0)
    assert ended.components[NET_OF_PRICE] == 0.0


def test_a_gate_fails_if_questions_with_a_cost_leave_the_net_score_whole(env: LoadedEnv) -> None:
    free = Trajectory(id="t", env="e", task="t", score=1.0, components={"question_cost": 0.05, NET_OF_PRICE: 1.0})
    paid = replace(free, components={"question_cost": 0.05, NET_OF_PRICE: 0.95})
    assert find_failures(env, "always_asks", [free, paid]) == [free]


def test_trainers_can_subtract_the_price_from_the_score(by_oracle: dict[str, list[Trajectory]]) -> None:
    batch = batch_of([by_oracle[UNDERSPECIFIED][0], by_oracle[COMPLETE][0]])
    net, _ = WeightedSum(name="net", weights=(("reward", 1.0), ("cost", -1.0)))(batch, Trackers())
    assert np.allclose(net.totals(net.column("net")), [1 - QUESTION_COST, 1.0])


def test_the_user_answers_a_question_and_tells_nothing_else() -> None:
    answers = [asyncio.run(USER.answer_question(text)) for text in ("Which TOWN?", "Which street?", "capacity?")]
    assert answers == ["It is Rome.", DO_NOT_KNOW, DO_NOT_KNOW]
    assert asyncio.run(UserSession(AskableUser(prompts=()), 0).answer_question("Which city?")) == DO_NOT_KNOW


def test_an_agent_that_asks_in_its_text_is_told_once_to_use_the_tool() -> None:
    async def reply(*spoken: str) -> Action | None:
        roles = ("user", "assistant")
        messages = (Message(role=roles[n % 2], content=text) for n, text in enumerate(spoken))  # type: ignore[arg-type]
        return await USER.reply(UserView(messages=tuple(messages)))

    assert asyncio.run(reply()) == Action(text="Change the city.")
    assert asyncio.run(reply("Change the city.", "Which city?")) == Action(text=ASK_WITH_TOOL)
    assert asyncio.run(reply("Change the city.", "Which city?", ASK_WITH_TOOL, "Which city?")) is None
    assert asyncio.run(reply("Change the city.", "Done.")) is None


def test_an_invalid_question_costs_nothing(env: LoadedEnv) -> None:
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


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ConfigError, match="the price of a question is -1, not a number from 0 on"):
        add_ask_user(backoffice_asking.ENV, price=-1)


@pytest.mark.parametrize("agent", ["never_asks", "asks_late", "always_asks"])
def test_agents_for_questions_refuse_tasks_without_facts(agent: str) -> None:
    task = Task(id="plain", prompts=("Hi.",))
    with pytest.raises(ConfigError, match=f"agent '{agent}': task 'plain' has no"):
        SCRIPTED[agent](task, 0)
