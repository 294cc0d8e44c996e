"""Open ``trajectories.sqlite``: its tables, its format, and one line for each thing that can be wrong with it."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gymcp.atomic import create_atomically
from gymcp.errors import StoreError
from gymcp.store.trees.tables import BRANCH_TABLES, OPTIONAL_TABLES
from gymcp.store.untrusted_files import refuse_link
from gymcp.visible_text import one_line

FILE_NAME = "trajectories.sqlite"
FORMAT = 2
"""Number in ``PRAGMA user_version``. Format 1 had a row for every step; it is read; opened to write it becomes 2."""
FORMAT_WITH_BRANCHES = 3
"""Number in a file that holds branches of episodes, which has more tables than format 2 and is otherwise the same."""

_APPLICATION_ID = 0x67796D63  # "gymc"
MAX_VALUE_BYTES = 512_000_000
"""Size of the longest value in the file; sqlite's own limit is twice that."""
STEPS_PER_CHECK = 1_000_000
"""Steps of sqlite's virtual machine between two checks of how many a query has taken."""
MIN_STEPS = 20 * STEPS_PER_CHECK
STEPS_PER_BYTE = 20
"""Steps that a query may take for each byte of the file, in addition to `MIN_STEPS`: an honest row takes some hundred
steps and has as many bytes. A query that takes more reads a file made to be endless, whose pages refer to each other
again and again."""
MAX_QUOTE_CHARS = 300
"""Characters of an error of sqlite's in a message."""
_CHECKPOINT_PAGES = 4_000
"""Pages of log (16 MB) before it is copied into the file, which takes two fsyncs: four times sqlite's own."""

# `seed` has no type: a seed beyond 64 bits is kept as text, which an INTEGER column would turn into a float.
_SCHEMA = """
CREATE TABLE trajectories (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    env TEXT NOT NULL,
    task TEXT NOT NULL,
    trial INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    seed NOT NULL,
    "group" TEXT NOT NULL,
    parent TEXT,
    outcome TEXT NOT NULL,
    score REAL,
    components TEXT NOT NULL,
    reason TEXT NOT NULL,
    steps INTEGER NOT NULL,
    usage TEXT NOT NULL,
    tags TEXT NOT NULL,
    rest BLOB NOT NULL,
    UNIQUE (task, trial, attempt)
);
CREATE INDEX trajectories_by_group ON trajectories ("group");
CREATE TABLE steps (
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    step INTEGER NOT NULL,
    payload BLOB NOT NULL,
    prompt_ids BLOB,
    ids BLOB,
    logprobs BLOB,
    PRIMARY KEY (trajectory, step)
);
CREATE TABLE blobs (ref TEXT PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE grades (
    seq INTEGER PRIMARY KEY,
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    outcome TEXT NOT NULL,
    score REAL,
    components TEXT NOT NULL,
    reason TEXT NOT NULL,
    graded_at TEXT NOT NULL,
    grader TEXT NOT NULL
);
CREATE INDEX grades_by_trajectory ON grades (trajectory);
CREATE VIEW episodes AS
SELECT t.seq, t.id, t.env, t.task, t.trial, t.attempt,
    t.attempt = (SELECT max(attempt) FROM trajectories u WHERE u.task = t.task AND u.trial = t.trial) AS latest,
    t.seed, t."group", t.parent,
    CASE WHEN g.seq IS NULL THEN t.outcome ELSE g.outcome END AS outcome,
    CASE WHEN g.seq IS NULL THEN t.score ELSE g.score END AS score,
    CASE WHEN g.seq IS NULL THEN t.components ELSE g.components END AS components,
    CASE WHEN g.seq IS NULL THEN t.reason ELSE g.reason END AS reason,
    t.steps, t.usage, t.tags, g.grader
FROM trajectories t
LEFT JOIN grades g ON g.seq = (SELECT max(seq) FROM grades h WHERE h.trajectory = t.seq);
"""

# Created if it is missing when a file is opened to write: files of earlier versions lack it. Versions that do not know
# it read the other tables as before, so the format is the same.
_ADDED = """
CREATE TABLE IF NOT EXISTS credits (
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    preset TEXT NOT NULL,
    options TEXT NOT NULL,
    assigned_at TEXT NOT NULL,
    rewards BLOB NOT NULL,
    returns BLOB NOT NULL,
    advantages BLOB NOT NULL,
    PRIMARY KEY (trajectory, preset)
)
"""

