"""The episodes of one run in one sqlite file: appended once, never rewritten, graded any number of times."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from gymcp.errors import StoreError
from gymcp.outcome import Outcome
from gymcp.store.codec import (
    ReadBudget,
    StepRow,
    decode_steps,
    decode_text,
    encode_steps,
    encode_text,
    pack,
    unpack,
    unpack_tools,
)
from gymcp.store.credits import read_credits, replace_credits
from gymcp.store.database import (
    FILE_NAME,
    bytes_of,
    limit_query_steps,
    open_database,
    require_database,
    store_errors,
    transaction,
)
from gymcp.store.grades import apply_newest_grade, insert_grade, read_grades, require_score
from gymcp.store.record_json import add_side_answers, dumps, encode_side_answers
from gymcp.store.rows import EPISODE_COLUMNS, RECORDED_COLUMNS, EpisodeRow, Grade, StepCredit, episode_row
from gymcp.store.trees.branches import (
    BranchRecord,
    BranchRow,
    count_branch_grades,
    find_last_sample,
    find_pieces,
    insert_branches,
    join_path,
    make_branch_row,
    read_branch_rows,
)
from gymcp.store.trees.episodes import Encoded, insert_episode
from gymcp.store.trees.stopped_leaves import read_stopped_leaves
from gymcp.store.validation import build_record
from gymcp.types import Json, Sampled, Tool, Trajectory

_PAGE_ROWS = 100
_ONLY = {True: "AND latest", False: ""}
_TRUTHS = "truths:"
"""Prefix of a trajectory's id: the key of the blob with the ground truths that later grading compared with."""
_SIDE = "side:"
"""Prefix of a trajectory's id: the key of the blob with its side answers, if it has any."""
_REST = ("initial_key", "final_key", "final_state", "provenance")
_HEAD = (
    "id", "env", "task", "trial", "seed", "group", "parent", "outcome", "score", "components", "reason", "usage",
)  # fmt: skip
"""Fields that a trajectory and its `EpisodeRow` share."""
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""Errors from reading a row that gymcp has not written."""


class TrajectoryStore:
    """An open ``trajectories.sqlite``. Safe to share between threads; other processes may read and write beside it.

    An episode outlives a ``kill -9`` once `append` has returned. It may not outlive a power cut (see
    `database.open_database`).
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._where = f"run folder {folder}"
        self._lock = threading.RLock()
        self._reset_query_steps = limit_query_steps(connection, folder)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        write: bool = False,
        create: bool = True,
        damaged: bool = False,
        busy_timeout_s: float = 30.0,
    ) -> Self:
        """The store of a run folder; `write` creates the file if it is missing, unless `create` is False.

        `damaged`: read the rest of a file that has lost its end. Raises StoreError.
        """
        if write and not create:
            require_database(folder)
        return cls(open_database(folder, write=write, damaged=damaged, busy_timeout_s=busy_timeout_s), folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called twice."""
        with self._lock:
            self._connection.close()

    def append(
        self,
        trajectory: Trajectory,
        blobs: Mapping[str, Json],
        *,
        tags: Sequence[str] = (),
        branches: Sequence[BranchRecord] = (),
    ) -> int:
        """Record a whole episode with the states it refers to, or nothing; return the number of its attempt, from 0.

        `branches`: the other episodes of its tree, each after its parent. Another attempt of a (task, trial) is
        accepted only after one that ended in infrastructure or was cancelled. Raises StoreError for any other attempt,
        for an id that is taken, and for values that cannot be stored.
        """
        encoded = self._encode(trajectory, blobs, tags)
        others = [(each, self._encode(each.trajectory, each.states, tags, each.shared)) for each in branches]
        with self._transaction() as db:
            attempt = insert_episode(db, self._where, trajectory, encoded)
            insert_branches(db, self._where, attempt, others)
        return attempt

    def append_many(self, episodes: Iterable[tuple[Trajectory, Mapping[str, Json], Sequence[str]]]) -> None:
        """Record (episode, its states, its tags) in one transaction: all or none, and faster than one by one."""
        encoded = [(trajectory, self._encode(trajectory, blobs, tags)) for trajectory, blobs, tags in episodes]
        with self._transaction() as db:
            for trajectory, parts in encoded:
                insert_episode(db, self._where, trajectory, parts)

    def load(self, id: str, *, tokens: bool = True, graded: bool = False) -> Trajectory:
        """The trajectory as it was recorded or, if `graded`, with its newest grade.

        Without `tokens`, `Step.sampled` is None. A branch comes with all steps of its path. Raises StoreError if there
        is no trajectory of that id.
        """
        with self._reading() as db, self._row(f"of trajectory {id[:80]!r}"):
            root, pieces = find_pieces(db, id)
            query = f"SELECT {RECORDED_COLUMNS}, rest FROM trajectories WHERE id = ?"
            if (row := db.execute(query, (root,)).fetchone()) is None:
                raise StoreError(f"{self._where}: no trajectory {id!r}")
            with self._row(row[-2]):
                path = self._decode(db, row, tokens=tokens)
            for piece in pieces:
                before = find_last_sample(path.steps[: piece.shared])
                own = self._decode(db, piece.row, tokens=tokens, steps_of="branch_steps", before=before)
                path = join_path(path, own, piece.shared)
            return apply_newest_grade(db, path) if graded else path

    def branches(self, *, latest: bool = True, tasks: Set[str] | None = None) -> list[BranchRow]:
        """Episodes that branched off others (of these tasks), newest grade applied; not among the `summaries`."""
        with self._reading() as db, self._row("of a branch"):
            return [make_branch_row(row) for row in self._in_order(read_branch_rows(db, latest=latest, tasks=tasks), 0)]

    def stopped_leaves(self) -> frozenset[str]:
        """Ids of the episodes that a search stopped before they had ended: their scores tell nothing of success."""
        with self._reading() as db, self._row("of an episode of a search"):
            return frozenset(read_stopped_leaves(db, bytes_of(self._folder / FILE_NAME)))

    def _decode(
        self,
        db: sqlite3.Connection,
        row: Sequence[Any],
        *,
        tokens: bool,
        steps_of: str = "steps",
        before: Sampled | None = None,
    ) -> Trajectory:
        """The trajectory of a row. Raises ValueError, TypeError or KeyError for rows that gymcp has not written.

        `steps_of`: table with its steps. `before`: tokens before its first step.
        """
        head, budget = episode_row(row[:-1]), ReadBudget()
        columns = "prompt_ids, ids, logprobs" if tokens else "NULL, NULL, NULL"
        cursor = db.execute(
            f"SELECT payload, {columns}, step FROM {steps_of} WHERE trajectory = ? ORDER BY step", (head.seq,)
        )
        rows = []
        for payload, prompt_ids, ids, logprobs, _ in self._in_order(cursor, -1):
            budget.spend_bytes(
                sum(len(column) for column in (payload, prompt_ids, ids, logprobs) if column is not None)
            )
            rows.append(StepRow(payload=payload, prompt_ids=prompt_ids, ids=ids, logprobs=logprobs))

        @functools.cache  # the steps of a loaded episode share a tool list, as they did when it was recorded
        def tools(ref: str) -> tuple[Tool, ...]:
            if (payload := self._blob(ref)) is None:
                raise ValueError("it names tools that are not there")
            return unpack_tools(payload, budget)

        rest = unpack(row[-1], budget)
        if not isinstance(rest, dict) or rest.keys() != set(_REST):
            raise ValueError(f"its rest is not a table of {', '.join(_REST)}")
        steps = decode_steps(rows, tools, budget, before)
        if len(steps) != head.steps:
            raise ValueError(f"it has {len(steps)} steps, and says {head.steps}")
        record = build_record(Trajectory, {**rest, **{name: getattr(head, name) for name in _HEAD}, "steps": steps})
        side = self._blob(_SIDE + head.id) or b"null"
        return add_side_answers(record, unpack(side, budget), tokens=tokens, spend_tokens=budget.spend_tokens)

    def iter_trajectories(
        self, *, latest: bool = False, tokens: bool = True, graded: bool = False
    ) -> Iterator[Trajectory]:
        """Every trajectory in the order of recording, each as `load` gives it; `latest`: only those that count."""
        query = f"SELECT id, seq FROM episodes WHERE seq > ? {_ONLY[latest]} ORDER BY seq LIMIT {_PAGE_ROWS}"
        after = 0
        while True:
            with self._reading() as db:
                page = db.execute(query, (after,)).fetchall()
            if not page:
                return
            for id, seq in self._in_order(page, after):
                with self._row(seq):
                    name = decode_text(id)
                yield self.load(name, tokens=tokens, graded=graded)
            after = page[-1][-1]

    def summaries(self, *, latest: bool = True, after: int = 0, tasks: Set[str] | None = None) -> list[EpisodeRow]:
        """Every episode without its steps, newest grade applied, in the order of recording.

        `after`: only those whose `EpisodeRow.seq` is greater. `tasks`: only those of these tasks.
        """
        names = [encode_text(task) for task in tasks or ()]
        chosen = "" if tasks is None else f"AND task IN ({', '.join('?' * len(names))})"
        with self._reading() as db:
            query = f"SELECT {EPISODE_COLUMNS} FROM episodes WHERE seq > ? {_ONLY[latest]} {chosen} ORDER BY seq"
            rows, left = [], bytes_of(self._folder / FILE_NAME)
            for row in self._in_order(db.execute(query, (after, *names)), after):
                with self._row(row[-1]):
                    rows.append(episode_row(row))
                    left -= len(row[12]) + len(row[11]) + len(row[14]) + len(row[15])
                    if left < 0:  # an honest row's text is in the file once
                        raise ValueError("the episodes have more text than the file has bytes")
        return rows

    def salvage(self) -> list[EpisodeRow]:
        """Episodes of a damaged file up to the first that cannot be read, as recorded, without later grades."""
        query = f"SELECT {RECORDED_COLUMNS} FROM trajectories ORDER BY seq"
        rows: list[EpisodeRow] = []
        # a page that is missing raises, or reads as NULL
        with self._lock, contextlib.suppress(sqlite3.DatabaseError, StoreError, *_MALFORMED):
            self._reset_query_steps()
            rows.extend(episode_row(row) for row in self._in_order(self._connection.execute(query), 0))
        last = {(row.task, row.trial): row.attempt for row in rows}
        return [replace(row, latest=last[row.task, row.trial] == row.attempt) for row in rows]

    def change_counter(self) -> tuple[int, int]:
        """Numbers of (episodes, later grades) so far: a change of either shows that the store has grown."""
        with self._reading() as db:
            query = "SELECT coalesce((SELECT max(seq) FROM {}), 0)"
            episodes, grades = (db.execute(query.format(name)).fetchone()[0] for name in ("trajectories", "grades"))
            return episodes, grades + count_branch_grades(db)

    def attempts(self) -> dict[tuple[str, int], list[Outcome]]:
        """(task, trial) -> outcome of each of its attempts, newest grade applied, for resuming."""
        ended: dict[tuple[str, int], list[Outcome]] = {}
        with self._reading() as db:
            rows = db.execute("SELECT task, trial, outcome, seq FROM episodes ORDER BY seq")
            for task, trial, outcome, seq in self._in_order(rows, 0):
                with self._row(seq):
                    ended.setdefault((decode_text(task), trial), []).append(Outcome(outcome))
        return ended

    def state(self, ref: str) -> Json:
        """The state recorded under `ref`; a `StateReader`. Raises KeyError if there is none."""
        if (payload := self._blob(ref)) is None:
            raise KeyError(ref)
        with self._row(f"of state {ref[:80]!r}"):
            return unpack(payload)

    def add_grade(self, graded: Trajectory, *, grader: str, ground_truths: Mapping[str, Json] | None = None) -> Grade:
        """Record the verdict in `graded` as the newest grade of the trajectory of that id, and return the grade.

        `ground_truths`: values looked up for the verdict, which the method `ground_truths` returns from then on. The
        trajectory itself stays as recorded. Raises StoreError if it is missing or has nothing to grade.
        """
        grade = Grade(
            trajectory=graded.id,
            outcome=graded.outcome,
            score=graded.score,
            components=graded.components,
            reason=graded.reason,
            graded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            grader=grader,
        )
        with self._transaction() as db:
            insert_grade(db, self._where, grade)
            if ground_truths:
                db.execute(
                    "INSERT OR REPLACE INTO blobs VALUES (?, ?)",
                    (encode_text(_TRUTHS + graded.id), pack(ground_truths)),
                )
        return grade

    def ground_truths(self, id: str) -> Mapping[str, Json]:
        """Newest values that later grading looked up and compared with; empty if it looked up none."""
        payload = self._blob(_TRUTHS + id)
        if payload is None:
            return {}
        with self._row(f"of the truths of {id[:80]!r}"):
            return dict(unpack(payload))

    def grades(self, id: str) -> tuple[Grade, ...]:
        """The later grades of a trajectory, newest last; empty if it was never graded again."""
        with self._reading() as db, self._row(f"of a grade of {id[:80]!r}"):
            return read_grades(db, id)

    def add_credits(self, credits: Iterable[StepCredit], *, forget: str | None = None) -> None:
        """Record the credit of trajectories' steps, in place of earlier credit of the same preset. All or nothing.

        `forget`: preset that all episodes lose first. Raises StoreError for a missing trajectory or another length.
        """
        with self._transaction() as db:
            replace_credits(db, self._where, credits, forget=forget)

    def credits(self, id: str) -> tuple[StepCredit, ...]:
        """Credit of the steps of a trajectory, newest first; empty if none was recorded."""
        with self._reading() as db, self._row(f"of a credit of {id[:80]!r}"):
            return read_credits(db, id)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, store_errors(self._where):
            self._reset_query_steps()
            yield self._connection

    @contextmanager
    def _row(self, which: int | str) -> Iterator[None]:
        """Boundary to untrusted rows: their errors come out as one StoreError that names the row."""
        try:
            yield
        except _MALFORMED as error:
            why = " ".join(str(error).split())[:200] or type(error).__name__
            why = f"it has no {why}" if isinstance(error, KeyError) else why
            raise StoreError(f"{self._where}: {FILE_NAME}: row {which}: {why}") from error

    def _in_order(self, rows: Iterable[tuple[Any, ...]], last: int) -> Iterator[tuple[Any, ...]]:
        """The rows, whose last column must grow, as it does in any file whose pages refer to each other once."""
        for row in rows:
            if not isinstance(row[-1], int) or row[-1] <= last:
                raise StoreError(f"{self._where}: {FILE_NAME} is damaged: its rows are out of order")
            last = row[-1]
            yield row

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db, transaction(db):
            yield db

    def _encode(self, path: Trajectory, blobs: Mapping[str, Json], tags: Sequence[str], shared: int = 0) -> Encoded:
        """Columns, step rows and blobs of an episode: everything that costs time, before the write lock is taken.

        `shared`: number of steps at its begin that are stored elsewhere.
        """
        trajectory = replace(path, steps=path.steps[shared:]) if shared else path
        require_score(self._where, trajectory.id, trajectory.score)
        try:
            steps, tools = encode_steps(trajectory.steps, find_last_sample(path.steps[:shared]))
            # most states are those of earlier episodes; stored blobs stay, so the look-up needs no write lock
            contents = [(encode_text(ref), pack(value)) for ref, value in blobs.items() if self._blob(ref) is None]
            if (side := encode_side_answers(trajectory)) is not None:
                contents.append((encode_text(_SIDE + trajectory.id), pack(side)))
            head = (
                encode_text(trajectory.id),
                encode_text(trajectory.env),
                encode_text(trajectory.task),
                trajectory.trial,
                trajectory.seed if abs(trajectory.seed) < 2**63 else str(trajectory.seed),
                encode_text(trajectory.group),
                None if trajectory.parent is None else encode_text(trajectory.parent),
                str(trajectory.outcome),
                trajectory.score,
                encode_text(dumps(trajectory.components)),
                encode_text(trajectory.reason),
                len(trajectory.steps),
                dumps(trajectory.usage),
                encode_text(dumps(list(tags))),
                pack({name: getattr(trajectory, name) for name in _REST}),
            )
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StoreError(f"{self._where}: trajectory {trajectory.id!r} cannot be stored: {error}") from error
        return head, steps, [*contents, *tools.items()]

    def _blob(self, ref: str) -> bytes | None:
        with self._reading() as db:
            row = db.execute("SELECT payload FROM blobs WHERE ref = ?", (encode_text(ref),)).fetchone()
        return None if row is None else row[0]
