"""Masks of files: equal worlds have equal digests and equal records, whatever time or id is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from digest_service import LATER, read_state, write_workbook, write_zip

from gymcp.errors import ConfigError
from gymcp.mcp_servers.file_state import MaskKind
from gymcp.mcp_servers.spec import FileState, Mask
from gymcp.types import Json


def record_masked(folder: Path, kind: MaskKind, pattern: str = "") -> Json:
    return read_state(folder, FileState(masks=(Mask(files="file", kind=kind, pattern=pattern),)))


def test_a_workbook_that_is_written_twice_is_one_world(tmp_path: Path) -> None:
    write_workbook(tmp_path / "file", '<c r="A1"><v>1</v></c>')
    first, plain = record_masked(tmp_path, "zip_timestamps"), read_state(tmp_path, FileState())
    write_workbook(tmp_path / "file", '<c r="A1"><v>1</v></c>', LATER)
    assert read_state(tmp_path, FileState())["key"] != plain["key"]
    assert record_masked(tmp_path, "zip_timestamps") == first
    write_workbook(tmp_path / "file", '<c r="A1"><v>2</v></c>')
    assert record_masked(tmp_path, "zip_timestamps")["key"] != first["key"]


@pytest.mark.parametrize("parts", [{"b": "1", "a": "2"}, {"a": "2", "b": "1", "c": ""}, {"a": "2"}])
def test_other_members_of_an_archive_are_another_world(parts: dict[str, str], tmp_path: Path) -> None:
    write_zip(tmp_path / "file", {"a": "2", "b": "1"})
    first = record_masked(tmp_path, "zip_timestamps")["key"]
    write_zip(tmp_path / "file", parts)
    assert record_masked(tmp_path, "zip_timestamps")["key"] != first


@pytest.mark.parametrize(
    ("kind", "pattern", "first", "second", "other"),
    [
        ("regex", r"^at \d+", "at 12 ok\nat 13 ok\n", "at 3 ok\nat 4 ok\n", "at 12 ok\nin 13 ok\n"),
        ("json_pointer", "/rows/*/id", '{"rows":[{"id":1,"a":2}]}', '{"rows":[{"id":9,"a":2}]}', '{"rows":[{"id":1}]}'),
        ("json_pointer", "/a~1b/1", '{"a/b": [0, 1]}', '{"a/b": [0, 2]}', '{"a/b": [1, 1]}'),
    ],
)
def test_a_masked_part_does_not_count(
    kind: MaskKind, pattern: str, first: str, second: str, other: str, tmp_path: Path
) -> None:
    states = []
    for text in (first, second, other):
        (tmp_path / "file").write_text(text)
        states.append(record_masked(tmp_path, kind, pattern))
    assert states[0] == states[1]
    assert states[0]["key"] != states[2]["key"]
    assert "<masked>" in states[0]["files"]["file"]["text"]


@pytest.mark.parametrize("kind", ["zip_timestamps", "regex", "json_pointer"])
def test_a_file_that_its_mask_does_not_fit_counts_unmasked(kind: MaskKind, tmp_path: Path) -> None:
    pattern = {"regex": "id", "json_pointer": "/id"}.get(kind, "")
    (tmp_path / "file").write_bytes(b"\xff[")
    found = record_masked(tmp_path, kind, pattern)
    assert found["files"]["file"]["base64"] == "/1s="
    assert found["masks_used"] == []


def test_the_service_says_which_masks_had_an_effect(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("17")
    (tmp_path / "b.log").write_text("17")
    masks = ("b.*", Mask(files="*.log", kind="regex", pattern="x"), Mask(files="a.log", kind="regex", pattern="1"), "c")
    assert read_state(tmp_path, FileState(masks=masks))["masks_used"] == [0, 2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mask(files="*.log", kind="regex", pattern="("), "mask of '*.log': '(' is not a regular expression"),
        (lambda: Mask(files="*.log", kind="regex", pattern="a*"), "'a*' matches the empty text"),
        (lambda: Mask(files="*.log", kind="regex"), "kind 'regex' needs a pattern"),
        (lambda: Mask(files="*.log", kind="ignore", pattern="a"), "kind 'ignore' takes no pattern"),
        (lambda: Mask(files="*", kind="json_pointer", pattern="id"), "the pointer 'id' does not begin with a slash"),
        (
            lambda: Mask(files="*", kind="times"),  # type: ignore[arg-type]
            "mask of '*': no kind 'times'; have ignore, zip_timestamps, regex,",
        ),
        (lambda: Mask(files="", kind="ignore"), "a pattern of paths below the state's folder is needed"),
    ],
)
def test_an_inapplicable_mask_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_later_settings_change_the_digest_of_an_environment_only_if_they_are_used() -> None:
    limits = "DigestLimits(bytes=512000000, entries=100000, depth=64, seconds=20.0)"
    assert repr(FileState()) == f"FileState(kind='workspace', path='.', masks=(), limits={limits})"
    mask = Mask(files="*.log", kind="regex", pattern="a")
    assert repr(FileState(masks=(mask,), recorded_file_bytes=5)) == (
        f"FileState(kind='workspace', path='.', masks=({mask!r},), limits={limits}, recorded_file_bytes=5)"
    )
