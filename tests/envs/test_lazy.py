"""Servers that start with their first call: the processes, the world key, and the proof of a clean start."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest
from desk import ask, in_episode, last_state

from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import DirtyReset, EnvInfraError
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, SandboxProcess, get_sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sessions.tool_list_cache import find_stored_tools, store_tools
from gymcp.types import Json, Suite, Task, Tool


class Safe:
    """A number of coins."""

    def __init__(self, coins: int = 5) -> None:
        self.coins = coins

    def count_coins(self) -> int:
        """Count the coins."""
        return self.coins

    def put_coins(self, number: int) -> int:
        """Some more, or fewer."""
        self.coins += number
        return self.coins


class Dirty:
    """Starts from something that is another one in every process."""

    def __init__(self) -> None:
        self.started_by = os.getppid() * 100_000 + os.getpid() + id(self)

    def touch(self) -> str:
        """Does nothing."""
        return "touched"


def lazy_env(initial_state: Json = None, *, dirty: bool = False) -> LoadedEnv:
    one = native_server("one", Safe, start="fork")
    servers = (one, replace(one, name="two", initial_state={"coins": 7}), native_server("three", Dirty))
    spec = EnvSpec(
        name="lazy",
        servers=servers if dirty else servers[:2],
        suite=Suite(
            name="lazy", version="1", tasks=(Task(id="t", prompts=("Go.", "More."), initial_state=initial_state),)
        ),
        grade=final_state_equals(),
        lazy=True,
    )
    return load_env(spec)


def list_started(episode: Episode) -> list[str]:
    return [session.spec.name for session in episode.world.sessions]


def run(env: LoadedEnv, work: Callable[[Episode], Coroutine[None, None, None]]) -> None:
    asyncio.run(in_episode(env, work))


def test_only_the_servers_that_are_called_are_started(own_home: None) -> None:
    async def work(episode: Episode) -> None:
        offered = [tool.name for tool in episode.observation.tools]
        assert offered == ["one__count_coins", "one__put_coins", "two__count_coins", "two__put_coins"]
        assert list_started(episode) == []
        assert await ask(episode, "two__count_coins") == "7"
        assert list_started(episode) == ["two"]

    for _ in range(2):  # the second time lists and baselines are known
        run(lazy_env(), work)


@pytest.mark.parametrize(("lazy", "starts"), [(True, 2 + 3 + 1), (False, 3 * 2 + 2)])
def test_episodes_that_open_at_the_same_time_have_one_list_and_one_witness(
    lazy: bool, starts: int, own_home: None
) -> None:
    """Lazy: both servers are listed, and the one that is called has a witness; eager: both have one."""

    class Counting(Bubblewrap):
        starts = 0

        def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
            self.starts += 1
            return super().start(launch)

    plain = lazy_env()
    env = replace(plain, spec=replace(plain.spec, lazy=lazy))
    sandbox = Counting()

    async def work(seed: int) -> None:
        async with open_episode(env, sandbox, env.suite.tasks[0], seed=seed) as episode:
            assert await ask(episode, "two__count_coins") == "7"

    async def three() -> None:
        await asyncio.gather(*map(work, range(3)))

    asyncio.run(three())
    assert sandbox.starts == starts


def test_a_server_starts_from_the_task_s_state_or_else_from_its_spec_s(own_home: None) -> None:
    async def work(episode: Episode) -> None:
        assert await ask(episode, "one__count_coins") == "30"
        assert await ask(episode, "two__count_coins") == "7"

    run(lazy_env({"one": {"coins": 30}}), work)


def test_a_start_or_a_read_does_not_change_the_world_and_an_undone_change_restores_it(own_home: None) -> None:
    async def work(episode: Episode) -> None:
        fresh = episode.world_key
        assert last_state(episode) == {}
        await ask(episode, "one__count_coins")
        assert (episode.world_key, last_state(episode)) == (fresh, {})
        await ask(episode, "one__put_coins", number=1)
        assert episode.world_key != fresh
        assert last_state(episode) == {"one": {"coins": 6}}
        await ask(episode, "one__put_coins", number=-1)
        assert (episode.world_key, last_state(episode)) == (fresh, {})

    run(lazy_env(), work)


def test_other_initial_states_are_other_worlds(own_home: None) -> None:
    keys: list[str] = []

    async def note(episode: Episode) -> None:
        keys.append(episode.world_key)

    for state in (None, {"one": {"coins": 6}}, {"two": {"coins": 6}}, None):
        run(lazy_env(state), note)
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


def test_a_server_that_does_not_start_clean_fails_only_episodes_that_call_it(own_home: None) -> None:
    async def other(episode: Episode) -> None:
        assert await ask(episode, "one__put_coins", number=1) == "6"

    async def dirty(episode: Episode) -> None:
        with pytest.raises(DirtyReset, match="server 'three', started for task 't': two fresh worlds differ"):
            await ask(episode, "touch")

    run(lazy_env(dirty=True), other)
    run(lazy_env(dirty=True), dirty)


def names(episode: Episode) -> list[str]:
    return [tool.name for tool in episode.observation.tools]


def test_an_outdated_tool_list_fails_one_episode_and_is_then_replaced(own_home: None) -> None:
    env = lazy_env()
    old = (Tool(name="count_money", description="As it was.", input_schema={"type": "object"}),)
    store_tools(env.servers[0], old)

    async def first(episode: Episode) -> None:
        assert "count_money" in names(episode)
        with pytest.raises(EnvInfraError, match="server 'one': list: it has other tools than when it was last started"):
            await ask(episode, "count_money")

    async def second(episode: Episode) -> None:
        assert await ask(episode, "one__count_coins") == "5"

    run(env, first)
    assert [tool.name for tool in find_stored_tools(env.servers[0]) or ()] == ["count_coins", "put_coins"]
    run(env, second)


def test_a_fork_copies_started_servers_and_starts_the_others_itself(own_home: None) -> None:
    env = lazy_env()

    async def main() -> None:
        async with (
            open_warm_sandbox(get_sandbox("bwrap")) as warm,
            open_episode(env, warm, env.suite.tasks[0], seed=1) as episode,
        ):
            fresh = episode.world_key
            await ask(episode, "one__put_coins", number=2)
            changed = episode.world_key
            async with episode.fork(2) as (left, right):
                assert (left.world_key, right.world_key) == (changed, changed)
                assert await ask(left, "one__put_coins", number=-2) == "5"
                assert left.world_key == fresh
                assert await ask(right, "two__put_coins", number=1) == "8"
                assert last_state(right) == {"one": {"coins": 7}, "two": {"coins": 8}}
            assert (episode.world_key, list_started(episode)) == (changed, ["one"])

    asyncio.run(main())
