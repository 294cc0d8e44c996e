"""Data of one run in an export: its facts, its rows, the words of its transcripts, and its episodes."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gymcp.evaluators.viewer.curves import curves_object
from gymcp.evaluators.viewer.episode import (
    Decode,
    anchor_objects,
    cut_texts,
    episode_object,
    find,
    load,
)
from gymcp.evaluators.viewer.export.data_files import DataFiles
from gymcp.evaluators.viewer.index import transcript
from gymcp.evaluators.viewer.notes.note_objects import notes_object
from gymcp.evaluators.viewer.pages import encode_json
from gymcp.evaluators.viewer.runs import NotFound, Runs, open_runs
from gymcp.evaluators.viewer.summary import describe_runs
from gymcp.evaluators.viewer.task_facts import FindTasks, task_object
from gymcp.evaluators.viewer.trees.tree_object import compare_leaves, tree_object
from gymcp.types import Json

CHUNK_EPISODES = 200
"""Episodes whose words are in one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The part of each run that is exported."""

    limit: int = 0
    """Most episodes of a run; 0: all."""
    find: str = ""
    """Query that the episodes match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEpisode:
    n: int
    """Number of the episode in the export."""
    id: str
    task: str
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    number: int
    folder: Path
    episodes: tuple[ExportedEpisode, ...]
    first: int
    """Numbers from `first` to `last` belong to this run."""
    last: int
    left_out: str
    """The part that the export does not hold, in words; empty if it holds all."""
    unreadable: int
    """Episodes that cannot be read; their pages say why."""

    def object(self) -> dict[str, Json]:
        """The run for the pages' list of the export's content."""
        return {"number": self.number, "first": self.first, "last": self.last}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExporter:
    """Settings that all runs of an export share."""

    data: DataFiles
    choice: Choice
    decode: Decode | None
    find_tasks: FindTasks | None
    advance: Callable[[], None]
    """Called after each episode."""

    def export(self, folder: Path, *, number: int, label: str, first: int) -> ExportedRun:
        """Write the run's data. `first`: lowest number of its episodes. Raises StoreError, OSError or QueryError."""
        with open_runs([folder], follow=False) as runs:
            rows = choose_rows(runs, self.choice)
            base = first - 1
            self._write_about(runs, rows, number, label)
            self.data.write(f"{number}/rows", [_shift(row, base) for row in rows])
            if runs.opened[0].training:
                self.data.write(f"{number}/curves", curves_object(folder))
            unreadable = self._write_episodes(runs, [row["n"] for row in rows], number, base)
            unreadable += self._write_trees(runs, [row["n"] for row in rows if row["branches"]], number, base)
            episodes = tuple(
                ExportedEpisode(n=row["n"] + base, id=row["id"], task=row["task"], trial=row["trial"]) for row in rows
            )
            return ExportedRun(
                number=number,
                folder=folder,
                episodes=episodes,
                first=first,
                last=base + max(runs.index.last(), 1),
                left_out=describe_gap(runs, len(rows), self.choice),
                unreadable=unreadable,
            )

    def _write_about(self, runs: Runs, rows: list[dict[str, Json]], number: int, label: str) -> None:
        (about,) = describe_runs(runs)["runs"]
        gaps = filter(None, [describe_gap(runs, len(rows), self.choice)])
        about |= {
            "folder": label,
            "problems": [*(problem.replace(about["folder"], label) for problem in about["problems"]), *gaps],
            "held": runs.index.facets(0, within=[row["n"] for row in rows]),
            "chunks": -(-len(rows) // CHUNK_EPISODES),
        }
        self.data.write(f"{number}/about", about)

    def _write_episodes(self, runs: Runs, chosen: list[int], number: int, base: int) -> int:
        """Write the episodes and their words; returns the number of those that cannot be read."""
        unreadable = 0
        for at in range(0, len(chosen), CHUNK_EPISODES):
            words: list[Json] = []
            for n in chosen[at : at + CHUNK_EPISODES]:
                try:
                    words.append([n + base, self._write_episode(runs, n, number, base)])
                except NotFound as error:
                    self.data.write(f"{number}/e{n + base}", {"error": str(error)})
                    unreadable += 1
                self.advance()
            self.data.write(f"{number}/words-{at // CHUNK_EPISODES}", words)
        return unreadable

    def _write_trees(self, runs: Runs, firsts: list[int], number: int, base: int) -> int:
        """Write the trees of these first episodes, with their branches; returns the number that cannot be read."""
        unreadable = 0
        branches: list[int] = []
        for first in firsts:
            tree = tree_object(runs, first)
            leaves = [_shift(leaf, base) for leaf in tree["leaves"]]
            self.data.write(f"{number}/tree-{first + base}", {**_shift(tree, base), "leaves": leaves})
            try:
                pairs = compare_leaves(runs, first)
            except NotFound:
                pairs = {}
            moved = {"-".join(str(int(n) + base) for n in key.split("-")): pair for key, pair in pairs.items()}
            self.data.write(f"{number}/beside-{first + base}", moved)
            for leaf in runs.index.tree(first)[1:]:
                branches.append(leaf.n + base)
                try:
                    self._write_episode(runs, leaf.n, number, base)
                except NotFound as error:
                    self.data.write(f"{number}/e{leaf.n + base}", {"error": str(error)})
                    unreadable += 1
        self.data.write(f"{number}/branches", branches)
        return unreadable

    def _write_episode(self, runs: Runs, n: int, number: int, base: int) -> str:
        """Write one episode; returns the folded words of its transcript. Raises NotFound."""
        opened, id = find(runs, n)
        content = episode_object(runs, n, self.decode)
        facts = task_object(runs, n, self.find_tasks)
        digest = hashlib.sha256(encode_json(facts).encode("ascii")).hexdigest()[:16]
        self.data.write_once(f"{number}/facts-{digest}", facts)
        record = load(opened, id)
        if texts := cut_texts(record):
            self.data.write(f"{number}/texts-{n + base}", texts)
        shared = [step["at"] for step in content["steps"] if step["anchor"] and step["anchor"]["steps"] > 1]
        if shared:
            anchors = anchor_objects(runs, n, shared)
            moved = {str(at): [_shift(each, base) for each in steps] for at, steps in anchors.items()}
            self.data.write(f"{number}/anchors-{n + base}", moved)
        siblings = [_shift(each, base) for each in content["siblings"]]
        added = {
            "siblings": siblings,
            "facts": digest,
            "tree": runs.index.tree(n)[0].n + base,
            "notes": notes_object(runs, n, ""),
        }
        self.data.write(f"{number}/e{n + base}", {**_shift(content, base), **added})
        return fold_words(transcript(record))


def choose_rows(runs: Runs, choice: Choice) -> list[dict[str, Json]]:
    """The rows of the first run that are exported, as recorded. Raises QueryError."""
    if choice.find:
        runs.read_transcripts()
    return runs.index.whole_rows(0, choice.find, choice.limit)


def describe_gap(runs: Runs, exported: int, choice: Choice) -> str:
    """The part of the first run that an export of so many episodes does not hold, in words; empty if it holds all."""
    _, indexed = runs.index.searchable()
    if exported == indexed:
        return ""
    reasons = [f"--find '{choice.find}'"] if choice.find else []
    reasons += [f"--limit {choice.limit}"] if choice.limit and exported == choice.limit else []
    reasons += [] if reasons else ["replaced attempts are left out"]
    return f"this export holds {exported:,} of {indexed:,} episodes: {', '.join(reasons)}"


def fold_words(text: str) -> str:
    """The words of a text without case, diacritics and what stands between them, each after a blank.

    The search of an export looks for the beginnings of words in it; `fold` in ``static/query.js`` does the same.
    """
    bare = "".join(each for each in unicodedata.normalize("NFD", text) if unicodedata.category(each) != "Mn")
    return "".join(f" {word}" for word in re.findall(r"[^\W_]+", bare.lower()))


def _shift(value: dict[str, Json], base: int) -> dict[str, Json]:
    """The object with the export's number of its episode."""
    return {**value, "n": value["n"] + base}
