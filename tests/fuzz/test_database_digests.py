"""Random databases: equal ones have equal digests, different ones different digests, as `test_digests` says.

The second description is read with SQL. Both leave out rowids that no column shows, the order of rows, and the layout
of the file: pages, journal, encoding, free pages.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from digest_keys import ask_fresh_key, ask_key, fuzz_settings, make_folders, open_service
from hypothesis import assume, example, given
from hypothesis import strategies as st

VALUES = st.sampled_from(
    ["NULL", "0", "1", "1.0", "'1'", "x'31'", "9e999", "'é'", "cast(x'ff' as text)", "char(97, 0)"]
)
Table = st.sampled_from(["t", "u"])
SqlOp = st.one_of(
    st.builds("INSERT INTO {} VALUES ({}, {})".format, Table, VALUES, VALUES),
    st.builds("DELETE FROM {} WHERE a IS {}".format, Table, VALUES),
    st.builds("UPDATE {} SET b = {} WHERE a IS {}".format, Table, VALUES, VALUES),
    st.builds("CREATE TABLE {} (a, b)".format, Table),
    st.builds("DROP TABLE {}".format, Table),
    st.builds("ALTER TABLE {} RENAME COLUMN b TO c".format, Table),
    st.builds("CREATE INDEX i_{} ON {} (a)".format, Table, Table),
    st.builds("CREATE VIEW v_{0} AS SELECT * FROM {0}".format, Table),
    st.builds("PRAGMA user_version = {}".format, st.integers(0, 2)),
    st.builds("PRAGMA application_id = {}".format, st.integers(0, 2)),
    st.builds("PRAGMA journal_mode = {}".format, st.sampled_from(["DELETE", "WAL"])),
    st.sampled_from(["VACUUM", "ANALYZE", "DELETE FROM sqlite_stat1", "PRAGMA optimize"]),
    st.just(
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET name = 'sqlite_stat9', tbl_name = 'sqlite_stat9', "
        "sql = replace(sql, 'TABLE u', 'TABLE sqlite_stat9') WHERE name = 'u'; PRAGMA writable_schema = OFF"
    ),
)


def run_sql(path: Path, script: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        with contextlib.suppress(sqlite3.Error):  # also of a schema that makes no sense
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(script)
    finally:
        connection.close()


class Text(bytes):
    """Text as its bytes, which need not be UTF-8; its `repr` is not that of a blob."""

    def __repr__(self) -> str:
        return f"text {super().__repr__()}"


def rows_of(path: Path) -> Any:
    """Schema, typed rows in any order, and the two numbers that a program may set; None: not to be read as a whole."""
    connection = sqlite3.connect(path)
    connection.text_factory = Text
    try:
        schema = sorted(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"), key=repr)
        tables = [name.decode() for kind, name, *_ in schema if kind == b"table"]
        rows = {name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"'))) for name in tables}
        numbers = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")]
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return schema, rows, numbers


@fuzz_settings
@given(st.lists(SqlOp, max_size=10), st.lists(SqlOp, max_size=10), st.lists(SqlOp, min_size=1, max_size=3))
@example(["INSERT INTO t VALUES (1, 2)", "INSERT INTO t VALUES (3, 4)"], ["INSERT INTO t VALUES (3, 4)"], ["ANALYZE"])
@example(["PRAGMA user_version = 1"], [], ["PRAGMA application_id = 1"])
@example(["INSERT INTO t VALUES (1, '1')"], [], ["UPDATE t SET b = x'31' WHERE a IS 1"])
def test_databases_have_one_digest_exactly_if_they_say_the_same(
    left: Sequence[str], right: Sequence[str], more: Sequence[str]
) -> None:
    with make_folders(1) as (folder,):
        one, two = folder / "one", folder / "two"
        for path, script in ((one, left), (two, right)):
            for statement in ("CREATE TABLE t (a, b); CREATE TABLE u (a, b)", *script):
                run_sql(path, statement)
        seen = rows_of(one)
        assume(seen is not None and rows_of(two) is not None)
        kept = open_service(folder, "sqlite", "one")
        before = ask_key(kept)
        assert (before == ask_fresh_key(folder, "sqlite", "two")) == (seen == rows_of(two))
        for statement in more:
            run_sql(one, statement)
            now = ask_key(kept)
            assert now == ask_fresh_key(folder, "sqlite", "one")
            assert (now == before) == (rows_of(one) == seen)
        os.close(kept._root)


def test_databases_are_digested_without_the_documented_parts() -> None:
    with make_folders(1) as (folder,):
        run_sql(folder / "one", "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)")
        run_sql(
            folder / "two",
            "PRAGMA page_size = 8192; PRAGMA encoding = 'UTF-16'; PRAGMA journal_mode = WAL; CREATE TABLE t (a);"
            "INSERT INTO t (rowid, a) VALUES (7, 2), (9, 1)",
        )
        assert ask_fresh_key(folder, "sqlite", "one") == ask_fresh_key(folder, "sqlite", "two")


def test_a_false_virtual_table_hides_no_rows() -> None:
    """The schema says that there is nothing to read; the pages are there, and another edit of the schema shows them."""
    with make_folders(1) as (folder,):
        for name, row in (("one", 1), ("two", 2)):
            run_sql(
                folder / name,
                f"CREATE TABLE t (a); INSERT INTO t VALUES ({row}); PRAGMA writable_schema = ON; UPDATE sqlite_master "
                "SET sql = 'CREATE VIRTUAL TABLE t USING fts5(a)' WHERE name = 't'",
            )
        assert ask_fresh_key(folder, "sqlite", "one") != ask_fresh_key(folder, "sqlite", "two")
