"""The runs that the viewer shows: opened, indexed, and followed while they grow."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.evaluators.names import UPPER_BOUND_KEY, mark_upper_bound, run_name
from gymcp.evaluators.viewer.index import EpisodeIndex, transcript
from gymcp.store import BranchRow, EpisodeRow, Run, TrajectoryStore, open_run
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.store.notes import NOTES_FILE, Note, read_notes
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.types import Task

_BATCH_EPISODES = 50
"""Episodes whose transcripts are added in one transaction; a search may have to wait for one."""
_FOLLOWED = (METRICS_FILE, TRAINING_FILE)
"""Files of a training run that pages show and that are not indexed."""


@dataclass(slots=True, kw_only=True)
class OpenedRun:
    number: int
    folder: Path
    store: TrajectoryStore
    run: Run | None
    """The run's record; None if the folder holds episodes but no ``run.json``, as a training run's does."""
    problems: list[str] = field(default_factory=list)
    """Problems of the run, for people."""
    damaged: bool = False
    seen: tuple[int, int] = (0, 0)
    """(episodes, grades) that are in the index."""
    notes: Mapping[str, Mapping[str, Note]] = field(default_factory=dict)
    """Notes of people, by id of the episode and by person."""
    notes_stamp: tuple[int, int] | None = None
    """State of the file of notes when it was read; None: there was none."""
    tasks: Mapping[str, Task] | None = None
    """Tasks of the run by id, once they were looked for; {} if they are not available."""

    @property
    def training(self) -> bool:
        """True for a training run."""
        return (self.folder / TRAINING_FILE).exists()

    @property
    def name(self) -> str:
        """Name from the run's config, else of its folder; marked if its success is an upper bound."""
        config = self.run.config if self.run else {}
        return mark_upper_bound(run_name(config) or self.folder.name, config.get(UPPER_BOUND_KEY))


class NotFound(Exception):
    """The page asked for something that does not exist or cannot be read; the message is for people."""


class Runs:
    """The opened runs; safe to share between threads."""

    def __init__(self, opened: Sequence[OpenedRun], index: EpisodeIndex, problems: Sequence[str]) -> None:
        self.opened = tuple(opened)
        self.index = index
        self.problems = tuple(problems)
        """Reasons why something that was asked for is not shown."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._follow_transcripts, name="transcripts", daemon=True)
        self._read = dict.fromkeys((each.number for each in opened), 0)
        """Run -> last of its episodes whose transcript was read."""

    def find_run(self, number: int) -> OpenedRun:
        """The opened run of that number. Raises NotFound."""
        if number >= len(self.opened):
            raise NotFound(f"no run {number}")
        return self.opened[number]

    def version(self) -> str:
        """Mark of all that `refresh` has indexed so far, and of the metrics: another one shows that a run has changed.

        It is made of what the files hold and not counted, so that it stays the same if the runs are opened again.
        """
        with self._lock:
            files = [stamp_of_file(each.folder / name) for each in self.opened for name in _FOLLOWED]
            marks = [[(each.seen, each.notes_stamp, len(each.problems)) for each in self.opened], files]
        return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]

    def refresh(self) -> None:
        """Index what was recorded, graded or noted since the last call."""
        with self._lock:
            for each in self.opened:
                seen = each.seen
                self._refresh_rows(each)
                self._refresh_notes(each, rows_changed=each.seen != seen)

    def _refresh_rows(self, each: OpenedRun) -> None:
        if each.damaged:
            return
        episodes, grades = now = each.store.change_counter()
        if now == each.seen:
            return
        # a new attempt replaces an older one, and a grade changes one: read all rows again
        changed = grades != each.seen[1] or each.seen == (0, 0)
        rows = each.store.summaries(latest=False, after=0 if changed else each.seen[0])
        if any(row.attempt for row in rows) and not changed:
            rows = each.store.summaries(latest=False)
        self.index.put(each.number, rows, *_read_branches(each))
        each.seen = (episodes, grades)

    def _refresh_notes(self, each: OpenedRun, *, rows_changed: bool) -> None:
        """Read the notes again if their file has changed; show them also on episodes that are new."""
        stamp = stamp_of_file(each.folder / NOTES_FILE)
        if stamp != each.notes_stamp:
            try:
                each.notes = read_notes(each.folder)
            except StoreError as error:
                each.notes, problem = {}, str(error)
                each.problems += [] if problem in each.problems else [problem]
        elif not (rows_changed and each.notes):
            return
        self.index.put_notes(each.number, each.notes)
        each.notes_stamp = stamp

    def start(self) -> None:
        """Start reading transcripts for the search, in a thread."""
        self._reader.start()

    def stop(self) -> None:
        """Stop reading transcripts; returns when the thread has ended."""
        self._stop.set()
        if self._reader.ident:
            self._reader.join()

    def read_transcripts(self) -> None:
        """Read every transcript now; not for runs that were started."""
        while sum(map(self._read_batch, self.opened)):
            pass

    def _follow_transcripts(self) -> None:
        """Read every transcript once, then those of new episodes."""
        while not self._stop.is_set():
            busy = sum(map(self._read_batch, self.opened)) > 0
            self._stop.wait(0.002 if busy else 1.0)  # leave time to requests for pages

    def _read_batch(self, run: OpenedRun) -> bool:
        """Read the next transcripts of a run; False if there are none."""
        waiting = self.index.ids(run.number, self._read[run.number], _BATCH_EPISODES)
        texts = []
        for n, _, id in waiting:
            if self._stop.is_set():
                return False
            try:
                texts.append((n, transcript(run.store.load(id, tokens=False))))
            except Exception:  # a damaged episode; the page says so when it is opened
                texts.append((n, ""))
        if texts:
            self.index.add_transcripts(texts)
            self._read[run.number] = waiting[-1][1]
        return bool(texts)


def _read_branches(each: OpenedRun) -> tuple[list[BranchRow], frozenset[str]]:
    """All branches of the run, and the ids of episodes that a search stopped; none, and a problem of the run, if they
    cannot be read."""
    try:
        return each.store.branches(latest=False), each.store.stopped_leaves()
    except StoreError as error:
        problem = f"{error}: trees are not shown"
        each.problems += [] if problem in each.problems else [problem]
        return [], frozenset()


def stamp_of_file(path: Path) -> tuple[int, int] | None:
    """(time of the last change in ns, bytes) of a file; None if it is missing or empty."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size) if status.st_size else None


