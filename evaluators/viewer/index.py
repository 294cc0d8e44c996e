"""A temporary database of the episodes of some runs, for the list: its columns, filters, order and search.

sqlite removes the file when it is closed, and when the process ends in any way.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Self

from gymcp.evaluators.transcript import (
    AnswerEvent,
    CallEvent,
    Event,
    MessageEvent,
    ResultEvent,
    UserActEvent,
    events,
)
from gymcp.evaluators.viewer.query import ORDERS, QueryError, condition
from gymcp.evaluators.viewer.trees.index_rows import COUNT_BRANCHES, SELECT_TREE, number_branch
from gymcp.evaluators.viewer.trees.structure import Leaf
from gymcp.store import BranchRow, EpisodeRow
from gymcp.store.notes import Note
from gymcp.types import Json, ToolCall, Trajectory

MAX_TRANSCRIPT_CHARS = 40_000
"""Most characters of an episode that can be searched, from its beginning."""
MAX_PIECE_CHARS = 4_000
"""Most characters of one message or result among them."""
PAGE_EPISODES = 200
MAX_DIGITS = 15
"""Digits of the longest version number that is read."""
"""Episodes on one page."""

# `n` names an episode as long as the viewer runs: an id can hold characters that an address cannot
SCHEMA = """
CREATE TABLE episodes (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL,
    task TEXT NOT NULL, trial INTEGER NOT NULL, attempt INTEGER NOT NULL, latest INTEGER NOT NULL, seed,
    "group" TEXT NOT NULL, version INTEGER, outcome TEXT NOT NULL, score REAL, reason TEXT NOT NULL,
    steps INTEGER NOT NULL, calls INTEGER NOT NULL, errors INTEGER NOT NULL, tokens INTEGER NOT NULL,
    cost REAL NOT NULL, seconds REAL NOT NULL,
    tags TEXT NOT NULL, tools TEXT NOT NULL, haystack TEXT NOT NULL,
    notes TEXT NOT NULL DEFAULT '', labels TEXT NOT NULL DEFAULT '', verdicts TEXT NOT NULL DEFAULT '',
    noted INTEGER NOT NULL DEFAULT 0,
    branches INTEGER NOT NULL DEFAULT 0,
    stopped INTEGER NOT NULL, branch TEXT NOT NULL DEFAULT '', parent TEXT, shared INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run, seq)
);
CREATE INDEX episodes_by_task ON episodes (run, task, trial, latest);
CREATE INDEX episodes_by_id ON episodes (run, id);
CREATE INDEX episodes_by_group ON episodes (run, "group");
CREATE VIRTUAL TABLE transcripts USING fts5(
    words, content='', detail=full, tokenize='unicode61 remove_diacritics 2', prefix='1 2 3'
);
"""
_LISTED = (
    "n, task, trial, attempt, latest, version, outcome, score, steps, calls, errors, tokens, seconds, reason, tags,"
    " labels, verdicts, noted, branches"
)
_WHOLE = (*_LISTED.split(", "), "seed", "group", "cost", "id", "tools", "notes")
"""Columns of an exported row: all that its search and its orders need."""
_SEPARATOR = "\x1f"


class EpisodeIndex:
    """Index of episodes; safe to share between threads."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.executescript(SCHEMA)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._db.close()

    def put(
        self, run: int, rows: Iterable[EpisodeRow], branches: Sequence[BranchRow] = (), stopped: Set[str] = frozenset()
    ) -> None:
        """Add episodes, or update those that have changed; `branches`: all of the run, which no list shows; `stopped`:
        ids of those that a search stopped."""
        columns = (
            'run, seq, id, task, trial, attempt, latest, seed, "group", version, outcome, score, reason, steps, calls,'
            " errors, tokens, cost, seconds, tags, tools, haystack, stopped, branch, parent, shared"
        )
        names = columns.split(", ")
        update = ", ".join(f"{name} = excluded.{name}" for name in names[2:])
        marks = ", ".join("?" * len(names))
        values = [(*_columns(run, row, stopped), "", None, 0) for row in rows]
        values += [
            (*_columns(run, number_branch(row), stopped), _plain(row.branch), _plain(row.episode.parent), row.shared)
            for row in branches
        ]
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany(
                f"INSERT INTO episodes ({columns}) VALUES ({marks}) ON CONFLICT (run, seq) DO UPDATE SET {update}",
                values,
            )
            if branches:
                self._db.execute(COUNT_BRANCHES, (run,))
            self._db.execute("COMMIT")

    def tree(self, n: int) -> list[Leaf]:
        """The episodes of an episode's tree, the first one before its branches, each after its parent."""
        names = tuple(Leaf.__dataclass_fields__)
        rows = [map(_restore, row) for row in self._all(SELECT_TREE, n)]
        return [Leaf(**dict(zip(names, row, strict=True))) for row in rows]

    def last(self) -> int:
        """The largest number of an episode, branches included; 0 without any."""
        found: int = self._all("SELECT coalesce(max(n), 0) FROM episodes")[0][0]
        return found

    def put_notes(self, run: int, notes: Mapping[str, Mapping[str, Note]]) -> None:
        """Show these notes on the run's episodes, by id and person, in place of those that were shown."""
        with self._lock:
            self._db.execute("BEGIN")
            self._db.execute(
                "UPDATE episodes SET notes = '', labels = '', verdicts = '', noted = 0 WHERE run = ? AND noted", (run,)
            )
            self._db.executemany(
                "UPDATE episodes SET notes = ?, labels = ?, verdicts = ?, noted = 1 WHERE run = ? AND id = ?",
                (_note_columns(people.values(), run, id) for id, people in notes.items()),
            )
            self._db.execute("COMMIT")

    def add_transcripts(self, texts: Sequence[tuple[int, str]]) -> None:
        """Add transcripts to the search: (n, text) each."""
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO transcripts (rowid, words) VALUES (?, ?)", texts)
            self._db.execute("COMMIT")

    def ids(self, run: int, after: int, limit: int) -> list[tuple[int, int, str]]:
        """(n, seq, id) of the first `limit` episodes of a run that were recorded after `after`, in order."""
        query = "SELECT n, seq, id FROM episodes WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?"
        return [(n, seq, restore_surrogates(id)) for n, seq, id in self._all(query, run, after, limit)]

    def locate(self, n: int) -> tuple[int, str] | None:
        """(run, id) of an episode; None if there is none."""
        rows = self._all("SELECT run, id FROM episodes WHERE n = ?", n)
        return (rows[0][0], restore_surrogates(rows[0][1])) if rows else None

    def page(self, run: int, query: str, order: str, offset: int) -> dict[str, Json]:
        """The episodes that match the query: their number, and `PAGE_EPISODES` of them. Raises QueryError."""
        where = condition(query)
        is_listed = f"run = ? AND branch = '' AND ({where.sql})" + ("" if "is:replaced" in query else " AND latest")
        total = self._all(f"SELECT count(*) FROM episodes WHERE {is_listed}", run, *where.values)[0][0]
        rows = self._all(
            f"SELECT {_LISTED} FROM episodes WHERE {is_listed} ORDER BY {_order(order)} LIMIT {PAGE_EPISODES} OFFSET ?",
            run,
            *where.values,
            offset,
        )
        return {"total": total, "offset": offset, "rows": [_row_object(row) for row in rows]}

    def whole_rows(self, run: int, query: str, limit: int) -> list[dict[str, Json]]:
        """The rows that match the query, as recorded, with the columns that a search needs; 0: without a limit.

        Raises QueryError.
        """
        where = condition(query)
        is_listed = f"run = ? AND branch = '' AND ({where.sql})" + ("" if "is:replaced" in query else " AND latest")
        columns = ", ".join(f'"{name}"' for name in _WHOLE)
        rows = self._all(
            f"SELECT {columns} FROM episodes WHERE {is_listed} ORDER BY n LIMIT ?", run, *where.values, limit or -1
        )
        return [_whole_object(dict(zip(_WHOLE, row, strict=True))) for row in rows]

    def pairs(self, query: str, order: str, offset: int) -> dict[str, Json]:
        """Tasks that both of the first two runs have, trial by trial, largest difference first. Raises QueryError."""
        where = condition(query)
        listed = ", ".join(f"a.{name}" for name in _LISTED.split(", "))
        source = (
            f"FROM (SELECT * FROM episodes WHERE run = 0 AND latest AND branch = '' AND ({where.sql})) a"
            " JOIN episodes b ON b.run = 1 AND b.latest AND b.branch = '' AND b.task = a.task AND b.trial = a.trial"
        )
        parted = "" if order == "all" else " AND a.score IS NOT b.score"
        total = self._all(f"SELECT count(*) {source} WHERE 1 {parted}", *where.values)[0][0]
        rows = self._all(
            f"SELECT {listed}, b.n, b.score, b.outcome, b.steps {source} WHERE 1 {parted}"
            " ORDER BY abs(coalesce(a.score, 0) - coalesce(b.score, 0)) DESC, a.task, a.trial"
            f" LIMIT {PAGE_EPISODES} OFFSET ?",
            *where.values,
            offset,
        )
        return {
            "total": total,
            "offset": offset,
            "rows": [
                {**_row_object(row[:-4]), "other": dict(zip(("n", "score", "outcome", "steps"), row[-4:], strict=True))}
                for row in rows
            ],
        }

    def counterpart(self, n: int) -> int | None:
        """The episode of the other run with the same task and, if there is one, the same trial; None if there is
        none."""
        rows = self._all(
            "SELECT b.n FROM episodes a JOIN episodes b ON b.run = 1 - a.run AND b.task = a.task AND b.latest"
            " AND b.branch = '' WHERE a.n = ? ORDER BY b.trial != a.trial, b.trial LIMIT 1",
            n,
        )
        return rows[0][0] if rows else None

    def siblings(self, n: int, limit: int) -> list[tuple[int, str, int, float | None]]:
        """(n, id, trial, score) of the episodes in an episode's group; the episode itself comes first."""
        rows = self._all(
            "SELECT b.n, b.id, b.trial, b.score FROM episodes a JOIN episodes b"
            ' ON b.run = a.run AND b."group" = a."group" AND b.task = a.task AND b.latest'
            " AND (b.branch = '' OR b.n = a.n)"
            " WHERE a.n = ? ORDER BY b.n != a.n, b.trial LIMIT ?",
            n,
            limit,
        )
        return [(row[0], restore_surrogates(row[1]), row[2], row[3]) for row in rows]

    def facets(self, run: int, *, within: Sequence[int] | None = None) -> dict[str, Json]:
        """Number of episodes of each result, outcome and tag: of the latest, or of those `within` alone."""
        counted = "latest AND branch = ''" if within is None else "n IN (SELECT value FROM json_each(?))"
        values = (run,) if within is None else (run, json.dumps(list(within)))
        source = f"FROM episodes WHERE run = ? AND {counted}"
        results = self._all(f"SELECT count(*), sum(score >= 1), sum(score < 1), sum(score IS NULL) {source}", *values)[
            0
        ]
        outcomes = self._all(f"SELECT outcome, count(*) {source} GROUP BY outcome ORDER BY count(*) DESC", *values)
        tags: dict[str, int] = {}
        for joined, count in self._all(f"SELECT tags, count(*) {source} GROUP BY tags", *values):
            for tag in filter(None, joined.split(_SEPARATOR)):
                tags[tag] = tags.get(tag, 0) + count
        return {
            "episodes": results[0],
            "solved": results[1] or 0,
            "failed": results[2] or 0,
            "unscored": results[3] or 0,
            "outcomes": dict(outcomes),
            "tags": dict(sorted(tags.items(), key=lambda each: (-each[1], each[0]))[:200]),
        }

    def scores(self, run: int) -> list[tuple[str, str, float | None]]:
        """(task, outcome, score) of each latest attempt of a run."""
        return self._all(
            "SELECT task, outcome, score FROM episodes WHERE run = ? AND latest AND branch = '' ORDER BY n", run
        )

    def searchable(self) -> tuple[int, int]:
        """(episodes whose transcripts can be searched, episodes)."""
        (row,) = self._all(
            "SELECT (SELECT count(*) FROM transcripts_docsize), (SELECT count(*) FROM episodes WHERE branch = '')"
        )
        return row[0], row[1]

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            try:
                rows: list[Any] = self._db.execute(query, tuple(_plain(value) for value in values)).fetchall()
                return rows
            except sqlite3.OperationalError as error:
                if "fts5" in str(error):
                    raise QueryError(f"cannot search for that: {error}") from error
                raise


