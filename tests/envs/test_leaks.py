"""What the leak test searches for."""

from __future__ import annotations

import pytest

from gymcp.envs.audit.leaks import gold_texts
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
def test_a_text_to_find_is_searched_for_where_the_task_does_not_give_it_away(
    target: Json, prompts: tuple[str, ...], state: Json, searched: set[str]
) -> None:
    assert gold_texts(Task(id="a", prompts=prompts, target=target, initial_state=state)) == searched
