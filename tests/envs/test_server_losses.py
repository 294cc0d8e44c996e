"""An agent that makes its server end in every attempt does not leave the mean: the last attempt is graded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from brittle import HELD
from desk import act, desk_env, desk_task
from test_mean import brittle, env_of

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.run import Plan, run_plan
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.strategies.scripted import Replay
from gymcp.envs.gym import McpEnv
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.server_losses import Attempts, Loss
from gymcp.errors import DirtyReset, EnvInfraError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.machine_limits import count_oom_kills
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory
from gymcp.store import TrajectoryStore
from gymcp.types import Action, EpisodeLimits, Trajectory

pytestmark = pytest.mark.usefixtures("own_home")

LOST, SPENT = Outcome.ENV_INFRA, Outcome.BUDGET_EXHAUSTED
RIGHT = act("write", path="a", text="2")
KILL = act("run", command="kill -9 $PPID")
TASK = desk_task({"files": {"a": "1"}}, target={"files": {"a": {"type": "file", "mode": "644", "text": "2"}}})


def play_attempts(env: LoadedEnv, agent: AgentFactory, attempts: int, sandbox: str = "bwrap") -> list[Trajectory]:
    """Records of all attempts at the first task."""
    schedule = Schedule(concurrency=1, max_attempts=attempts, min_free_mb=0)
    return [each.trajectory for each in play_rollouts(env, agent, schedule, sandbox)]


def play_rollouts(env: LoadedEnv, agent: AgentFactory, schedule: Schedule, sandbox: str = "bwrap") -> list[Rollout]:
    done: list[Rollout] = []
    job = Job(task=env.suite.tasks[0], trial=0, seed=1)
    asyncio.run(run_jobs(env, get_sandbox(sandbox), agent, [job], schedule, lambda rollout, last: done.append(rollout)))
    return done


def replay(*actions: Action) -> AgentFactory:
    return lambda task, seed: Replay(iter(actions))


def outcomes(records: Sequence[Trajectory]) -> list[tuple[Outcome, float | None]]:
    return [(record.outcome, record.score) for record in records]


def desk(**limits: float) -> LoadedEnv:
    return desk_env(replace(TASK, limits=EpisodeLimits(**limits)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "said", "attempts"),
    [
        ("kill -9 $PPID", "tool 'run': the server ended", 3),
        ("(sleep 0.2; kill -9 $PPID) > /dev/null 2>&1 &", "the server ended", 2),
    ],
    ids=["at once", "after its call"],
)
def test_an_agent_that_ends_its_server_in_every_attempt_is_graded(command: str, said: str, attempts: int) -> None:
    """The state before that call is graded: here it is the target."""
    wait = [act("run", command="sleep 0.5"), act("read", path="a")]
    records = play_attempts(desk(), replay(RIGHT, act("run", command=command), *wait), attempts)
    assert outcomes(records) == [(LOST, None)] * (attempts - 1) + [(SPENT, 1.0)]
    assert said in records[-1].reason
    assert f"; a server was lost after the agent's call in all {attempts} attempts" in records[-1].reason
    before, last = records[-1].steps[-2:]
    assert records[-1].final_key == last.world_key == before.world_key
    assert [result.is_error for result in last.results] == [True]


def test_an_agent_that_stops_a_server_in_every_attempt_is_graded() -> None:
    env = desk(call_timeout_s=1)
    records = play_attempts(env, replay(RIGHT, act("run", command="kill -STOP $PPID")), 2)
    assert outcomes(records) == [(Outcome.TIMEOUT, None), (SPENT, 1.0)]


@pytest.mark.parametrize("start", ["exec", "fork", "pool", "docker"])
def test_a_declared_state_is_graded_as_it_was_before_the_crash(request: pytest.FixtureRequest, start: str) -> None:
    if start == "docker":
        request.getfixturevalue("engine")
    env = env_of(brittle(start), [desk_task({"balance": 0}, target={"balance": 1.0})])
    sandbox = "docker" if start == "docker" else "bwrap"
    records = play_attempts(env, replay(act("deposit", amount=1.0), act("crash")), 2, sandbox)
    assert outcomes(records) == [(LOST, None), (SPENT, 1.0)]


def test_one_attempt_proves_nothing() -> None:
    assert outcomes(play_attempts(desk(), replay(RIGHT, KILL), 1)) == [(LOST, None)]


def test_attempts_that_were_lost_otherwise_keep_the_episode_out_of_the_mean() -> None:
    """The harness itself fails in the second of three attempts."""
    plays: Iterator[Callable[[], Replay]] = iter(
        [lambda: Replay(iter([RIGHT, KILL])), fail, lambda: Replay(iter([RIGHT, KILL]))]
    )
    assert outcomes(play_attempts(desk(), lambda task, seed: next(plays)(), 3)) == [(LOST, None)] * 3


def fail() -> Replay:
    raise EnvInfraError("the machine is out of order")


def test_a_server_that_never_has_a_readable_state_keeps_the_episode_out_of_the_mean() -> None:
    env = env_of(brittle("exec"), [desk_task({"hold": next(iter(HELD))})])
    assert outcomes(play_attempts(env, replay(act("crash")), 2)) == [(LOST, None)] * 2


def test_attempts_before_an_interruption_count(tmp_path: Path) -> None:
    env = desk()
    once = Schedule(concurrency=1, max_attempts=1, min_free_mb=0)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        for _ in range(2):
            run_plan(env, get_sandbox("bwrap"), Plan(agent="mine"), store, once, make_agent=replay(RIGHT, KILL))
        rows = store.summaries(latest=False)
    assert [(row.outcome, row.score) for row in rows] == [(LOST, None), (SPENT, 1.0)]


def test_gymnasiums_face_has_one_attempt_and_raises() -> None:
    env = McpEnv(desk())
    try:
        env.reset(seed=1)
        with pytest.raises(ServerDied):
            env.step(KILL)
        assert env.trajectory is None
    finally:
        env.close()


@pytest.mark.parametrize(
    ("error", "action", "is_excused", "is_by_agent"),
    [
        (ServerDied("x"), KILL, False, True),
        (ServerTimeout("x"), KILL, False, True),
        (ProtocolError("x"), KILL, False, True),
        (DirtyReset("x"), KILL, False, False),
        (ServerDied("x"), Action(text="hello"), False, False),
        (ServerDied("x"), KILL, True, False),
    ],
)
def test_a_loss_is_the_agents_only_after_a_call_and_without_another_cause(
    error: EnvInfraError, action: Action, is_excused: bool, is_by_agent: bool
) -> None:
    loss = Loss(error=error, actions=(action,), is_excused=is_excused)
    assert loss.is_by_agent == is_by_agent
    assert (loss.describe_end(Attempts(lost=1, is_last=True)) is not None) == is_by_agent
    assert [loss.describe_end(few) for few in (Attempts(is_last=True), Attempts(lost=2), Attempts(lost=None))] == [
        None
    ] * 3


def test_processes_that_the_kernel_ended_for_lack_of_memory_are_counted(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) == 0
    (tmp_path / "vmstat").write_text("pgfault 7\noom_kill 12\nnuma_hit 3\n")
    assert count_oom_kills(tmp_path) == 12


def test_a_tree_whose_first_episode_loses_its_server_in_every_attempt_is_graded() -> None:
    """So are its branches, which are played at the last attempt only."""
    controller = BranchSteps(ways=2, steps=frozenset({1}))
    schedule = Schedule(concurrency=1, max_attempts=2, min_free_mb=0, controller=controller)
    first, last = play_rollouts(desk(), replay(RIGHT, KILL), schedule)
    assert outcomes([first.trajectory, last.trajectory]) == [(LOST, None), (SPENT, 1.0)]
    assert (first.branches, outcomes([each.trajectory for each in last.branches])) == ((), [(SPENT, 1.0)])