def escape_surrogates(value: str) -> str:
    """Text that sqlite accepts: it refuses lone surrogates, so each becomes a private-use character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return "".join(chr(ord(c) - 0xD800 + 0x10F000) if 0xD800 <= ord(c) <= 0xDFFF else c for c in value)
    return value


def _plain(value: Any) -> Any:
    return escape_surrogates(value) if isinstance(value, str) else value


def _restore(value: Any) -> Any:
    return restore_surrogates(value) if isinstance(value, str) else value


def restore_surrogates(value: str) -> str:
    """The text that `escape_surrogates` was given."""
    if value.isascii():
        return value
    return "".join(chr(ord(c) - 0x10F000 + 0xD800) if 0x10F000 <= ord(c) <= 0x10F7FF else c for c in value)


def transcript(record: Trajectory) -> str:
    """The words of an episode for the search: messages, answers, calls and results."""
    pieces: list[str] = [record.reason]
    room = MAX_TRANSCRIPT_CHARS
    for of_step in events(record):
        pieces += [piece for event in of_step for piece in _pieces(event)]
        room -= sum(min(len(piece), MAX_PIECE_CHARS) for piece in pieces[-8:])
        if room < 0:
            break
    return escape_surrogates("\n".join(piece[:MAX_PIECE_CHARS] for piece in pieces)[:MAX_TRANSCRIPT_CHARS])


def _pieces(event: Event) -> list[str]:
    match event:
        case MessageEvent(message):
            return [message.content]
        case AnswerEvent(text):
            return [text]
        case CallEvent(call):
            return [_words_of_call(call)]
        case ResultEvent(result):
            return [result.content]
        case UserActEvent(act):
            return [*map(_words_of_call, act.calls), *(result.content for result in act.results)]


def _words_of_call(call: ToolCall) -> str:
    return f"{call.name} {_words(call.arguments)}"


def _words(arguments: Json) -> str:
    """Names and values without JSON's punctuation."""
    if isinstance(arguments, Mapping):
        return " ".join(f"{name} {_words(value)}" for name, value in arguments.items())
    if isinstance(arguments, list | tuple):
        return " ".join(_words(value) for value in arguments)
    return str(arguments)


