"""Progress of a run that also shows some of its episodes as they end."""

from __future__ import annotations

from gymcp.cli.demo.episode_lines import summarise_episode
from gymcp.cli.output import OutputConsole
from gymcp.cli.progress import Progress
from gymcp.types import Trajectory

SHOWN_EPISODES = 3
"""Episodes of a run that are shown, evenly spread over it."""


class ShownProgress(Progress):
    """Progress on standard error; some episodes are printed on `page`, above the live line if there is one."""

    def __init__(self, label: str, page: OutputConsole) -> None:
        super().__init__(label)
        self._page = page

    def advance(self, trajectory: Trajectory) -> None:
        """Count an episode that will not be run again, and show it if its turn has come."""
        super().advance(trajectory)
        share = max(1, self._total // SHOWN_EPISODES)
        if (self._done - 1) % share == 0 and self._done <= SHOWN_EPISODES * share:
            self._show(trajectory)

    def _show(self, trajectory: Trajectory) -> None:
        both = self._page.is_terminal and self._console.is_terminal
        console = self._console if both else self._page  # a live line is drawn again below what its console prints
        console.print(summarise_episode(trajectory, self._page.width), highlight=False, soft_wrap=True)
