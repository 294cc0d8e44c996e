"""The synchronous face: `gymnasium.Env` over the asynchronous episode."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import gymnasium

from gymcp.envs.catalog import load_spec
from gymcp.envs.episode import Episode, Transition, open_episode, open_snapshot
from gymcp.envs.snapshots import Snapshot
from gymcp.envs.spaces import action_space, from_observation, observation_space, to_action
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Task, Trajectory

T = TypeVar("T")


class McpEnv(gymnasium.Env[dict[str, Any], Any]):
    """An environment of MCP tools. Actions are `gymcp.types.Action` records or elements of `action_space`.

    The reward of the last step is the grader's score, every other reward is 0. A lost server raises EnvInfraError:
    it is never a reward. `info` holds ``task``, ``turn`` and ``world_key``, and is the same for the same seed and
    actions. After the last step `trajectory` is the graded record.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - gymnasium declares it so

    def __init__(
        self,
        env: str | Path | EnvSpec | LoadedEnv,
        *,
        sandbox: str | Sandbox = "bwrap",
        tasks: str = "*",
        render_mode: str | None = None,
    ) -> None:
        """`env`: a catalog name, a path, or a spec, loaded or not. `tasks`: a glob over task ids. Raises UsageError."""
        if isinstance(env, str | Path):
            env = load_spec(str(env))
        self.loaded = env if isinstance(env, LoadedEnv) else load_env(env)
        self.tasks = tuple(task for task in self.loaded.suite.tasks if fnmatch.fnmatchcase(task.id, tasks))
        if not self.tasks:
            raise ConfigError(f"environment '{self.loaded.spec.name}': no task matches '{tasks}'")
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = action_space()
        self.trajectory: Trajectory | None = None
        self._sandbox = get_sandbox(sandbox) if isinstance(sandbox, str) else sandbox
        self._sandbox.check()
        self._runner: _EpisodeThread | None = None
        self._steps = 0
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode of ``options["task"]``, else of a task drawn with the seed. Raises EnvInfraError."""
        super().reset(seed=seed)
        task = self._choose(options or {})
        episode_seed = int(self.np_random.integers(2**31))
        self._end_episode()
        self._steps = 0
        self.trajectory = None
        self._runner = _EpisodeThread(open_episode(self.loaded, self._sandbox, task, seed=episode_seed))
        return self._face(self._runner.start())

    def _choose(self, options: Mapping[str, Any]) -> Task:
        if "task" not in options:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        for task in self.tasks:
            if task.id == options["task"]:
                return task
        raise ConfigError(f"environment '{self.loaded.spec.name}': no task '{options['task']}'")

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        runner = self._live()
        record = to_action(action, self._steps)
        transition: Transition = runner.do(lambda episode: episode.step(record))
        self._steps += 1
        self.trajectory = runner.episode.graded
        observation, info = self._face(runner.episode)
        return observation, transition.reward, transition.terminated, transition.truncated, info

    def snapshot(self) -> Snapshot:
        """This point of the episode, to `restore`; it is kept until `Snapshot.discard`. Raises SnapshotError."""
        return self._live().do(lambda episode: episode.snapshot())

    def restore(self, snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Any]]:
        """Goes back to a snapshot of the same task; gives what `reset` gives. Raises SnapshotError."""
        runner = self._live()
        runner.do(lambda episode: episode.restore(snapshot))
        self._steps, self.trajectory = len(snapshot.steps), None
        return self._face(runner.episode)

    def fork(self, n: int) -> list[McpEnv]:
        """`n` environments in the middle of this episode, independent of it and of each other. Raises SnapshotError."""
        snapshot = self.snapshot()
        forks: list[McpEnv] = []
        try:
            for _ in range(n):
                fork = McpEnv(self.loaded, sandbox=self._sandbox, render_mode=self.render_mode)
                forks.append(fork)
                fork._runner, fork._steps = _EpisodeThread(open_snapshot(snapshot)), self._steps
                fork._face(fork._runner.start())
        except BaseException:
            for fork in forks:
                fork.close()
            raise
        finally:
            snapshot.discard()
        return forks

    def _live(self) -> _EpisodeThread:
        if self._runner is None:
            raise EnvInfraError(f"environment '{self.loaded.spec.name}': there is no episode before reset")
        return self._runner

    def _face(self, episode: Episode) -> tuple[dict[str, Any], dict[str, Any]]:
        observation = from_observation(episode.observation)
        self._shown = "\n".join(f"{message['role']}: {message['content']}" for message in observation["messages"])
        return observation, {"task": episode.task.id, "turn": episode.turn, "world_key": episode.world_key}

    def render(self) -> str | None:
        """The new messages as text, in render mode ``ansi``."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the servers. Harmless when there are none."""
        self._end_episode()

    def _end_episode(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


class _EpisodeThread:
    """One event loop in a thread, and in it one task that opens, steps and closes the episode (a rule of the SDK)."""

    def __init__(self, opening: AbstractAsyncContextManager[Episode]) -> None:
        self._opening = opening
        self._opened: Future[Episode] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="gymcp-episode", daemon=True)
        self.episode: Episode

    def start(self) -> Episode:
        self._thread.start()
        self.episode = self._opened.result()
        return self.episode

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[Callable[[Episode], Awaitable[Any]], Future[Any]] | None] = asyncio.Queue()
        try:
            async with self._opening as episode:
                self._opened.set_result(episode)
                while item := await self._inbox.get():
                    work, answer = item
                    try:
                        answer.set_result(await work(episode))
                    except Exception as error:  # the caller's thread gets it
                        answer.set_exception(error)
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    def do(self, work: Callable[[Episode], Awaitable[T]]) -> T:
        """What `work` gives, done in the episode's own task."""
        answer: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, (work, answer))
        return answer.result()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, None)
        self._thread.join()
