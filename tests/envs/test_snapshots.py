"""Snapshots of live episodes in real sandboxes: copies of files, and replays accepted only if digests agree."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from desk import act, ask, desk_env, desk_server, desk_task, in_episode, last_state

from gymcp.envs.episodes.episode import Episode, open_snapshot
from gymcp.envs.errors import ResetNeeded
from gymcp.envs.gym import McpEnv
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ServerDied, SnapshotError
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.spec import StateSource
from gymcp.outcome import Outcome
from gymcp.scratch import scratch_folder
from gymcp.types import Action, Suite, Task, ToolCall

pytestmark = pytest.mark.usefixtures("own_home")

FILES = desk_env(desk_task({"files": {"a": "1", "gone": "soon", "folder/b": "2"}}))


class Counter:
    """A server that declares its state."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self._calls = 0

    def add(self, amount: int) -> int:
        """Count on."""
        self.count += amount
        return self.count

    def dice(self) -> str:
        """A number nobody can foresee, outside the declared state."""
        return os.urandom(8).hex()

    def drift(self) -> int:
        """Add a number nobody can foresee."""
        self.count += 1 + int.from_bytes(os.urandom(6), "big")
        return self.count


def counter_env(state: StateSource = "declared", **changes: object) -> LoadedEnv:
    task = Task(id="count", prompts=("Count.", "On."), initial_state={"start": 5}, target={"count": 8})
    server = replace(native_server("counter", Counter), state=state)
    spec = EnvSpec(
        name="counter",
        servers=(server,),
        suite=Suite(name="counter", version="1", tasks=(task,)),
        grade=final_state_equals(),
    )
    return load_env(replace(spec, **changes))  # type: ignore[arg-type]


def test_forks_of_files_continue_from_here_and_are_independent() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "write", path="c", text="3")
        await ask(episode, "remove", path="gone")
        await ask(episode, "remove", path="folder/b")
        await ask(episode, "chmod", path="a", mode=0o600)
        before = episode.world_key
        async with episode.fork(3) as children:
            assert {child.world_key for child in children} == {before}
            async with asyncio.TaskGroup() as group:
                for number, child in enumerate(children):
                    group.create_task(ask(child, "write", path="a", text=f"from {number}"))
                group.create_task(ask(episode, "write", path="a", text="from the parent"))
            assert [await ask(child, "read", path="a") for child in children] == ["from 0", "from 1", "from 2"]
            assert await ask(episode, "read", path="a") == "from the parent"
            record = children[0].record(Outcome.SCORED)
            assert (record.parent, len(record.steps)) == (episode.id, 6)
            assert record.steps[:4] == episode.record(Outcome.SCORED).steps[:4]
            assert len({episode.id, *(child.id for child in children)}) == 4
            assert sorted(last_state(children[0])["files"]) == ["a", "c", "folder"]

    asyncio.run(in_episode(FILES, work))


def test_a_fork_of_a_fork_holds_the_changes_of_both() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "write", path="a", text="one")
        async with episode.fork(1) as (child,):
            await ask(child, "remove", path="gone")
            async with child.fork(2) as (left, right):
                await ask(left, "write", path="b", text="left")
                assert sorted(last_state(left)["files"]) == ["a", "b", "folder", "folder/b"]
                assert sorted(last_state(right)["files"]) == ["a", "folder", "folder/b"]
                assert left.record(Outcome.SCORED).parent == child.id

    asyncio.run(in_episode(FILES, work))


def test_a_folder_that_was_replaced_stays_replaced_in_a_fork() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "run", command="rm -r folder; mkdir folder; echo new > folder/n")
        async with episode.fork(1) as (child,):
            assert sorted(last_state(child)["files"]) == ["a", "folder", "folder/n", "gone"]

    asyncio.run(in_episode(FILES, work))


def test_restore_goes_back_and_the_record_with_it() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "write", path="a", text="kept")
        point = await episode.snapshot()
        key = episode.world_key
        await ask(episode, "write", path="a", text="undone")
        await episode.step(Action(text="Done."))
        for _ in range(2):  # a snapshot can be used again
            await episode.restore(point)
            assert (episode.world_key, episode.turn, len(episode.record(Outcome.SCORED).steps)) == (key, 0, 1)
            assert await ask(episode, "read", path="a") == "kept"
        point.discard()

    asyncio.run(in_episode(FILES, work))


def test_a_snapshot_outlives_its_episode_and_keeps_the_user_s_messages() -> None:
    async def main() -> None:
        points = []

        async def work(episode: Episode) -> None:
            await ask(episode, "write", path="a", text="kept")
            await episode.step(Action(text="Tidied."))
            points.append(await episode.snapshot())

        await in_episode(FILES, work)
        async with open_snapshot(points[0]) as episode:
            assert [message.content for message in episode.observation.messages] == ["More."]
            ended = await episode.step(Action(text="Done."))
            assert ended.terminated
        points[0].discard()

    asyncio.run(main())


@pytest.mark.parametrize("state", ["declared", "opaque"])
def test_servers_in_memory_are_forked_by_replay(state: StateSource) -> None:
    async def work(episode: Episode) -> None:
        before = int(await ask(episode, "add", amount=2))
        await episode.step(Action(text="Counted."))
        async with episode.fork(2) as (left, right):
            assert left.world_key == right.world_key == episode.world_key
            assert int(await ask(left, "add", amount=1)) == before + 1
            assert int(await ask(right, "add", amount=10)) == before + 10
            assert int(await ask(episode, "add", amount=100)) == before + 100
            assert [m.content for m in left.record(Outcome.SCORED).steps[-1].observation.messages] == ["On."]

    asyncio.run(in_episode(counter_env(state), work))


