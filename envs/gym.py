"""The synchronous face: `gymnasium.Env` over the asynchronous episode."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from gymcp.envs.background_loop import EpisodeLoop, HostedEpisode
from gymcp.envs.catalog import load_spec
from gymcp.envs.episodes.episode import Episode, Transition, open_episode, open_snapshot
from gymcp.envs.episodes.snapshots import Snapshot
from gymcp.envs.errors import EnvClosed, ResetNeeded
from gymcp.envs.spaces import action_space, from_observation, observation_space, to_action
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Task, Trajectory


class McpEnv(gymnasium.Env[dict[str, Any], Any]):
    """An environment of MCP tools. Actions are `gymcp.types.Action` records or elements of `action_space`.

    The reward of the last step is the grader's score, every other reward is 0. A lost server raises EnvInfraError:
    it is never a reward. `info` holds ``task``, ``turn`` and ``world_key``, and is the same for the same seed and
    actions. After the last step `trajectory` is the graded record.

    A step before `reset` or after the end raises ResetNeeded, a step or a reset after `close` EnvClosed: both are
    UsageErrors, and errors of Gymnasium's.

    What makes resets fast, such as the templates that native servers are forked from, lasts from the first reset to
    `close`, and at most as long as the process.
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
        self._runner: HostedEpisode | None = None
        self._steps = 0
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode of ``options["task"]``, else of a task drawn with the seed. Raises EnvInfraError."""
        self._check_open()
        super().reset(seed=seed)
        task = self._choose(options or {})
        episode_seed = int(self.np_random.integers(2**31))
        self._end_episode()
        self._steps = 0
        self.trajectory = None
        if self._loop is None or not self._loop.is_here:
            self._loop = EpisodeLoop(self._sandbox)
        self._runner = self._loop.open(lambda warm: open_episode(self.loaded, warm, task, seed=episode_seed))
        return self._face(self._runner.opened)

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
        self.trajectory = runner.opened.graded
        observation, info = self._face(runner.opened)
        return observation, transition.reward, transition.terminated, transition.truncated, info

    def snapshot(self) -> Snapshot:
        """This point of the episode, to `restore`; it is kept until `Snapshot.discard`. Raises SnapshotError."""
        return self._live().do(lambda episode: episode.snapshot())

    def restore(self, snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Any]]:
        """Goes back to a snapshot of the same task; gives what `reset` gives. Raises SnapshotError."""
        runner = self._live()
        runner.do(lambda episode: episode.restore(snapshot))
        self._steps, self.trajectory = len(snapshot.steps), None
        return self._face(runner.opened)

    def fork(self, n: int) -> list[McpEnv]:
        """`n` environments in the middle of this episode, independent of it and of each other. Raises SnapshotError."""
        snapshot = self._live().do(lambda episode: episode.snapshot(opens=n))
        forks = [self._fork_of(snapshot) for _ in range(n)]
        try:
            for fork in forks:
                fork._face(fork._live().opened)
        except BaseException:
            for fork in forks:
                fork.close()
            raise
        finally:
            snapshot.discard()
        return forks

    def _fork_of(self, snapshot: Snapshot) -> McpEnv:
        assert self._loop is not None
        fork = copy.copy(self)
        fork.trajectory, fork._np_random, fork._np_random_seed = None, None, None
        fork._loop = self._loop.join()
        fork._runner = fork._loop.open(lambda warm: open_snapshot(snapshot))
        return fork

    def _live(self) -> HostedEpisode:
        self._check_open()
        if self._runner is None:
            raise ResetNeeded(f"environment '{self.loaded.spec.name}': there is no episode before reset")
        return self._runner

    def _check_open(self) -> None:
        if self._closed:
            raise EnvClosed(f"environment '{self.loaded.spec.name}': it is closed; make another")

    def _face(self, episode: Episode) -> tuple[dict[str, Any], dict[str, Any]]:
        observation = from_observation(episode.observation)
        self._shown = "\n".join(f"{message['role']}: {message['content']}" for message in observation["messages"])
        return observation, {"task": episode.task.id, "turn": episode.turn, "world_key": episode.world_key}

    def render(self) -> str | None:
        """The new messages as text, in render mode ``ansi``."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the servers, and what they are forked from. Harmless when called again."""
        self._closed = True
        try:
            self._end_episode()
        finally:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.leave()

    def _end_episode(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
