"""The check of patterns accepts those of any dialect, refuses all others, and takes no time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymcp.mcp_servers.tools.regex_syntax import check_regex

TAKEN = [
    "",
    "^[a-z0-9_-]{1,63}$",
    r"^[\w-.]+@[\w-]+\.[\w.]+$",
    r"^\p{L}[\p{L}\d]*$",
    r"(?<year>\d{4})-\k<year>",
    r"(?P<year>\d{4})(?P=year)(?i:x)(?i)",
    r"(?=a)(?!b)(?<=c)(?<!d+)(?:e|f)?",
    "^(a+)+$",
    "a+?b*+c{2,}?d{3}",
    "[]^[^]",
    "[](]",
    "([^])[b]",
    "a{b}{",
    "^*$",
    r"(?(1)a|b)",
    "((((a))))",
    r"\/\u{1F600}\cJ",
]
REFUSED = {
    "[a-z": "the class at 0 does not end",
    "x(a|(b)": "the group at 1 does not end",
    "a)": "at 1 a group ends that did not begin",
    "*a": "at 0 nothing is repeated",
    "a|+": "at 2 nothing is repeated",
    "a**": "at 2 nothing is repeated",
    "{2}": "at 0 nothing is repeated",
    "a{3,2}": "at 1 the bounds {3,2} are the wrong way round",
    "[0-9z-a]": "at 4 the range z-a is the wrong way round",
    "a\\": "a backslash at the end",
    "[a\\": "a backslash at the end",
    "(?]a)": "at 0 an unknown kind of group",
    "(?": "at 0 an unknown kind of group",
}


@pytest.mark.parametrize("pattern", TAKEN)
def test_patterns_of_any_dialect_are_accepted(pattern: str) -> None:
    assert check_regex(pattern)


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_malformed_pattern_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[pattern])):
        check_regex(pattern)


@given(st.text(alphabet="ab01-|()[]{},*+?^$.\\:", max_size=12))
def test_every_pattern_that_python_compiles_is_accepted(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error:
        return
    except FutureWarning:  # a set in a set, which only means something else in time to come
        return
    check_regex(pattern)