def _columns(run: int, row: EpisodeRow, stopped: Set[str]) -> tuple[Any, ...]:
    used = row.usage
    tags, tools = _SEPARATOR.join(row.tags), _SEPARATOR.join(used.tools)
    haystack = "\n".join((row.task, row.reason, *row.tags, *used.tools, str(row.outcome), row.id)).lower()
    return tuple(
        _plain(value)
        for value in (
            run, row.seq, row.id, row.task, row.trial, row.attempt, row.latest,
            row.seed if abs(row.seed) < 2**63 else str(row.seed),
            row.group, version_of(row), str(row.outcome), row.score, row.reason, row.steps, used.tool_calls,
            used.tool_errors, used.prompt_tokens + used.completion_tokens, used.cost, used.wall_s, tags, tools,
            haystack, row.id in stopped,
        )
    )  # fmt: skip


def version_of(row: EpisodeRow) -> int | None:
    """Version of the weights that an episode of training began with, from its group ``ENV/TASK/VERSION``; else None.

    The episodes of iteration n are played by version n - 1.
    """
    start = f"{row.env}/{row.task}/"
    version = row.group[len(start) :] if row.group.startswith(start) else ""
    return int(version) if version.isascii() and version.isdigit() and len(version) <= MAX_DIGITS else None


