"""The state of a sqlite database for the digest program."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from gymcp.mcp_servers.programs.digest.tree import (
    FILE,
    RACY_NS,
    FileTreeState,
    Refused,
    Tree,
    encode_base64,
    file_mark,
    open_below,
)

Json = Any

SUFFIXES = ("", "-wal", "-journal")
NUMBERS = ("user_version", "application_id")
"""Numbers of a database that are recorded if they are set."""


class _Hidden(Exception):
    """Raised for a schema that was edited by hand: a table declared as virtual has pages of its own."""


class Sqlite:
    """Reads schema and sorted rows of a database from a private copy; unreadable content is a state like any other."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._marks: Json = None
        self._last: tuple[Json, Json] = (None, None)
        """(digest material, recorded state) of the last copy."""

    def read(self, root: int, path: str) -> FileTreeState:
        marks = [self._file_mark(root, path + suffix) for suffix in SUFFIXES]
        fresh = max((mark[4] for mark in marks if mark), default=0) + RACY_NS >= time.time_ns()
        if marks != self._marks or fresh or self._tree.again:
            copy = f"{os.environ['TMPDIR']}/db"
            try:
                digests = [self._copy(root, path, suffix, copy) for suffix in SUFFIXES]
                self._last = self._dump(copy, digests)
            finally:
                for suffix in (*SUFFIXES, "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(copy + suffix)  # noqa: PTH108
            self._marks = marks
        return FileTreeState(self._last[1], material=self._last[0])

    def _file_mark(self, root: int, path: str) -> Json:
        try:
            with open_below(root, path, FILE) as fd:
                return file_mark(os.fstat(fd))
        except OSError:
            return None

    def _copy(self, root: int, path: str, suffix: str, copy: str) -> str | None:
        """Copy the file to `copy` with the suffix and return its digest; None if there is no regular file."""
        try:
            with open_below(root, path + suffix, FILE) as fd:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    return None
                if status.st_size > self._tree.limits["bytes"] // 4:
                    raise Refused(f"too large: {path + suffix!r} has {status.st_size} bytes")
                with open(copy + suffix, "wb") as file:  # noqa: PTH123
                    return self._tree.hash_file(fd, file_mark(status), into=file)[0]
        except FileNotFoundError:
            return None
        except OSError as error:  # a link, a folder
            if isinstance(error, PermissionError):
                raise Refused(f"{path + suffix!r} cannot be read: {error.strerror}") from None
            return None

    def _dump(self, path: str, digests: list[str | None]) -> tuple[Json, Json]:
        if digests[0] is None:
            empty: Json = {"schema": [], "tables": {}}
            return empty, empty
        try:
            with open_private_copy(path, self._tree.deadline) as connection:
                material, record = self._rows(connection)
                numbers = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in NUMBERS}
                set_numbers = {name: number for name, number in numbers.items() if number}
                return {**material, **set_numbers}, {**record, **set_numbers}
        except (sqlite3.Error, ValueError, TypeError, OverflowError, _Hidden):  # TypeError: a name that is no text
            self._tree.check_time()
            damaged: Json = {"unreadable": digests}
            return damaged, {"schema": [], "tables": {}, **damaged}
        except MemoryError:
            raise Refused("too large: a row of the database") from None

    def _rows(self, connection: sqlite3.Connection) -> tuple[Json, Json]:
        rows = list(connection.execute("SELECT type, name, tbl_name, sql, rootpage FROM sqlite_master"))
        pages = {name: page for kind, name, _, _, page in rows if kind == "table"}
        schema = sorted((list(row[:4]) for row in rows), key=dumps)
        digests: dict[str, str] = {}
        tables: dict[str, Json] = {}
        left, total = self._tree.recorded.total_bytes, self._tree.limits["bytes"]
        for kind, name, _, sql in schema:
            if kind != "table":
                continue
            if str(sql).upper().startswith("CREATE VIRTUAL"):
                if pages[name]:
                    raise _Hidden  # the pages may have rows that no query shows
                continue
            lines = []
            quoted = name.replace('"', '""')
            for row in connection.execute(f'SELECT * FROM "{quoted}"'):
                lines.append(dumps([encode_value(value) for value in row]))
                total -= len(lines[-1])
                if total < 0:
                    raise Refused(f"too large: more than {self._tree.limits['bytes']} bytes of rows")
            lines.sort()
            digests[name] = sha256("\n".join(lines).encode()).hexdigest()
            left -= sum(map(len, lines))
            inline = [json.loads(line) for line in lines] if left >= 0 else None
            tables[name] = inline if inline is not None else {"sha256": digests[name], "rows": len(lines)}
        return {"schema": schema, "tables": digests}, {"schema": schema, "tables": tables}


@contextlib.contextmanager
def open_private_copy(path: str, deadline: float) -> Iterator[sqlite3.Connection]:
    """Connection to a copy of an untrusted database; a query beyond the deadline raises sqlite3.OperationalError."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}").close()
        yield connection
    finally:
        connection.close()


def encode_value(value: Json) -> Json:
    """A column's value as JSON that is equal only for equal type and value."""
    if isinstance(value, bytes):
        return {"base64": encode_base64(value)}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"real": str(value)}
    return value


def dumps(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))
