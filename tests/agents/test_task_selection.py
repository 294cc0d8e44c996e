"""Choice of a run's tasks: ids, globs, and a limit that grows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.errors import ConfigError
from gymcp.types import Suite, Task

SUITE = Suite(name="numbers", version="1", tasks=tuple(Task(id=f"n{n}", prompts=("x",)) for n in range(100)))
ODD = Suite(name="odd", version="1", tasks=tuple(Task(id=id, prompts=("x",)) for id in ("a,b", "c[1]", "d*", "dd")))


def chosen(plan: Plan, suite: Suite = SUITE) -> list[str]:
    return [task.id for task in select_tasks(suite, plan)]


def test_several_ids_and_globs_are_joined_in_the_order_of_the_suite() -> None:
    assert chosen(Plan(agent="null", tasks=("n9?", "n3", "n91"))) == ["n3", *(f"n{n}" for n in range(90, 100))]


def test_an_id_with_characters_of_a_glob_is_that_task() -> None:
    assert chosen(Plan(agent="null", tasks=("c[1]", "d*")), ODD) == ["c[1]", "d*"]
    assert chosen(Plan(agent="null", tasks="d?"), ODD) == ["d*", "dd"]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (("n1", "n100"), "suite 'numbers': no task 'n100'; the ids look like n0, n1, n2, ..."),
        (("n1", "x*"), "suite 'numbers': no task matches 'x*'; the ids look like n0, n1, n2, ..."),
    ],
)
def test_an_unknown_id_is_named(tasks: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select_tasks(SUITE, Plan(agent="null", tasks=tasks))
    assert str(caught.value) == said


@pytest.mark.parametrize("limits", [(10, 20), (7, 23, 24, 60), (99, 0), (1, 100), (20, 20)])
def test_the_tasks_of_a_run_that_has_grown_have_the_earlier_ones_among_them(limits: tuple[int, ...]) -> None:
    before: set[str] = set()
    for n, limit in enumerate(limits):
        now = chosen(Plan(agent="null", limit=limit, earlier_limits=limits[:n]))
        assert len(now) == (limit or 100)
        assert before <= set(now)
        before = set(now)


def test_added_tasks_are_spread_over_those_that_are_left() -> None:
    ids = [int(id[1:]) for id in chosen(Plan(agent="null", limit=20, earlier_limits=(10,)))]
    assert max(b - a for a, b in pairwise(ids)) <= 10


def test_more_trials_add_jobs_and_keep_those_there_were_with_their_seeds() -> None:
    few, many = (list(make_jobs(Plan(agent="null", trials=n), SUITE.tasks[:5])) for n in (2, 4))
    assert many[: len(few)] == few
    assert len(many) == 2 * len(few)
