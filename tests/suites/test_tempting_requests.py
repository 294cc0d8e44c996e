"""Requests that tempt an agent to look up what they already tell."""

from __future__ import annotations

import pytest

from gymcp.envs.suites.backoffice import FAMILIES, TEMPTING_FAMILIES, make_tasks
from gymcp.evaluators.metrics import calls_beyond_gold
from gymcp.types import Task, Trajectory, Usage

PLAIN = ("told", "moved", "called_off")
READS = ("get_customer", "get_order")


def tasks(family: str) -> list[Task]:
    return list(make_tasks("train", families=[family], count=6))


def names(task: Task) -> list[str]:
    return [call.name for call in task.gold[0].calls]


def jobs(task: Task) -> int:
    return (int(task.tags[1].split()[1]) + 1) // 2


@pytest.mark.parametrize("family", PLAIN)
def test_gold_makes_no_look_up_and_the_checked_gold_makes_one_before_and_after(family: str) -> None:
    writes = 0 if family == "told" else 1
    for lean, careful in zip(tasks(family), tasks(f"{family}_checked"), strict=True):
        assert (len(names(lean)), set(names(lean)) & set(READS)) == (writes * jobs(lean), set())
        looked = [name in READS for name in names(careful)]
        assert looked == [True, *[False] * writes, True] * jobs(careful)


@pytest.mark.parametrize("family", PLAIN)
def test_a_request_contains_every_value_that_it_needs(family: str) -> None:
    for task in tasks(family):
        asked = task.prompts[0].split("\n")[-1]
        given = [call.arguments for call in task.gold[0].calls if not isinstance(call.arguments, str)]
        values = [value for arguments in given for value in arguments.values()]
        assert all(str(value) in asked for value in values)
        assert task.target["answer"] == "done" or all(word in asked for word in task.target["answer"].split())


def test_tempting_requests_are_made_only_if_they_are_named() -> None:
    assert not set(TEMPTING_FAMILIES) & set(FAMILIES)
    assert {task.tags[0] for task in make_tasks("train", levels=[1], count=1)} == set(FAMILIES)


def test_calls_beyond_gold_are_counted_from_the_record() -> None:
    (task,) = make_tasks("train", families=["moved"], levels=[1], count=1)
    counts = [
        calls_beyond_gold(task, Trajectory(id="r", env="e", task=task.id, usage=Usage(tool_calls=made)))
        for made in (0, 1, 3)
    ]
    assert counts == [0, 0, 2]
    without_gold = Trajectory(id="r", env="e", task="x", usage=Usage(tool_calls=3))
    assert calls_beyond_gold(Task(id="x", prompts=("?",)), without_gold) == 0
