"""Databases of runs that somebody else has made: what a reader computes, believes or removes for them: nothing.

Each attempt has its control: the same attempt on a reader that believes what it is told succeeds.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import zlib
from contextlib import closing, suppress
from pathlib import Path

import pytest
from foreign_runs import BANK, VERBS_THAT_READ, name_environment, read_refusal
from recorded_runs import make_run

from gymcp.errors import StoreError
from gymcp.store import TrajectoryStore
from gymcp.store.codec import MAX_JSON_BYTES, unpack
from gymcp.store.database import FILE_NAME

pytestmark = pytest.mark.usefixtures("own_home")


def run_script(run: Path, script: str) -> Path:
    with closing(sqlite3.connect(run / FILE_NAME, isolation_level=None)) as db:
        db.create_function("bomb", 0, bomb)
        db.executescript(script)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return run


@functools.cache
def bomb() -> bytes:
    """A megabyte that is 256 megabytes of JSON."""
    stream = zlib.compressobj(1)
    part = b" " * 1_000_000
    return b"".join([*(stream.compress(part) for _ in range(256)), stream.compress(b"{}"), stream.flush()])


ENDLESS = "(WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n) SELECT x FROM n)"
FOREIGN = {
    "endless view": f"DROP VIEW episodes; CREATE VIEW episodes AS SELECT * FROM trajectories, {ENDLESS}",
    "view in the place of a table": f"DROP TABLE blobs; CREATE VIEW blobs AS SELECT x ref, x payload FROM {ENDLESS}",
    "generated column": "DROP TABLE blobs; CREATE TABLE blobs (ref TEXT, payload AS (hex(zeroblob(100000000))))",
    "trigger": "CREATE TRIGGER more AFTER INSERT ON grades BEGIN DELETE FROM trajectories; END",
    "table too many": "CREATE TABLE more (x)",
    "virtual table": "CREATE VIRTUAL TABLE more USING fts5(x)",
    "table too few": "DROP TABLE blobs",
    "expression of an index": "CREATE INDEX slow ON trajectories (hex(zeroblob(100000)))",
}


@pytest.mark.parametrize(
    ("attempt", "verb"),
    [*(("endless view", verb) for verb in VERBS_THAT_READ), *((attempt, "compare") for attempt in FOREIGN)],
)
def test_a_schema_that_is_not_gymcps_is_not_read(attempt: str, verb: str, tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    said = read_refusal(verb, run_script(name_environment(run, str(BANK)), FOREIGN[attempt]), other)
    assert "is not the one that gymcp makes" in said or "lacks blobs" in said or verb == "grade"


def test_an_endless_view_does_not_end_for_who_reads_it(tmp_path: Path) -> None:
    """The control: a plain read of the view has not ended after many more steps than a run of one episode takes."""
    looks = iter(range(1_000))
    run = run_script(make_run(tmp_path / "run"), FOREIGN["endless view"])
    with closing(sqlite3.connect(run / FILE_NAME)) as db:
        db.set_progress_handler(lambda: next(looks, None) is None, 1_000)  # interrupt after a million steps
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            db.execute("SELECT 1 FROM episodes").fetchall()


def test_pages_that_name_each_other_again_and_again_do_not_hold_up_a_reader(tmp_path: Path) -> None:
    """A table whose every inner page names the same next page: 4,000 entries a page, so no reader comes to its end."""
    run = make_run(tmp_path / "run")
    run_script(run, "PRAGMA journal_mode = DELETE")
    file = run / FILE_NAME
    with closing(sqlite3.connect(file)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trajectories'").fetchone()
    content = bytearray(file.read_bytes())
    leaf = bytes(content[(root - 1) * size : root * size])
    pages = len(content) // size
    levels = 8
    for level in range(levels + 1):
        last = level == levels
        content += leaf if last else inner_page(size, pages + level + 2)
    content[(root - 1) * size : root * size] = inner_page(size, pages + 1)
    content[28:32] = (pages + levels + 1).to_bytes(4, "big")
    file.write_bytes(content)
    with closing(sqlite3.connect(file)) as db:  # the control
        assert len(db.execute("SELECT rest FROM trajectories").fetchmany(10_000)) == 10_000
    for verb in ("report", "compare", "export", "credit"):
        read_refusal(verb, run, make_run(tmp_path / f"other-{verb}"))
    with pytest.raises(StoreError, match="out of order"), TrajectoryStore.open(run) as store:
        store.summaries()


def inner_page(size: int, child: int) -> bytes:
    """An inner page of a table, full of cells that name one child."""
    cells = (size - 12) // (2 + 5) - 1
    cell = child.to_bytes(4, "big") + b"\x03"
    start = size - 5 * cells
    head = b"\x05" + bytes(2) + cells.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0" + child.to_bytes(4, "big")
    places = b"".join((start + 5 * n).to_bytes(2, "big") for n in range(cells))
    return head + places + bytes(size - len(head) - len(places) - 5 * cells) + cell * cells


BOMBS = {
    "steps": "UPDATE steps SET payload = bomb()",
    "rest": "UPDATE trajectories SET rest = bomb()",
    "tools": "UPDATE blobs SET payload = bomb() WHERE ref LIKE 'tools:%'",
}


@pytest.mark.parametrize("attempt", BOMBS)
def test_a_decompression_bomb_is_one_line(attempt: str, tmp_path: Path) -> None:
    run = run_script(make_run(tmp_path / "run"), BOMBS[attempt])
    said = read_refusal("export", run, run)
    assert f"{FILE_NAME}: row 1: more than {MAX_JSON_BYTES:,} bytes of JSON" in said


def test_a_decompression_bomb_grows_hundreds_of_times_for_who_believes_it() -> None:
    data = bomb()
    assert len(zlib.decompress(data)) > 200 * len(data)
    with pytest.raises(ValueError, match="more than"):
        unpack(data)


WRONG = {
    "score as text": ("UPDATE trajectories SET score = 'high'", "column score is text, not a number or NULL"),
    "score beyond 1": ("UPDATE trajectories SET score = 1e300", "score is 1e+300, not in [0, 1]"),
    "reason as number": ("UPDATE trajectories SET reason = x'ff'", "'utf-8' codec can't decode"),
    "trial as text": ("UPDATE trajectories SET trial = 'x' || seq", "column trial is text, not a whole number"),
    "seed as bytes": ("UPDATE trajectories SET seed = x'00'", "column seed is bytes, not a whole number or text"),
    "unknown outcome": ("UPDATE trajectories SET outcome = 'won'", "'won' is not a valid Outcome"),
    "components as list": ("UPDATE trajectories SET components = '[]'", "components are no table"),
    "component as text": ("""UPDATE trajectories SET components = '{"a": "b"}'""", "component 'a' is a text, not a n"),
    "usage as list": ("UPDATE trajectories SET usage = '[1]'", "usage is no table"),
    "cost as text": ("""UPDATE trajectories SET usage = '{"cost": "much"}'""", "Usage.cost is a text, not a number"),
    "calls beyond 64 bits": (
        """UPDATE trajectories SET usage = '{"tool_calls": 99999999999999999999}'""",
        "Usage.tool_calls is a whole number of more than 64 bits",
    ),
    "tags as numbers": ("UPDATE trajectories SET tags = '[1]'", "a tag is a whole number, not a text"),
    "deep tags": ("UPDATE trajectories SET tags = printf('%.*c', 100000, '[')", "maximum recursion depth exceeded"),
    "steps beyond": ("UPDATE trajectories SET steps = 7", "it has 3 steps, and says 7"),
    "rest as text": ("UPDATE trajectories SET rest = 'x'", "a str where bytes should be"),
    "rest as list": ("UPDATE trajectories SET rest = x'5b5d'", "its rest is not a table of"),
    "payload as list": ("UPDATE steps SET payload = x'5b5d'", "a list where a table should be"),
    "payload as number": ("UPDATE steps SET payload = 7", "object of type 'int' has no len()"),
    "payload that ends": ("UPDATE steps SET payload = substr(payload, 1, 200)", "lacks its end"),
    "no steps": ("DELETE FROM steps", "it has 0 steps, and says 3"),
    "no tools": ("DELETE FROM blobs", "it names tools that are not there"),
}


@pytest.mark.parametrize("attempt", WRONG)
def test_a_column_of_another_kind_is_one_line_that_names_the_row(attempt: str, tmp_path: Path) -> None:
    script, why = WRONG[attempt]
    run = run_script(make_run(tmp_path / "run"), script)
    said = read_refusal("export", run, run)
    assert said.startswith(f"run folder {run}: {FILE_NAME}: row 1: ")
    assert why in said


def test_a_journal_that_names_a_file_of_the_users_is_not_played_back(tmp_path: Path) -> None:
    """sqlite removes the file that a journal names as its own superior, if no other journal names it back."""
    run, mine = run_script(make_run(tmp_path / "run"), "PRAGMA journal_mode = DELETE"), tmp_path / "mine"
    for attempt in (play_back, lambda folder: TrajectoryStore.open(folder, write=True).close()):
        mine.write_bytes(b"mine")
        (run / f"{FILE_NAME}-journal").write_bytes(journal_naming(mine, run / FILE_NAME))
        with suppress(StoreError):
            attempt(run)
        assert mine.exists() == (attempt is not play_back)


def play_back(run: Path) -> None:
    """The control: any other reader of the database."""
    with closing(sqlite3.connect(run / FILE_NAME)) as db:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()


def journal_naming(file: Path, database: Path) -> bytes:
    """A rollback journal without pages, and the name of its superior at the end."""
    magic = bytes.fromhex("d9d505f920a163d7")
    pages = database.stat().st_size // 4096
    head = magic + bytes(8) + pages.to_bytes(4, "big") + (512).to_bytes(4, "big")
    head += (4096).to_bytes(4, "big")
    name = os.fsencode(file)
    summed = sum(name).to_bytes(4, "big")
    locked = (2**30 // 4096 + 1).to_bytes(4, "big")
    return head.ljust(512, b"\0") + locked + name + len(name).to_bytes(4, "big") + summed + magic
