"""An agent cannot take its episode out of the mean: the last state that could be read is graded.

Each play is a task of its own beside two that mean well, and all of them are one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from brittle import HELD, RAISED
from desk import act, desk_server, desk_task
from length import IS_FULL

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import Replay
from gymcp.envs.episodes.episode import open_episode, open_snapshot
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_state_equals, final_values_include
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import PROGRAM, native_server
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox, get_sandbox
from gymcp.mcp_servers.spec import DigestLimits, FileReader, FileState, ServerSpec, StateSource
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace
from gymcp.outcome import Outcome
from gymcp.protocols import Grader, StateReader
from gymcp.store import TrajectoryStore
from gymcp.types import Action, EpisodeLimits, GiveUp, Json, Observation, Score, Suite, Task, ToolCall, Trajectory

pytestmark = pytest.mark.usefixtures("own_home")

Plays = Mapping[str, Sequence[Action]]
SPENT = (Outcome.BUDGET_EXHAUSTED, 0.0)
SCORED = (Outcome.SCORED, 0.0)
LOST = (Outcome.ENV_INFRA, None)
by_start = pytest.mark.parametrize(
    ("start", "every"), [("fork", 1), ("exec", 1 if IS_FULL else 3)], ids=["fork", "exec"]
)
"""Forked servers play everything; started ones, whose answers are judged by the same code, every third in a sample."""
by_every_start = pytest.mark.parametrize(
    ("start", "every"),
    [("fork", 1), ("exec", 3), ("pool", 9), ("copy", 9), ("docker", 9)],
    ids=("fork", "exec", "pool", "copy", "docker"),
)
"""All ways in which a server of a declared state comes to life; one with files has neither pool nor copied processes.
Answers are judged by the same code, so only a full run plays everything on each."""


def never(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    return Score(value=0.0)


def env_of(server: ServerSpec, tasks: Sequence[Task], grade: Grader | None = None) -> LoadedEnv:
    suite = Suite(name="mean", version="1", tasks=tuple(tasks))
    usual = never if server.state in ("opaque", "stateless") else final_state_equals()
    return load_env(EnvSpec(name=server.name, servers=(server,), suite=suite, grade=grade or usual))


def play_all(
    server: ServerSpec,
    plays: Plays,
    initial_state: Json,
    *,
    start: str,
    target: Json = None,
    grade: Grader | None = None,
    **limits: float,
) -> dict[str, Rollout]:
    """Rollouts by task: in a run, whose sandbox is warm, or each on a plain sandbox, or on a copy of a live server."""
    whole = EpisodeLimits(**limits)  # type: ignore[arg-type]
    tasks = [desk_task(initial_state, id=name, limits=whole, target=target or {"never": "so"}) for name in plays]
    env, ended = env_of(server, tasks, grade), dict[str, Rollout]()

    def agent(task: Task, seed: int) -> Replay:
        return Replay(iter(plays[task.id]))

    jobs = [Job(task=task, trial=0, seed=1) for task in tasks]
    if start in ("fork", "pool"):
        once = Schedule(concurrency=2, max_attempts=1, min_free_mb=0)

        def keep(done: Rollout, last: bool) -> None:
            ended[done.job.task.id] = done

        asyncio.run(run_jobs(env, get_sandbox("bwrap"), agent, jobs, once, keep))
    else:
        two = asyncio.Semaphore(2)

        async def play(job: Job, sandbox: Sandbox) -> None:
            async with two:
                if start == "copy":
                    ended[job.task.id] = await play_copy(env, sandbox, job, plays[job.task.id])
                else:
                    ended[job.task.id] = await rollout(env, sandbox, agent, job, timeout_s=120)

        async def play_jobs() -> None:
            inner = get_sandbox("docker" if start == "docker" else "bwrap")
            async with open_warm_sandbox(inner) if start == "copy" else contextlib.nullcontext(inner) as sandbox:
                await asyncio.gather(*(play(job, sandbox) for job in jobs))

        asyncio.run(play_jobs())
    return ended


async def play_copy(env: LoadedEnv, sandbox: Sandbox, job: Job, actions: Sequence[Action]) -> Rollout:
    """The actions in an episode whose server is a copy of one that lives on."""
    async with open_episode(env, sandbox, job.task, seed=job.seed) as origin:
        snapshot = await origin.snapshot(opens=1)
        async with open_snapshot(snapshot) as episode:
            (session,) = episode.world.sessions
            assert isinstance(session.process, ForkedProcess)
            for action in (*actions, *(Action(text="done") for _ in job.task.prompts)):
                done = await episode.step(action)
                if done.terminated or done.truncated:
                    break
            assert episode.trajectory is not None
            return Rollout(job=job, trajectory=episode.trajectory, states=episode.states)


def verdicts(ended: Mapping[str, Rollout]) -> dict[str, tuple[Outcome, float | None]]:
    return {name: (done.trajectory.outcome, done.trajectory.score) for name, done in ended.items()}


def brittle(start: str, **limits: int) -> ServerSpec:
    server = native_server("brittle", "brittle", start="fork" if start in ("fork", "copy") else "exec")
    return replace(
        server,
        limits=Limits(line_bytes=2_000_000, **limits),
        start_timeout_s=15.0 if start == "docker" else 5.0,
        warm_pool_size=1 if start == "pool" else 0,
    )


# ------------------------------------------------------------------------------------------------------ declared states


@by_every_start
def test_no_value_of_a_declared_state_takes_an_episode_out_of_the_mean(
    request: pytest.FixtureRequest, start: str, every: int
) -> None:
    if start == "docker":
        request.getfixturevalue("engine")
    first = act("deposit", amount=1.0)
    plays: dict[str, Sequence[Action]] = {
        "wrong": [first],
        "nothing": [],
        "until infinity": [act("deposit", amount=1e308), act("deposit", amount=1e308)],
        "until 4400 digits": [act("deposit", amount=1), *[act("scale", factor=10**2200)] * 2],
        **{what: [first, act("hold", what=what)] for what in (*HELD, *RAISED)[:: 1 if IS_FULL else every]},
    }
    ended = play_all(brittle(start), plays, {"balance": 0}, start=start, call_timeout_s=3)
    good = ("wrong", "nothing")
    assert verdicts(ended) == {name: SCORED if name in good else SPENT for name in plays}
    for name in plays.keys() - set(good):
        done = ended[name]
        before, last = done.trajectory.steps[-2:]
        assert done.trajectory.final_key == last.world_key == before.world_key, name
        assert done.states[done.trajectory.final_state or ""]["balance"] != 0, name
        assert "out of budget (server 'brittle'" in done.trajectory.reason, name


@by_start
def test_no_answer_of_a_tool_takes_an_episode_out_of_the_mean(start: str, every: int) -> None:
    """Any answer is an observation, whether it can be sent or not; the control sends a short one."""
    said = {*list(HELD)[::every], "long text"}
    plays: dict[str, Sequence[Action]] = {what: [act("say", what=what), act("deposit", amount=1.0)] for what in said}
    ended = play_all(brittle(start), {**plays, "pair": [act("pair")]}, {"balance": 0}, start=start)
    assert verdicts(ended) == {**dict.fromkeys(plays, SCORED), "pair": SCORED}
    for what in plays:
        assert ended[what].trajectory.steps[1].results[0].content == "the balance is 1.0"
    (long,) = ended["long text"].trajectory.steps[0].results
    assert re.fullmatch(r"The result has 60003\d\d bytes as a message, where at most 2000000 are read", long.content)
    pair = ended["pair"]
    assert pair.states[pair.trajectory.final_state or ""]["held"] == "\U0001f600"


def test_an_unreadable_state_after_the_reset_is_env_infra() -> None:
    done = play_all(brittle("exec"), {"x": []}, {"hold": "circle"}, start="exec")["x"]
    assert (done.trajectory.outcome, done.trajectory.score) == LOST


def test_a_server_that_ends_in_a_single_attempt_is_env_infra() -> None:
    """If it ends in every one of several attempts, the last is graded: `test_server_losses.py`."""
    assert verdicts(play_all(brittle("exec"), {"x": [act("crash")]}, {}, start="exec")) == {"x": LOST}


class _GivesUp:
    def __init__(self, *actions: Action) -> None:
        self._actions = iter(actions)
        self._calls = 0

    async def act(self, observation: Observation) -> Action | GiveUp:
        action = next(self._actions, None)
        if action is None:
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason="no more tokens")
        self._calls += 1
        return Action(tool_calls=tuple(replace(call, id=f"{call.id}-{self._calls}") for call in action.tool_calls))


def test_an_agent_that_gives_up_with_an_indigestible_world_is_graded() -> None:
    server = desk_server(FileState(limits=DigestLimits(entries=50)))
    env = env_of(server, [desk_task({"files": {"a": "1"}}, id="x")])
    later = "(while [ ! -e a ]; do sleep 0.01; done; for i in $(seq 60); do : > $i; done) > /dev/null 2>&1 &"
    begin = act("run", command=f"rm a; {later}")
    job = Job(task=env.suite.tasks[0], trial=0, seed=1)

    def agent(task: Task, seed: int) -> _GivesUp:
        return _GivesUp(begin, act("run", command="touch a; sleep 0.2"))

    done = asyncio.run(rollout(env, get_sandbox("bwrap"), agent, job, timeout_s=60))
    assert (done.trajectory.outcome, done.trajectory.score) == SPENT


# ------------------------------------------------------------------------------------------------------ worlds of files

RESTLESS = (
    "/usr/bin/python3 -c \"import os, time\nf = os.open('big', os.O_RDWR)\nend = time.monotonic() + 60\n"
    'while time.monotonic() < end: os.pwrite(f, os.urandom(8), 0)" > /dev/null 2>&1 &'
)
PATHS = (
    "/usr/bin/python3 -c \"import os\nfor n in range(55): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
    "for n in range(1300): os.mknod('f' * 240 + str(n))\""
)
FILES: dict[str, tuple[str, str]] = {
    "entries": ("for i in $(seq 2100); do : > $i; done", "too large: more than 2000 entries"),
    "depth": ("mkdir -p $(printf 'd/%.0s' $(seq 70))", "too large: folders are nested more than 64 deep"),
    "bytes": ("head -c 11000000 /dev/zero > big", "too large: more than 9000000 bytes"),
    "sparse": ("for i in 1 2 3; do truncate -s 4000000 $i; done", "too large: more than 9000000 bytes"),
    "paths": (PATHS, "too large: more than 16000000 bytes of paths"),
    "attributes": (
        "/usr/bin/python3 -c \"import os\nfor n in range(1950):\n open(str(n), 'w').close()\n"
        " for m in range(2): os.setxattr(str(n), 'user.%d' % m, b'x' * 1850)\"",
        "too large: more than 9000000 bytes",
    ),
    "restless": ("truncate -s 8500000 big; " + RESTLESS, "it does not stand still"),
    "gone": ("cd ..; rm -r world", "'world': No such file or directory"),
    "link": ("cd ..; mv world other; ln -s other world", "'world': "),
}


def as_script(server: ServerSpec, folder: Path) -> ServerSpec:
    """The same server as a script of others, because of those with a workspace only scripts are forked."""
    folder.mkdir(mode=0o755)
    (folder / "server.py").write_text("from server_main import main\nmain()\n")
    target = PurePosixPath("/srv/desk")
    argv = ("python3", "-s", "-B", str(target / "server.py"))
    return replace(
        server,
        argv=argv,
        env={**server.env, "PYTHONPATH": str(PROGRAM)},
        mounts=(*server.mounts, Mount(source=folder, target=target)),
        fork=forkable_script(argv),
    )


@pytest.mark.parametrize(("start", "every"), [("fork", 1), ("exec", 3), ("docker", 5)], ids=["fork", "exec", "docker"])
def test_no_limit_of_a_digest_takes_an_episode_out_of_the_mean(
    request: pytest.FixtureRequest, tmp_path: Path, start: str, every: int
) -> None:
    if start == "docker":
        request.getfixturevalue("engine")
    files = {name: FILES[name] for name in list(FILES)[:: 1 if IS_FULL else every]}
    server = desk_server(
        FileState(path="world", limits=DigestLimits(total_bytes=9_000_000, entries=2000)), limits=Limits(disk_mb=100)
    )
    if start == "fork":
        server = as_script(server, tmp_path / "server")
    plays: dict[str, Sequence[Action]] = {
        "wrong": [act("write", path="world/a", text="2")],
        "nothing": [],
        "look": [act("run", command="ls -d /proc/sys")],  # a forked server sees nothing but processes there
        **{
            name: [act("write", path="world/a", text="2"), act("run", command=f"cd world; {command}")]
            for name, (command, _) in files.items()
        },
    }
    ended = play_all(server, plays, {"files": {"world/a": "1"}}, start=start)
    assert verdicts(ended) == {name: SPENT if name in files else SCORED for name in plays}
    is_forked = start == "fork" and overlay_namespace() is not None
    assert ended["look"].trajectory.steps[0].results[0].content == ("" if is_forked else "/proc/sys\n")
    for name, (_, said) in files.items():
        done = ended[name]
        assert done.states[done.trajectory.final_state or ""]["files"]["a"]["text"] == "2"
        reasons = [f"its state has no digest: {said}"]
        if name == "paths":  # the watch of the disk may see them first
            reasons.append("tool 'run': disk: the workspace has a path that is too long")
        assert any(f"out of budget (server 'desk': {each}" in done.trajectory.reason for each in reasons), name


def make_database(text: str) -> list[str]:
    """Command that makes a database with one row."""
    made = "import sqlite3, sys; d = sqlite3.connect('data.db'); d.execute('create table if not exists t (x)')"
    return ["/usr/bin/python3", "-c", f"{made}; d.execute('insert into t values (?)', ({text},)); d.commit()"]


OTHER_KINDS: dict[str, tuple[FileState, list[list[str]], str, str]] = {
    "file of a repository": (
        FileState(kind="git", path="world"),
        [["git", "init", "--quiet", "world"]],
        "truncate -s 40000000 world/.git/packed-refs",
        "too large: 'packed-refs' of the repository has 40000000 bytes",
    ),
    "file of a database": (
        FileState(kind="sqlite", path="data.db", limits=DigestLimits(total_bytes=400_000)),
        [make_database("'a'")],
        "truncate -s 200000 data.db",
        "too large: 'data.db' has 200000 bytes",
    ),
    "rows of a database": (
        FileState(kind="sqlite", path="data.db", limits=DigestLimits(total_bytes=400_000)),
        [make_database("'a'")],
        shlex.join(make_database("chr(1) * 80_000")),
        "too large: more than 400000 bytes of rows",
    ),
}
"""State, commands that make the first world, the agent's command, and what is said then."""


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_no_limit_of_a_repository_or_a_database_takes_an_episode_out_of_the_mean(name: str) -> None:
    state, commands, command, said = OTHER_KINDS[name]
    (done,) = play_all(
        desk_server(state), {"x": [act("run", command=command)]}, {"files": {}, "commands": commands}, start="exec"
    ).values()
    assert (done.trajectory.outcome, done.trajectory.score) == SPENT, done.trajectory.reason
    assert said in done.trajectory.reason


