"""Untrusted files end neither a reader's nor a mask's work, and cost no more than their limits."""

from __future__ import annotations

import io
import os
import sqlite3
import time
import zipfile
from pathlib import Path

import pytest
from digest_service import open_service, read_state, write_zip

from gymcp.mcp_servers.programs.digest.masks import Masks
from gymcp.mcp_servers.programs.digest.readers import docx_text, json_value, sqlite_tables
from gymcp.mcp_servers.programs.digest.readers.archives import open_archive
from gymcp.mcp_servers.programs.digest.readers.source import Source, TooLarge, Unreadable
from gymcp.mcp_servers.programs.digest.sqlite import Sqlite
from gymcp.mcp_servers.programs.digest.tree import Recorded, Tree
from gymcp.mcp_servers.programs.digest.zip_times import hide_zip_times
from gymcp.mcp_servers.spec import DigestLimits, FileReader, FileState, Mask


@pytest.fixture(autouse=True)
def _use_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("private")))


def source_of(path: Path, seconds: float = 10.0) -> Source:
    return Source(path=path.name, content=path.read_bytes(), beside={}, deadline=time.monotonic() + seconds)


def _fail(_: object) -> None:
    raise KeyError("a")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_would_be_unpacked_beyond_the_limit_is_refused(method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a", "0" * 1_000)
    with open_archive(out.getvalue()) as read, pytest.raises(Unreadable, match="compressed in a way"):
        read.read("a")


def test_a_name_that_is_too_long_in_utf_8_is_not_hidden() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a" * 40_000, "")
    assert hide_zip_times(out.getvalue().replace(b"a" * 40_000, b"\xb0" * 40_000)) is None


def test_a_table_whose_name_is_bytes_is_unreadable(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET name = CAST(name AS BLOB)")
    connection.close()
    with pytest.raises(Unreadable, match="the name of a table is no text"):
        sqlite_tables.read(source_of(tmp_path / "a.db"))
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tree = Tree(DigestLimits().to_options(), [], time.time_ns(), Recorded(1_000, 1_000, ()))
        tree.deadline = time.monotonic() + 10
        assert "unreadable" in Sqlite(tree).read(root, "a.db").material
    finally:
        os.close(root)


def test_a_reader_that_fails_leaves_the_file_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_value, "read", _fail)
    (tmp_path / "a").write_text("1")
    state = read_state(tmp_path, FileState(readers=(FileReader(files="*", kind="json"),)))
    assert state["files"]["a"]["unreadable"] == "its reader failed with KeyError"


def test_a_mask_that_fails_leaves_the_file_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymcp.mcp_servers.programs.digest.zip_times.hide_zip_times", _fail)
    masks = Masks([{"files": "*", "kind": "zip_timestamps", "pattern": ""}])
    assert masks.hide("a", b"content") == b"content"
    assert not masks.used


def test_equal_bytes_with_another_ending_are_read_anew(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\tb")
    with open_service(tmp_path, FileState(readers=(FileReader(files="*", kind="csv"),))) as service:
        first = service.answer({"op": "state", "since": None})
        (tmp_path / "a.csv").rename(tmp_path / "a.tsv")
        second = service.answer({"op": "state", "since": None})
    assert first["files"]["a.csv"]["value"] == [["a\tb"]]
    assert second["files"]["a.tsv"]["value"] == [["a", "b"]]


def test_lists_of_masks_and_readers_are_hashable() -> None:
    masks, readers = [Mask(files="*.log")], [FileReader(files="*.csv", kind="csv")]
    state = FileState(masks=masks, readers=readers)  # type: ignore[arg-type]
    assert hash(state) == hash(FileState(masks=tuple(masks), readers=tuple(readers)))


def test_paragraphs_are_read_until_the_deadline(tmp_path: Path) -> None:
    text = "<body><p><r><t>a</t></r></p></body>"
    write_zip(tmp_path / "a", {"word/document.xml": f"<document>{text}</document>"})
    with pytest.raises(TooLarge, match="takes too long"):
        docx_text.read(source_of(tmp_path / "a", seconds=-1))
