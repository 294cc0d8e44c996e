"""The list of runs: found at the start and again while the viewer is open, summarised in a thread, opened on demand.

A request never reads a store for the list: it gets the summaries that are there.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gymcp.evaluators.suite_groups import group_by_suite, list_models, model_of
from gymcp.evaluators.viewer.discovery import FoundRuns, find_runs
from gymcp.evaluators.viewer.runs import Runs, open_runs
from gymcp.evaluators.viewer.summary import TIMED, RunSummary, Stamp, stamp_of, summarise_run, time_steps
from gymcp.store import is_in_use
from gymcp.types import Json

SCAN_EVERY_S = 5.0
"""Seconds between two searches for new runs."""
CHECK_EVERY_S = 1.0
"""Seconds between two looks at the files of the listed runs."""
MIN_REST_FACTOR = 10
"""A run is read again at the earliest after this many times the time that reading it took."""
MAX_OPEN_RUNS = 8
"""Runs that stay open after their pages were looked at."""


@dataclass(slots=True, kw_only=True)
class ListedRun:
    number: int
    """Number by which pages name the run, as long as the viewer runs."""
    folder: Path
    label: str
    """Path of the run below the folders that were named."""
    summary: RunSummary | None = None
    """None: not read yet."""
    stamp: Stamp = ()
    timed: Stamp = ()
    """State of the files that the latencies are from."""
    due: float = 0.0
    """Time on the monotonic clock before which the run is not read again."""


class RunList:
    """The runs below some folders; safe to share between threads."""

    def __init__(self, named: Sequence[Path]) -> None:
        self._named = tuple(named)
        self._lock = threading.Lock()
        self._runs: list[ListedRun] = []
        self._problems: tuple[str, ...] = ()
        self._version = 1
        self._opened: OrderedDict[tuple[int, ...], _Opened] = OrderedDict()
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._follow, name="summaries", daemon=True)
        self._add(find_runs(self._named))

    def start(self) -> None:
        """Start reading summaries, in a thread."""
        self._reader.start()

    def stop(self) -> None:
        """Stop reading, and close the runs that are open."""
        self._stop.set()
        if self._reader.ident:
            self._reader.join()
        with self._lock:
            opened, self._opened = list(self._opened.values()), OrderedDict()
        for each in opened:
            each.stack.close()

    def all(self) -> list[ListedRun]:
        """The runs that are known now."""
        with self._lock:
            return list(self._runs)

    def read_now(self, run: ListedRun) -> None:
        """Read the run's summary with its latencies; not for a list that was started."""
        self._read(run)
        self._time(run)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the list may be incomplete."""
        with self._lock:
            return self._problems

    def object(self) -> dict[str, Json]:
        """The list for the page. `version` grows with every change."""
        with self._lock:
            return {
                "version": self._version,
                "folders": [str(folder) for folder in self._named],
                "problems": list(self._problems),
                "unread": sum(each.summary is None for each in self._runs),
                "runs": [_run_object(each) for each in self._runs],
            }

    def matrix(self) -> dict[str, Json]:
        """Tasks x runs: for each run, [place of the task in `tasks`, solved, scored, episodes] of the tasks it has."""
        with self._lock:
            listed = [(each.number, each.summary) for each in self._runs if each.summary is not None]
            version = self._version
        keys = sorted({key for _, summary in listed for key in summary.tasks})
        places = {key: place for place, key in enumerate(keys)}
        runs = [
            {
                "number": number,
                "cells": [
                    [places[key], cell.solved, cell.scored, cell.episodes] for key, cell in summary.tasks.items()
                ],
            }
            for number, summary in listed
            if summary.tasks
        ]
        return {
            "version": version,
            "tasks": [{"env": env[:200], "task": task[:300]} for env, task in keys],
            "runs": runs,
        }

    def suites(self) -> dict[str, Json]:
        """Suites x models: for each suite, [place of the model in `models`, number of the run] of its runs.

        Training runs and runs that cannot be read are left out.
        """
        with self._lock:
            listed = [(run, run.summary) for run in self._runs if run.summary is not None]
            version = self._version
        played = [(run, summary) for run, summary in listed if summary.readable and summary.iterations is None]
        models = list_models(summary.config for _, summary in played)
        places = {model: place for place, model in enumerate(models)}
        groups = group_by_suite(played, lambda each: each[1].config, lambda each: each[0].folder.name)
        return {
            "version": version,
            "models": [model[:200] for model in models],
            "suites": [
                {"name": name[:200], "runs": [[places[model_of(each.config)], run.number] for run, each in of_suite]}
                for name, of_suite in groups
            ],
        }

    @contextmanager
    def open_numbers(self, numbers: tuple[int, ...]) -> Iterator[Runs]:
        """The runs of these numbers, open. Raises StoreError if they cannot be read, KeyError for other numbers."""
        with self._lock:
            folders = [self._find(number).folder for number in numbers]
            entry = self._opened.setdefault(numbers, _Opened())
            self._opened.move_to_end(numbers)
            entry.users += 1
            spare = [key for key, each in self._opened.items() if not each.users]
            closed = [self._opened.pop(key) for key in spare[: max(0, len(self._opened) - MAX_OPEN_RUNS)]]
        try:
            for each in closed:
                each.stack.close()
            with entry.lock:
                if entry.runs is None:
                    entry.runs = entry.stack.enter_context(open_runs(folders))
            yield entry.runs
        finally:
            with self._lock:
                entry.users -= 1

    def _find(self, number: int) -> ListedRun:
        if not 0 <= number < len(self._runs):
            raise KeyError(number)
        return self._runs[number]

    def _add(self, found: FoundRuns) -> None:
        """Add the runs that are not listed yet. A run that has gone stays, and says so."""
        with self._lock:
            known = {each.folder for each in self._runs}
            for folder in found.folders:
                if folder not in known:
                    self._runs.append(
                        ListedRun(number=len(self._runs), folder=folder, label=_label(folder, self._named))
                    )
                    self._version += 1
            self._problems = found.problems

    def _follow(self) -> None:
        """Read what is new or has changed: first the figures of all runs, then their latencies."""
        scanned = time.monotonic()
        while not self._stop.is_set():
            if time.monotonic() - scanned > SCAN_EVERY_S:
                self._add(find_runs(self._named))
                scanned = time.monotonic()
            with self._lock:
                runs = list(self._runs)
            changed = [run for run in runs if not self._stop.is_set() and self._read(run)]
            untimed = next((run for run in runs if run.timed != run.stamp and time.monotonic() >= run.due), None)
            if untimed is not None and not self._stop.is_set():
                self._time(untimed)
            elif not changed:
                self._stop.wait(CHECK_EVERY_S)

    def _read(self, run: ListedRun) -> bool:
        """Read the run again if its files have changed, or if it has begun or ended; True if it was read."""
        began = time.monotonic()
        stamp, summary = stamp_of(run.folder), run.summary
        if summary is not None and stamp == run.stamp:
            if summary.running == (running := is_in_use(run.folder)):
                return False
            self._put(run, replace(summary, running=running), stamp)
            return True
        if began < run.due:
            return False
        new = summarise_run(run.folder)
        if summary is not None:
            new = replace(new, **{name: getattr(summary, name) for name in TIMED})
        self._put(run, new, stamp)
        run.due = time.monotonic() + MIN_REST_FACTOR * (time.monotonic() - began)
        return True

    def _time(self, run: ListedRun) -> None:
        began, stamp = time.monotonic(), run.stamp
        if run.summary is not None and run.summary.readable:
            self._put(run, replace(run.summary, **time_steps(run.folder)), stamp)
        run.timed = stamp
        run.due = time.monotonic() + MIN_REST_FACTOR * (time.monotonic() - began)

    def _put(self, run: ListedRun, summary: RunSummary, stamp: Stamp) -> None:
        with self._lock:
            if summary != run.summary:
                self._version += 1
            run.summary, run.stamp = summary, stamp


class _Opened:
    """Runs that are open, or about to be."""

    def __init__(self) -> None:
        self.runs: Runs | None = None
        self.stack = ExitStack()
        self.users = 0
        self.lock = threading.Lock()


@contextmanager
def open_run_list(named: Sequence[Path]) -> Iterator[RunList]:
    """The runs among and below the named folders, followed until the context ends."""
    runs = RunList(named)
    runs.start()
    try:
        yield runs
    finally:
        runs.stop()


def _label(folder: Path, named: Sequence[Path]) -> str:
    above = [top for top in named if top != folder and top in folder.parents]
    return str(folder.relative_to(above[0])) if above else str(folder)


def _run_object(run: ListedRun) -> dict[str, Json]:
    fields = {"number": run.number, "label": run.label[:400]}
    return fields | (run.summary.object() if run.summary is not None else {"unread": True})