def test_a_replay_that_differs_from_the_record_names_the_step() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "add", amount=1)
        await ask(episode, "drift")
        with pytest.raises(SnapshotError, match=r"task 'count': .*at step 2 \(drift\)"):
            async with episode.fork(1):
                pass
        await ask(episode, "add", amount=1)  # the parent is none the worse

    asyncio.run(in_episode(counter_env(), work))


def test_a_replay_of_an_opaque_server_must_give_the_same_answers() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "dice")
        with pytest.raises(SnapshotError, match=r"at step 1 \(dice\)"):
            async with episode.fork(1):
                pass

    asyncio.run(in_episode(counter_env("opaque"), work))


def test_a_server_that_changes_at_a_restart_is_replayed_instead() -> None:
    """The server counts its starts in a file, so that a start from its files changes them."""
    script = (
        "import sys, pathlib; p = pathlib.Path('log'); p.write_text(p.read_text() + 'start\\n' if p.exists() else '');"
    )
    server = desk_server()
    server = replace(server, argv=(*server.argv[:-1], script + server.argv[-1]))

    async def work(episode: Episode) -> None:
        await ask(episode, "write", path="a", text="2")
        async with episode.fork(1) as (child,):
            assert child.world_key == episode.world_key
            assert await ask(child, "read", path="a") == "2"

    asyncio.run(in_episode(desk_env(desk_task({"files": {"a": "1"}}), server), work))


def test_a_world_that_changed_since_the_last_step_has_no_snapshot() -> None:
    async def work(episode: Episode) -> None:
        (session,) = episode.world.sessions
        late = {"path": "late", "text": "outside of any step, as a process that a call left behind writes"}
        await session.call_tool(ToolCall(id="late", name="write", arguments=late), late, timeout_s=60)
        with pytest.raises(SnapshotError, match="changed since the last step"):
            await episode.snapshot()

    asyncio.run(in_episode(FILES, work))


def test_forks_under_the_plain_sandbox_are_copies() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "write", path="a", text="changed")
        async with episode.fork(1) as (child,):
            assert await ask(child, "read", path="a") == "changed"

    asyncio.run(in_episode(FILES, work, sandbox="none"))


def test_an_episode_that_ended_has_no_snapshot() -> None:
    async def work(episode: Episode) -> None:
        await episode.step(Action())
        await episode.step(Action())
        with pytest.raises(ResetNeeded, match="the episode has ended"):
            await episode.snapshot()

    asyncio.run(in_episode(counter_env(), work))


def test_a_fork_counts_the_results_that_its_record_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "read", path="a")
        assert episode.state.result_bytes == 1
        async with episode.fork(1) as (child,):
            assert child.state == episode.state
            monkeypatch.setattr("gymcp.envs.episodes.episode_state.RESULT_BYTES", 2)
            ended = await child.step(act("read", path="a"))
            assert ended.truncated
            assert child.trajectory is not None
            assert "out of budget (2 bytes of results)" in child.trajectory.reason

    asyncio.run(in_episode(FILES, work))


def test_a_snapshot_of_another_task_is_refused() -> None:
    other = desk_task({"files": {}}, id="other")

    async def work(episode: Episode) -> None:
        point = await episode.snapshot()

        async def elsewhere(second: Episode) -> None:
            with pytest.raises(SnapshotError, match="task 'other': the snapshot is of task 'tidy'"):
                await second.restore(point)

        await in_episode(desk_env(other), elsewhere)
        point.discard()

    asyncio.run(in_episode(FILES, work))


def test_a_fork_whose_server_dies_is_lost_alone() -> None:
    async def work(episode: Episode) -> None:
        async with episode.fork(2) as (left, right):
            for _ in range(2):
                with pytest.raises(ServerDied, match="server 'desk': tool 'crash': the server ended"):
                    await left.step(act("crash"))
            assert await ask(right, "read", path="a") == "1"
            assert await ask(episode, "read", path="a") == "1"

    asyncio.run(in_episode(FILES, work))


def test_a_fork_in_a_run_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        forked = asyncio.Event()

        async def work(episode: Episode) -> None:
            async with episode.fork(2):
                forked.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(in_episode(FILES, work))
        await forked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    left = [path.name for path in scratch_folder().iterdir()]
    assert not [name for name in left if name.startswith(("world-", "saved-"))]


def test_gymnasium_environments_fork_and_restore() -> None:
    env = McpEnv(FILES)
    try:
        env.reset(seed=1)
        env.step(act("write", path="a", text="kept"))
        point = env.snapshot()
        forks = env.fork(2)
        for number, fork in enumerate(forks):
            _, _, _, _, info = fork.step(act("write", path="a", text=str(number)))
            assert info["task"] == "tidy"
        env.step(act("write", path="a", text="undone"))
        _, info = env.restore(point)
        point.discard()
        observation, *_ = env.step(act("read", path="a"))
        assert [message["content"] for message in observation["messages"]] == ["kept"]
        assert [fork.step(act("read", path="a"))[0]["messages"][0]["content"] for fork in forks] == ["0", "1"]
        for fork in forks:
            fork.close()
    finally:
        env.close()
