"""Episodes on servers that are forked from templates, and fast forks of such episodes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from counting_server import Counter
from desk import act, ask, desk_server, last_state

from gymcp.envs.episodes.episode import Episode, open_episode, open_snapshot
from gymcp.envs.errors import EnvClosed
from gymcp.envs.gym import McpEnv
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ServerDied, SnapshotError
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.outcome import Outcome
from gymcp.scratch import scratch_folder
from gymcp.types import Action, Json, Suite, Task

pytestmark = pytest.mark.usefixtures("own_home")


class Elsewhere:
    """A server that keeps its count in a place that no copy includes."""

    def __init__(self) -> None:
        Path("/dev/shm/count").write_text("")

    @property
    def __dict__(self) -> dict[str, int]:  # type: ignore[override]
        return {"count": Path("/dev/shm/count").stat().st_size}

    def add(self, amount: int) -> str:
        """Count on."""
        with Path("/dev/shm/count").open("a") as file:
            file.write("x" * amount)
        return "added"


def env_of(initial_state: Json, *servers: ServerSpec) -> LoadedEnv:
    task = Task(id="count", prompts=("Count.", "On."), initial_state=initial_state)
    suite = Suite(name="forks", version="1", tasks=(task,))
    return load_env(EnvSpec(name="forks", servers=servers, suite=suite, grade=final_state_equals()))


COUNTER = native_server("counter", Counter, start="fork")
COUNT = env_of({"count": 5}, COUNTER)
BOTH = env_of({"counter": {"count": 5}, "desk": {"files": {"a": "1"}}}, COUNTER, desk_server())


def in_warm_episode(env: LoadedEnv, work: Callable[[Episode], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            open_warm_sandbox(get_sandbox("bwrap")) as warm,
            open_episode(env, warm, env.suite.tasks[0], seed=1) as episode,
        ):
            await work(episode)

    asyncio.run(main())


def server_process(episode: Episode) -> ForkedProcess:
    process = episode.world.sessions[0].process
    assert isinstance(process, ForkedProcess)
    return process


def anchors(episode: Episode) -> list[tuple[str, str]]:
    return [(step.state_key, step.world_key) for step in episode.record(Outcome.SCORED).steps]


def test_forks_continue_from_a_state_that_no_replay_reaches_and_are_independent() -> None:
    async def work(episode: Episode) -> None:
        here = int(await ask(episode, "drift"))
        await episode.step(Action(text="Counted."))
        async with episode.fork(3) as children:
            assert {child.world_key for child in children} == {episode.world_key}
            async with asyncio.TaskGroup() as group:
                for number, child in enumerate(children, start=1):
                    group.create_task(ask(child, "add", amount=number))
                group.create_task(ask(episode, "add", amount=100))
            assert [last_state(child)["count"] - here for child in children] == [1, 2, 3]
            assert last_state(episode)["count"] - here == 100
            assert {child.record(Outcome.SCORED).parent for child in children} == {episode.id}
            assert [
                message.content for message in children[0].record(Outcome.SCORED).steps[-1].observation.messages
            ] == ["On."]
            assert (await children[0].step(Action(text="Done."))).terminated
        assert int(await ask(episode, "add", amount=1)) == here + 101

    in_warm_episode(COUNT, work)


def test_a_fork_and_its_origin_have_the_same_keys_for_the_same_steps() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "add", amount=1)
        async with episode.fork(1) as (child,):
            for each in (episode, child):
                await ask(each, "add", amount=2)
                await ask(each, "add", amount=3)
            assert anchors(child) == anchors(episode)

    in_warm_episode(COUNT, work)


def test_a_fork_of_a_fork_outlives_its_origins() -> None:
    async def main() -> None:
        async with open_warm_sandbox(get_sandbox("bwrap")) as warm:
            async with open_episode(COUNT, warm, COUNT.suite.tasks[0], seed=1) as episode:
                first = int(await ask(episode, "drift"))
                async with episode.fork(2) as (child, other):
                    second = int(await ask(child, "drift"))
                    async with child.fork(1) as (grandchild,):
                        assert int(await ask(grandchild, "add", amount=1)) == second + 1
                    point = await child.snapshot()
                    assert int(await ask(other, "add", amount=1)) == first + 1
            async with open_snapshot(point) as late, open_snapshot(point) as later:
                assert int(await ask(late, "add", amount=1)) == second + 1
                assert int(await ask(later, "add", amount=2)) == second + 2
            point.discard()

    asyncio.run(main())


def test_a_fork_that_dies_is_lost_alone() -> None:
    async def work(episode: Episode) -> None:
        here = int(await ask(episode, "drift"))
        async with episode.fork(3) as (left, middle, right):
            os.kill(server_process(left).pid, signal.SIGKILL)
            for lost in (left, middle):
                with pytest.raises(ServerDied, match="server 'counter': tool 'crash'"):
                    await lost.step(act("crash"))
            assert int(await ask(right, "add", amount=1)) == here + 1
            assert int(await ask(episode, "add", amount=2)) == here + 2

    in_warm_episode(COUNT, work)


def test_a_snapshot_can_be_restored_repeatedly_and_after_a_crash() -> None:
    async def work(episode: Episode) -> None:
        here = int(await ask(episode, "drift"))
        point = await episode.snapshot()
        await ask(episode, "add", amount=50)
        for _ in range(2):
            await episode.restore(point)
            assert (last_state(episode)["count"], len(anchors(episode))) == (here, 1)
            assert int(await ask(episode, "add", amount=1)) == here + 1
        with pytest.raises(ServerDied):
            await episode.step(act("crash"))
        await episode.restore(point)
        assert int(await ask(episode, "add", amount=1)) == here + 1
        point.discard()
        with pytest.raises(SnapshotError, match=r"at step 1 \(drift\)"):  # replay is left, and it drifts
            await episode.restore(point)

    in_warm_episode(COUNT, work)


def test_copies_of_copies_deeper_than_the_kernel_nests_are_replayed() -> None:
    async def work(episode: Episode) -> None:
        for number in range(1, 20):
            assert int(await ask(episode, "add", amount=1)) == 5 + number
            point = await episode.snapshot()
            await episode.restore(point)
            point.discard()
        assert last_state(episode) == {"count": 24}

    in_warm_episode(COUNT, work)


def test_native_and_file_servers_of_one_world_are_each_copied_in_their_own_way() -> None:
    async def work(episode: Episode) -> None:
        here = int(await ask(episode, "drift"))
        await ask(episode, "write", path="a", text="shared")
        async with episode.fork(2) as children:
            assert {child.world_key for child in children} == {episode.world_key}
            for number, child in enumerate(children):
                assert int(await ask(child, "add", amount=number)) == here + number
                assert await ask(child, "read", path="a") == "shared"
                await ask(child, "write", path="a", text=str(number))
            assert [await ask(each, "read", path="a") for each in (episode, *children)] == ["shared", "0", "1"]

    in_warm_episode(BOTH, work)


def test_a_world_with_an_uncopyable_server_is_replayed() -> None:
    plain = replace(native_server("plain", Counter), state="opaque")
    env = env_of({}, COUNTER, plain)

    async def work(episode: Episode) -> None:
        adds = sorted(tool.name for tool in episode.observation.tools if tool.name.endswith("add"))
        assert len(adds) == 2
        for name in adds:
            await ask(episode, name, amount=4)
        async with episode.fork(1) as (child,):
            assert child.world_key == episode.world_key
            assert [await ask(child, name, amount=1) for name in adds] == ["5", "5"]

    in_warm_episode(env, work)


def test_a_copy_with_another_state_is_rejected() -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "add", amount=3)
        async with episode.fork(1) as (child,):
            assert (child.world_key, last_state(child)) == (episode.world_key, {"count": 3})

    in_warm_episode(env_of({}, native_server("elsewhere", Elsewhere, start="fork")), work)


def test_forks_leave_no_process_descriptor_or_folder() -> None:
    handles: list[int] = []

    async def work(episode: Episode) -> None:
        async with episode.fork(3) as (child, *_):
            point = await child.snapshot()
            async with open_snapshot(point) as other:
                handles.extend(os.pidfd_open(server_process(each).pid) for each in (episode, child, other))

    def list_leftovers() -> set[str]:
        return {*os.listdir("/proc/self/fd"), *(path.name for path in scratch_folder().iterdir())}  # noqa: PTH208

    in_warm_episode(COUNT, work)  # caches of the process are filled
    check_ended(handles)
    before = list_leftovers()
    in_warm_episode(COUNT, work)
    check_ended(handles)
    assert list_leftovers() <= before  # fewer: what other tests have left in the process ends in its time


def check_ended(handles: list[int]) -> None:
    while handles:
        handle = handles.pop()
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(handle, 0)
        os.close(handle)


def test_gymnasium_environments_fork_their_servers_from_a_template() -> None:
    env = McpEnv(COUNT)
    try:
        first = env.reset(seed=3)
        env.step(act("drift"))
        forks = env.fork(2)
        *_, info = env.step(act("add", amount=1))
        assert {fork.step(act("add", amount=1))[4]["world_key"] for fork in forks} == {info["world_key"]}
        point = forks[0].snapshot()
        env.close()
        assert forks[0].reset(seed=3) == first
        forks[0].restore(point)
        assert forks[0].step(act("add", amount=0))[4]["world_key"] == info["world_key"]
        for fork in forks:
            fork.close()
        point.discard()
        with pytest.raises(EnvClosed, match="it is closed"):
            env.fork(1)
    finally:
        env.close()


def test_a_snapshot_can_be_restored_in_another_environment() -> None:
    one, other = McpEnv(COUNT), McpEnv(COUNT)
    try:
        one.reset(seed=1)
        one.step(act("add", amount=2))
        other.reset(seed=2)
        point = one.snapshot()
        other.restore(point)
        assert other.step(act("add", amount=1))[4] == one.step(act("add", amount=1))[4]
    finally:
        one.close()
        other.close()


FOLDERS = [str(folder) for folder in Path(__file__).parents[:2]]
"""In these a program of its own finds this module, and what it imports."""
FORGETFUL = """
import os, sys
sys.path[:0] = {folders!r}
from test_forks import COUNT, McpEnv, act
env = McpEnv(COUNT)
env.reset(seed=1)
forks = env.fork(2)
forks[0].step(act("add", amount=1))
world = forks[0]._active_handle().episode.world
process = world.sessions[0].process
print(process.pid, *(process.cgroup.folders if process.cgroup else ()), flush=True)
"""


def test_a_program_that_never_closes_its_environment_leaves_nothing() -> None:
    script = FORGETFUL.format(folders=FOLDERS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
    pid, *folders = done.stdout.split()
    assert not Path("/proc", pid).exists()
    assert not [folder for folder in folders if Path(folder).exists()]


FORKED_PROCESS = """
import os, sys
sys.path[:0] = {folders!r}
from gymcp.envs.errors import ResetNeeded
from test_forks import COUNT, McpEnv, act
env = McpEnv(COUNT)
first = env.reset(seed=1)
child = os.fork()
if child == 0:
    try:
        env.step(act("add", amount=1))
    except ResetNeeded as error:
        print(error, env.reset(seed=1) == first, flush=True)
    env.close()
    os._exit(0)
os.waitpid(child, 0)
print(env.step(act("add", amount=1))[1], flush=True)
env.close()
"""


def test_an_environment_in_a_fork_of_the_process_starts_anew() -> None:
    script = FORKED_PROCESS.format(folders=FOLDERS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == ["the episode is another process's; reset first True", "0.0"]
