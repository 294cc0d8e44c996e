"""Progress of a run on standard error: count, success, speed and remaining time."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.live import Live
from rich.text import Text

from gymcp.cli.output import OutputConsole
from gymcp.types import Trajectory

LINE_EVERY_S = 10.0
"""Seconds between two lines if standard error is not a terminal."""


class Progress:
    """A live line on standard error; if that is not a terminal, a line every `LINE_EVERY_S` seconds."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._total = 0
        self._done = self._scored = self._passed = self._lost = 0
        self._console = OutputConsole(stderr=True)
        self._started = self._printed = time.monotonic()
        self._live = Live(console=self._console, transient=True, refresh_per_second=8, get_renderable=self._line)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, label: str) -> None:
        """Show another run, from 0; its episodes are counted by `start`."""
        self._label = label
        self.start(0)

    def start(self, total: int) -> None:
        """Start the clock for `total` episodes."""
        self._total = total
        self._done = self._scored = self._passed = self._lost = 0
        self._started = time.monotonic()

    def show(self, stage: str) -> None:
        """Show a stage that counts no episodes."""
        self.begin(stage)
        self._print_if_due()

    def advance(self, trajectory: Trajectory) -> None:
        """Count an episode that will not be run again."""
        self._done += 1
        if trajectory.score is None:
            self._lost += 1
        else:
            self._scored += 1
            self._passed += bool(trajectory.success)
        self._print_if_due()

    def _print_if_due(self) -> None:
        """Print the line if standard error is not a terminal and the last line was long ago."""
        if not self._console.is_terminal and time.monotonic() - self._printed >= LINE_EVERY_S:
            self._printed = time.monotonic()
            print(self._line().plain, file=sys.stderr, flush=True)

    def _line(self) -> Text:
        elapsed = time.monotonic() - self._started
        if self._total == 0:
            return Text(f"{self._label} · {format_time(elapsed)}")
        rate = self._done / elapsed if elapsed > 0 else 0.0
        left = f"{format_time((self._total - self._done) / rate)} left" if rate else "estimating"
        parts = [
            f"{self._label}  {self._done}/{self._total} episodes",
            f"success {self._passed}/{self._scored}",
            *([f"{self._lost} without a score"] if self._lost else []),
            f"{rate:.1f}/s",
            format_time(elapsed),
            left,
        ]
        return Text(" · ".join(parts))


class CountProgress:
    """A live line on standard error: how much of a work is done, its rate, and the time left."""

    def __init__(self) -> None:
        self._what, self._done, self._total = "", 0, 0
        self._console = OutputConsole(stderr=True)
        self._started = self._printed = time.monotonic()
        self._live = Live(console=self._console, transient=True, refresh_per_second=8, get_renderable=self._line)

    def __enter__(self) -> CountProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def report(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` are done; another `what` starts the clock again."""
        if what != self._what:
            self._started = time.monotonic()
        self._what, self._done, self._total = what, done, total
        if not self._console.is_terminal and time.monotonic() - self._printed >= LINE_EVERY_S:
            self._printed = time.monotonic()
            print(self._line().plain, file=sys.stderr, flush=True)

    def _line(self) -> Text:
        elapsed = time.monotonic() - self._started
        rate = self._done / elapsed if elapsed > 0 else 0.0
        left = f"{format_time(max(0, self._total - self._done) / rate)} left" if rate else "estimating"
        return Text(" · ".join((f"{self._done:,}/{self._total:,} {self._what}", f"{rate:.1f}/s", left)))


def format_time(seconds: float) -> str:
    """The duration as "minutes:seconds"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
