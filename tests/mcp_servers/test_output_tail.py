"""The end of a program's output in an error: its last lines, without noise, and a file with all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gymcp.mcp_servers import output_tail
from gymcp.mcp_servers.output_tail import (
    LONG_CHARS,
    MAX_QUOTE_CHARS,
    describe_output,
    drop_noise,
    quote_last_lines,
    show_output,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("loading 1%\rloading 50%\rloaded\r\nno API key", ["loaded", "no API key"]),
        ("\x1b[31mno\x1b[0m API key\x1b[K", ["no API key"]),
        ("  0%|          | 0/9\n 50%|█████     | 4/9 [00:01]\nno API key", ["no API key"]),
        ("[====>     ] 50 %\n⠙ fetching\nno API key\n\n", ["no API key"]),
        ("retry\nretry\nretry\nno API key", ["retry (3 times)", "no API key"]),
        ("100%|██████████| 9/9 [00:02]", ["100%|██████████| 9/9 [00:02]"]),
        ("======= 3 failed =======\nCPU at 50 %", ["======= 3 failed =======", "CPU at 50 %"]),
        (" \n\n", []),
    ],
)
def test_noise_is_left_out(output: str, lines: list[str]) -> None:
    assert [line.strip() for line in drop_noise(show_output(output))] == lines


def test_whole_lines_from_the_end_are_quoted() -> None:
    lines = [f"line {n}" for n in range(200)]
    quoted = quote_last_lines(lines)
    assert quoted.endswith("line 198\nline 199")
    assert quoted.splitlines()[0] in lines
    assert len(quoted) <= MAX_QUOTE_CHARS
    assert quote_last_lines(["x" * 2 * MAX_QUOTE_CHARS + "end"]).endswith("xend")


def test_an_error_that_quotes_everything_needs_no_file(home: Path) -> None:
    assert describe_output(show_output("no API key\n"), "kv") == "; its last words: no API key"
    assert describe_output("", "kv") == ""
    assert list(home.iterdir()) == []


def test_a_longer_output_is_in_a_file_that_the_error_names(home: Path) -> None:
    shown = show_output("a key is needed\n" + "loading\n" * 400 + "no API key")
    said = describe_output(shown, "../kv x")
    found = re.fullmatch(r"; its log: (\S+); its last words: a key is needed\nloading \(400 times\)\nno API key", said)
    assert found is not None, said
    log = Path(found[1])
    assert log.parent == home / "logs"
    assert log.name.startswith("___kv_x-")
    assert log.read_text() == shown
    assert describe_output(shown, "../kv x") == said
    assert len(list((home / "logs").iterdir())) == 1


def test_the_number_of_files_is_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_tail, "MAX_LOGS", 3)
    for n in range(6):
        describe_output("x" * 600 + str(n), "kv")
    assert len(list((home / "logs").iterdir())) == 3


def test_an_unwritable_file_does_not_hide_the_error(home: Path) -> None:
    (home / "logs").write_text("in the way")
    assert describe_output("x" * 600 + " no API key", "kv").startswith("; its last words: x")


def test_a_long_output_loses_its_beginning_which_may_be_half_a_secret() -> None:
    assert "half-a-secret" not in show_output("half-a-secret\n" + "line\n" * LONG_CHARS)
    assert "whole" in show_output("whole\n" + "line\n" * 10)
