"""A policy on another machine, which is lost if it is silent, and is opened again."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from gymcp.errors import ConfigError, NodeLost, PolicyInfraError
from gymcp.types import Sampled, Sampling

SILENT_S = 60.0
"""Seconds without an answer to a ping after which a policy is lost; at most half of an answer's limit."""
MIN_SILENT_S = 5.0
"""Minimum of these seconds: answers of a busy machine may take some."""
PING_SHARE = 0.25
"""Time between two pings, as a share of those seconds."""
WAIT_SHARE = 0.875
"""Share of an answer's limit, or of what is left of the episode's, after which a sample waits no longer for the policy
to be opened."""
MAX_OPENED = 3
"""Number of times that the policy is opened in one run, those that failed included."""

log = logging.getLogger(__name__)


class PolicyNode(Protocol):
    """A policy that is open on a machine."""

    @property
    def name(self) -> str:
        """Name of the machine for people."""
        ...

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """See `Policy`. Raises NodeLost, and what the policy raises."""
        ...

    async def ping(self, timeout_s: float) -> None:
        """Return once the policy's process answers. Raises NodeLost."""
        ...

    async def close(self) -> None:
        """End the policy's process, and let it close what it has opened before."""
        ...

    def end(self) -> None:
        """End the policy's process at once."""
        ...


class ReopenedPolicy:
    """A policy on another machine. A sample depends on nothing that the machine keeps, so a lost one is drawn again."""

    def __init__(self, who: str, open_node: Callable[[], Coroutine[Any, Any, PolicyNode]], limit_s: float) -> None:
        """`who`: the policy's name in messages. `open_node`: opens it on a machine, and raises ConfigError.

        `limit_s`: seconds after which an agent waits for an answer no longer, and is graded as it stands.
        """
        self._who, self._open_node, self._limit_s = who, open_node, limit_s
        self._silent_s = min(SILENT_S, max(MIN_SILENT_S, limit_s / 2))
        self._opened = 0
        self._node: PolicyNode | None = None
        self._watching: asyncio.Task[NodeLost] | None = None
        """Ends with the reason once the node is silent."""
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the policy. Raises ConfigError."""
        self._opened += 1
        self._node = await self._open_node()
        self._watching = None

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, wait_s: float = math.inf) -> Sampled:
        """See `Policy`. Raises PolicyInfraError if the policy is lost and answers too late, and what it raises.

        `wait_s`: seconds that are left to the episode that asks, if they are less than the limit of an answer.
        """
        give_up_at = time.monotonic() + WAIT_SHARE * min(self._limit_s, wait_s)
        was_lost = False
        while True:
            if self._opening is not None:
                await self._wait_until_open(self._opening, give_up_at)
            there = self._node
            if there is None:
                raise PolicyInfraError(f"{self._who}: its node is lost, and the model is open on no other one")
            try:
                async with asyncio.timeout(give_up_at - time.monotonic() if was_lost else None) as scope:
                    return await self._sample_on(there, prompt_ids, sampling)
            except TimeoutError as error:
                if not scope.expired():
                    raise
                raise PolicyInfraError(
                    f"{self._who}: its node was lost, and the other one had too little time"
                ) from error
            except NodeLost as error:
                was_lost = True
                if self._node is there and self._opening is None:
                    self._opening = asyncio.create_task(self._open_again(there, error))

    async def _sample_on(self, there: PolicyNode, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Raises NodeLost, also if the node is silent."""
        if self._watching is None or self._watching.cancelled():  # by the end of an earlier event loop
            self._watching = asyncio.create_task(self._watch(there))
        watching = self._watching
        answering = asyncio.create_task(there.sample(prompt_ids, sampling))
        either: set[asyncio.Task[Any]] = {watching, answering}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise watching.result()
            return answering.result()
        finally:
            answering.cancel()

    async def _watch(self, there: PolicyNode) -> NodeLost:
        """Ask the node again and again whether it lives; the reason once it does not answer."""
        while True:
            await asyncio.sleep(PING_SHARE * self._silent_s)
            try:
                await there.ping(self._silent_s)
            except NodeLost as error:
                return error

    async def _wait_until_open(self, opening: asyncio.Task[None], give_up_at: float) -> None:
        """Raises PolicyInfraError: a sample that came too late would be the agent's fault."""
        await asyncio.wait({opening}, timeout=max(0.0, give_up_at - time.monotonic()))
        if not opening.done():
            raise PolicyInfraError(f"{self._who}: its node is lost, and the model is still being opened again")

    async def _open_again(self, lost: PolicyNode, why: NodeLost) -> None:
        try:
            lost.end()
            log.warning("node %s: %s: %s; the model is opened again", lost.name, self._who, why)
            self._node = None
            while self._node is None and self._opened < MAX_OPENED:
                try:
                    await self.open()
                except ConfigError as error:
                    log.warning("%s: cannot be opened again: %s", self._who, error)
            if self._node is None:
                log.warning("%s: is opened no more: %d tries were made", self._who, MAX_OPENED)
        finally:
            self._opening = None

    async def close(self) -> None:
        """Close the policy and end its process."""
        if self._node is not None:
            await self._node.close()
