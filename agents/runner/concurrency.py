"""The number of episodes that run at a time, if the user names none: the smallest of several limits, which has a name.

It is chosen once, before the first episode, from the machine and from what an episode takes and waits for. Scores do
not depend on it: seeds belong to tasks and trials. During the run the scheduler still holds back an episode for which
there is no memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gymcp.agents.policies.specs import ModelOptions, PolicySpec
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.machine_limits import MachineLimits, memory_to_keep_free_mb
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json

EPISODES_PER_CORE = 4
"""Episodes for each core if servers and programs do the work. From two on the rate no longer grows
(benchmarks/RESULTS.md, Throughput); two more cover the time in which they wait for files and processes."""
WAITING_EPISODES_PER_CORE = 32
"""Episodes for each core if they mostly wait for a model: a turn takes some milliseconds of CPU, an answer a second."""
MAX_EPISODES = 256
"""Episodes that one process plays at most: all share its event loop."""
MAX_ENDPOINT_REQUESTS = 32
"""Requests at a time to an endpoint, which may have other users and limits of its own."""
MAX_VLLM_REQUESTS = 64
"""Requests at a time to a vLLM server."""
TURN_S = 30.0
"""Seconds of one turn, at most, by which a limit of requests per minute becomes one of episodes."""
STARTED_SHARE, FORKED_SHARE = 1 / 8, 1 / 16
"""Memory that a server is expected to take, as a share of its limit: started by itself, or forked, when it shares what
it has imported. Both are more than was measured for servers that ship with gymcp."""
MAX_LAZY_SERVERS = 3
"""Servers that an episode is expected to start of those of an environment that starts them at their first call."""
FILES_PER_SERVER, FILES_PER_EPISODE, RESERVED_FILES = 8, 4, 128
"""Open files of this process for a server, for an episode beside its servers, and for everything else."""
GIVEN = "given"
"""Name of the limit if the user named the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLimit:
    """A number of episodes at a time that must not be exceeded."""

    name: str
    """One word for records."""
    episodes: int
    reason: str
    """The limit in words, with its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLoad:
    """The load of one episode, and the limits that do not come from the machine."""

    memory_mb: float
    """Memory that the servers and programs of an episode are expected to take."""
    open_files: int
    """Open files of this process for an episode."""
    kept_free_mb: float
    """Memory that stays free, so that each of them may take as much as its limit allows."""
    waits_for_model: bool
    """True if an episode mostly waits for answers of a model. False: its servers and programs use the CPU."""
    limits: tuple[ConcurrencyLimit, ...] = ()
    min_episodes: int = 1
    """Episodes that must run at a time in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyChoice:
    """The number of episodes at a time, and the limit that it comes from."""

    episodes: int
    limit: ConcurrencyLimit
    allowed: Mapping[str, int] = field(default_factory=dict)
    """Episodes that each limit allows, by its name; empty for a given number."""

    @property
    def is_chosen(self) -> bool:
        """False if the user named the number."""
        return self.limit.name != GIVEN

    def describe(self, option: str) -> str:
        """The choice in one line; `option` names another number."""
        number = f"{self.episodes} episode{'s' if self.episodes > 1 else ''} at a time"
        return f"{number}; the limit is {self.limit.reason}; {option} sets another number"

    def to_json(self) -> dict[str, Json]:
        """Entry of ``run.json``."""
        named: dict[str, Json] = {"episodes": self.episodes, "limit": self.limit.name}
        return {**named, "reason": self.limit.reason, "limits": dict(self.allowed)} if self.is_chosen else named


def choose_concurrency(machine: MachineLimits, load: EpisodeLoad) -> ConcurrencyChoice:
    """The number of episodes that all limits allow, at least one; of equal limits, the first one binds."""
    by_memory = (_limit_by_memory(machine, load),) if load.memory_mb > 0 else ()
    limits = (*load.limits, *by_memory, _limit_by_cpu(machine, load), _limit_by_files(machine, load), _PROCESS)
    binding = min(limits, key=lambda limit: limit.episodes)
    if binding.episodes < load.min_episodes:
        reason = f"that a group's {load.min_episodes} episodes run together, in spite of {binding.reason}"
        binding = ConcurrencyLimit(name="group", episodes=load.min_episodes, reason=reason)
    return ConcurrencyChoice(
        episodes=binding.episodes,
        limit=binding,
        allowed={limit.name: limit.episodes for limit in limits},
    )


def keep_given(episodes: int) -> ConcurrencyChoice:
    """The number that was given."""
    return ConcurrencyChoice(
        episodes=episodes, limit=ConcurrencyLimit(name=GIVEN, episodes=episodes, reason="the number that was given")
    )


_PROCESS = ConcurrencyLimit(
    name="process", episodes=MAX_EPISODES, reason=f"the event loop of one process ({MAX_EPISODES} episodes)"
)


