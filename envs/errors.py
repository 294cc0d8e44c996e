"""Words to an episode that is not there: errors of ours and of Gymnasium's at once."""

from __future__ import annotations

import gymnasium.error

from gymcp.errors import NoEpisode


class ResetNeeded(NoEpisode, gymnasium.error.ResetNeeded):
    """Before `reset`, or after the end of the episode."""


class EnvClosed(NoEpisode, gymnasium.error.ClosedEnvironmentError):
    """After `close`."""
