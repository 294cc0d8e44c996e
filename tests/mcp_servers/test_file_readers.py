"""Readers of files: what graders get instead of bytes, and what an untrusted file cannot do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from digest_service import open_service, read_state, write_workbook, write_zip

from gymcp.errors import ConfigError
from gymcp.mcp_servers.file_state import ReaderKind
from gymcp.mcp_servers.programs.digest.readers import archives
from gymcp.mcp_servers.spec import FileReader, FileState
from gymcp.types import Json

CELLS = (
    '<c r="A1" t="s"><v>1</v></c><c r="B1"><v>12</v></c><c r="C1"><v>0.5</v></c><c r="D1" t="b"><v>1</v></c>'
    '<c r="E1" t="inlineStr"><is><t>in</t></is></c><c r="F1"><f>B1*2</f><v>24</v></c><c r="G1"/>'
)
DOCUMENT = (
    '<w:document xmlns:w="w"><w:body><w:p><w:r><w:t>Dear</w:t><w:tab/><w:t>all</w:t></w:r></w:p>'
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p/></w:tc></w:tr></w:tbl>"
    "<w:sdt><w:sdtContent><w:p><w:r><w:t>Yours</w:t></w:r></w:p></w:sdtContent></w:sdt></w:body></w:document>"
)
ENTITIES = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;">]><w:document xmlns:w="w">&c;</w:document>'


@pytest.fixture(autouse=True)
def _use_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("private")))


def outcome(folder: Path, kind: ReaderKind, recorded_file_bytes: int = 1_000_000) -> Json:
    """The record of the only file, without type, mode, digest and size."""
    source = FileState(readers=(FileReader(files="*", kind=kind),), recorded_file_bytes=recorded_file_bytes)
    (file,) = read_state(folder, source)["files"].values()
    return {name: value for name, value in file.items() if name not in ("type", "mode", "sha256", "size")}


def write_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, note)")
        connection.execute("INSERT INTO notes (note) VALUES ('a'), (x'ff')")
    connection.close()


RIGHT: dict[ReaderKind, tuple[Callable[[Path], object], Json]] = {
    "csv": (lambda path: path.write_text('\ufeffa,b\r\n1,"2, ""3"""\n'), [["a", "b"], ["1", '2, "3"']]),
    "json": (lambda path: path.write_text('{"a": [1, 1.0, null]}'), {"a": [1, 1.0, None]}),
    "docx": (
        lambda path: write_zip(path, {"word/document.xml": DOCUMENT}),
        {"paragraphs": ["Dear\tall", "Yours"], "tables": [[["a", ""]]]},
    ),
    "xlsx": (
        lambda path: write_workbook(path, CELLS),
        {
            "sheets": {
                "Sales": {
                    "cells": {"A1": "south", "B1": 12, "C1": 0.5, "D1": True, "E1": "in", "F1": 24},
                    "formulas": {"F1": "B1*2"},
                }
            }
        },
    ),
    "sqlite": (
        write_database,
        {"tables": {"notes": {"columns": ["id", "note"], "rows": [[1, "a"], [2, {"base64": "/w=="}]]}}},
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_reader_returns_the_content_instead_of_bytes(kind: ReaderKind, tmp_path: Path) -> None:
    write, value = RIGHT[kind]
    write(tmp_path / "file")
    assert outcome(tmp_path, kind) == {"reader": kind, "value": value}


@pytest.mark.parametrize(
    ("kind", "write", "reason"),
    [
        ("csv", lambda path: path.write_bytes(b"\xff"), "it has no rows of separated values"),
        ("json", lambda path: path.write_text("{'a': 1}"), "it is no JSON document"),
        ("json", lambda path: path.write_text("[" * 100_000), "it is no JSON document"),
        ("json", lambda path: path.write_text("NaN"), "it is no JSON document: NaN is no JSON"),
        ("xlsx", lambda path: path.write_text("a,b"), "it is no zip archive"),
        ("xlsx", lambda path: write_zip(path, {"a": ""}), "the archive has no 'xl/_rels/workbook.xml.rels'"),
        ("xlsx", lambda path: write_workbook(path, '<c r="A1" t="s"><v>9</v></c>'), "cell A1 of the kind 's'"),
        ("xlsx", lambda path: write_workbook(path, "<c>"), "its XML is not well formed"),
        ("docx", lambda path: write_zip(path, {"word/document.xml": ENTITIES}), "its XML has a document type"),
        ("docx", lambda path: write_zip(path, {"word/document.xml": "<a/>"}), "the document has no body"),
        ("sqlite", lambda path: path.write_text("no database"), "it is no database that can be read"),
    ],
)
def test_a_file_of_another_kind_is_recorded_as_unreadable(
    kind: ReaderKind, write: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    write(tmp_path / "file")
    found = outcome(tmp_path, kind)
    assert found.keys() == {"reader", "unreadable"}
    assert found["unreadable"].startswith(reason)


@pytest.mark.parametrize(
    ("limit", "document", "reason"),
    [
        ("MAX_UNPACKED_BYTES", "0" * 101, "more than 100 bytes unpacked"),
        ("MAX_ELEMENTS", "<a>" + "<b/>" * 100 + "</a>", "more than 100 elements of XML"),
        ("MAX_DEPTH", "<a>" * 101, "elements of XML are nested more than 100 deep"),
    ],
)
def test_a_bomb_is_cut(limit: str, document: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, limit, 100)
    write_zip(tmp_path / "file", {"word/document.xml": document})
    assert outcome(tmp_path, "docx") == {"reader": "docx", "cut": reason}


def test_a_value_beyond_the_limit_is_cut(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('"0123456789"')
    assert outcome(tmp_path, "json", recorded_file_bytes=37) == {
        "reader": "json",
        "cut": "its value has 38 bytes as JSON",
    }
    assert "value" in outcome(tmp_path, "json", recorded_file_bytes=38)


def test_a_later_state_sends_what_readers_return_only_for_files_that_changed(tmp_path: Path) -> None:
    readers = (FileReader(files="*.db", kind="sqlite"), FileReader(files="*.json", kind="json"))
    (tmp_path / "a.json").write_text("1")
    connection = sqlite3.connect(tmp_path / "b.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (a)")
    with open_service(tmp_path, FileState(readers=readers, masks=("*-shm",))) as service:
        first = service.answer({"op": "state", "since": None})
        connection.execute("INSERT INTO t VALUES (7)")  # only the file of the write-ahead log changes
        second = service.answer({"op": "state", "since": first["key"]})
    connection.close()
    assert first["files"].keys() == {"a.json", "b.db", "b.db-wal"}
    assert second["files"].keys() == {"b.db", "b.db-wal"}
    assert second["files"]["b.db"]["value"] == {"tables": {"t": {"columns": ["a"], "rows": [[7]]}}}


def test_the_smallest_contents_are_recorded_if_not_all_fit(tmp_path: Path) -> None:
    for name, size in (("a", 50), ("b", 30), ("c", 20), ("d", 61)):
        (tmp_path / name).write_text("x" * size)
    files = read_state(tmp_path, FileState(recorded_file_bytes=60, recorded_bytes=60))["files"]
    assert {name for name, file in files.items() if "text" in file} == {"b", "c"}
    assert {name: file["size"] for name, file in files.items() if "sha256" in file} == {"a": 50, "d": 61}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: FileReader(files="*.x", kind="excel"),  # type: ignore[arg-type]
            "reader of '*.x': no kind 'excel'; have csv, docx, json,",
        ),
        (lambda: FileReader(files="/workspace/a", kind="csv"), "a pattern of paths below the state's folder is needed"),
        (lambda: FileState(recorded_file_bytes=-1), "recorded_file_bytes is -1, not a number from 0 to 4000000"),
        (lambda: FileState(recorded_bytes=16_000_001), "recorded_bytes is 16000001, not a number from 0 to 16000000"),
        (
            lambda: FileState(kind="sqlite", readers=(FileReader(files="*", kind="csv"),)),
            "a database has no masks and no readers",
        ),
    ],
)
def test_an_inapplicable_setting_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)