def _note_columns(notes: Iterable[Note], run: int, id: str) -> tuple[Any, ...]:
    kept = list(notes)
    labels = dict.fromkeys(label for note in kept for label in note.labels)
    verdicts = dict.fromkeys(note.verdict for note in kept if note.verdict)
    words = "\n".join(note.note for note in kept if note.note)
    return (_plain(words), _SEPARATOR.join(labels), _SEPARATOR.join(verdicts), run, _plain(id))


def _row_object(row: Sequence[Any]) -> dict[str, Json]:
    columns = dict(zip(_LISTED.split(", "), row, strict=True))
    reason = restore_surrogates(columns["reason"])
    return {
        **columns,
        "task": restore_surrogates(columns["task"])[:300],
        "latest": bool(columns["latest"]),
        "reason": reason[:200] + ("…" if len(reason) > 200 else ""),
        "tags": [restore_surrogates(tag)[:60] for tag in filter(None, columns["tags"].split(_SEPARATOR))][:8],
        "labels": list(filter(None, columns["labels"].split(_SEPARATOR)))[:8],
        "verdicts": list(filter(None, columns["verdicts"].split(_SEPARATOR))),
    }


def _whole_object(columns: dict[str, Any]) -> dict[str, Json]:
    texts = {name: restore_surrogates(columns[name]) for name in ("task", "group", "id")}
    lists = {
        name: [restore_surrogates(each) for each in filter(None, columns[name].split(_SEPARATOR))]
        for name in ("tags", "tools", "labels", "verdicts")
    }
    reason = restore_surrogates(columns["reason"])[:MAX_PIECE_CHARS]
    return {**columns, **texts, **lists, "reason": reason, "latest": bool(columns["latest"])}


def _order(name: str) -> str:
    if name not in ORDERS:
        raise QueryError(f"no order '{name}'; have {', '.join(ORDERS)}")
    return ORDERS[name]