@contextmanager
def open_runs(folders: Sequence[Path], *, follow: bool = True) -> Iterator[Runs]:
    """The runs, indexed; `follow`: transcripts are read in a thread, also those of new episodes.

    `Runs.problems` lists what cannot be shown; raises StoreError if nothing can.
    """
    with ExitStack() as stack:
        index = stack.enter_context(EpisodeIndex())
        opened: list[OpenedRun] = []
        problems: list[str] = []
        for folder in folders:
            try:
                opened.append(_open(len(opened), folder, index, stack))
            except StoreError as error:
                problems.append(str(error))
        if not opened:
            raise StoreError("; ".join(problems) or "no run to show")
        problems += _mismatch(opened)
        runs = Runs(opened, index, problems)
        runs.refresh()
        if follow:
            runs.start()
            stack.callback(runs.stop)
        yield runs


def _open(number: int, folder: Path, index: EpisodeIndex, stack: ExitStack) -> OpenedRun:
    problems: list[str] = []
    run = None
    try:
        run = open_run(folder)
    except StoreError as error:
        if not (folder / TRAINING_FILE).exists():
            problems.append(str(error))
    store, rows, problem = open_store(folder, stack)
    if problem:
        index.put(number, rows)
        problems.append(problem)
    return OpenedRun(number=number, folder=folder, store=store, run=run, problems=problems, damaged=bool(problem))


def open_store(folder: Path, stack: ExitStack) -> tuple[TrajectoryStore, list[EpisodeRow], str]:
    """The store, all attempts in it, and what is wrong with it in words: of a damaged one, what can be read.

    Raises StoreError if nothing can be read.
    """
    try:
        store = stack.enter_context(TrajectoryStore.open(folder))
        return store, store.summaries(latest=False), ""
    except StoreError as error:
        if "is damaged" not in str(error):
            raise
        store = stack.enter_context(TrajectoryStore.open(folder, damaged=True))
        rows = store.salvage()
        broken = str(error).partition(";")[0]
        return store, rows, f"{broken}: the first {len(rows)} episodes can be read, later grades cannot"


def _mismatch(opened: Sequence[OpenedRun]) -> list[str]:
    """Reasons why two runs cannot be compared, in words."""
    if len(opened) < 2 or not opened[0].run or not opened[1].run:
        return []
    one, other = opened[0].run.config, opened[1].run.config
    for key in ("suite", "suite_version", "suite_digest"):
        if one.get(key) != other.get(key):
            return [
                f"the runs are of different tasks ({key}: {one.get(key)} and {other.get(key)}):"
                " only tasks of the same name can be put side by side, and may still differ"
            ]
    return []
