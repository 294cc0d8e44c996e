"""tau2's telecom domain: upstream's world and checks through real servers, solo and with a user who has the phone."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.envs import load_env, load_spec
from gymcp.envs.audit.leaks import find_leaks
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.suites.tau2.grader import grade
from gymcp.envs.suites.tau2.suite import INSPECT_EVALS, USER_TOOLS, install_tau2, load_suite
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.errors import GraderError, IntegrityError, UsageError
from gymcp.evaluators.metrics.user_audit import GOLD_TOOL, GOLD_VALUE, QUOTED, UNASKED, audit_user
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import (
    Action,
    Json,
    Message,
    Observation,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    UserToolCalls,
)

REFUEL = "mms_issue.break_app_both_permissions+data_usage_exceeded.hard"
PAY = "service_issue.airplane_mode_on+overdue_bill_suspension.none"
TRANSFER = "service_issue.airplane_mode_on+lock_sim_card_pin.easy"
"""Tasks: one with arguments in calls of both sides and a new bill; one whose bill the user pays; one whose reward also
depends on the calls."""


@pytest.fixture(scope="module")
def solo() -> LoadedEnv:
    return load_env(load_spec("tau2"))


@pytest.fixture(scope="module")
def dual() -> LoadedEnv:
    return load_env(load_spec("tau2_dual"))


def play(env: LoadedEnv, tasks: list[Task], *agents: str | AgentFactory) -> dict[tuple[str, int], Trajectory]:
    """Trajectories by task and number of the agent; all episodes run at the same time."""
    ended: list[Rollout] = []

    def make(task: Task, seed: int) -> Agent:
        agent = agents[seed]
        return (SCRIPTED[agent] if isinstance(agent, str) else agent)(task, seed)

    jobs = [Job(task=task, trial=place, seed=place) for task in tasks for place in range(len(agents))]
    asyncio.run(
        run_jobs(env, get_sandbox("bwrap"), make, jobs, Schedule(), lambda rollout, last: ended.append(rollout))
    )
    return {(rollout.job.task.id, rollout.job.trial): rollout.trajectory for rollout in ended}


def chosen(env: LoadedEnv, *names: str) -> list[Task]:
    return [task for task in env.suite.tasks if task.id in names]


def test_upstreams_sets_and_its_split(solo: LoadedEnv, dual: LoadedEnv) -> None:
    assert Counter(task.split for task in solo.suite.tasks) == {"train": 74, "test": 40}
    assert [task.id for task in dual.suite.tasks] == [task.id for task in solo.suite.tasks]
    full = load_suite(which="full").tasks
    assert (len(full), len({task.id for task in full})) == (2285, 2285)
    assert {task.id for task in solo.suite.tasks} < {task.id for task in full}
    assert len(load_suite(which="small").tasks) == 20
    assert solo.suite.pass_at_once == frozenset()
    assert all(task.last_necessary is not None for task in full)


def test_the_agent_has_43_tools_alone_and_13_beside_a_user_who_has_the_others(solo: LoadedEnv, dual: LoadedEnv) -> None:
    sandbox = get_sandbox("bwrap")
    alone, beside = (asyncio.run(list_tools(env, sandbox)) for env in (solo, dual))
    assert (len(alone), len(beside)) == (43, 13)
    assert alone.keys() - beside.keys() == USER_TOOLS
    refuel = beside["refuel_data"]
    assert refuel.input_schema["required"] == ["customer_id", "line_id", "gb_amount"]
    assert refuel.input_schema["properties"]["gb_amount"]["description"] == "Amount of data to add in gigabytes."
    assert "Args:" not in refuel.description


@pytest.mark.parametrize("mode", ["solo", "dual"])
def test_gold_passes_twice_with_the_same_state_and_gold_less_a_call_does_not(
    mode: str, solo: LoadedEnv, dual: LoadedEnv
) -> None:
    env = {"solo": solo, "dual": dual}[mode]
    names = (REFUEL, PAY, TRANSFER)
    ended = play(env, chosen(env, *names), "oracle", "null", "oracle", "mutated")
    for name in names:
        once, null, again, mutated = (ended[name, place] for place in range(4))
        assert [record.score for record in (once, null, again, mutated)] == [1.0, 0.0, 1.0, 0.0], name
        assert {record.outcome for record in (once, null, again, mutated)} == {Outcome.SCORED}
        assert (once.initial_key, once.final_key) == (again.initial_key, again.final_key)
        assert once.components == {"env_assertion": 1.0, "action": 1.0, "communicate": 1.0, "db": 1.0}
    assert (ended[PAY, 0].usage.user_calls > 0) == (mode == "dual")
    if mode == "dual":  # the scripted user is the control of the audit
        tasks = {task.id: task for task in dual.suite.tasks}
        assert [found for (task, _), record in ended.items() for found in audit_user(record, tasks[task])] == []


@pytest.mark.parametrize(
    ("says", "does", "kind"),
    [
        ("My customer id is C1001.", "", GOLD_VALUE),
        ("Use refuel_data.", "", GOLD_TOOL),
        ("Done.", "grant_app_permission", UNASKED),
        ("My guideline: the agent asks what the status bar shows, always ground your response on it.", "", QUOTED),
        ("I am John Smith, 555-123-2002, in France; you may refuel 2.0 GB.", "check_status_bar", None),
    ],
)
def test_slips_of_a_played_user_are_found_against_upstreams_scenario(
    dual: LoadedEnv, says: str, does: str, kind: str | None
) -> None:
    (task,) = chosen(dual, REFUEL)
    result = ToolResult(call_id="u", content="done")
    acts = (UserToolCalls(calls=(ToolCall(id="u", name=does),), results=(result,)),) if does else ()
    heard, said = (Observation(messages=(Message(role="user", content=text),), tools=()) for text in ("Hello.", says))
    steps = (
        Step(turn=0, observation=heard, action=Action(text="What can I do for you?"), user_acts=acts),
        Step(turn=1, observation=said, action=Action(text="Thank you.")),
    )
    found = audit_user(Trajectory(id="t", env="tau2_dual", task=task.id, steps=steps), task)
    assert [finding.kind for finding in found] == ([kind] if kind else [])


def actions_of(*names: str) -> list[Action]:
    return [Action(tool_calls=(ToolCall(id=f"call_{n}", name=name, arguments={}),)) for n, name in enumerate(names)]


def test_the_reward_is_the_product_over_the_basis_and_other_checks_are_components(solo: LoadedEnv) -> None:
    """Without the transfer the phone is right, but the reward is 0; with an extra change to the databases it is 1."""
    (task,) = chosen(solo, TRANSFER)
    summary = ToolCall(id="call_9", name="transfer_to_human_agents", arguments={"summary": "anything"})

    def without(task: Task, seed: int) -> Replay:
        return Replay(iter([*actions_of("toggle_airplane_mode"), Action(text="Done.")]))

    def longer(task: Task, seed: int) -> Replay:
        calls = actions_of("toggle_airplane_mode", "toggle_wifi")
        return Replay(iter([*calls, Action(tool_calls=(summary,)), Action(text="Done.")]))

    ended = play(solo, [task], without, longer)
    short, long = (ended[task.id, place] for place in (0, 1))
    assert (short.score, short.components["env_assertion"], short.components["action"]) == (0.0, 1.0, 0.0)
    assert short.reason == "ACTION: Missing required actions: transfer_to_human_agents."
    assert (long.score, long.components["action"], long.components["db"]) == (1.0, 1.0, 0.0)


def test_arguments_that_upstreams_tools_do_not_take_are_an_observation(solo: LoadedEnv) -> None:
    calls = (
        ToolCall(id="1", name="get_details_by_id", arguments={"id": "X1"}),
        ToolCall(id="2", name="refuel_data", arguments={"customer_id": "C1001", "line_id": "L1002", "gb_amount": "x"}),
        ToolCall(id="3", name="set_apn_settings", arguments={"apn_settings": {"apn_name": "none of them"}}),
    )

    def agent(task: Task, seed: int) -> Replay:
        return Replay(iter([Action(tool_calls=calls), Action(text="Done.")]))

    (ended,) = play(solo, chosen(solo, REFUEL), agent).values()
    assert ended.outcome is Outcome.SCORED
    assert ended.steps[0].results[0].content == "Unknown ID format or type: X1"
    assert [result.is_error for result in ended.steps[0].results] == [True, True, True]
    assert ended.final_key == ended.initial_key


def test_no_server_can_read_a_task_its_gold_or_a_grader(solo: LoadedEnv) -> None:
    assert asyncio.run(find_leaks(solo, get_sandbox("bwrap"))) == []
    mounted = {path.name for mount in solo.servers[0].mounts for path in mount.source.rglob("*")}
    assert {"TelecomAgentTools.py", "telecom.json"} < mounted
    assert not mounted & {"tasks.json.gz", "split_tasks.json", "scorer.py", "tasks.py"}


def test_a_model_that_plays_the_user_is_told_upstreams_guidelines_and_the_scenario(dual: LoadedEnv) -> None:
    (task,) = chosen(dual, PAY)
    assert task.user.scenario is not None
    assert "###STOP###" in task.user.scenario
    assert "<scenario>" in task.user.scenario
    assert task.handbook is not None
    assert task.user.scenario not in task.handbook
    assert not any(turn.final_text in task.handbook for turn in task.gold)


def test_a_record_without_a_state_or_with_another_has_no_score(solo: LoadedEnv) -> None:
    (task,) = chosen(solo, REFUEL)
    (played,) = play(solo, [task], "null").values()

    def another(ref: str, /) -> Json:
        return {"agent": {}, "user": {"db": {"device": {"airplane_mode": "perhaps"}}}}

    with pytest.raises(GraderError, match="no final state was recorded"):
        grade(task, dataclasses.replace(played, final_state=None), another)
    with pytest.raises(GraderError, match="tau2-judge"):
        grade(task, played, another)


def test_another_wheel_or_none_is_one_line_and_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UsageError, match=r"inspect-evals==0\.26\.0: cannot be downloaded: .*PIP_INDEX_URL"):
        install_tau2(tmp_path)
    (tmp_path / "wheels").mkdir(exist_ok=True)
    (tmp_path / "wheels" / INSPECT_EVALS.filename).write_bytes(b"data that changed")
    with pytest.raises(IntegrityError, match=f"expected sha256 {INSPECT_EVALS.sha256}, found"):
        install_tau2(tmp_path)
    assert not (tmp_path / "suites").exists()
