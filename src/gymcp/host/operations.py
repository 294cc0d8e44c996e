"""The table of what clients can ask of a host: paths, records, access, and the function that answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gymcp import __version__
from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.host import wire
from gymcp.host.episode import HostedEpisode
from gymcp.host.host import Host

_PAGE_TASKS = 1_000


class Access(StrEnum):
    """Clients that may ask."""

    ALL = "all"
    """Every client; no token is needed."""
    HOST = "host"
    """Clients with the host's token."""
    EPISODE = "episode"
    """Clients with the host's token, and the agent with the token of its live episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """One request, whose token and body have been checked."""

    host: Host
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    """The record that `Operation.body` names; None without one."""
    mcp_url: Callable[[], str]
    """Address of the MCP endpoint, under the name by which the client reached the host."""

    @property
    def episode(self) -> HostedEpisode:
        """The episode that the path names. Raises RequestRefused."""
        return self.host.find(self.path["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of request. The first line of `answer`'s docstring is its summary."""

    method: str
    path: str
    access: Access
    answer: Callable[[OperationRequest], Awaitable[wire.Record]]
    gives: type
    """Record of the answer."""
    body: type | None = None
    query: Mapping[str, str] | None = None
    """Parameter -> description."""
    status: int = 200
    refusals: tuple[int, ...] = ()
    """HTTP statuses of refusals beside those that every operation has."""

    @property
    def summary(self) -> str:
        return (self.answer.__doc__ or "").partition("\n")[0]

    @property
    def name(self) -> str:
        return self.answer.__name__


async def check_health(asked: OperationRequest) -> wire.Health:
    """Tell that the host answers."""
    return wire.Health(gymcp=__version__)


async def list_environments(asked: OperationRequest) -> wire.Environments:
    """List the environments, with the sizes of their splits."""
    return asked.host.list_environments()


async def list_tasks(asked: OperationRequest) -> wire.Tasks:
    """List the tasks of an environment, a page at a time."""
    offset = _read_count(asked.query, "offset", 0)
    return asked.host.list_tasks(
        asked.path["environment"], asked.query.get("split"), offset, _read_count(asked.query, "limit", _PAGE_TASKS)
    )


async def start_episode(asked: OperationRequest) -> wire.StartedEpisode:
    """Start an episode; the answer comes once its world is open and proven clean."""
    return await asked.host.start(asked.body, asked.mcp_url())


async def list_live_episodes(asked: OperationRequest) -> wire.LiveEpisodes:
    """List the live episodes."""
    return asked.host.list_live()


async def get_episode(asked: OperationRequest) -> wire.EpisodeStatus:
    """Show an episode, with its verdict if it is over; asking keeps a live one from being ended as idle."""
    return asked.episode.describe_status()


async def say_to_user(asked: OperationRequest) -> wire.Reply:
    """Say something to the user, which ends the agent's turn; the answer is the user's, or the verdict."""
    return await asked.episode.say(asked.body.text)


async def call_tool(asked: OperationRequest) -> wire.ToolAnswer:
    """Call a tool, for agents that do not speak MCP."""
    return await asked.episode.call_tool(asked.body.name, asked.body.arguments)


async def finish_episode(asked: OperationRequest) -> wire.Verdict:
    """Finish an episode; the answer is its verdict. If the user would go on, it is graded as it stands."""
    return await asked.episode.finish(asked.body.text)


async def abort_episode(asked: OperationRequest) -> wire.Verdict:
    """Abort an episode, which then has no score; its trial is free for another one."""
    episode = asked.episode
    if episode.is_over:
        why = f"episode {episode.id} is over, and keeps its verdict: GET /v1/episodes/{episode.id}"
        raise RequestRefused(409, why, "episode_over")
    await episode.cancel("its client aborted it")
    return await episode.end()


OPERATIONS: tuple[Operation, ...] = (
    Operation(method="GET", path="/v1/health", access=Access.ALL, answer=check_health, gives=wire.Health),
    Operation(
        method="GET", path="/v1/environments", access=Access.HOST, answer=list_environments, gives=wire.Environments
    ),
    Operation(
        method="GET",
        path="/v1/environments/{environment}/tasks",
        access=Access.HOST,
        answer=list_tasks,
        gives=wire.Tasks,
        query={
            "split": "Name of a split; default: all tasks.",
            "offset": "Number of tasks to leave out; default: 0.",
            "limit": f"Most tasks of the page; default: {_PAGE_TASKS}.",
        },
        refusals=(404,),
    ),
    Operation(
        method="POST",
        path="/v1/episodes",
        access=Access.HOST,
        answer=start_episode,
        gives=wire.StartedEpisode,
        body=wire.StartEpisode,
        status=201,
        refusals=(404, 429, 502, 503),
    ),
    Operation(
        method="GET", path="/v1/episodes", access=Access.HOST, answer=list_live_episodes, gives=wire.LiveEpisodes
    ),
    Operation(
        method="GET",
        path="/v1/episodes/{id}",
        access=Access.EPISODE,
        answer=get_episode,
        gives=wire.EpisodeStatus,
        refusals=(404,),
    ),
    Operation(
        method="POST",
        path="/v1/episodes/{id}/say",
        access=Access.EPISODE,
        answer=say_to_user,
        gives=wire.Reply,
        body=wire.Say,
        refusals=(404, 409, 429),
    ),
    Operation(
        method="POST",
        path="/v1/episodes/{id}/call",
        access=Access.EPISODE,
        answer=call_tool,
        gives=wire.ToolAnswer,
        body=wire.CallTool,
        refusals=(404, 409, 429),
    ),
    Operation(
        method="POST",
        path="/v1/episodes/{id}/finish",
        access=Access.EPISODE,
        answer=finish_episode,
        gives=wire.Verdict,
        body=wire.Finish,
        refusals=(404, 409, 429),
    ),
    Operation(
        method="DELETE",
        path="/v1/episodes/{id}",
        access=Access.HOST,
        answer=abort_episode,
        gives=wire.Verdict,
        refusals=(404, 409),
    ),
)


def _read_count(query: Mapping[str, str], name: str, default: int) -> int:
    """A number of the query. Raises RequestRefused."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestRefused(400, f"'{name}' must be a whole number from 0, not '{text[:40]}'", "invalid_request")
    return int(text)
