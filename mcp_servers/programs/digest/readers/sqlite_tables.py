"""Rows of a sqlite database: ``{"tables": {name: {"columns": [...], "rows": [[value, ...], ...]}}}``.

Values are as in the state kind ``sqlite``: bytes are ``{"base64": ...}``. Rows come in the order in which the database
returns them; virtual tables and sqlite's own tables are left out.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Any

from gymcp.mcp_servers.programs.digest.readers.source import Source, TooLarge, Unreadable
from gymcp.mcp_servers.programs.digest.sqlite import encode_value, open_private_copy

Json = Any

SUFFIXES = ("-wal", "-journal")
MAX_ROWS_BYTES = 64_000_000
"""Most bytes of all rows together."""


def read(source: Source) -> Json:
    """Columns and rows of each table, from a private copy of the files. Raises Unreadable, TooLarge."""
    copy = f"{os.environ['TMPDIR']}/read"
    try:
        for suffix, content in {"": source.content, **source.beside}.items():
            with open(copy + suffix, "wb") as file:  # noqa: PTH123
                file.write(content)
        with open_private_copy(copy, source.deadline) as connection:
            return {"tables": _tables(connection)}
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise Unreadable(f"it is no database that can be read: {error}") from None
    finally:
        for suffix in ("", *SUFFIXES, "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy + suffix)  # noqa: PTH108


def _tables(connection: sqlite3.Connection) -> Json:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
    tables: dict[str, Json] = {}
    left = MAX_ROWS_BYTES
    for (name,) in connection.execute(query).fetchall():
        if not isinstance(name, str):
            raise Unreadable("the name of a table is no text")
        if name.startswith("sqlite_"):
            continue
        quoted = name.replace('"', '""')
        cursor = connection.execute(f'SELECT * FROM "{quoted}"')
        rows = []
        for row in cursor:
            left -= sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
            if left < 0:
                raise TooLarge(f"more than {MAX_ROWS_BYTES} bytes of rows")
            rows.append([encode_value(value) for value in row])
        tables[name] = {"columns": [column[0] for column in cursor.description], "rows": rows}
    return tables