def test_no_limit_of_what_is_recorded_takes_an_episode_out_of_the_mean() -> None:
    """The file that is graded is too large to be recorded, or smaller ones leave it no room."""
    reader = FileReader(files="*.csv", kind="csv")
    state = FileState(path="world", readers=(reader,), recorded_file_bytes=1000, recorded_bytes=3000)
    right = act("write", path="world/a.csv", text="tea,2\n")
    plays = {
        "right": [right],
        "padded": [act("run", command="yes tea,2 | head -n 2000 > world/a.csv")],
        "crowded": [right, act("run", command="for i in $(seq 600); do echo a > world/$i.csv; done")],
    }
    ended = play_all(
        desk_server(state),
        plays,
        {"files": {"world/a.csv": "tea,1\n"}},
        start="exec",
        target={"a.csv": [["tea", "2"]]},
        grade=final_values_include(),
    )
    assert verdicts(ended) == {"right": (Outcome.SCORED, 1.0), "padded": SCORED, "crowded": SCORED}
    for name in ("padded", "crowded"):
        assert "at the end a.csv was not recorded: " in ended[name].trajectory.reason


def test_a_world_that_takes_too_long_to_read_is_graded_as_it_was() -> None:
    limits = DigestLimits(total_bytes=40_000_000_000, seconds=2.0)
    server = desk_server(FileState(limits=limits), limits=Limits(disk_mb=25_000))
    plays = {"x": [act("run", command="truncate -s 20000000000 big")]}
    (done,) = play_all(server, plays, {"files": {"a": "1"}}, start="exec").values()
    assert (done.trajectory.outcome, done.trajectory.score) == SPENT
    assert "too large: reading it takes more than 2 s" in done.trajectory.reason


