"""Files of answers that gymcp brings: they belong to the code that made them."""

from __future__ import annotations

from pathlib import Path

from gymcp.envs.suites.upstream.precomputed import find_precomputed, read_precomputed, write_precomputed


def test_answers_are_found_by_the_fingerprint_of_the_code_that_made_them(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert read_precomputed(path, "a") == {}
    write_precomputed(path, "b", "upstream==1.0, MIT", {"two": [2], "one": None})
    assert read_precomputed(path, "b") == {"one": None, "two": [2]}
    assert read_precomputed(path, "c") == {}
    assert find_precomputed(path, "c", "two") is None


def test_who_changes_an_answer_changes_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_precomputed(path, "a", "upstream==1.0, MIT", {"one": {"gold": []}})
    answer = find_precomputed(path, "a", "one")
    assert answer is not None
    answer["gold"].append("wait")
    assert find_precomputed(path, "a", "one") == {"gold": []}
