"""Cost of a clean world of files: workspaces, digests, verified resets and forks, against baselines of the same run.

The tree has 1,000 files of 4 KB (200 with --quick). A reset is verified when the digest of the fresh world has been
compared with its task's baseline; its rate is compared with that of the same server without any state.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from report_table import Result, against, options, show

from gymcp.envs.episodes.episode import open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.spec import FileState, StateSource
from gymcp.mcp_servers.workspaces.digester import open_digester
from gymcp.mcp_servers.workspaces.seeds import seed_folder
from gymcp.mcp_servers.workspaces.workspace import describe_workspaces, open_workspace
from gymcp.types import Action, Suite, Task, ToolCall

CONCURRENCY = 16


class Notes:
    """A server whose state is files."""

    def write(self, path: str, text: str) -> str:
        """Write a file."""
        Path(path).write_text(text)
        return "written"


def main() -> None:
    args = options(__doc__, "a smaller tree and fewer rounds").parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    files, rounds, episodes = (200, 10, 64) if args.quick else (1000, 30, 320)
    results = asyncio.run(measure(sandbox, files, rounds, episodes))
    also = f"; {describe_workspaces()}"
    show("worlds", results, as_json=args.json, title=f"worlds of {files} files", also=also)


async def measure(sandbox: Sandbox, files: int, rounds: int, episodes: int) -> list[Result]:
    state = {"files": {f"folder{number % 20}/file{number}": f"{number} " * 800 for number in range(files)}}
    seed = await seed_folder(state, sandbox)
    return [
        *await workspaces(seed, sandbox, rounds),
        *await digests(seed, sandbox, rounds),
        *await resets(state, sandbox, episodes),
        *await forks(state, sandbox, rounds),
    ]


async def median_ms(rounds: int, work: Callable[[], Awaitable[None]]) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        await work()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


async def workspaces(seed: Path, sandbox: Sandbox, rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:

        async def copytree() -> None:
            shutil.copytree(seed, f"{folder}/copy", symlinks=True)
            shutil.rmtree(f"{folder}/copy")

        copied = Result(metric="copytree and rmtree", value=await median_ms(rounds, copytree), unit="ms")

    async def workspace(sandbox: Sandbox) -> None:
        async with open_workspace(seed, sandbox):
            pass

    mounted = await median_ms(rounds, lambda: workspace(sandbox))
    own_copy = await median_ms(rounds, lambda: workspace(get_sandbox("none")))
    return [
        copied,
        against("workspace, made and removed", mounted, "ms", copied),
        against("workspace as a copy, made and removed", own_copy, "ms", copied),
    ]


async def digests(seed: Path, sandbox: Sandbox, rounds: int) -> list[Result]:
    first, unchanged, changed = [], [], []
    for _ in range(max(3, rounds // 5)):
        async with (
            open_workspace(seed, get_sandbox("none")) as workspace,
            open_digester("notes", FileState(), workspace, sandbox) as digester,
        ):
            first.append(await median_ms(1, lambda digester=digester: digester.key()))  # type: ignore[misc]
            await digester.key()
            unchanged.append(await median_ms(rounds, lambda digester=digester: digester.key()))  # type: ignore[misc]
            for number in range(rounds):
                (workspace.folder / "folder0" / "file0").write_text(str(number))
                changed.append(await median_ms(1, lambda digester=digester: digester.key()))  # type: ignore[misc]
    full = Result(metric="digest of everything, with the helper's start", value=statistics.median(first), unit="ms")
    return [
        full,
        against("digest, nothing changed", statistics.median(unchanged), "ms", full),
        against("digest, one file changed", statistics.median(changed), "ms", full),
    ]


def environment(state: object, source: StateSource) -> LoadedEnv:
    task = Task(id="notes", prompts=("Write.", "More."), initial_state=state)
    server = replace(native_server("notes", Notes), state=source)
    suite = Suite(name="worlds", version="1", tasks=(task,))
    return load_env(EnvSpec(name="worlds", servers=(server,), suite=suite, grade=final_state_equals()))


async def resets(state: object, sandbox: Sandbox, episodes: int) -> list[Result]:
    async def rate(env: LoadedEnv) -> float:
        remaining = list(range(episodes))

        async def work() -> None:
            while remaining:
                async with open_episode(env, sandbox, env.suite.tasks[0], seed=remaining.pop()):
                    pass

        async with open_episode(env, sandbox, env.suite.tasks[0], seed=0):
            pass  # the first one makes the baseline
        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        return episodes / (time.perf_counter() - started)

    plain = await rate(environment(None, "opaque"))
    bare = Result(metric=f"resets without any state @{CONCURRENCY}", value=plain, unit="resets/s")
    verified = await rate(environment(state, FileState()))
    return [bare, against(f"resets to a verified clean world @{CONCURRENCY}", verified, "resets/s", bare)]


async def forks(state: object, sandbox: Sandbox, rounds: int) -> list[Result]:
    env = environment(state, FileState())
    write = ToolCall(id="call_1", name="write", arguments={"path": "new", "text": "x" * 4000})

    async def reset() -> None:
        async with open_episode(env, sandbox, env.suite.tasks[0], seed=0):
            pass

    alone = Result(metric="one verified reset, and its end", value=await median_ms(rounds, reset), unit="ms")
    async with open_episode(env, sandbox, env.suite.tasks[0], seed=0) as episode:
        for _ in range(20):
            await episode.step(Action(tool_calls=(write,)))

        async def fork() -> None:
            async with episode.fork(1):
                pass

        forked = await median_ms(rounds, fork)
    return [alone, against("one fork after 20 steps, and its end", forked, "ms", alone)]


if __name__ == "__main__":
    main()