_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_master"
_FOREIGN = "gymcp writes no such file: ask whoever made the folder for the run"
_WHY = {
    "SQLITE_BUSY": "locked by another process for longer than the timeout",
    "SQLITE_LOCKED": "locked by another process for longer than the timeout",
    "SQLITE_NOTADB": f"{FILE_NAME} is not a database",
    "SQLITE_CORRUPT": f"{FILE_NAME} is damaged; gymcp report and gymcp view show what can be read of it",
    "SQLITE_READONLY": "cannot be written",
    "SQLITE_CANTOPEN": f"{FILE_NAME} cannot be opened",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_INTERRUPT": f"{FILE_NAME} is made so that reading it does not end; {_FOREIGN}",
    "SQLITE_TOOBIG": f"{FILE_NAME} holds a value of more than {MAX_VALUE_BYTES:,} bytes; {_FOREIGN}",
}


def newer_format(where: str, found: int, known: int) -> StoreError:
    """The error for a folder that a newer gymcp has written."""
    return StoreError(
        f"{where}: written by a newer gymcp (format {found}; this one reads up to {known}): upgrade gymcp"
    )


@contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Boundary to sqlite and the disk: their errors come out as one StoreError that names the run folder."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            f"{where}: {_WHY.get(_kind(error), f'sqlite: {one_line(str(error))[:MAX_QUOTE_CHARS]}')}"
        ) from error
    except OSError as error:
        raise StoreError(f"{where}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:  # invalid text, from the library itself
        raise StoreError(f"{where}: {FILE_NAME}: a text is not UTF-8: {error.reason}") from error


def _kind(error: sqlite3.Error) -> str:
    """Primary name of the error: SQLITE_READONLY_DIRECTORY and others are kinds of SQLITE_READONLY."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction, all or nothing, with the write lock from the start: two writers wait for each other, not fail."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def open_database(folder: Path, *, write: bool, busy_timeout_s: float, damaged: bool = False) -> sqlite3.Connection:
    """The database of a run folder; with `write` it is created if it is missing. Raises StoreError.

    `damaged`: read the rest of a file that has lost its end; a page that is missing raises when it is read.
    """
    where = f"run folder {folder}"
    file = folder / FILE_NAME
    if not folder.is_dir():
        raise StoreError(f"{where}: no such folder")
    if not write:
        require_database(folder)
    _refuse_companions(folder)
    with store_errors(where):
        if write and not file.exists():
            _create(file)
        connection = _open(file, "mode=rw" if write else "mode=ro", busy_timeout_s)
        try:
            if damaged:
                connection.execute(
                    "PRAGMA writable_schema = ON"
                )  # otherwise sqlite opens no file that is shorter than it says
            if not write:
                connection = _without_shm_if_needed(connection, file, busy_timeout_s)
            version = _check_format(connection, where)
            _check_schema(connection, where, damaged=damaged)
            if write:
                # A commit outlives a kill -9 of the process. After a power cut the last commits may be gone, though the
                # database stays sound; FULL would keep them, at an fsync per episode.
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
                with transaction(connection):  # fails now, not at the first episode, if the file cannot be written
                    connection.execute(_ADDED)
                    if version < FORMAT:
                        connection.execute(f"PRAGMA user_version = {FORMAT}")
        except BaseException:
            connection.close()
            raise
    return connection


def limit_query_steps(connection: sqlite3.Connection, folder: Path) -> Callable[[], None]:
    """End any query that takes more steps than reading the file can. Call the returned function before each query."""
    file = folder / FILE_NAME
    taken = 0

    def exceeds_limit() -> bool:
        nonlocal taken
        taken += STEPS_PER_CHECK
        if taken <= MIN_STEPS:
            return False
        return taken > MIN_STEPS + STEPS_PER_BYTE * bytes_of(file)

    def reset() -> None:
        nonlocal taken
        taken = 0

    connection.set_progress_handler(exceeds_limit, STEPS_PER_CHECK)
    return reset


def bytes_of(file: Path) -> int:
    """Bytes of the database and its log together; a missing file counts 0."""
    total = 0
    for each in (file, file.with_name(f"{file.name}-wal")):
        with contextlib.suppress(OSError):
            total += each.stat().st_size
    return total


def require_database(folder: Path) -> None:
    """Raise StoreError if the folder holds no database."""
    if not (folder / FILE_NAME).exists():
        raise StoreError(f"run folder {folder}: holds no {FILE_NAME}")


def _refuse_companions(folder: Path) -> None:
    """Raise StoreError for a database behind a link, and for a journal, which could name files outside the run folder.

    A database of gymcp has a log (``-wal``), never a rollback journal.
    """
    for suffix in ("", "-wal", "-shm"):
        refuse_link(folder, FILE_NAME + suffix)
    journal = folder / f"{FILE_NAME}-journal"
    if journal.is_symlink() or journal.exists():
        raise StoreError(f"run folder {folder}: holds {journal.name}, which gymcp has not written: remove it")


def _create(file: Path) -> None:
    """Put an empty database at `file`, whole or not at all; if another process was faster, its database stays."""
    try:
        create_atomically(file, _empty_database())
    except FileExistsError:
        pass
    except PermissionError as error:
        raise StoreError(f"run folder {file.parent}: {FILE_NAME} cannot be made: {error.strerror}") from error


@functools.cache
def _empty_database() -> bytes:
    """Bytes of an empty database, made in a folder of its own: the switch to WAL (with which readers never wait for the
    writer) fails if two processes do it at once, whatever the timeout."""
    with tempfile.TemporaryDirectory(prefix="gymcp-store-") as folder:
        file = Path(folder) / FILE_NAME
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        return file.read_bytes()


@functools.cache
def _own_schema() -> frozenset[tuple[str, str, str, str | None]]:
    """Rows of ``sqlite_master`` in a database that gymcp makes."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        for statement in (_ADDED, *BRANCH_TABLES):
            connection.execute(statement)
        return frozenset(connection.execute(_OBJECTS))


def _check_schema(connection: sqlite3.Connection, where: str, *, damaged: bool) -> None:
    """Raise StoreError for tables, views, triggers or indexes other than gymcp's: a query of gymcp could run them.

    `damaged`: some may be missing.
    """
    expected = _own_schema()
    objects: set[tuple[str, str, str, str | None]] = set()
    for row in connection.execute(_OBJECTS):
        if damaged and row[0] is None:  # its page is missing
            continue
        if row not in expected or row in objects:
            what = f"{row[0]} {str(row[1])[:60]!r}"
            raise StoreError(f"{where}: {FILE_NAME}: its {what} is not the one that gymcp makes; {_FOREIGN}")
        objects.add(row)
    added = {row for row in expected if row[2] in OPTIONAL_TABLES}  # not every file has them
    if (missing := sorted(str(row[1]) for row in expected - objects - added)) and not damaged:
        raise StoreError(f"{where}: {FILE_NAME}: lacks {', '.join(missing)}, so it is no run's")


def _open(file: Path, options: str, busy_timeout_s: float) -> sqlite3.Connection:
    # isolation_level None: gymcp begins transactions itself. Threads share one connection under the store's lock.
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?{options}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    # the file may be untrusted: its schema calls no function with side effects, and its cells are checked first
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _without_shm_if_needed(connection: sqlite3.Connection, file: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """The connection, or one that needs no -shm file, because a run folder may lie on a read-only disk."""
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        wal = file.with_name(f"{FILE_NAME}-wal")
        unwritable = _kind(error) in ("SQLITE_CANTOPEN", "SQLITE_READONLY")
        if not unwritable or (wal.exists() and wal.stat().st_size):
            raise
        connection.close()
        return _open(file, "mode=ro&immutable=1", busy_timeout_s)
    return connection


def _check_format(connection: sqlite3.Connection, where: str) -> int:
    """The format of the database. Raises StoreError for one that this gymcp cannot read."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise StoreError(f"{where}: {FILE_NAME} is not of gymcp")
    if version > FORMAT_WITH_BRANCHES:
        raise newer_format(where, version, FORMAT_WITH_BRANCHES)
    return int(version)
