"""The structure and the prose stay as they were made: rooms of a readable size, plain English, verbs as names."""

from __future__ import annotations

from pathlib import Path

import pytest
from house import FOLDERS, measure_house, over_bounds
from house_figures import measure_documented
from prose import (
    PLACES,
    SOURCES,
    TESTS,
    Text,
    comments,
    count_where,
    docstrings,
    functions,
    has_bad_first_word,
    has_question_word_first,
    is_participle,
    is_riddle,
    list_rooms,
    python_files,
    says_where,
    scripts,
)

MAX_WHERE_PER_1000_WORDS = 3.0
MAX_PARTICIPLES = 0.02
"""Share of the functions of a folder."""
FEW = 3
"""Participles that a folder of few functions may have."""
MIN_DOCUMENTED = 0.87
"""Share of the public functions with a docstring; it may rise."""
pytestmark = pytest.mark.xdist_group("house")  # one process parses all files


def test_nothing_is_over_a_bound() -> None:
    assert over_bounds(measure_house()) == []


HASHED = "envs/suites/textworld/solutions.py"
"""The games that come with gymcp are found by the bytes of this file, so a comment in it costs making them anew."""


ROOMS = list_rooms()


@pytest.fixture(scope="module", params=ROOMS)
def room(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return ROOMS[request.param]


@pytest.fixture(scope="module")
def texts(room: tuple[Path, ...]) -> list[Text]:
    return [text for path in room for text in docstrings(path)]


def test_no_docstring_begins_with_a_question_word(texts: list[Text]) -> None:
    assert [text.place for text in texts if has_bad_first_word(text.text)] == []


def test_no_comment_begins_with_a_question_word() -> None:
    remarks = [text for path in (*python_files((*SOURCES, *TESTS)), *scripts()) for text in comments(path)]
    assert {"Makefile", ".ci/run"} < {text.place.split(":")[0] for text in remarks}
    bad = [text.place for text in remarks if has_question_word_first(text.text)]
    assert [place for place in bad if not place.startswith(HASHED)] == []


def test_public_functions_have_docstrings_as_ever() -> None:
    assert measure_documented(FOLDERS) >= MIN_DOCUMENTED


def test_where_means_a_place(texts: list[Text]) -> None:
    words = sum(len(text.text.split()) for text in texts)
    assert sum(count_where(text.text) for text in texts) <= max(1, MAX_WHERE_PER_1000_WORDS * words / 1000)


def test_functions_are_verbs(room: tuple[Path, ...]) -> None:
    names = [name for path in room for name in functions(path)]
    participles = [f"{name.place} {name.text}" for name in names if is_participle(name.text)]
    assert len(participles) <= max(FEW, MAX_PARTICIPLES * len(names)), participles


def test_names_of_tests_name_their_subject() -> None:
    names = [name for path in python_files(TESTS) for name in functions(path)]
    assert [f"{name.place} {name.text}" for name in names if is_riddle(name.text)] == []
    assert {name.text for name in names if says_where(name.text)} == PLACES
