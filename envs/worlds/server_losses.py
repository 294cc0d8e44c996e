"""Servers that are lost through an agent's calls in every attempt at an episode: the one rule for when that is graded.

A single loss has no score and is tried again, because the machine or the server may have caused it. If all attempts end
so, the agent did: else an agent with a shell could take its episodes out of the mean by ``kill -9 $PPID``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gymcp.errors import EnvInfraError, ProtocolError, ServerDied, ServerLimitExceeded, ServerTimeout, Undigestible
from gymcp.evaluators.names import LOST_IN_ALL
from gymcp.types import Action, Trajectory

WORLD_LOST = (ServerLimitExceeded, Undigestible)
"""Errors of which the agent is the cause, whenever they happen in a step."""
_SERVER_LOST = (ServerDied, ServerTimeout, ProtocolError)
"""Errors that an agent can cause if its tools can signal the server or write to the server's pipe."""
_LOST_KEY = "server_lost"
"""Key in the provenance of an attempt that lost a server after a call of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The attempts at an episode so far."""

    lost: int | None = 0
    """Number of earlier attempts, each of which lost a server after a call of the agent; None if one failed otherwise.
    """
    is_last: bool = False
    """True if this attempt is not followed by another one."""

    def add_failed(self, *, lost_server: bool) -> Attempts:
        """The attempts with one more that failed, because it lost a server after a call of the agent or otherwise."""
        return Attempts(lost=self.lost + 1 if lost_server and self.lost is not None else None)


UNTRIED = Attempts()
"""Attempts none of which has failed, and which another may follow: the loss of a server has no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An error that ended a step."""

    error: EnvInfraError
    actions: tuple[Action, ...]
    """Actions of the agent in this episode so far, also the one that the error ended."""
    is_excused: bool
    """True if something else may be the cause (`World.excuses_losses`)."""

    @property
    def is_by_agent(self) -> bool:
        """True if a call of the agent may have cost the episode its server."""
        is_lost = isinstance(self.error, _SERVER_LOST) and not self.is_excused
        return is_lost and any(action.tool_calls for action in self.actions)

    def describe_end(self, attempts: Attempts) -> str | None:
        """The reason of an episode that ends here and is graded on the state before; None if it has no score."""
        if isinstance(self.error, WORLD_LOST):
            return str(self.error)
        if not (self.is_by_agent and attempts.is_last and attempts.lost):
            return None
        return f"{self.error}; {LOST_IN_ALL} {attempts.lost + 1} attempts"

    def provenance(self) -> dict[str, bool]:
        """Note in the record of an attempt without a score, which `lost_server` reads."""
        return {_LOST_KEY: True} if self.is_by_agent else {}


def lost_server(record: Trajectory) -> bool:
    """True if the attempt has no score because it lost a server after a call of the agent."""
    return record.provenance.get(_LOST_KEY) is True
