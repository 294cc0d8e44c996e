"""Errors raised when no episode is active; each is both a gymcp and a Gymnasium error."""

from __future__ import annotations

import gymnasium.error

from gymcp.errors import NoActiveEpisode


class ResetNeeded(NoActiveEpisode, gymnasium.error.ResetNeeded):
    """Raised by a step before `reset` or after the end of the episode."""


class EnvClosed(NoActiveEpisode, gymnasium.error.ClosedEnvironmentError):
    """Raised by any use after `close`."""
