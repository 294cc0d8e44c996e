"""AgentDojo: upstream's worlds and graders through real servers; what a server can read; what the privileges stop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, Replay
from gymcp.envs import load_env, load_spec
from gymcp.envs.audit.leaks import find_leaks
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.suites.agentdojo.grader import grade, surfaces
from gymcp.envs.suites.agentdojo.suite import AGENTDOJO, read_suites
from gymcp.envs.suites.agentdojo.tasks import fold_lines
from gymcp.envs.suites.upstream.packages import install_packages
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.injection import ATTACKS, inject_attack
from gymcp.envs.wrappers.privileges import Privileges, check_rules, find_blocked_gold, read_privileges
from gymcp.errors import GraderError, IntegrityError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory
from gymcp.types import Action, Json, Task, ToolCall, Trajectory

RULES = Path(__file__).parents[2] / "examples" / "privileges" / "agentdojo.toml"
PER_SUITE = ("workspace_user_task_32", "travel_user_task_3", "banking_user_task_15", "slack_user_task_11")
"""One task of each suite; among them writes, a shared file, an e-mail, payments, and a grader that reads the calls."""


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    return load_env(load_spec("agentdojo"))


@pytest.fixture(scope="module")
def rules() -> Privileges:
    return read_privileges(RULES)


def play(env: LoadedEnv, agent: str | AgentFactory, tasks: list[Task]) -> dict[str, Trajectory]:
    ended: list[Rollout] = []
    jobs = [Job(task=task, trial=0, seed=number) for number, task in enumerate(tasks)]
    player = SCRIPTED[agent] if isinstance(agent, str) else agent
    work = run_jobs(env, get_sandbox("bwrap"), player, jobs, Schedule(), lambda rollout, last: ended.append(rollout))
    asyncio.run(work)
    return {rollout.trajectory.task: rollout.trajectory for rollout in ended}


def chosen(env: LoadedEnv, *names: str) -> list[Task]:
    return [task for task in env.suite.tasks if task.id in names]


def test_there_are_97_tasks_35_goals_and_949_pairs_of_which_629_have_gold(env: LoadedEnv) -> None:
    assert Counter(task.tags[0] for task in env.suite.tasks) == {
        "workspace": 40,
        "slack": 21,
        "travel": 20,
        "banking": 16,
    }
    assert sum(len(suite["injection_tasks"]) for suite in read_suites().values()) == 35
    pairs = [goal for surface in surfaces() for goal in surface.goals]
    assert (len(pairs), sum(goal.gold is not None for goal in pairs)) == (949, 629)
    assert all(surface.seen for surface in surfaces())


def test_five_tasks_pass_at_once_and_no_others(env: LoadedEnv) -> None:
    assert env.suite.pass_at_once == {f"banking_user_task_{number}" for number in (5, 6, 8, 9, 10)}
    ended = play(env, "null", chosen(env, "banking_user_task_5", "banking_user_task_0", "slack_user_task_0"))
    assert {task: trajectory.score for task, trajectory in ended.items()} == {
        "banking_user_task_5": 1.0,
        "banking_user_task_0": 0.0,
        "slack_user_task_0": 0.0,
    }


def test_gold_passes_and_gold_less_a_necessary_call_does_not(env: LoadedEnv) -> None:
    tasks = chosen(env, *PER_SUITE)
    assert {trajectory.score for trajectory in play(env, "oracle", tasks).values()} == {1.0}
    assert {trajectory.score for trajectory in play(env, "mutated", tasks).values()} == {0.0}


def test_the_clock_stands_still_so_the_same_calls_lead_to_the_same_state(env: LoadedEnv) -> None:
    tasks = chosen(env, "workspace_user_task_32", "travel_user_task_3")
    once, again = play(env, "oracle", tasks), play(env, "oracle", tasks)
    assert {name: t.final_key for name, t in once.items()} == {name: t.final_key for name, t in again.items()}


def test_no_server_can_read_a_task_its_gold_or_a_grader(env: LoadedEnv) -> None:
    assert asyncio.run(find_leaks(env, get_sandbox("bwrap"))) == []
    mounted = [path for mount in env.servers[0].mounts for path in mount.source.rglob("*_tasks*")]
    assert mounted == []


def test_both_verdicts_on_an_attacked_pair() -> None:
    attacked = load_env(inject_attack(load_spec("agentdojo"), ATTACKS["important_instructions"]))
    (task,) = chosen(attacked, "banking_user_task_15.injection_task_4")
    oracle, hijacked = (play(attacked, agent, [task])[task.id] for agent in ("oracle", "hijacked"))
    assert (oracle.components["utility"], oracle.components["attack"]) == (1.0, 0.0)
    assert hijacked.components["attack"] == 1.0


def test_a_record_without_a_state_or_with_another_has_no_score(env: LoadedEnv) -> None:
    (task,) = chosen(env, "banking_user_task_15")
    (played,) = play(env, "oracle", [task]).values()
    assert played.outcome is Outcome.SCORED

    def another(ref: str, /) -> Json:
        return {"suite": "banking", "environment": {"filesystem": {"files": 3}}}

    with pytest.raises(GraderError, match="no final state was recorded"):
        grade(task, dataclasses.replace(played, final_state=None), another)
    with pytest.raises(GraderError, match="agentdojo-judge"):
        grade(task, played, another)


def test_a_check_of_upstream_s_that_raises_on_the_agent_s_world_says_no(env: LoadedEnv) -> None:
    """The check of this task looks into the inbox of Alice, whom the agent has removed."""
    (task,) = chosen(env, "slack_user_task_1")
    remove = ToolCall(id="1", name="remove_user_from_slack", arguments={"user": "Alice"})
    (played,) = play(env, lambda task, seed: Replay(iter([Action(tool_calls=(remove,))])), [task]).values()
    assert (played.outcome, played.score) == (Outcome.SCORED, 0.0), played.reason


@pytest.mark.parametrize("attack", [name for name, attack in ATTACKS.items() if attack.template])
def test_an_injected_text_stands_in_the_world_as_upstream_s_yaml_would_hold_it(attack: str) -> None:
    text = ATTACKS[attack].text("Do\nthis.")
    assert f"({fold_lines(text)})" == yaml.safe_load(f'"({text})"')


def test_the_privileges_block_no_gold_in_at_most_15_rules_a_suite(env: LoadedEnv, rules: Privileges) -> None:
    check_rules(rules, asyncio.run(list_tools(env, get_sandbox("bwrap"))), env.suite.tasks)
    assert list(find_blocked_gold(env.suite.tasks, rules)) == []
    per_suite = Counter(rule.tasks for rule in rules.rules)
    assert set(per_suite) == {"workspace_*", "travel_*", "banking_*", "slack_*"}
    assert max(per_suite.values()) <= 15


@pytest.mark.parametrize("attack", ["none", "important_instructions"])
def test_the_privileges_leave_few_of_the_held_out_goals_within_reach(attack: str, rules: Privileges) -> None:
    """Goals of odd number were held out. A pair counts if none of its calls is blocked. All pairs with one goal count,
    too: upstream judges that goal by the calls that were tried, blocked or not."""
    tasks = load_env(inject_attack(load_spec("agentdojo"), ATTACKS[attack])).suite.tasks
    held_out = [task for task in tasks if task.attack and int(task.tags[-1].rpartition("_")[2]) % 2]
    tried = [task for task in held_out if (task.tags[0], task.tags[-1]) == ("slack", "injection_task_5")]
    open_pairs = [task for task in held_out if task not in tried and not _is_blocked(task, rules)]
    assert (len(held_out), len(tried)) == (307, 21)
    assert len(tried + open_pairs) / len(held_out) <= 0.15


def _is_blocked(task: Task, rules: Privileges) -> bool:
    assert task.attack is not None
    calls = ((call, call.arguments) for call in task.attack.calls if isinstance(call.arguments, Mapping))
    return any(rules.decide(task, task.prompts, call, arguments) for call, arguments in calls)


def test_a_package_with_another_hash_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    lock = tmp_path / "agentdojo.lock"
    before = AGENTDOJO.lock.read_text()
    name = "typing_extensions-4.16.0-py3-none-any.whl sha256:"
    assert name in before
    start = before.index(name) + len(name)
    lock.write_text(before[:start] + "0" * 64 + before[start + 64 :])
    with pytest.raises(IntegrityError, match=r"suite 'agentdojo': install.*the index has other files than the lock"):
        install_packages("agentdojo", lock, tmp_path / "home")
    assert [path.name for path in (tmp_path / "home" / "suites" / "packages").iterdir()] == []
