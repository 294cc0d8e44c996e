"""Run folders of the host: one for each environment, agent and choice of wrappers, recorded as `gymcp eval` records."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.runner.environment import keep_answers, list_versions, wrap_environment
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.run import Plan
from gymcp.agents.strategies.budgets import Budget
from gymcp.aio import keyed_lock
from gymcp.envs.generated_tasks import GENERATED, GeneratedTask
from gymcp.envs.spec import EnvSpec, LoadedEnv, price_steps
from gymcp.envs.wrappers.privileges import parse_privileges
from gymcp.envs.wrappers.registry import WrapperSelection, check_selection
from gymcp.envs.wrappers.retrieval import plan_retrieval
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.report import write_report
from gymcp.host import wire
from gymcp.host.tasks import find_task, read_generate
from gymcp.host.trials import Trials
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.outcome import Outcome
from gymcp.seeds import derive_seed
from gymcp.store import TrajectoryStore, create_run, open_run
from gymcp.types import Json, Task, Trajectory

MAX_RUNS = 100
"""Run folders that may be open at a time: an agent's name comes from outside."""
MAX_NAME_CHARS = 100
BUSY_TIMEOUT_S = 5.0
"""Seconds to wait for a lock on the store: no episode runs during a write."""
AGENT_PREFIX = "host:"
"""Beginning of an agent's name in the record of a run: no agent of gymcp's own has a colon in its name."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_DIGEST_CHARS = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEnvironment:
    """An environment of the host, without wrappers."""

    spec: EnvSpec
    source: str
    """Name of the environment that is valid in any folder."""
    env: LoadedEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings that all runs of a host have in common."""

    out: Path
    """Folder that holds the run folders."""
    sandbox: Sandbox
    seed: int = 0
    agent_s: float | None = None
    """Maximum seconds of an agent's own time in an episode; None: the environment's, else an hour."""
    resume: bool = False
    """True: add to the runs that `out` holds."""
    cassette: str | None = None
    """``record`` or ``replay`` for servers with a URL; None: as the environment says."""
    give_models: Callable[[LoadedEnv], LoadedEnv] = lambda env: env
    """Gives an environment the models that play its user and that its grader asks. Raises ConfigError."""
    models: Mapping[str, Json] = field(default_factory=dict)
    """Entries of ``run.json`` about these models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedRun:
    """One open run folder."""

    env: LoadedEnv
    """The environment inside its wrappers."""
    folder: Path
    store: TrajectoryStore
    trials: Trials
    tasks: Mapping[str, Task]
    seed: int
    """Seed of the host, from which those of episodes are derived."""
    agent_s: float | None
    """Maximum seconds of the agent's own time in an episode; None: the environment's, else an hour."""
    generated: dict[str, GeneratedTask] = field(default_factory=dict)
    """Id of a task beyond the suite -> the request that gives it."""

    async def find_task(self, start: wire.StartEpisode) -> Task:
        """The task of the request. Raises RequestRefused."""
        task = await find_task(self.env.spec, self.tasks, start)
        if start.generate is not None:
            self.generated[task.id] = read_generate(start.generate)
        return task

    def make_job(self, task: Task, start: wire.StartEpisode) -> Job:
        """The job of a new episode, whose trial is taken."""
        trial = self.trials.take(task.id)
        seed = derive_seed(self.seed, task.id, trial) if start.seed is None else start.seed
        return Job(task=task, trial=trial, seed=seed, policy_version=start.policy_version)

    def record(self, rollout: Rollout, episode: str, why_cancelled: str) -> Trajectory:
        """Append the episode under this id, and return its record. Raises StoreError."""
        trajectory = replace(rollout.trajectory, id=episode)
        if (wanted := self.generated.get(trajectory.task)) is not None:
            trajectory = replace(trajectory, provenance={**trajectory.provenance, GENERATED: wanted.to_row()})
        if trajectory.outcome is Outcome.CANCELLED and why_cancelled:
            trajectory = replace(trajectory, reason=why_cancelled)
        if trajectory.outcome.runs_again:
            self.trials.put_back(trajectory.task, trajectory.trial)
        self.store.append(trajectory, rollout.states, tags=rollout.job.task.tags)
        return trajectory


class Runs:
    """The runs of a host. `close` ends them."""

    def __init__(self, environments: Sequence[ServedEnvironment], settings: RunSettings) -> None:
        self.environments = {served.spec.name: served for served in environments}
        self._settings = settings
        self._runs: dict[str, HostedRun] = {}
        """By the digest of environment, agent and wrappers."""
        self._stack = contextlib.ExitStack()

    def find_environment(self, name: str) -> ServedEnvironment:
        """The environment of this name. Raises RequestRefused."""
        if (served := self.environments.get(name)) is None:
            have = ", ".join(self.environments)
            why = f"no environment '{name[:MAX_NAME_CHARS]}' here; have {have}"
            raise RequestRefused(404, why, "unknown_environment")
        return served

    async def find_run(self, start: wire.StartEpisode) -> HostedRun:
        """The run of the request, opened if it is the first of its kind. Raises RequestRefused, StoreError."""
        served = self.find_environment(start.environment)
        _check_agent(start.agent)
        wrappers = _select_wrappers(start.wrappers)
        name = _name_run(start, wrappers.to_config())
        key = _identify(start, wrappers.to_config())
        async with keyed_lock(f"run {self._settings.out}/{name}"):
            if key not in self._runs:
                if len(self._runs) >= MAX_RUNS:
                    why = f"{MAX_RUNS} runs are open, one for each environment, agent and choice of wrappers"
                    raise RequestRefused(429, f"{why}: use fewer names of agents, or another host", "too_many_runs")
                env = await self._load(served, wrappers)
                await find_task(env.spec, {task.id: task for task in env.suite.tasks}, start)  # before a folder is made
                if _is_of_another(self._settings.out / name, env, start.agent):
                    name += f"-{key[:_DIGEST_CHARS]}"
                self._runs[key] = self._open(name, served, env, start.agent, wrappers.to_config())
        return self._runs[key]

    async def _load(self, served: ServedEnvironment, wrappers: WrapperSelection) -> LoadedEnv:
        """The environment inside the wrappers. Raises RequestRefused."""
        if wrappers == WrapperSelection():
            return served.env
        settings = self._settings
        try:
            env = await asyncio.to_thread(wrap_environment, served.spec, wrappers, settings.sandbox, settings.cassette)
            await check_selection(wrappers, env, settings.sandbox)
            env = settings.give_models(env)
        except ConfigError as error:
            raise RequestRefused(400, f"wrappers: {error}", "bad_wrappers") from error
        return env

    def _open(
        self, name: str, served: ServedEnvironment, env: LoadedEnv, agent: str, wrappers: Mapping[str, Json]
    ) -> HostedRun:
        settings = self._settings
        budget = Budget(turns=None, tokens=None, seconds=settings.agent_s)
        plan = Plan(
            agent=f"{AGENT_PREFIX}{agent}",
            sandbox=settings.sandbox.name,
            trials=0,  # no number of episodes is planned
            seed=settings.seed,
            settings={"budget": asdict(budget), **settings.models, **wrappers},
        )
        folder = settings.out / name
        versions = list_versions(settings.sandbox, env)
        config = plan.config(env, served.source)
        with contextlib.ExitStack() as stack:
            run = create_run(folder, config, seeds=[settings.seed], versions=versions, resume=settings.resume)
            stack.enter_context(run)
            store = stack.enter_context(TrajectoryStore.open(folder, write=True, busy_timeout_s=BUSY_TIMEOUT_S))
            opened = HostedRun(
                env=stack.enter_context(keep_answers(env, folder)),
                folder=folder,
                store=store,
                trials=Trials(store.attempts()),
                tasks={task.id: task for task in env.suite.tasks},
                seed=settings.seed,
                agent_s=settings.agent_s,
            )
            self._stack.push(stack.pop_all())
        return opened

    def close(self) -> list[Path]:
        """Write the report of each run, close all, and return their folders."""
        runs = list(self._runs.values())
        try:
            for run in runs:
                try:
                    _write_report(run)
                except StoreError as error:
                    log.warning("%s", error)
        finally:
            self._stack.close()
        return [run.folder for run in runs]


def _write_report(run: HostedRun) -> None:
    """Raises StoreError."""
    write_report(run.folder, lambda _: run.tasks, find_prices=lambda _: price_steps(run.env.spec))


def _check_agent(agent: str) -> None:
    """Raise RequestRefused for a name that people cannot read in a report."""
    if not agent.strip() or not agent.isprintable() or len(agent) > MAX_NAME_CHARS:
        why = f"'agent' must be a name of 1 to {MAX_NAME_CHARS} printable characters"
        raise RequestRefused(400, why, "invalid_request")


def _select_wrappers(given: wire.Wrappers) -> WrapperSelection:
    """The selection of a request. Raises RequestRefused."""
    try:
        return WrapperSelection(
            attack=given.attack,
            privileges=None if given.privileges is None else parse_privileges(given.privileges, "of the request"),
            stress=given.stress,
            retrieval=plan_retrieval(given.retrieve, given.tool_budget),
        )
    except ConfigError as error:
        raise RequestRefused(400, f"wrappers: {error}", "bad_wrappers") from error


def _name_run(start: wire.StartEpisode, wrappers: Mapping[str, Json]) -> str:
    """Name of the run folder: environment and agent, and a digest if the name does not tell everything."""
    plain = f"{start.environment}-{start.agent}"
    name = _NOT_IN_A_NAME.sub("-", plain)
    if wrappers or name != plain:
        name += f"-{digest([plain, dict(wrappers)])[:_DIGEST_CHARS]}"
    return name


def _identify(start: wire.StartEpisode, wrappers: Mapping[str, Json]) -> str:
    """Digest of all that makes a run another one."""
    return digest([start.environment, start.agent, dict(wrappers)])


def _is_of_another(folder: Path, env: LoadedEnv, agent: str) -> bool:
    """True if the folder holds a run of another environment or agent whose names, joined, are the same."""
    try:
        config = open_run(folder).config
    except StoreError:
        return False
    return (config.get("env"), config.get("agent")) != (env.spec.name, f"{AGENT_PREFIX}{agent}")
