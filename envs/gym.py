"""The synchronous interface: a `gymnasium.Env` over the asynchronous episode."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from gymcp.envs.background_loop import EpisodeHandle, EpisodeLoop
from gymcp.envs.catalog import load_spec
from gymcp.envs.episodes.episode import Episode, open_episode, open_snapshot
from gymcp.envs.episodes.episode_state import Transition
from gymcp.envs.episodes.snapshots import Snapshot
from gymcp.envs.errors import EnvClosed, ResetNeeded
from gymcp.envs.spaces import action_space, from_observation, observation_space, to_action
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Task, Trajectory


class McpEnv(gymnasium.Env[dict[str, Any], Any]):
    """An environment of MCP tools. Actions are `gymcp.types.Action` records or elements of `action_space`.

    The reward of the last step is the grader's score; every other reward is 0. A lost server raises EnvInfraError and
    is never a reward. `info` holds ``task``, ``turn`` and ``world_key``, and is the same for the same seed and actions.
    After the last step, `trajectory` is the graded record.

    A step before `reset` or after the end raises ResetNeeded; a step or a reset after `close` raises EnvClosed. Both
    are UsageErrors and errors of Gymnasium.

    The templates that native servers are forked from, which make resets fast, are kept from the first reset to `close`,
    and at most as long as the process lives.
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
        self._loop: EpisodeLoop | None = None
        self._closed = False
        self._handle: EpisodeHandle | None = None
        self._steps = 0
        self._rendered = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode of ``options["task"]`` or else of a task drawn with the seed. Raises EnvInfraError."""
        self._check_open()
        super().reset(seed=seed)
        task = self._choose(options or {})
        episode_seed = int(self.np_random.integers(2**31))
        self._end_episode()
        self._steps = 0
        self.trajectory = None
        if self._loop is None or not self._loop.is_here:
            self._loop = EpisodeLoop(self._sandbox)
        self._handle = self._loop.open(lambda warm: open_episode(self.loaded, warm, task, seed=episode_seed))
        return self._present(self._handle.episode)

    def _choose(self, options: Mapping[str, Any]) -> Task:
        if "task" not in options:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        for task in self.tasks:
            if task.id == options["task"]:
                return task
        raise ConfigError(f"environment '{self.loaded.spec.name}': no task '{options['task']}'")

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        handle = self._active_handle()
        record = to_action(action, self._steps)
        transition: Transition = handle.run(lambda episode: episode.step(record))
        self._steps += 1
        self.trajectory = handle.episode.trajectory
        observation, info = self._present(handle.episode)
        return observation, transition.reward, transition.terminated, transition.truncated, info

    def snapshot(self) -> Snapshot:
        """This point of the episode, to `restore`. It is kept until `Snapshot.discard`. Raises SnapshotError."""
        return self._active_handle().run(lambda episode: episode.snapshot())

    def restore(self, snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Any]]:
        """Goes back to a snapshot of the same task, and returns what `reset` returns. Raises SnapshotError."""
        handle = self._active_handle()
        handle.run(lambda episode: episode.restore(snapshot))
        self._steps, self.trajectory = len(snapshot.state.steps), None
        return self._present(handle.episode)

    def fork(self, n: int) -> list[McpEnv]:
        """`n` environments in the middle of this episode, independent of it and of each other. Raises SnapshotError."""
        snapshot = self._active_handle().run(lambda episode: episode.snapshot(opens=n))
        forks = [self._open_fork(snapshot) for _ in range(n)]
        try:
            for fork in forks:
                fork._present(fork._active_handle().episode)
        except BaseException:
            for fork in forks:
                fork.close()
            raise
        finally:
            snapshot.discard()
        return forks

    def _open_fork(self, snapshot: Snapshot) -> McpEnv:
        assert self._loop is not None
        fork = copy.copy(self)
        fork.trajectory, fork._np_random, fork._np_random_seed = None, None, None
        fork._loop = self._loop.join()
        fork._handle = fork._loop.open(lambda warm: open_snapshot(snapshot))
        return fork

    def _active_handle(self) -> EpisodeHandle:
        self._check_open()
        if self._handle is None:
            raise ResetNeeded(f"environment '{self.loaded.spec.name}': there is no episode before reset")
        return self._handle

    def _check_open(self) -> None:
        if self._closed:
            raise EnvClosed(f"environment '{self.loaded.spec.name}': it is closed; make another")

    def _present(self, episode: Episode) -> tuple[dict[str, Any], dict[str, Any]]:
        """The observation and the `info` of the episode as it stands."""
        observation = from_observation(episode.observation)
        self._rendered = "\n".join(f"{message['role']}: {message['content']}" for message in observation["messages"])
        return observation, {"task": episode.task.id, "turn": episode.turn, "world_key": episode.world_key}

    def render(self) -> str | None:
        """The new messages as text, in render mode ``ansi``."""
        return self._rendered if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the servers and their templates. Harmless when called again."""
        self._closed = True
        try:
            self._end_episode()
        finally:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.leave()

    def _end_episode(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