def _limit_by_memory(machine: MachineLimits, load: EpisodeLoad) -> ConcurrencyLimit:
    left = max(0.0, machine.free_memory_mb - load.kept_free_mb)
    where = " in its control group" if machine.is_memory_limit else ""
    return ConcurrencyLimit(
        name="memory",
        episodes=1 + int(left / load.memory_mb),
        reason=f"memory ({machine.free_memory_mb:,.0f} MB free{where}, of which {load.kept_free_mb:,.0f} stay free;"
        f" {load.memory_mb:,.0f} MB an episode)",
    )


def _limit_by_cpu(machine: MachineLimits, load: EpisodeLoad) -> ConcurrencyLimit:
    each = WAITING_EPISODES_PER_CORE if load.waits_for_model else EPISODES_PER_CORE
    by_quota = " by the quota of its control group" if machine.is_cpu_quota else ""
    cores = f"{round(machine.cores, 2):g} core{'' if machine.cores == 1 else 's'}{by_quota}"
    return ConcurrencyLimit(
        name="cpu",
        episodes=max(1, int(machine.cores * each)),
        reason=f"the CPU ({cores}, {each} episodes for each)",
    )


def _limit_by_files(machine: MachineLimits, load: EpisodeLoad) -> ConcurrencyLimit:
    left = machine.open_files - RESERVED_FILES
    return ConcurrencyLimit(
        name="files",
        episodes=max(1, left // load.open_files),
        reason=f"the open files of one process ({machine.open_files:,}: ulimit -n; {load.open_files} an episode)",
    )


def limit_by_tasks(episodes: int) -> ConcurrencyLimit:
    """The number of all episodes of a run."""
    return ConcurrencyLimit(name="tasks", episodes=max(1, episodes), reason="the number of episodes to play")


def limit_by_slots(slots: int, option: str) -> ConcurrencyLimit:
    """The slots of the embedded engine: an episode without one has its prompt computed anew at each turn."""
    return ConcurrencyLimit(
        name="slots", episodes=slots, reason=f"the model in this process ({slots} slots, one an episode: {option})"
    )


def limit_by_vllm() -> ConcurrencyLimit:
    """The requests that a vLLM server is given at a time."""
    return ConcurrencyLimit(
        name="vllm", episodes=MAX_VLLM_REQUESTS, reason=f"the vLLM server ({MAX_VLLM_REQUESTS} requests at a time)"
    )


def limit_by_policy(spec: PolicySpec, options: ModelOptions) -> tuple[ConcurrencyLimit, ...]:
    """Limits by the model that a policy names."""
    if spec.kind == "vllm":
        return (limit_by_vllm(),)
    if spec.kind != "openai":
        return (limit_by_slots(options.slots, "--slots"),)
    endpoint = ConcurrencyLimit(
        name="endpoint",
        episodes=MAX_ENDPOINT_REQUESTS,
        reason=f"the endpoint ({MAX_ENDPOINT_REQUESTS} requests at a time)",
    )
    if (rate := options.requests_per_minute) is None:
        return (endpoint,)
    by_rate = ConcurrencyLimit(
        name="rate",
        episodes=max(1, math.ceil(rate * TURN_S / 60)),
        reason=f"the endpoint ({rate:g} requests a minute: --requests-per-minute)",
    )
    return by_rate, endpoint


def describe_load(
    env: LoadedEnv,
    *,
    forks: bool,
    waits_for_model: bool,
    program: ProgramSettings | None = None,
    limits: tuple[ConcurrencyLimit, ...] = (),
    min_episodes: int = 1,
) -> EpisodeLoad:
    """The load of an episode of the environment. `forks`: the sandbox forks servers that can be forked.

    With a program as the agent, its process counts as a server, and episodes do not wait for a model alone.
    """
    servers = [server for server in env.servers if server.url is None]
    sizes = sorted((_expect_memory_mb(server, forks=forks) for server in servers), reverse=True)
    started = sizes[:MAX_LAZY_SERVERS] if env.spec.lazy else sizes
    if program is not None:
        started.append(program.limits.memory_mb * STARTED_SHARE)
    return EpisodeLoad(
        memory_mb=math.fsum(started),
        open_files=FILES_PER_EPISODE + FILES_PER_SERVER * len(started),
        kept_free_mb=memory_to_keep_free_mb(server.limits for server in servers),
        waits_for_model=waits_for_model and program is None,
        limits=limits,
        min_episodes=min_episodes,
    )


def _expect_memory_mb(server: ServerSpec, *, forks: bool) -> float:
    is_forked = forks and server.fork is not None and not server.services
    return server.limits.memory_mb * (FORKED_SHARE if is_forked else STARTED_SHARE)
