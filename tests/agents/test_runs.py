"""Planning, scheduling, retrying and resuming, with servers in the real sandbox."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from gymcp.agents.runner.regrading import MAX_LOADED, try_grader
from gymcp.agents.runner.run import Plan, RunEnd, make_jobs, run_plan, select_tasks
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.mcp_servers.sandbox import Mount, get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, StateReader
from gymcp.store import TrajectoryStore
from gymcp.types import Action, Observation, Score, Task, Trajectory

BANK_FILE = str(Path(__file__).parents[2] / "examples" / "bank.py")
BANK = load_env(load_spec(BANK_FILE))


def run(env: LoadedEnv, plan: Plan, folder: Path, **schedule: float) -> list[Trajectory]:
    ended: list[Trajectory] = []
    folder.mkdir(exist_ok=True)
    with TrajectoryStore.open(folder, write=True) as store:
        settings = Schedule(**schedule)  # type: ignore[arg-type]
        how = run_plan(env, get_sandbox("bwrap"), plan, store, settings, on_episode=ended.append)
        assert how is RunEnd.FINISHED
    return ended


def test_every_trial_of_every_task_is_run_once_whatever_the_concurrency(tmp_path: Path) -> None:
    plan = Plan(agent="oracle", trials=3)
    for concurrency in (1, 16):
        ended = run(BANK, plan, tmp_path / str(concurrency), concurrency=concurrency)
        keys = Counter((t.task, t.trial) for t in ended)
        assert set(keys.values()) == {1}
        assert len(keys) == 9
        assert {t.score for t in ended} == {1.0}


def test_a_finished_run_has_no_jobs_left(tmp_path: Path) -> None:
    plan = Plan(agent="oracle")
    assert len(run(BANK, plan, tmp_path)) == 3
    assert run(BANK, plan, tmp_path) == []


def test_an_agent_of_the_caller_may_have_any_name(tmp_path: Path) -> None:
    plan, sandbox = Plan(agent="mine", limit=1), get_sandbox("bwrap")
    with TrajectoryStore.open(tmp_path, write=True) as store:
        with pytest.raises(ConfigError, match="no agent 'mine'; have "):
            run_plan(BANK, sandbox, plan, store, Schedule())
        with pytest.raises(ConfigError, match="agent 'react' is not scripted: pass make_agent"):
            run_plan(BANK, sandbox, replace(plan, agent="react"), store, Schedule())
        run_plan(BANK, sandbox, plan, store, Schedule(), make_agent=SCRIPTED["oracle"])
        assert [row.score for row in store.summaries()] == [1.0]


def test_trials_can_be_added_to_a_run(tmp_path: Path) -> None:
    run(BANK, Plan(agent="oracle"), tmp_path)
    assert {t.trial for t in run(BANK, Plan(agent="oracle", trials=2), tmp_path)} == {1}


def test_an_infrastructure_failure_is_tried_again_up_to_the_cap_and_on_resume(tmp_path: Path) -> None:
    broken = replace(BANK.servers[0], argv=("python3", "-c", "raise SystemExit(1)"))
    plan = Plan(agent="oracle", limit=1)
    ended = run(replace(BANK, servers=(broken,)), plan, tmp_path, max_attempts=2)
    assert [(t.outcome, t.score) for t in ended] == [(Outcome.ENV_INFRA, None)]
    with TrajectoryStore.open(tmp_path) as store:
        assert list(store.attempts().values()) == [[Outcome.ENV_INFRA] * 2]
    assert [t.score for t in run(BANK, plan, tmp_path)] == [1.0]


def test_an_infrastructure_failure_is_given_up_at_the_cap(tmp_path: Path) -> None:
    broken = replace(BANK, servers=(replace(BANK.servers[0], argv=("python3", "-c", "raise SystemExit(1)")),))
    plan = Plan(agent="oracle", limit=1)
    tried = [len(run(broken, plan, tmp_path, max_attempts=1)) for _ in range(4)]
    assert tried == [1, 1, 1, 0]


def test_an_episode_whose_grader_failed_is_graded_again_on_resume(tmp_path: Path) -> None:
    def broken(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        raise ValueError("a bug")

    plan = Plan(agent="oracle")
    ended = run(replace(BANK, spec=replace(BANK.spec, grade=broken)), plan, tmp_path)
    assert {t.outcome for t in ended} == {Outcome.GRADER_ERROR}
    assert run(BANK, plan, tmp_path) == []
    with TrajectoryStore.open(tmp_path) as store:
        assert [(row.outcome, row.score, row.attempt) for row in store.summaries()] == [(Outcome.SCORED, 1.0, 0)] * 3


class CountingStore(TrajectoryStore):
    """A store that counts the episodes that are loaded."""

    loads = 0

    def load(self, id: str, *, tokens: bool = True, graded: bool = False) -> Trajectory:
        self.loads += 1
        return super().load(id, tokens=tokens, graded=graded)


def test_few_episodes_are_loaded_to_find_one_to_try_a_grader_on(tmp_path: Path) -> None:
    """All newest scores are of another grader; the environment's own has failed on all episodes when recorded."""

    def broken(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        raise ValueError("a bug")

    env, task = replace(BANK, spec=replace(BANK.spec, grade=broken)), BANK.suite.tasks[0].id
    own = f"{BANK.spec.name}/{BANK.spec.version}"
    lost = [
        Trajectory(id=str(n), env="bank", task=task, trial=n, outcome=Outcome.GRADER_ERROR, score=None)
        for n in range(50)
    ]
    with CountingStore.open(tmp_path, write=True) as store:
        for episode in lost:
            store.append(episode, {})
            store.add_grade(replace(episode, outcome=Outcome.SCORED, score=1.0), grader="other")
        rows = store.summaries()
        try_grader(env, store, rows)  # it is not known to have scored any, so its failure is no reason to refuse
        assert 0 < store.loads <= MAX_LOADED
        with pytest.raises(ConfigError, match=r"tried on .* trial 0: grader raised"):
            try_grader(env, store, rows[:MAX_LOADED])
        for grader in (own, "other"):
            store.add_grade(replace(lost[41], outcome=Outcome.SCORED, score=1.0), grader=grader)
        store.loads = 0
        with pytest.raises(ConfigError, match=r"tried on .* trial 41: grader raised"):
            try_grader(env, store, store.summaries())
        assert store.loads == 1


def test_digests_differ_between_environments_but_not_between_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests(env: LoadedEnv) -> list[object]:
        config = Plan(agent="oracle").config(env, "bank")
        return [config["env_digest"], config["suite_digest"]]

    here = digests(BANK)
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    assert digests(load_env(load_spec(BANK_FILE))) == here
    task = replace(BANK.suite.tasks[0], target={})
    assert digests(replace(BANK, suite=replace(BANK.suite, tasks=(task,))))[1] != here[1]
    note = tmp_path.parent / "note"
    seen = []
    for text in ("a", "b"):
        note.write_text(text)
        mounts = (Mount(source=note, target=PurePosixPath("/srv/note")),)
        seen.append(digests(replace(BANK, servers=(replace(BANK.servers[0], mounts=mounts),)))[0])
    assert len({here[0], *seen}) == 3


def test_an_unreachable_policy_has_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(task: Task, seed: int) -> Agent:
        raise PolicyInfraError("no policy at 127.0.0.1:1")

    monkeypatch.setitem(SCRIPTED, "oracle", unreachable)
    ended = run(BANK, Plan(agent="oracle", limit=1), tmp_path, max_attempts=1)
    assert [(t.outcome, t.score) for t in ended] == [(Outcome.POLICY_INFRA, None)]


class Crashing:
    """An agent as a user gives it in Python: a class of task and seed."""

    def __init__(self, task: Task, seed: int) -> None:
        if "30" in task.prompts[0]:
            raise KeyError("not made")

    async def act(self, observation: Observation) -> Action:
        raise KeyError("missing")


def test_an_agent_given_in_python_that_raises_is_shown_and_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store, caplog.at_level(logging.WARNING, logger="gymcp"):
        plan = Plan(agent="oracle", trials=2)
        run_plan(BANK, get_sandbox("bwrap"), plan, store, Schedule(max_attempts=3), make_agent=Crashing)
        assert list(store.attempts().values()) == [[Outcome.AGENT_ERROR]] * 6
        rows = store.summaries()
        reasons = {store.load(row.id).reason for row in rows}
    assert {row.score for row in rows} == {0.0}
    assert {reason.rpartition(": ")[2] for reason in reasons} == {"'missing'", "'not made'"}
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 2  # once for each error
    assert all("Traceback" in text and "test_runs.py" in text for text in shown)


class Wordless:
    """An agent of the user that gives no action, and holds something."""

    closed = 0

    def __init__(self, task: Task, seed: int) -> None:
        pass

    async def act(self, observation: Observation) -> None:
        return None

    async def close(self) -> None:
        Wordless.closed += 1


def test_an_agent_given_in_python_is_guarded_and_closed(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        run_plan(BANK, get_sandbox("bwrap"), Plan(agent="oracle"), store, Schedule(), make_agent=Wordless)  # type: ignore[arg-type]
        assert list(store.attempts().values()) == [[Outcome.AGENT_ERROR]] * 3
    assert Wordless.closed == 3


def test_a_slow_harness_is_a_timeout_without_a_score(tmp_path: Path) -> None:
    ended = run(BANK, Plan(agent="oracle", limit=1), tmp_path, harness_timeout_s=0.001, max_attempts=1)
    assert [(t.outcome, t.score, t.reason) for t in ended] == [
        (
            Outcome.TIMEOUT,
            None,
            "the harness took more than 0.001 s for its part of the episode: servers, calls, states, grading",
        )
    ]


def test_under_a_limit_agents_share_the_tasks_that_both_can_play() -> None:
    gold = BANK.suite.tasks[0].gold
    tasks = tuple(Task(id=str(n), prompts=("p",), gold=gold if n % 4 else ()) for n in range(30))
    oracle, null = (
        [int(task.id) for task in select_tasks(replace(BANK.suite, tasks=tasks), Plan(agent=agent, limit=10))]
        for agent in ("oracle", "null")
    )
    assert null == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert oracle == [1, 3, 6, 9, 13, 15, 18, 21, 25, 27]


def test_a_limit_spreads_over_the_suite() -> None:
    tasks = tuple(Task(id=f"t{i}", prompts=()) for i in range(10))
    chosen = select_tasks(replace(BANK.suite, tasks=tasks), Plan(agent="null", limit=3))
    assert [task.id for task in chosen] == ["t0", "t3", "t6"]


def test_seeds_depend_on_the_plan_alone() -> None:
    plan = Plan(agent="random", seed=3, trials=2)
    seeds = [job.seed for job in make_jobs(plan, BANK.suite.tasks)]
    assert seeds == [job.seed for job in make_jobs(plan, BANK.suite.tasks)]
    assert len(set(seeds)) == 6


def test_the_random_agent_repeats_itself_for_a_seed(tmp_path: Path) -> None:
    plan = Plan(agent="random", trials=3)
    first, second = run(BANK, plan, tmp_path / "a"), run(BANK, plan, tmp_path / "b")
    actions = [{(t.task, t.trial): [s.action for s in t.steps] for t in ended} for ended in (first, second)]
    assert actions[0] == actions[1]
    assert sum(t.usage.tool_calls for t in first) > 0


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(agent="wizard"), "no agent 'wizard'; have oracle, null, mutated, random"),
        (Plan(agent="oracle", tasks="x*"), r"no task matches 'x\*'; the ids look like pay_back_5"),
    ],
)
def test_unknown_agents_and_tasks_are_named(plan: Plan, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        select_tasks(BANK.suite, plan)
