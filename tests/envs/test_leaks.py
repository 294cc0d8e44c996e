"""Texts that the leak test searches for."""

from __future__ import annotations

import pytest

from gymcp.envs.audit.leaks import gold_texts, rare_end
from gymcp.types import Json, Task

ANSWER = "the treasure lies under the third oak"


@pytest.mark.parametrize(
    ("target", "prompts", "state", "searched"),
    [
        (ANSWER, ("Where is it?",), None, {ANSWER}),
        (ANSWER, (f"Say: {ANSWER}.",), None, set()),
        (ANSWER, ("Where is it?",), {"note": ANSWER}, set()),
        ("42", ("How many?",), None, set()),
        ({"note": ANSWER}, ("Where is it?",), None, set()),
    ],
)
def test_a_target_text_is_searched_for_unless_the_task_contains_it(
    target: Json, prompts: tuple[str, ...], state: Json, searched: set[str]
) -> None:
    assert gold_texts(Task(id="a", prompts=prompts, target=target, initial_state=state)) == searched


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("pay(to='bob', amount=5)", "(to='bob', amount=5)"),
        ('Then pay: {"to": "bob"} (twice)', '{"to": "bob"} (twice)'),
        (ANSWER, ANSWER),
        ("the treasure lies here (", "the treasure lies here ("),
    ],
)
def test_a_file_that_holds_a_text_holds_the_end_that_is_searched_for_first(text: str, end: str) -> None:
    assert rare_end(text) == end
    assert text.endswith(end)
