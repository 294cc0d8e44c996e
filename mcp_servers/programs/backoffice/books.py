"""Tables in sqlite that track their changes. Standard library only; the file enters the sandbox."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from gymcp.mcp_servers.native.runtime import ToolError

Row = dict[str, Any]
Tables = dict[str, dict[str, Row]]
"""Table -> id -> row; all rows of a table have the same columns, one of them ``id``."""
MAX_LISTED_ROWS = 12
"""Most rows that one list shows; the others are counted."""


class Books:
    """A database and its changes."""

    def __init__(
        self, tables: Tables, columns: Mapping[str, Sequence[str]], indexed: Sequence[tuple[str, str]]
    ) -> None:
        """`columns` names the columns of tables that may be empty; `indexed` has (table, column) pairs."""
        self.changes: dict[str, Any] = {}
        """``table/id`` -> current row, None if the row was removed; a change that is undone is no difference."""
        self._before = tables
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        for table, rows in tables.items():
            table_columns = columns.get(table) or list(next(iter(rows.values())))
            names = ", ".join(f'"{column}"' for column in table_columns)
            self._db.execute(f'CREATE TABLE {table} ({names}, PRIMARY KEY ("id")) WITHOUT ROWID')
            marks = ", ".join("?" * len(table_columns))
            values = [[row[column] for column in table_columns] for row in rows.values()]
            self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        for table, column in indexed:
            self._db.execute(f'CREATE INDEX {table}_{column} ON {table} ("{column}")')

    def row(self, table: str, key: str) -> Row:
        """The row with that id. Raises ToolError if there is none."""
        row = self._db.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchone()
        if row is None:
            raise ToolError(f"no {table[:-1]} {key}")
        return dict(row)

    def rows(self, table: str, **equal: Any) -> list[Row]:
        where = " AND ".join(f'"{column}" = ?' for column in equal) or "1"
        query = f"SELECT * FROM {table} WHERE {where} ORDER BY id"
        return [dict(row) for row in self._db.execute(query, tuple(equal.values()))]

    def change(self, table: str, key: str, **values: Any) -> None:
        sets = ", ".join(f'"{column}" = ?' for column in values)
        self._db.execute(f"UPDATE {table} SET {sets} WHERE id = ?", (*values.values(), key))
        self._note(table, key)

    def add(self, table: str, letter: str, **values: Any) -> str:
        """Add a row and return its id, which is one more than the largest id."""
        last = self._db.execute(f"SELECT MAX(id) FROM {table}").fetchone()[0]
        key = f"{letter}{int(last[1:]) + 1 if last else 1:03d}"
        row = {"id": key, **values}
        names = ", ".join(f'"{column}"' for column in row)
        self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        self._note(table, key)
        return key

    def remove(self, table: str, key: str) -> None:
        """Remove the row with that id. Raises ToolError if there is none."""
        self.row(table, key)
        self._db.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
        self._note(table, key)

    def begin(self) -> None:
        self._db.execute("SAVEPOINT begun")

    def undo(self) -> None:
        self._db.execute("ROLLBACK TO begun")
        self._db.execute("RELEASE begun")
        self.changes.clear()

    def _note(self, table: str, key: str) -> None:
        rows = self.rows(table, id=key)
        current = rows[0] if rows else None
        name = f"{table}/{key}"
        if current == self._before[table].get(key):
            self.changes.pop(name, None)
        else:
            self.changes[name] = current


def to_json(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def format_rows(rows: Sequence[Row], *columns: str) -> str:
    """Some columns of the rows as JSON."""
    first = [{column: row[column] for column in columns} for row in rows[:MAX_LISTED_ROWS]]
    return to_json(first if len(rows) <= MAX_LISTED_ROWS else [*first, {"more": len(rows) - MAX_LISTED_ROWS}])