def test_time_for_reading_the_world_counts_towards_the_tools_budget() -> None:
    """Otherwise an agent could make each step take seconds, until the whole episode has taken too long."""
    server = desk_server(limits=Limits(disk_mb=500))
    plays = {"x": [act("run", command=f"truncate -s {n} big") for n in range(150_000_000, 150_000_090)]}
    (done,) = play_all(server, plays, {"files": {"a": "1"}}, start="exec", tool_s=1.0).values()
    assert (done.trajectory.outcome, done.trajectory.score) == SPENT
    assert "1 s of the tools' time" in done.trajectory.reason


@pytest.mark.parametrize("state", ["opaque", "stateless", FileState()])
def test_a_call_that_takes_a_server_over_a_limit_of_its_sandbox_is_graded(state: StateSource) -> None:
    server = desk_server(state, limits=Limits(cpu_s=0.5))
    plays = {"x": [act("run", command="while :; do :; done")]}
    (done,) = play_all(server, plays, {"files": {}} if state == FileState() else None, start="exec").values()
    assert (done.trajectory.outcome, done.trajectory.score) == SPENT, done.trajectory.reason
    assert "cpu: the process tree used more than 0.5 s of CPU time" in done.trajectory.reason


# ------------------------------------------------------------------------------------------- what the agent itself says


