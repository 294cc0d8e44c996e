"""A server that keeps everything in files, for tests of worlds."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.spec import FileState, ServerSpec, StateSource
from gymcp.types import Action, Json, Suite, Task, ToolCall


class Desk:
    """Files in /workspace. The attributes of `self` are lost with the process."""

    def __init__(self) -> None:
        self.memory = ""

    def write(self, path: str, text: str) -> str:
        """Write a file."""
        Path(path).write_text(text)
        return "written"

    def read(self, path: str) -> str:
        """Read a file."""
        return Path(path).read_text()

    def remove(self, path: str) -> str:
        """Remove a file."""
        Path(path).unlink()
        return "removed"

    def chmod(self, path: str, mode: int) -> str:
        """Change a mode."""
        Path(path).chmod(mode)
        return "changed"

    def run(self, command: str) -> str:
        """Run a shell command."""
        return os.popen(command).read()

    def remember(self, text: str) -> str:
        """Keep in memory what belongs in a file."""
        self.memory += text
        Path("memory").write_text(self.memory)
        return self.memory

    def crash(self) -> str:
        """End the process."""
        os._exit(3)


def desk_server(state: StateSource | None = None, **changes: Json) -> ServerSpec:
    return replace(native_server("desk", Desk), state=state or FileState(), **changes)


def desk_task(initial_state: Json, **changes: Json) -> Task:
    return replace(Task(id="tidy", prompts=("Tidy up.", "More."), initial_state=initial_state), **changes)


def desk_env(task: Task, server: ServerSpec | None = None, name: str = "desk") -> LoadedEnv:
    spec = EnvSpec(
        name=name,
        servers=(server or desk_server(),),
        suite=Suite(name="desk", version="1", tasks=(task,)),
        grade=final_state_equals(),
    )
    return load_env(spec)


def act(name: str, **arguments: Json) -> Action:
    return Action(tool_calls=(ToolCall(id="call_1", name=name, arguments=arguments),))


async def ask(episode: Episode, name: str, **arguments: Json) -> str:
    """The tool's answer, from a step with this call alone."""
    done = await episode.step(act(name, **arguments))
    return done.observation.messages[0].content


async def in_episode(
    env: LoadedEnv, work: Callable[[Episode], Coroutine[None, None, None]], sandbox: str = "bwrap"
) -> None:
    async with open_episode(env, get_sandbox(sandbox), env.suite.tasks[0], seed=1) as episode:
        await work(episode)


def last_state(episode: Episode) -> Json:
    """The recorded state of the world as it stands."""
    return episode.states[episode.state_ref or ""]
