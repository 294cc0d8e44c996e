"""The live episodes of a host: started within limits, found by their tokens, ended when their clients vanish."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.host import wire
from gymcp.host.descriptions import describe_environment, describe_task
from gymcp.host.episode import LOST, HostedEpisode
from gymcp.host.runs import HostedRun, Runs
from gymcp.host.tokens import episode_named_by
from gymcp.http_headers import is_same_token
from gymcp.mcp_servers.machine_limits import free_memory_mb, memory_to_keep_free_mb
from gymcp.mcp_servers.sandbox import Sandbox

KEPT_VERDICTS = 2_000
"""Episodes that are over and can still be asked for; run folders have all of them."""
MAX_TASKS_PER_PAGE = 10_000
_OPENINGS_PER_CORE = 4
"""Episodes that open at a time: more would only make each other slow."""
_LOOKS_PER_IDLE_TIME = 4
"""Looks for idle episodes within the time after which they are ended."""
_MOST_SECONDS_BETWEEN_LOOKS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Limits of a host."""

    max_live: int = 100
    """Most episodes that live at a time."""
    idle_s: float = 600.0
    """Seconds without a request after which an episode is ended: as it stands, or without a score if no agent came."""
    harness_timeout_s: float = 600.0
    """Maximum seconds of the harness's own work in an episode."""


class Host:
    """Used in one event loop, within `keep_host`."""

    def __init__(self, runs: Runs, sandbox: Sandbox, limits: HostLimits) -> None:
        """`sandbox`: a warm one, which forks servers."""
        self.runs = runs
        self.limits = limits
        self._sandbox = sandbox
        self._live: dict[str, HostedEpisode] = {}
        self._over: OrderedDict[str, HostedEpisode] = OrderedDict()
        self._openings = asyncio.Semaphore(_OPENINGS_PER_CORE * (os.cpu_count() or 1))
        self._is_ending = False

    # ------------------------------------------------------------------------------------------------ what there is

    def list_environments(self) -> wire.Environments:
        """The environments without wrappers."""
        served = self.runs.environments.values()
        return wire.Environments(environments=tuple(describe_environment(each.env) for each in served))

    def list_tasks(self, environment: str, split: str | None, offset: int, limit: int) -> wire.Tasks:
        """A page of an environment's tasks. Raises RequestRefused for an unknown environment or split."""
        suite = self.runs.find_environment(environment).env.suite
        splits = dict.fromkeys(task.split for task in suite.tasks)
        if split is not None and split not in splits:
            why = f"environment '{environment}': no split '{split[:100]}'; have {', '.join(splits)}"
            raise RequestRefused(404, why, "unknown_split")
        tasks = [task for task in suite.tasks if split is None or task.split == split]
        page = tasks[offset : offset + min(limit, MAX_TASKS_PER_PAGE)]
        return wire.Tasks(total=len(tasks), tasks=tuple(map(describe_task, page)))

    def list_live(self) -> wire.LiveEpisodes:
        """The live episodes, and how many there may be."""
        return wire.LiveEpisodes(live=len(self._live), limit=self.limits.max_live, ids=tuple(self._live))

    def find(self, id: str) -> HostedEpisode:
        """The episode of this id, live or over. Raises RequestRefused."""
        episode = self._live.get(id) or self._over.get(id)
        if episode is None:
            why = f"no episode '{id[:64]}' here, or it was over long ago: the run folders have all episodes"
            raise RequestRefused(404, why, "unknown_episode")
        return episode

    def find_by_token(self, token: str, *, over: bool = False) -> HostedEpisode:
        """The live episode whose token this is; with `over`, also one that is over. Raises RequestRefused."""
        id = episode_named_by(token)
        episode = self._live.get(id) or self._over.get(id)
        if episode is None or not is_same_token(episode.token, token):
            raise RequestRefused(401, "the token is neither this host's nor that of one of its episodes", "bad_token")
        if episode.is_over and not over:
            why = f"the token has expired: its episode {id} is over; start another episode for another token"
            raise RequestRefused(401, why, "expired_token")
        return episode

    # ------------------------------------------------------------------------------------------------ their lives

    async def start(self, start: wire.StartEpisode, mcp_url: str) -> wire.StartedEpisode:
        """A new live episode, whose world is open. Raises RequestRefused."""
        self._check_room()  # at once, instead of after the others have opened
        run = await self.runs.find_run(start)
        task = await run.find_task(start)
        async with self._openings:
            self._check_room()
            self._check_memory(run)
            episode = HostedEpisode(run, run.make_job(task, start), start.environment)
            self._live[episode.id] = episode
            playing = episode.begin(self._sandbox, timeout_s=self.limits.harness_timeout_s)
            playing.add_done_callback(lambda _: self._settle(episode))
            with episode.attend():
                if await episode.wait_until_open():
                    return episode.describe_start(episode.conversation.opened.result() or (), mcp_url)
        verdict = await episode.end()
        why = f"the episode could not be opened ({verdict.outcome}): {verdict.reason}; it is recorded; start it again"
        raise RequestRefused(502, why, "environment_failed")

    def _settle(self, episode: HostedEpisode) -> None:
        """Move an episode that is over to those whose verdict is kept."""
        self._live.pop(episode.id, None)
        self._over[episode.id] = episode
        if len(self._over) > KEPT_VERDICTS:
            self._over.popitem(last=False)

    def _check_room(self) -> None:
        if self._is_ending:
            raise RequestRefused(503, LOST, "ending")
        live, limit = len(self._live), self.limits.max_live
        if live >= limit:
            why = f"{live} episodes are live, and this host allows {limit}: finish one, or wait and try again"
            raise RequestRefused(429, f"{why}; gymcp host --max-live allows more", "too_many_episodes")

    def _check_memory(self, run: HostedRun) -> None:
        free, least = free_memory_mb(), memory_to_keep_free_mb(server.limits for server in run.env.servers)
        if self._live and free < least:
            why = f"{free:.0f} MB of memory are free on the host, and an episode needs {least:.0f}"
            raise RequestRefused(503, f"{why}: finish one, or wait and try again", "no_memory")

    async def watch_idle(self) -> None:
        """End episodes whose clients have vanished, for ever."""
        between_s = min(self.limits.idle_s / _LOOKS_PER_IDLE_TIME, _MOST_SECONDS_BETWEEN_LOOKS)
        while True:
            await asyncio.sleep(between_s)
            idle = [episode for episode in self._live.values() if episode.idle_s > self.limits.idle_s]
            why = f"nothing was heard of its client and its agent for {self.limits.idle_s:g} s"
            await asyncio.gather(*(episode.expire(why) for episode in idle))

    async def end(self) -> None:
        """End all live episodes, and start none any more. Requests under way are told."""
        self._is_ending = True
        await asyncio.gather(*(episode.cancel("the host was ended") for episode in list(self._live.values())))


@contextlib.asynccontextmanager
async def keep_host(runs: Runs, sandbox: Sandbox, limits: HostLimits) -> AsyncIterator[Host]:
    """A host that watches its episodes until the context is left; `Host.end` comes before that."""
    host = Host(runs, sandbox, limits)
    watching = asyncio.create_task(host.watch_idle())
    try:
        yield host
    finally:
        watching.cancel()
        await asyncio.wait([watching])
