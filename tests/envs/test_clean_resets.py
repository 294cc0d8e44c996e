"""Clean resets of every environment in the catalog: in turn, side by side and after a crash; and unclean servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import ask, desk_env, desk_server, desk_task, in_episode

from gymcp.agents.strategies.scripted import oracle
from gymcp.envs import LoadedEnv, load_env, load_spec
from gymcp.envs.catalog import names
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.errors import EnvInfraError
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.mcp_servers.spec import FileState
from gymcp.paths import gymcp_home
from gymcp.types import Action, GiveUp, Task, ToolCall

BANK = str(Path(__file__).parents[2] / "examples" / "bank.py")
TOKEN = "GYMCP_TEST_CLEAN"
STATELESS = {"time", "sequential_thinking"}
"""Environments whose servers declare no state, so that there is nothing to compare."""


@pytest.fixture(scope="module", params=[*names(), BANK])
def env(request: pytest.FixtureRequest, node: None) -> LoadedEnv:
    if request.param == "scienceworld":
        request.getfixturevalue("java")
    return load_env(load_spec(request.param))


def baselines(env: LoadedEnv, task: Task) -> set[str]:
    """The task's baselines in the machine's cache, one for each version of the servers that it was played with.

    For a lazy environment, the names of the servers that have a baseline, whichever task started them first.
    """
    path = gymcp_home() / "baselines" / "baselines.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # another process may be writing the last one
    if env.spec.lazy:
        servers = {f"server {server.name}" for server in env.servers}
        return {row["env"] for row in rows if row["env"] in servers}
    task_id = (env.spec.name, env.spec.version, task.id)
    return {row["world_key"] for row in rows if (row["env"], row["version"], row["task"]) == task_id}


async def play(episode: Episode, task: Task) -> tuple[str, float | None]:
    """The digest of the final state, and the score."""
    agent = oracle(task, 0)
    ended = False
    while not ended:
        decision = await agent.act(episode.observation)
        assert not isinstance(decision, GiveUp)
        step = await episode.step(decision)
        ended = step.terminated or step.truncated
        await asyncio.sleep(0)  # another episode's turn
    return episode.world_key, episode.trajectory.score if episode.trajectory else None


def kill_server(episode: Episode) -> None:
    """Kills the innermost process: the server itself, not its sandbox."""
    pid = episode.world.sessions[0].process.pid
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert select.select([handle], [], [], 30)[0]
    os.close(handle)


def test_a_reset_gives_the_baseline_after_a_run_beside_others_and_after_a_crash(env: LoadedEnv) -> None:
    """As in a run, where servers are forked if they can be: one beside another that is killed, then one alone.

    Servers that were forked are started once, too.
    """
    task, seeds = env.suite.tasks[0], itertools.count(1)
    starts: list[str] = []

    @contextlib.asynccontextmanager
    async def open_fresh(sandbox: Sandbox) -> AsyncIterator[Episode]:
        async with open_episode(env, sandbox, task, seed=next(seeds)) as episode:
            starts.append(episode.world_key)
            yield episode

    async def play_fresh(sandbox: Sandbox) -> tuple[str, float | None]:
        async with open_fresh(sandbox) as episode:
            return await play(episode, task)

    async def crash(sandbox: Sandbox) -> None:
        async with open_fresh(sandbox) as episode:
            offered = [tool.name for tool in episode.observation.tools if tool.name != ASK_USER]  # a user answers that
            gold = [call for turn in task.gold for call in turn.calls if call.name in offered]
            action = Action(tool_calls=(*gold, ToolCall(id="any", name=offered[0], arguments={}))[:1])
            await episode.step(action)
            kill_server(episode)
            with pytest.raises(EnvInfraError, match="the server ended"):
                await episode.step(action)

    async def main() -> None:
        bwrap = get_sandbox("bwrap")
        # servers that cannot be forked would only fill a pool
        async with open_warm_sandbox(bwrap) if is_forked else contextlib.nullcontext(bwrap) as warm:
            beside, _ = await asyncio.gather(play_fresh(warm), crash(warm))
            ends = [beside, await play_fresh(warm)]
        if is_forked:
            ends.append(await play_fresh(bwrap))
        assert {score for _, score in ends} == {1.0}
        assert len(set(ends)) == 1

    is_forked = any(server.fork is not None for server in env.servers)
    asyncio.run(main())
    assert len(starts) == 3 + is_forked
    assert len(set(starts)) == 1
    if env.spec.lazy:
        assert {f"server {name}" for name in task.initial_state} <= baselines(env, task)
    elif env.spec.name not in STATELESS:
        assert starts[0] in baselines(env, task)


def test_a_child_that_a_server_leaves_behind_ends_with_the_episode(own_home: None) -> None:
    """The child goes on writing between calls; the next world has none of it."""
    token = f"{os.getpid()}"
    server = desk_server(FileState())
    env = desk_env(desk_task({"files": {"a": "1"}}), replace(server, env={**server.env, TOKEN: token}))
    starts, children = [], []

    async def leave(episode: Episode) -> None:
        starts.append(episode.world_key)
        # seldom enough for a digest to be taken between two times
        command = "setsid sh -c 'while sleep 0.3; do date +%N > left; done' >/dev/null 2>&1 </dev/null &"
        await ask(episode, "run", command=f"{command} until [ -e left ]; do sleep 0.01; done")
        children.append(len(find_by_environment(TOKEN, token)))

    for _ in range(2):
        asyncio.run(in_episode(env, leave))
        assert find_by_environment(TOKEN, token) == ()
    assert len(set(starts)) == 1
    assert min(children) >= 2


def test_no_server_reaches_the_workspace_of_another_episode_or_the_seed(own_home: None) -> None:
    """A server may write anywhere in its own root, and finds nothing of the others there."""
    env = desk_env(desk_task({"files": {"secret-of-the-seed": "kept"}}))
    everywhere = "for f in $(find / -name 'secret-of-the-*' 2>/dev/null); do echo spoilt > $f; done"

    async def main() -> None:
        sandbox, task = get_sandbox("bwrap"), env.suite.tasks[0]
        async with (
            open_episode(env, sandbox, task, seed=1) as attacker,
            open_episode(env, sandbox, task, seed=2) as other,
        ):
            before = other.world_key
            await ask(attacker, "run", command=everywhere)
            assert attacker.world_key != before
            assert await ask(other, "read", path="secret-of-the-seed") == "kept"
            assert other.world_key == before
        async with open_episode(env, sandbox, task, seed=3) as later:
            assert later.world_key == before

    asyncio.run(main())


def test_memory_of_a_server_process_does_not_reach_the_next_episode(own_home: None) -> None:
    env = desk_env(desk_task({"files": {}}))
    said: list[str] = []

    async def remember(episode: Episode) -> None:
        said.append(await ask(episode, "remember", text="x"))

    for _ in range(2):
        asyncio.run(in_episode(env, remember))
    assert said == ["x", "x"]
