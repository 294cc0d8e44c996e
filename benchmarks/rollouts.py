"""Turns a second that a policy gets to play: 256 episodes of 10 turns at once, with a policy that thinks for 50 ms.

The policy is a process on loopback with a chat endpoint (`stub_policy.py`); it counts the turns and takes the time from
its first request to its last answer, for every framework alike. In gymcp each episode has a native server of its own,
forked in its sandbox as those of all environments that come with gymcp, whose state is recorded after every turn; in
the peers it has a function (`rollout_peers.py`). What is made once for all episodes is made before, in gymcp (a first
episode) as in the peers (their imports).
Then come 2,000 episodes, 256 at a time, after which no process and no descriptor may be left, and one episode at a time
to break down the harness's CPU time. Exit code 1 if an episode was not scored 1.0, or something is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from child_processes import run_port_server
from counter import ENV, TURNS, Counter
from report_table import Result, against, options, show
from rollout_peers import PEERS, install, play

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.policies.openai.client import Endpoint, OpenAIPolicy, open_endpoint
from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs.episodes.episode import Episode
from gymcp.envs.spec import load_env
from gymcp.envs.worlds.toolbox import Toolbox
from gymcp.envs.worlds.world import World
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.process_owner import OWNER_VARIABLE, owner
from gymcp.protocols import Agent
from gymcp.store import TrajectoryStore
from gymcp.types import Action, Decision, GiveUp, Observation, Task, Trajectory

FORKED = replace(ENV, servers=(native_server("counter", Counter, start="fork"),))
LATENCY_S = 0.05
STUB = Path(__file__).with_name("stub_policy.py")
PEER_TIMEOUT_S = 1200.0
T = TypeVar("T")


class PolicyServer:
    """Address of a policy process and, once it has ended, its own count of requests and seconds."""

    url = ""
    requests = 0
    seconds = 0.0

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class Gate:
    """A gate that opens when all episodes have a server: then the steady state begins."""

    def __init__(self, episodes: int) -> None:
        self._missing = episodes
        self._open = asyncio.Event()
        self.cpu_s = 0.0
        """CPU seconds of this process when the gate opened."""

    async def wait(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.cpu_s = time.process_time()
            self._open.set()
        await self._open.wait()


class Gated:
    """An agent that does not ask its model before the gate is open."""

    def __init__(self, inner: Agent, gate: Gate) -> None:
        self._inner = inner
        self._gate: Gate | None = gate

    async def act(self, observation: Observation) -> Action | Decision | GiveUp:
        if self._gate is not None:
            await self._gate.wait()
            self._gate = None
        return await self._inner.act(observation)


def main() -> None:
    parser = options(__doc__, "64 episodes at once, and 256 in the long run")
    parser.add_argument("--episodes", type=int, default=2000, help="in the long run")
    parser.add_argument("--without-peers", action="store_true")
    args = parser.parse_args()
    gc.collect()
    gc.freeze()  # as the verbs of the command line do when all is imported
    at_once, many = (64, 256) if args.quick else (256, args.episodes)
    with run_policy(LATENCY_S) as server:
        play_rollouts(server.url, 2, 2)  # makes what is made once
    results, wrong = _steady(at_once)
    servers_up, *_, whole = results
    own = {"": servers_up, ", starts and ends included": whole}
    for peer in () if args.without_peers else PEERS:
        python = install(peer)
        with run_policy(LATENCY_S) as server:
            play(peer, python, server.url, at_once, PEER_TIMEOUT_S)
        theirs = Result(metric=f"{peer.name}, a function as tool, no server", value=server.rate, unit="turns/s")
        ratios = [against(f"gymcp against {peer.name}{what}", r.value, "turns/s", theirs) for what, r in own.items()]
        results += [theirs, *ratios]
    long_results, left = _long(many, at_once)
    results += [*long_results, *_breakdown(10 if args.quick else 40)]
    wrong += left
    for line in wrong:
        print(line, file=sys.stderr)
    show("rollouts", results, as_json=args.json)
    sys.exit(bool(wrong))


@contextlib.contextmanager
def run_policy(latency_s: float) -> Iterator[PolicyServer]:
    """A policy process; its counts are known after the context."""
    server = PolicyServer()
    with run_port_server(str(STUB), "--turns", str(TURNS), "--latency", str(latency_s)) as (process, address):
        server.url = f"{address}/v1"
        yield server
        counts = json.loads(process.communicate(timeout=30)[0])
        server.requests, server.seconds = counts["requests"], counts["seconds"]


def play_rollouts(url: str, episodes: int, concurrency: int, gate: Gate | None = None) -> list[Trajectory]:
    """Play episodes through scheduler and store, as `gymcp eval` does it."""
    ended: list[Trajectory] = []
    env = load_env(FORKED)

    async def run(store: TrajectoryStore) -> None:
        def store_rollout(done: Rollout, last: bool) -> None:
            store.append(done.trajectory, done.states)
            ended.append(done.trajectory)

        endpoint = Endpoint(url=url, model="stub", concurrency=concurrency)
        async with open_endpoint(endpoint) as client:
            agents = react(ChatModel(name="stub", policy=client), ReactSettings())

            def make(task: Task, seed: int) -> Agent:
                return Gated(agents(task, seed), gate) if gate else agents(task, seed)

            jobs = make_jobs(Plan(agent="react", trials=episodes), env.suite.tasks)
            await run_jobs(env, get_sandbox("bwrap"), make, jobs, Schedule(concurrency=concurrency), store_rollout)

    with tempfile.TemporaryDirectory() as folder, TrajectoryStore.open(Path(folder), write=True) as store:
        asyncio.run(run(store))
    return ended


def _steady(episodes: int) -> tuple[list[Result], list[str]]:
    gate = Gate(episodes)
    with run_policy(LATENCY_S) as server:
        started = time.perf_counter()
        ended = play_rollouts(server.url, episodes, episodes, gate)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - gate.cpu_s
    return [
        Result(metric=f"gymcp, {episodes} episodes at once, servers up", value=server.rate, unit="turns/s"),
        Result(metric="harness CPU, ends of episodes included", value=1e3 * cpu_s / server.requests, unit="ms/turn"),
        Result(metric="start of all servers", value=max(t.usage.reset_s for t in ended), unit="s"),
        Result(metric="all of it, starts and ends included", value=server.requests / wall_s, unit="turns/s"),
    ], _find_wrong(ended, episodes)


def _long(episodes: int, concurrency: int) -> tuple[list[Result], list[str]]:
    with run_policy(LATENCY_S) as server:
        before = _count_resources()
        started = time.perf_counter()
        ended = play_rollouts(server.url, episodes, concurrency)
        seconds = time.perf_counter() - started
        after = _count_resources()
    grown = {name: after[name] - before[name] for name in before}
    wrong = [f"{number} {name} are left" for name, number in grown.items() if number > 0]
    line = f"{episodes} episodes at {concurrency}"
    return [
        Result(metric=f"{line}, servers started as they come", value=episodes * TURNS / seconds, unit="turns/s"),
        *(Result(metric=f"{line}: left", value=max(0, number), unit=name) for name, number in grown.items()),
    ], wrong + _find_wrong(ended, episodes)


def _find_wrong(ended: list[Trajectory], episodes: int) -> list[str]:
    """A description of every episode that is not as it must be."""
    bad = [t for t in ended if t.score != 1.0 or len(t.steps) != TURNS]
    wrong = [f"{t.outcome} with {t.score} after {len(t.steps)} turns: {t.reason}" for t in bad[:5]]
    return wrong if len(ended) - len(bad) == episodes else [*wrong, f"{len(ended) - len(bad)} of {episodes} are right"]


def _count_resources() -> dict[str, int]:
    return {
        "processes": len(find_by_environment(OWNER_VARIABLE, owner())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


class Clock:
    """CPU time of this process by part; with one episode at a time, no part has another's time in it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the CPU time of the context to the part."""
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began

    def wrap(self, name: str, method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        """The method, with its CPU time added to the part."""

        @functools.wraps(method)
        async def run(*args: Any, **kwargs: Any) -> T:
            with self.part(name):
                return await method(*args, **kwargs)

        return run


CLOCKED: tuple[tuple[str, type, Callable[..., Coroutine[Any, Any, Any]]], ...] = (
    ("policy client", OpenAIPolicy, OpenAIPolicy._request),
    ("chat", OpenAIPolicy, OpenAIPolicy.chat),
    ("tool call", Toolbox, Toolbox.dispatch),
    ("digest and state", World, World.update),
    ("last check of the state", World, World.verify_state),
    ("step", Episode, Episode.step),
)


def _breakdown(episodes: int) -> list[Result]:
    """CPU time of a turn, by part, with one episode at a time and a policy that answers at once."""
    clock = Clock()
    with contextlib.ExitStack() as stack:
        for name, owner_class, method in CLOCKED:
            setattr(owner_class, method.__name__, clock.wrap(name, method))
            stack.callback(setattr, owner_class, method.__name__, method)
        append = TrajectoryStore.append

        def append_with_clock(store: TrajectoryStore, *args: Any, **kwargs: Any) -> int:
            with clock.part("store"):
                return append(store, *args, **kwargs)

        stack.callback(setattr, TrajectoryStore, "append", append)
        setattr(TrajectoryStore, "append", append_with_clock)  # noqa: B010
        with run_policy(0.0) as server:
            began = time.process_time()
            play_rollouts(server.url, episodes, 1)
            whole = time.process_time() - began
    cpu_s = clock.seconds
    state = cpu_s["digest and state"] + cpu_s["last check of the state"]
    parts = {
        "policy client": cpu_s["policy client"],
        "request written, answer parsed": cpu_s["chat"] - cpu_s["policy client"],
        "tool call": cpu_s["tool call"],
        "digest and state": state,
        "rest of a step, grading": cpu_s["step"] - cpu_s["tool call"] - state,
        "record stored": cpu_s["store"],
    }
    parts["start and end of the episode"] = whole - sum(parts.values())
    turns = episodes * TURNS
    return [Result(metric=f"CPU: {name}", value=1e3 * part / turns, unit="ms/turn") for name, part in parts.items()]


if __name__ == "__main__":
    main()
