"""Tables in sqlite that know what has changed in them. Standard library only; it enters the sandbox."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from gymcp.mcp_servers.native.runtime import ToolError

Row = dict[str, Any]
Tables = dict[str, dict[str, Row]]
"""By table and id; all rows of a table have the same columns, one of them ``id``."""
MOST_ROWS = 12
"""Of one list; what is more is counted, not shown."""


class Books:
    """The database, and what has changed in it."""

    def __init__(
        self, tables: Tables, columns: Mapping[str, Sequence[str]], indexed: Sequence[tuple[str, str]]
    ) -> None:
        """`columns` of tables that may be empty; `indexed`: (table, column)."""
        self.changes: dict[str, Any] = {}
        """``table/id`` -> the row as it is now, None where it is gone; a change that is undone is no difference."""
        self._before = tables
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        for table, rows in tables.items():
            named = columns.get(table) or list(next(iter(rows.values())))
            names = ", ".join(f'"{column}"' for column in named)
            self._db.execute(f'CREATE TABLE {table} ({names}, PRIMARY KEY ("id")) WITHOUT ROWID')
            marks = ", ".join("?" * len(named))
            self._db.executemany(
                f"INSERT INTO {table} VALUES ({marks})", [[row[column] for column in named] for row in rows.values()]
            )
        for table, column in indexed:
            self._db.execute(f'CREATE INDEX {table}_{column} ON {table} ("{column}")')

    def row(self, table: str, key: str) -> Row:
        """Raises ToolError where there is none."""
        found = self._db.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchone()
        if found is None:
            raise ToolError(f"no {table[:-1]} {key}")
        return dict(found)

    def rows(self, table: str, **equal: Any) -> list[Row]:
        where = " AND ".join(f'"{column}" = ?' for column in equal) or "1"
        query = f"SELECT * FROM {table} WHERE {where} ORDER BY id"
        return [dict(row) for row in self._db.execute(query, tuple(equal.values()))]

    def change(self, table: str, key: str, **values: Any) -> None:
        sets = ", ".join(f'"{column}" = ?' for column in values)
        self._db.execute(f"UPDATE {table} SET {sets} WHERE id = ?", (*values.values(), key))
        self._note(table, key)

    def add(self, table: str, letter: str, **values: Any) -> str:
        """The new row's id: one more than the largest there is."""
        last = self._db.execute(f"SELECT MAX(id) FROM {table}").fetchone()[0]
        key = f"{letter}{int(last[1:]) + 1 if last else 1:03d}"
        row = {"id": key, **values}
        names = ", ".join(f'"{column}"' for column in row)
        self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        self._note(table, key)
        return key

    def remove(self, table: str, key: str) -> None:
        """Raises ToolError where there is none."""
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
        found = self.rows(table, id=key)
        now = found[0] if found else None
        name = f"{table}/{key}"
        if now == self._before[table].get(key):
            self.changes.pop(name, None)
        else:
            self.changes[name] = now


def told(value: Any) -> str:
    """As JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def listed(rows: Sequence[Row], *columns: str) -> str:
    """Some columns of the rows, as `told`."""
    shown = [{column: row[column] for column in columns} for row in rows[:MOST_ROWS]]
    return told(shown if len(rows) <= MOST_ROWS else [*shown, {"more": len(rows) - MOST_ROWS}])
