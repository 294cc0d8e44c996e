"""Run folders that somebody else has made: what they can have the verbs run, write, read or wait for, which is nothing.

Each attempt has its control: the same attempt on a reader that believes what it is told succeeds.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import py_compile
import sqlite3
import zlib
from contextlib import closing, suppress
from pathlib import Path

import pytest
from recorded_runs import make_run
from typer.testing import CliRunner, Result

from gymcp.cli.app import app
from gymcp.errors import ConfigError, GymcpError, StoreError
from gymcp.evaluators.judge.answers import open_answers
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.exchange.importing import import_run
from gymcp.paths import gymcp_home
from gymcp.store import TrajectoryStore, create_run, open_run
from gymcp.store.codec import MAX_JSON_BYTES, unpack
from gymcp.store.database import FILE_NAME
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.checkpoints import find_saved_state

BANK = Path(__file__).parents[2] / "examples" / "bank.py"
VERBS_THAT_READ = ("report", "compare", "export", "view", "grade", "credit")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in which no environment file was ever run."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))


def gymcp(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(verb: str, run: Path, other: Path) -> str:
    """What a verb says of a run folder that it will not read; empty if it reads it. Anything else fails the test."""
    words: dict[str, tuple[object, ...]] = {
        "report": ("report", run),
        "compare": ("compare", run, other),
        "export": ("export", run, "--format", "jsonl", "--out", run.parent / "out.jsonl"),
        "grade": ("grade", run, "--env", BANK),
        "credit": ("credit", run),
    }
    try:
        if verb == "view":
            with open_runs([run]):
                return ""
        result = gymcp(*words[verb])
    except GymcpError as error:
        return str(error)
    if isinstance(result.exception, GymcpError):
        assert "\n" not in str(result.exception)
        return str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return ""


def named(run: Path, source: str) -> Path:
    """The run folder, whose record names this environment."""
    record = json.loads((run / "run.json").read_bytes())
    record["config"] |= {"source": source, "suite_version": "1", "suite_digest": "0" * 16}
    (run / "run.json").write_text(json.dumps(record))
    return run


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def hostile(tmp_path: Path, mark: Path) -> Path:
    """An environment file that leaves a mark when it is run, and otherwise is the bank."""
    file = tmp_path / "hostile.py"
    file.write_text(f"open({str(mark)!r}, 'w').close()\n{BANK.read_text()}")
    return file


WORDS_THAT_RUN = (
    ("grade",),
    ("credit", "--preset", "matchtir"),
    ("export", "--format", "jsonl", "--preset", "matchtir"),
)
"""Verbs that need the code of a run's environment; the run folder follows."""


def with_run(words: tuple[str, ...], run: Path) -> tuple[object, ...]:
    return (words[0], run, *words[1:])


@pytest.mark.parametrize("words", WORDS_THAT_RUN)
def test_code_that_a_run_names_is_not_run_unasked(
    words: tuple[str, ...], hostile: Path, mark: Path, tmp_path: Path
) -> None:
    run = named(make_run(tmp_path / "run"), str(hostile))
    result = gymcp(*with_run(words, run))
    assert isinstance(result.exception, ConfigError)
    assert not mark.exists()
    said = str(result.exception)
    assert said.startswith(f"run folder {run}: run.json: names the environment file '{hostile}', which is code")
    assert said.endswith("give it yourself: --env FILE")


@pytest.mark.parametrize("words", WORDS_THAT_RUN)
def test_code_that_the_user_names_is_run(words: tuple[str, ...], hostile: Path, mark: Path, tmp_path: Path) -> None:
    """The control: with the user's word for it the same file is run; then the tasks turn out to be others."""
    run = named(make_run(tmp_path / "run"), str(hostile))
    gymcp(*with_run(words, run), "--env", hostile)
    assert mark.exists()


@pytest.mark.parametrize("verb", ["report", "compare", "export", "view", "credit"])
def test_verbs_that_only_read_run_no_code(verb: str, hostile: Path, mark: Path, tmp_path: Path) -> None:
    run = named(make_run(tmp_path / "run"), str(hostile))
    assert refused(verb, run, make_run(tmp_path / "other")) == ""
    assert not mark.exists()


