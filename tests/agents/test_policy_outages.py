"""Outages: a policy server that fails in many ways, a killed gymcp, and hundreds of episodes without leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kill_resume
import pytest
import warm_command
from chat_server import Reply, chat_server, says
from free_ports import find_free_port

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.policies.openai.client import Endpoint, Retries, open_endpoint
from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.outcome import Outcome
from gymcp.process_owner import OWNER_VARIABLE, owner
from gymcp.store import TrajectoryStore

ROOT = Path(__file__).parents[2]
BANK = load_env(load_spec(str(ROOT / "examples" / "bank.py")))
COUNTER_FILE = str(ROOT / "benchmarks" / "counter.py")
COUNTER = load_env(load_spec(COUNTER_FILE))
STUB = str(ROOT / "benchmarks" / "stub_policy.py")
WAIT_S = 600.0
"""Timeout in seconds, far longer than any test here takes, so that a test that hangs fails."""
FAILING, PAYING, SILENT = "pay_back_5", "pay_back_30", "pay_back_100"

Note = Callable[[Rollout], None]


def play(
    env: LoadedEnv,
    url: str,
    folder: Path,
    schedule: Schedule,
    trials: int = 1,
    also: Note = lambda done: None,
    timeout_s: float | None = None,
) -> TrajectoryStore:
    """The open store in which the run was recorded."""
    store = TrajectoryStore.open(folder, write=True)

    def keep(done: Rollout, last: bool) -> None:
        store.append(done.trajectory, done.states)
        also(done)

    async def run() -> None:
        retries = Retries(attempts=2, first_pause_s=0.01)
        to = Endpoint(url=url, model="m", retries=retries, timeout_s=timeout_s)
        async with asyncio.timeout(WAIT_S), open_endpoint(to) as policy:
            agents = react(ChatModel(name="m", policy=policy), ReactSettings())
            jobs = make_jobs(Plan(agent="react", trials=trials), env.suite.tasks)
            await run_jobs(env, get_sandbox("bwrap"), agents, jobs, schedule, keep)

    asyncio.run(run())
    return store


def pay(debt: str) -> Reply:
    return says("", ("transfer", json.dumps({"source": "ann", "target": "bob", "amount": int(debt)})))


HALF = says("done").body[:40]
FAULTS = {
    "500": Reply(status=500, body=b"out of order"),
    "429": Reply(status=429, body=b"busy"),
    "garbage": Reply(body=b"\x00\xff<html>"),
    "another object": Reply(body=b'{"choices": []}'),
    "half an answer": Reply(body=HALF, promised=4 * len(HALF)),
    "nothing": Reply(silent=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_policy_server_affects_only_its_own_episode(fault: str, tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        said = body["messages"][0]["content"]
        if "the 5 euros" in said:
            return FAULTS[fault]
        if "the 100 euros" in said:
            return says("")
        return says("done") if body["messages"][-1]["role"] == "tool" else pay("30")

    with chat_server(answer) as server, play(BANK, server.url, tmp_path, Schedule(max_attempts=2)) as store:
        assert store.attempts() == {
            (FAILING, 0): [Outcome.POLICY_INFRA] * 2,
            (PAYING, 0): [Outcome.SCORED],
            (SILENT, 0): [Outcome.AGENT_ERROR],
        }
        assert {row.task: row.score for row in store.summaries()} == {FAILING: None, PAYING: 1.0, SILENT: 0.0}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_transient_failure_does_not_affect_scores(fault: str, tmp_path: Path) -> None:
    failures = threading.Semaphore(2)

    def answer(number: int, body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "tool" and failures.acquire(blocking=False):
            return FAULTS[fault]
        said = body["messages"][0]["content"]
        debt = said.split("Bob the ")[1].split()[0]
        return says("done") if body["messages"][-1]["role"] == "tool" else pay(debt)

    with chat_server(answer) as server, play(BANK, server.url, tmp_path, Schedule()) as store:
        assert not failures.acquire(blocking=False)
        assert [(row.outcome, row.score) for row in store.summaries()] == [(Outcome.SCORED, 1.0)] * 3
        replaced = [row for row in store.summaries(latest=False) if not row.latest]
        assert {(row.outcome, row.score) for row in replaced} <= {(Outcome.POLICY_INFRA, None)}


@pytest.mark.parametrize(
    ("agent_s", "timeout_s", "reason"),
    [(4.0, None, "4 s of the agent's time"), (60.0, 2.0, "no answer within 2 s")],
    ids=["agent", "request"],
)
def test_an_answer_that_comes_too_late_ends_its_episode_with_a_score(
    agent_s: float, timeout_s: float | None, reason: str, tmp_path: Path
) -> None:
    """The first call is answered at once, and its world is graded; the answer after it does not come in time."""
    is_over = threading.Event()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            is_over.wait(WAIT_S)
        return pay(body["messages"][0]["content"].split("Bob the ")[1].split()[0])

    with chat_server(answer) as server:
        try:
            with play(BANK, server.url, tmp_path, Schedule(agent_s=agent_s), timeout_s=timeout_s) as store:
                rows = store.summaries()
                assert [store.attempts()[row.task, 0] for row in rows] == [[Outcome.BUDGET_EXHAUSTED]] * 3
                assert [row.score is None for row in rows] == [False] * 3
                reasons = [store.load(row.id).reason for row in rows]
        finally:
            is_over.set()
        assert len(server.requests) <= 6
    assert all(reason in found for found in reasons)


class Stub:
    """The benchmarks' policy server in a process of its own."""

    def __init__(self, port: int = 0, latency_s: float = 0.01) -> None:
        command = [sys.executable, STUB, "--port", str(port), "--latency", str(latency_s)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@contextlib.contextmanager
def stub_server(latency_s: float = 0.01) -> Iterator[Stub]:
    stub = Stub(latency_s=latency_s)
    try:
        yield stub
    finally:
        stub.kill()


def test_nothing_is_lost_if_a_policy_server_is_killed_and_restarted(tmp_path: Path) -> None:
    first = Stub(port=find_free_port())
    second: list[Stub] = []

    def watch(done: Rollout) -> None:
        if first.process.poll() is None:
            first.kill()
        elif not second and done.trajectory.outcome is Outcome.POLICY_INFRA:
            second.append(Stub(port=first.port))

    try:
        schedule = Schedule(concurrency=10, max_attempts=5)
        with play(COUNTER, first.url, tmp_path, schedule, trials=30, also=watch) as store:
            rows = store.summaries(latest=False)
    finally:
        for stub in (first, *second):
            stub.kill()
    counted = [row for row in rows if row.latest]
    assert Counter((row.outcome, row.score) for row in counted) == {(Outcome.SCORED, 1.0): 30}
    assert len({row.trial for row in counted}) == 30
    lost = [row for row in rows if not row.latest]
    assert {(row.outcome, row.score) for row in lost} == {(Outcome.POLICY_INFRA, None)}


def test_a_run_resumed_after_a_kill_has_every_trial_once(tmp_path: Path) -> None:
    """After 120 answers, 10 for each episode, the server answers no more until gymcp has been killed."""
    folder = tmp_path / "run"
    is_killed = threading.Event()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        if number >= 120:
            is_killed.wait(WAIT_S)
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        return says("", ("add", json.dumps({"number": spoken}))) if spoken < 9 else says("All is counted.")

    with chat_server(answer) as server:
        command = ["eval", COUNTER_FILE, "--agent", "react", "--policy", f"openai:{server.url}#m"]
        command += ["--trials", "24", "--concurrency", "4", "--out", str(folder), "--resume", "--json"]
        with tempfile.TemporaryFile() as out:
            killed = warm_command.start(command, out.fileno(), out.fileno(), cwd=None, env=os.environ)
        deadline = time.monotonic() + WAIT_S
        try:
            while kill_resume.count_recorded(folder) < 8:
                assert not killed.ends_within(0.02)
                assert time.monotonic() < deadline
        finally:
            os.kill(killed.pid, signal.SIGKILL)
        assert killed.wait(60) == -signal.SIGKILL
        is_killed.set()
        before = kill_resume.count_recorded(folder)
        done = warm_command.run(command, cwd=None, env=os.environ, timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert 8 <= before < 24
    with TrajectoryStore.open(folder) as store:
        rows = store.summaries(latest=False)
    assert Counter((row.task, row.trial) for row in rows) == {("count", trial): 1 for trial in range(24)}
    assert {(row.outcome, row.score) for row in rows} == {(Outcome.SCORED, 1.0)}
    used = json.loads(done.stdout)["utilisation"]
    assert 0 < used["policy_share"] < 1
    assert used["policy_requests"] > 0


def test_two_hundred_concurrent_episodes_leave_no_process_and_no_descriptor(tmp_path: Path) -> None:
    def standing() -> tuple[int, int]:
        return len(find_by_environment(OWNER_VARIABLE, owner())), len(list(Path("/proc/self/fd").iterdir()))

    with stub_server() as stub:
        (tmp_path / "first").mkdir()
        play(COUNTER, stub.url, tmp_path / "first", Schedule()).close()  # some things are made once and kept
        before = standing()
        with play(COUNTER, stub.url, tmp_path, Schedule(concurrency=256), trials=200) as store:
            scores = Counter((row.outcome, row.score) for row in store.summaries())
        # fewer: what other tests have left in the process, such as a grader that is not asked, ends after a minute
        assert all(now <= then for now, then in zip(standing(), before, strict=True)), (standing(), before)
    assert scores == {(Outcome.SCORED, 1.0): 200}
