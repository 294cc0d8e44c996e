"""Words to an episode that is not there: errors of ours and of Gymnasium's at once."""

from __future__ import annotations

import gymnasium.error

from gymcp.errors import NoActiveEpisode


class ResetNeeded(NoActiveEpisode, gymnasium.error.ResetNeeded):
    """Before `reset`, or after the end of the episode."""


class EnvClosed(NoActiveEpisode, gymnasium.error.ClosedEnvironmentError):
    """After `close`."""