def circle() -> dict[str, Json]:
    value: dict[str, Json] = {}
    value["a"] = value
    return value


def deep(levels: int) -> dict[str, Json]:
    value: dict[str, Json] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


SAID: dict[str, ToolCall] = {
    "half a character in the name": ToolCall(id="1", name="\ud800"),
    "nul in the name": ToolCall(id="1", name="a\0b"),
    "half a character in the id": ToolCall(id="\ud800", name="deposit", arguments={"amount": 1}),
    "half a character": ToolCall(id="1", name="deposit", arguments={"amount": "\ud800"}),
    "half a character in text": ToolCall(id="1", name="deposit", arguments="\ud800"),
    "half a character in a problem": ToolCall(id="1", name="deposit", parse_error="\ud800"),
    "nul": ToolCall(id="1", name="hold", arguments={"what": "a\0b"}),
    "endless integer": ToolCall(id="1", name="deposit", arguments={"amount": 10**4400}),
    "integer of 4200 digits": ToolCall(id="1", name="deposit", arguments={"amount": 10**4200}),
    "deep": ToolCall(id="1", name="deposit", arguments=deep(5000)),
    "deeper than what is taken": ToolCall(id="1", name="deposit", arguments=deep(70)),
    "circle": ToolCall(id="1", name="deposit", arguments=circle()),
    "bytes": ToolCall(id="1", name="deposit", arguments={"amount": b"1"}),
    "object": ToolCall(id="1", name="deposit", arguments={"amount": object()}),
    "not a number": ToolCall(id="1", name="deposit", arguments={"amount": float("nan")}),
}


def test_any_text_of_an_agent_is_answered_graded_and_recorded(tmp_path: Path) -> None:
    texts = {"text": "\ud800\0\x1b[31m", "long text": "x" * 5_000_000}
    plays: dict[str, Sequence[Action]] = {name: [Action(tool_calls=(call,))] for name, call in SAID.items()}
    plays |= {name: [Action(text=text)] for name, text in texts.items()}
    ended = play_all(brittle("exec"), plays, {"balance": 0}, start="fork")
    assert verdicts(ended) == dict.fromkeys(plays, SCORED)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        for done in ended.values():
            store.append(done.trajectory, done.states)
        for name in SAID.keys() - {"half a character in the id"}:
            (result,) = store.load(ended[name].trajectory.id).steps[0].results
            assert result.is_error, name