def test_a_training_run_that_names_a_file_runs_none(hostile: Path, mark: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    state = {"iteration": 0, "recipe": {"env": str(hostile)}, "trackers": {}}
    (run / "training.json").write_text(json.dumps(state))
    result = gymcp("credit", run, "--preset", "matchtir")
    assert isinstance(result.exception, ConfigError)
    assert "training.json: names the environment file" in str(result.exception)
    assert not mark.exists()


def test_a_file_that_the_user_ran_is_run_again_until_it_changes(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(BANK.read_text())
    played = gymcp("eval", own, "--agent", "null", "--sandbox", "none", "--out", tmp_path / "run")
    assert played.exit_code == 0, (played.output, played.exception)
    assert gymcp("grade", tmp_path / "run").exit_code == 0
    own.write_text(BANK.read_text() + "\n# one line more\n")
    changed = gymcp("grade", tmp_path / "run")
    assert "which is code that you have not run here as it is" in str(changed.exception)
    assert gymcp("grade", tmp_path / "run", "--env", own).exit_code == 0


def test_byte_code_beside_an_environment_file_is_not_run(mark: Path, tmp_path: Path) -> None:
    """Byte code that is marked as never checked against its source may be of any other source."""
    file = tmp_path / "fair.py"
    file.write_text(f"open({str(mark)!r}, 'w').close()\n{BANK.read_text()}")
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    file.write_text(BANK.read_text())
    spec = importlib.util.spec_from_file_location("fair", file)
    assert spec is not None
    assert spec.loader is not None
    with suppress(ConfigError):  # the bank wants to be a module by name
        spec.loader.exec_module(importlib.util.module_from_spec(spec))  # the control: a plain import runs it
    assert mark.exists()
    mark.unlink()
    assert gymcp("tools", file, "--sandbox", "none").exit_code == 0
    assert not mark.exists()


TEMPORARY = (".report.html.{pid}.tmp", ".summary.json.{pid}.tmp", ".out.jsonl.{pid}.tmp", ".run.json.{pid}.tmp")
FILES = ("report.html", "summary.json", "out.jsonl", "judge.json")


def test_what_is_written_into_a_folder_follows_no_link(tmp_path: Path) -> None:
    run, outside = make_run(tmp_path / "run"), tmp_path / "outside"
    outside.write_text("mine")
    for name in (*FILES, *(each.format(pid=os.getpid()) for each in TEMPORARY)):
        (run / name).symlink_to(outside)
    (run / "report.html").write_text("not mine")  # the control: who opens it by name writes outside
    assert outside.read_text() == "not mine"
    outside.write_text("mine")
    assert gymcp("report", run).exit_code in (0, 1)
    assert gymcp("export", run, "--format", "jsonl", "--out", run / "out.jsonl").exit_code == 0
    assert outside.read_text() == "mine"
    assert not (run / "report.html").is_symlink()


@pytest.mark.parametrize("name", [".lock", FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"])
def test_a_run_is_not_gone_on_with_through_a_link(name: str, tmp_path: Path) -> None:
    run, outside = make_run(tmp_path / "run"), tmp_path / "outside"
    (run / name).rename(outside) if (run / name).exists() else outside.write_text("mine")
    before = outside.read_bytes()
    (run / name).symlink_to(outside)
    config = dict(open_run(run).config)
    with (
        pytest.raises(StoreError, match="is a link, which is not followed"),
        create_run(run, config, resume=True),
        TrajectoryStore.open(run, write=True),
    ):
        pass
    assert outside.read_bytes() == before


def test_an_import_writes_through_no_link(tmp_path: Path) -> None:
    lines, out, outside = tmp_path / "run.jsonl", tmp_path / "out", tmp_path / "outside"
    assert gymcp("export", make_run(tmp_path / "run"), "--format", "jsonl", "--out", lines).exit_code == 0
    out.mkdir()
    outside.write_text("mine")
    for name in (".lock", *(each.format(pid=os.getpid()) for each in TEMPORARY)):
        (out / name).symlink_to(outside)
    with pytest.raises(StoreError, match=r"\.lock is a link"):
        import_run(lines, out)
    (out / ".lock").unlink()
    assert import_run(lines, out) == 3
    assert outside.read_text() == "mine"


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("run.json", FILE_NAME, f"{FILE_NAME}-wal", "training.json", "judge.json", "metrics.jsonl"):
        run = make_run(tmp_path / name)
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
        refused("report", run, run)
        refused("credit", run, run)


def changed(run: Path, script: str) -> Path:
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
    said = refused(verb, changed(named(run, str(BANK)), FOREIGN[attempt]), other)
    assert "is not the one that gymcp makes" in said or "lacks blobs" in said or verb == "grade"


def test_an_endless_view_does_not_end_for_who_reads_it(tmp_path: Path) -> None:
    """The control: a plain read of the view has not ended after many more steps than a run of one episode takes."""
    looks = iter(range(1_000))
    run = changed(make_run(tmp_path / "run"), FOREIGN["endless view"])
    with closing(sqlite3.connect(run / FILE_NAME)) as db:
        db.set_progress_handler(lambda: next(looks, None) is None, 1_000)  # interrupt after a million steps
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            db.execute("SELECT 1 FROM episodes").fetchall()


def test_pages_that_name_each_other_again_and_again_do_not_hold_up_a_reader(tmp_path: Path) -> None:
    """A table whose every inner page names the same next page: 4,000 entries a page, so no reader comes to its end."""
    run = make_run(tmp_path / "run")
    changed(run, "PRAGMA journal_mode = DELETE")
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
        refused(verb, run, make_run(tmp_path / f"other-{verb}"))
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
    run = changed(make_run(tmp_path / "run"), BOMBS[attempt])
    said = refused("export", run, run)
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
    run = changed(make_run(tmp_path / "run"), script)
    said = refused("export", run, run)
    assert said.startswith(f"run folder {run}: {FILE_NAME}: row 1: ")
    assert why in said


def test_a_journal_that_names_a_file_of_the_users_is_not_played_back(tmp_path: Path) -> None:
    """sqlite removes the file that a journal names as its own superior, where no other journal names it back."""
    run, mine = changed(make_run(tmp_path / "run"), "PRAGMA journal_mode = DELETE"), tmp_path / "mine"
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


RECORDS: dict[str, tuple[str, str, str]] = {
    "a long record": ("run.json", " " * 17_000_000, "is longer than 16,000,000 bytes"),
    "a deep record": ("run.json", "[" * 100_000, "is not JSON"),
    "a record of another kind": ("run.json", "[]", "is not the record of a run"),
    "a time that is none": (
        "run.json",
        '{"format": 1, "config": {}, "versions": {}, "seeds": [], "created": 1}',
        "text",
    ),
}


@pytest.mark.parametrize("attempt", RECORDS)
def test_a_record_that_is_none_is_one_line(attempt: str, tmp_path: Path) -> None:
    name, text, why = RECORDS[attempt]
    run = make_run(tmp_path / "run")
    (run / name).write_text(text)
    for verb in ("compare", "export"):
        assert why in refused(verb, run, make_run(tmp_path / verb))


def test_nothing_of_this_reached_the_cache(tmp_path: Path) -> None:
    """Reading runs writes nothing outside of them."""
    run = make_run(tmp_path / "run")
    for verb in ("report", "compare", "export", "view", "credit"):
        refused(verb, run, make_run(tmp_path / f"other-{verb}"))
    assert not gymcp_home().exists()


def test_a_training_run_is_not_gone_on_with_through_a_link(tmp_path: Path) -> None:
    """What a folder of the run holds is removed when there is something newer: here that would be the user's own."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    run.mkdir()
    (mine / "letters").mkdir(parents=True)
    for name in ("checkpoint", "served"):
        (run / name).symlink_to(mine)
        with pytest.raises(ConfigError, match=f"{name} is a link"):
            find_saved_state(run, make_recipe({"env": "backoffice"}), resume=True)
        (run / name).unlink()
    assert (mine / "letters").is_dir()


def test_a_judges_answers_are_kept_behind_no_link(tmp_path: Path) -> None:
    run, outside = make_run(tmp_path / "run"), tmp_path / "outside"
    outside.write_text("mine")
    (run / "judge-answers.jsonl").symlink_to(outside)
    with pytest.raises(StoreError, match="is a link"), open_answers(run):
        pass
    assert outside.read_text() == "mine"
