from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gymcp.errors import ConfigError
from gymcp.user_code import check_signature, describe_error, load_user_module, locate_error

PARAMETERS = ("task", "trajectory", "states")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n\ndef f():\n    raise RuntimeError('boom')\n\n\nf()\n", "boom.py:4: RuntimeError: boom"),
        ("import json\n\njson.loads('{')\n", "boom.py:3: JSONDecodeError: Expecting property name"),
        ("x = (\n", "boom.py:1: SyntaxError: '(' was never closed"),
        ("import gymcp_no_such_package\n", "boom.py:1: ModuleNotFoundError: No module named 'gymcp_no_such_package'"),
        ("import sys\nsys.exit(0)\n", "boom.py:2: SystemExit: 0"),
        ("from gymcp.errors import ConfigError\n\nraise ConfigError('no such\\nthing')", "boom.py:3: no such thing"),
    ],
)
def test_an_error_in_a_file_of_the_user_names_its_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "boom.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_user_module(tmp_path / "boom.py", what="environment file 'boom.py'", name="gymcp_test_boom")
    assert str(caught.value).startswith(f"environment file 'boom.py': {says}")
    assert "\n" not in str(caught.value)


def test_an_error_that_no_file_of_the_user_raised_has_no_place() -> None:
    error = ValueError("a\n b")
    assert (locate_error(error), describe_error(error)) == ("", "ValueError: a b")


def test_the_place_is_the_users_line_and_not_that_of_the_library_below_it() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert locate_error(caught.value).startswith("test_user_code.py:")


async def grade_later(task: object, trajectory: object, states: object) -> None: ...


class Grades:
    def __call__(self, task: object, trajectory: object, states: object, *more: object) -> None: ...


@pytest.mark.parametrize("function", [Grades(), lambda task, trajectory, states, limit=3: None, dict.setdefault])
def test_functions_that_can_be_called_with_the_parameters_pass(function: Callable[..., object]) -> None:
    check_signature("grader", function, PARAMETERS, "Score")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            lambda task: None,
            "takes (task); it is called with 3 arguments: def grade(task, trajectory, states) -> Score",
        ),
        (lambda task, trajectory, states, *, limit: None, "takes (task, trajectory, states, *, limit)"),
        (grade_later, "is async; make it a plain function: def grade_later(task, trajectory, states) -> Score"),
    ],
)
def test_a_wrong_signature_is_one_line_with_the_right_one(function: Callable[..., object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_signature("grader", function, PARAMETERS, "Score")
    assert says in str(caught.value)
    assert str(caught.value).startswith("grader: test_user_code.py:")
    assert "\n" not in str(caught.value)
