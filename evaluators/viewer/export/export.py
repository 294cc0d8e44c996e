"""A whole export: pages, their script, and the data of all runs, in a folder that is complete or does not exist."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gymcp import __version__
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.viewer.divergence import compare_episodes
from gymcp.evaluators.viewer.episode import MAX_STEPS, Decode, load
from gymcp.evaluators.viewer.export.data_files import DataFiles
from gymcp.evaluators.viewer.export.folder import LIST, PAIR, RUN, replace_export
from gymcp.evaluators.viewer.export.pages import bundle_script, make_page
from gymcp.evaluators.viewer.export.run_data import Choice, ExportedEpisode, ExportedRun, RunExporter
from gymcp.evaluators.viewer.pages import STATIC
from gymcp.evaluators.viewer.query import QueryError, condition
from gymcp.evaluators.viewer.run_list import ListedRun, RunList
from gymcp.evaluators.viewer.runs import NotFound, open_runs
from gymcp.evaluators.viewer.task_facts import FindTasks
from gymcp.types import Json

MAX_PAIRED_RUNS = 5
"""Runs of an export of which every two are shown side by side."""
MAX_NAMED_PARTS = 3
"""Runs whose export in part has a line of its own on the list; more share one."""
COPIED = ("style.css", "icon.svg")
LIST_SCRIPT, RUN_SCRIPT = "list.js", "run.js"

Report = Callable[[str, int, int], None]
"""Function that is told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export."""

    page: Path
    """The page to open."""
    runs: int
    episodes: int
    files: int
    bytes: int
    notes: tuple[str, ...]
    """Gaps of the export, for people."""
    problems: tuple[str, ...]
    """Runs and episodes that could not be read, and why."""


def export_viewer(
    folders: Sequence[Path],
    out: Path,
    *,
    listed: bool,
    choice: Choice,
    decode: Decode | None = None,
    find_tasks: FindTasks | None = None,
    report: Report = lambda what, done, total: None,
) -> Exported:
    """Write the runs as static pages; an earlier export in `out` is replaced.

    `listed`: begin with a list of the runs among and below the folders; else with the run, or the two side by side.
    Raises ConfigError for a query or a folder that does not do, and StoreError if no run can be read.
    """
    try:
        condition(choice.find)
    except QueryError as error:
        raise ConfigError(f"view: --find {choice.find}: {error}") from error
    runs = RunList(folders)
    shows = LIST if listed else PAIR if len(folders) > 1 else RUN
    with replace_export(out, shows=shows) as top:
        try:
            export = _Export(top, runs, choice, decode, find_tasks, report)
            exported = export.write(listed=listed)
        except OSError as error:
            raise ConfigError(f"view: --export {out}: cannot be written: {error.strerror or error}") from error
    return Exported(
        page=out / "index.html",
        runs=len(exported),
        episodes=sum(len(run.episodes) for run in exported),
        files=export.data.written,
        bytes=export.data.bytes,
        notes=tuple(export.notes),
        problems=tuple(export.problems),
    )


class _Export:
    """One export while it is written into a folder."""

    def __init__(
        self,
        top: Path,
        runs: RunList,
        choice: Choice,
        decode: Decode | None,
        find_tasks: FindTasks | None,
        report: Report,
    ) -> None:
        self._top, self._runs, self._report = top, runs, report
        self.data = DataFiles(top / "data")
        self.notes: list[str] = list(runs.problems)
        self.problems: list[str] = []
        self._done = self._total = 0
        self._doing = "episodes"
        self._exporter = RunExporter(
            data=self.data, choice=choice, decode=decode, find_tasks=find_tasks, advance=self._advance
        )

    def write(self, *, listed: bool) -> list[ExportedRun]:
        """Write everything; returns the runs that could be read. Raises StoreError if none could."""
        for done, listed_run in enumerate(self._runs.all(), start=1):
            self._runs.read_now(listed_run)
            self._report("runs read", done, len(self._runs.all()))
        runs = self._write_runs()
        pairs = self._write_pairs(runs)
        self._write_pages(runs, pairs, listed=listed)
        made_at = datetime.now(UTC).isoformat(timespec="seconds")
        gaps = [*self.notes, *self.problems]
        listing = {**self._listing(), "version": 1, "folders": [], "problems": gaps, "made": made_at}
        self.data.write("runs", listing)
        self.data.write("matrix", {**self._runs.matrix(), "version": 1})
        self.data.write("suites", {**self._runs.suites(), "version": 1})
        about = {"runs": [run.object() for run in runs], "listed": listed, "notes": gaps}
        self.data.write("export", {**about, "made": made_at, "gymcp": __version__})
        return runs

    def _listing(self) -> dict[str, Json]:
        """The list of runs without the places of their folders on this machine."""
        listing = self._runs.object()
        for shown, run in zip(listing["runs"], self._runs.all(), strict=True):
            shown["label"] = _label(run)
            shown["problem"] = _hide_place(shown.get("problem", ""), run)
        return listing

    def _write_runs(self) -> list[ExportedRun]:
        readable = [run for run in self._runs.all() if run.summary is not None and run.summary.readable]
        if not readable:
            problems = [f"{run.label}: {run.summary.problem}" for run in self._runs.all() if run.summary]
            raise StoreError("; ".join(problems[:3]) or "no run to export")
        self.problems += [
            f"{_label(run)}: {_hide_place(run.summary.problem, run)}"
            for run in self._runs.all()
            if run.summary is not None and not run.summary.readable
        ]
        limit = self._exporter.choice.limit
        sizes = [run.summary.episodes for run in readable if run.summary]
        self._total = sum(min(size, limit) if limit else size for size in sizes)
        runs: list[ExportedRun] = []
        parts: list[tuple[str, str]] = []
        for run in readable:
            first = runs[-1].last + 1 if runs else 1
            try:
                exported = self._exporter.export(run.folder, number=run.number, label=_label(run), first=first)
            except StoreError as error:
                self.problems.append(_hide_place(str(error), run))
                continue
            runs.append(exported)
            parts += [(_label(run), exported.left_out)] if exported.left_out else []
            if exported.unreadable:
                self.problems.append(f"{_label(run)}: {exported.unreadable:,} episodes cannot be read")
        self.notes += _describe_parts(parts)
        return runs

    def _write_pairs(self, found: Sequence[ExportedRun]) -> list[tuple[int, int]]:
        """Compare the episodes of every two runs with tasks in common; returns the numbers of the runs."""
        if len(found) > MAX_PAIRED_RUNS:
            self.notes.append(
                f"side by side is left out: this export holds {len(found)} runs, and it is made for at most"
                f" {MAX_PAIRED_RUNS}"
            )
            return []
        pairs = list(itertools.combinations(found, 2))
        written: list[tuple[int, int]] = []
        for done, (one, other) in enumerate(pairs, start=1):
            if compared := compare_runs(one, other):
                self.data.write(f"beside-{one.number}-{other.number}", compared)
                written.append((one.number, other.number))
            self._report("pairs of runs compared", done, len(pairs))
        return written

    def _write_pages(self, found: Sequence[ExportedRun], pairs: Sequence[tuple[int, int]], *, listed: bool) -> None:
        static = self._top / "static"
        static.mkdir()
        for name in COPIED:
            shutil.copyfile(STATIC / name, static / name)
        (static / LIST_SCRIPT).write_text(bundle_script("runs.js"), encoding="utf-8")
        (static / RUN_SCRIPT).write_text(bundle_script("main.js"), encoding="utf-8")
        shown = ["-".join(map(str, numbers)) for numbers in (*((run.number,) for run in found), *pairs)]
        for numbers in shown:
            self._write_page(f"runs/{numbers}/index.html", {"data-root": "../../", "data-runs": numbers})
        if listed:
            held = " ".join(str(run.number) for run in found)
            said = {
                "data-root": "",
                "data-held": held,
                "data-pairs": " ".join("-".join(map(str, pair)) for pair in pairs),
            }
            (self._top / "index.html").write_text(make_page("runs.html", LIST_SCRIPT, said), encoding="utf-8")
        else:
            self._write_page("index.html", {"data-root": "", "data-runs": shown[-1]})

    def _write_page(self, place: str, attributes: dict[str, str]) -> None:
        path = self._top / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make_page("index.html", RUN_SCRIPT, attributes), encoding="utf-8")

    def _advance(self) -> None:
        self._done += 1
        self._report("episodes", self._done, max(self._total, self._done))


def compare_runs(one: ExportedRun, other: ExportedRun) -> dict[str, Json]:
    """First divergence and rows of each two episodes that the pages put side by side, by ``N-N``."""
    partners = _partners(one, other) | {(a, b) for b, a in _partners(other, one)}
    pages: dict[str, Json] = {}
    with open_runs([one.folder, other.folder], follow=False) as runs:
        if len(runs.opened) < 2:
            return {}
        for a, b in sorted(partners, key=lambda pair: (pair[0].n, pair[1].n)):
            try:
                records = [load(opened, each.id) for opened, each in zip(runs.opened, (a, b), strict=True)]
            except NotFound:
                continue
            pages[f"{a.n}-{b.n}"] = compare_episodes(records[0], records[1], MAX_STEPS)
    return pages


def _partners(one: ExportedRun, other: ExportedRun) -> set[tuple[ExportedEpisode, ExportedEpisode]]:
    """(episode, its counterpart): the same task and, if there is one, the same trial."""
    by_task: dict[str, list[ExportedEpisode]] = {}
    for episode in other.episodes:
        by_task.setdefault(episode.task, []).append(episode)
    return {
        (episode, min(by_task[episode.task], key=lambda each: (each.trial != episode.trial, each.trial, each.n)))
        for episode in one.episodes
        if episode.task in by_task
    }


def _label(run: ListedRun) -> str:
    """Path of the run below the folders that were named; the name alone of one that was named itself."""
    return run.folder.resolve().name if run.label == str(run.folder) else run.label


def _describe_parts(parts: Sequence[tuple[str, str]]) -> list[str]:
    """Notes on the runs that are exported in part: label, and what is left out. The pages of each run say it, too."""
    if len(parts) <= MAX_NAMED_PARTS:
        return [f"{label}: {left_out}" for label, left_out in parts]
    first, left_out = parts[0]
    return [f"{len(parts)} runs are exported in part, as their own pages say; {first}: {left_out}"]


def _hide_place(words: str, run: ListedRun) -> str:
    """The message with the run's label in place of its folder."""
    return words.replace(str(run.folder), _label(run))
