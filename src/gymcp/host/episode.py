"""One hosted episode: played by a rollout as `gymcp eval` plays, with a client in the place of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

from gymcp.agents.endpoint.http_server import HeldRequests, RequestRefused
from gymcp.agents.runner.rollout import Job, rollout
from gymcp.host import wire
from gymcp.host.conversation import Conversation
from gymcp.host.descriptions import describe_messages, describe_tools, make_verdict
from gymcp.host.runs import HostedRun
from gymcp.host.tokens import make_episode_token
from gymcp.http_headers import is_same_token
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Message

log = logging.getLogger(__name__)
LOST = "the episode ended before it began: the host is ending"


class HostedEpisode:
    """A live episode, or one that is over and still has its verdict. Used in one event loop."""

    def __init__(self, run: HostedRun, job: Job, environment: str) -> None:
        self.id = uuid.uuid4().hex
        self.token = make_episode_token(self.id)
        self.run = run
        self.job = job
        self.environment = environment
        self.conversation = Conversation()
        self.requests = HeldRequests()
        self.mcp_session: str | None = None
        """Id of the open MCP session."""
        self.verdict: wire.Verdict | None = None
        self.unrecorded = ""
        """Reason why the run folder lacks the episode; empty if it has it."""
        self._is_finished = False
        self._requests = 0
        self._heard_at = time.monotonic()
        self._has_agent = False
        """True once something has come from the agent: a request with its token, a call or a message."""
        self._is_expired = False
        self._why_cancelled = ""
        self._playing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------------- its life

    def begin(self, sandbox: Sandbox, *, timeout_s: float) -> asyncio.Task[None]:
        """Play in a task of its own, whose end is the end of the episode."""
        self._playing = asyncio.create_task(self._play(sandbox, timeout_s))
        self._playing.add_done_callback(lambda _: self.conversation.end())
        return self._playing

    async def _play(self, sandbox: Sandbox, timeout_s: float) -> None:
        """Play the episode to its end and record it; servers and workspace are gone then."""
        played = await rollout(
            self.run.env,
            sandbox,
            lambda task, seed: self.conversation,
            self.job,
            timeout_s=timeout_s,
            agent_s=self.run.agent_s,
        )
        trajectory = played.trajectory
        try:
            trajectory = self.run.record(played, self.id, self._why_cancelled)
        except Exception as error:  # the boundary: an episode that cannot be stored must not end others
            log.exception("episode %s", self.id)
            self.unrecorded = str(error)
        self.verdict = make_verdict(trajectory, self.run.folder)
        self._heard_at = time.monotonic()

    async def cancel(self, why: str) -> None:
        """End the episode without a score, and return when nothing of it is left."""
        if self._playing is None or self._playing.done():
            return
        if not self._why_cancelled:  # a second cancellation would interrupt what the first has begun to end
            self._why_cancelled = why
            self._playing.cancel()
        await self.wait()

    async def expire(self, why: str) -> None:
        """End an idle episode: as it stands, so that silence takes no score away, or without a score if no agent came.

        It returns when nothing of an episode without a score is left.
        """
        if not self._has_agent:
            await self.cancel(why)
        elif not self._is_expired:
            self._is_expired = True
            self.conversation.stop(why)

    async def wait(self) -> None:
        """Return when the episode is over and recorded."""
        if self._playing is not None:
            await asyncio.wait([self._playing])

    async def wait_until_open(self) -> bool:
        """True once the agent may act; False if the episode is over before."""
        assert self._playing is not None
        either: tuple[asyncio.Future[Any], ...] = (self._playing, self.conversation.opened)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self.conversation.opened.done() and self.conversation.opened.result() is not None

    @property
    def is_over(self) -> bool:
        """True if the episode takes nothing more from its agent."""
        return self._playing is not None and self._playing.done()

    @contextlib.contextmanager
    def attend(self, token: str = "") -> Iterator[None]:
        """The time of a request about the episode with this token, in which it is not idle."""
        self._has_agent = self._has_agent or is_same_token(token, self.token)
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._heard_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request about the episode; 0 during one."""
        return 0.0 if self._requests else time.monotonic() - self._heard_at

    # --------------------------------------------------------------------------------------------------- its requests

    async def say(self, text: str) -> wire.Reply:
        """The user's answer, or the verdict. Raises RequestRefused after the end."""
        self._check_live()
        self._has_agent = True
        heard = await self.conversation.say(text)
        if heard is None:
            return wire.Reply(over=True, verdict=await self.end())
        return wire.Reply(over=False, messages=describe_messages(heard), tools=self.tools)

    async def call_tool(self, name: str, arguments: dict[str, object]) -> wire.ToolAnswer:
        """The result of a call. Raises RequestRefused after the end, and while an MCP session is open."""
        self._check_live()
        if self.mcp_session is not None:
            why = f"episode {self.id} has an MCP session, and one agent acts in an episode"
            raise RequestRefused(
                409, f"{why}: call its tools through MCP, or end that session first (DELETE)", "mcp_open"
            )
        self._has_agent = True
        message = await self.conversation.exchange.call_tool(name, arguments)
        over = self.conversation.exchange.is_closed
        return wire.ToolAnswer(content=message.content, is_error=message.is_error, over=over)

    async def finish(self, text: str) -> wire.Verdict:
        """The verdict: the agent's last message is said; if the user goes on, the episode ends as it stands.

        Raises RequestRefused the second time.
        """
        if self._is_finished:
            why = f"episode {self.id} has been finished already; its verdict stays: GET /v1/episodes/{self.id}"
            raise RequestRefused(409, why, "already_finished")
        self._is_finished = True
        if not self.is_over:
            try:
                heard = await self.conversation.say(text)
            except RequestRefused:
                self._is_finished = False
                raise
            if heard is not None:
                self.conversation.stop()
        return await self.end()

    async def end(self) -> wire.Verdict:
        """The verdict, once the episode is over. Raises RequestRefused if there is none, or if it is not recorded."""
        await self.wait()
        if self.verdict is None:
            raise RequestRefused(503, LOST, "ending")
        if self.unrecorded:
            raise RequestRefused(500, f"episode {self.id} is over, but not recorded: {self.unrecorded}", "not_recorded")
        return self.verdict

    def describe_start(self, messages: tuple[Message, ...], mcp_url: str) -> wire.StartedEpisode:
        """The answer to the request that started it."""
        return wire.StartedEpisode(
            id=self.id,
            token=self.token,
            environment=self.environment,
            task=self.job.task.id,
            trial=self.job.trial,
            seed=self.job.seed,
            messages=describe_messages(messages),
            tools=self.tools,
            mcp=wire.McpAddress(url=mcp_url, headers={"Authorization": f"Bearer {self.token}"}),
            run=str(self.run.folder),
        )

    def describe_status(self) -> wire.EpisodeStatus:
        """The episode as it is now."""
        return wire.EpisodeStatus(
            id=self.id,
            environment=self.environment,
            task=self.job.task.id,
            trial=self.job.trial,
            seed=self.job.seed,
            over=self.is_over,
            tools=() if self.is_over else self.tools,
            verdict=self.verdict,
        )

    @property
    def tools(self) -> tuple[wire.ToolEntry, ...]:
        """Tools on offer now."""
        return describe_tools(self.conversation.exchange.tools)

    def _check_live(self) -> None:
        if self.is_over:
            end = "" if self.verdict is None else f" ({self.verdict.outcome})"
            why = f"episode {self.id} is over{end}; its verdict: GET /v1/episodes/{self.id}; start another episode"
            raise RequestRefused(409, why, "episode_over")
