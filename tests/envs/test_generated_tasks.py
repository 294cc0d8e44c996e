"""Tasks beyond a suite by their place in the sequence of an environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shop import ENV

from gymcp.envs.catalog import load_spec
from gymcp.envs.generated_tasks import GENERATED, GeneratedTask, generate_task, read_generated
from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.types import Task

BACKOFFICE = load_spec("backoffice")


def test_the_places_go_through_all_kinds_and_then_on() -> None:
    wanted = GeneratedTask(families=("contact", "cancel"), levels=(1, 3))
    found = [generate_task(BACKOFFICE, replace(wanted, number=number)).id for number in range(5)]
    assert found == [
        "train-contact-1-0",
        "train-contact-3-0",
        "train-cancel-1-0",
        "train-cancel-3-0",
        "train-contact-1-1",
    ]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (GeneratedTask(split="moon"), "backoffice: no split 'moon'; have"),
        (GeneratedTask(levels=(9,)), "backoffice: no level 9; have 1"),
        (GeneratedTask(number=-1), "number is -1: tasks are numbered from 0"),
    ],
)
def test_an_impossible_generated_task_is_one_error(wanted: GeneratedTask, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        generate_task(BACKOFFICE, wanted)


@pytest.mark.parametrize("error", [ValueError("no names left"), SystemExit("no names left"), StopIteration()])
def test_a_generator_that_fails_is_one_error(error: BaseException) -> None:
    def more_tasks(split: str, **_: Any) -> list[Task]:
        raise error

    says = rf"environment 'shop': its more_tasks: test_generated_tasks\.py:\d+: {type(error).__name__}"
    with pytest.raises(ConfigError, match=says):
        generate_task(replace(ENV, more_tasks=more_tasks), GeneratedTask())


def test_a_missing_sandbox_is_not_a_request_error() -> None:
    def more_tasks(split: str, **_: Any) -> list[Task]:
        raise SandboxUnavailable("bwrap: not here")

    with pytest.raises(SandboxUnavailable, match="bwrap: not here"):
        generate_task(replace(ENV, more_tasks=more_tasks), GeneratedTask())


def test_the_end_of_a_generator_is_one_error() -> None:
    def more_tasks(split: str, *, first: int, **_: Any) -> list[Task]:
        return [Task(id=name, prompts=()) for name in ("a", "b")[first:]]

    spec = replace(ENV, more_tasks=more_tasks)
    assert generate_task(spec, GeneratedTask(number=1)).id == "b"
    with pytest.raises(ConfigError, match="environment 'shop': split 'train' has no task 4 of these families and"):
        generate_task(spec, GeneratedTask(number=4))


def test_an_environment_with_a_fixed_suite_makes_none() -> None:
    with pytest.raises(
        ConfigError, match="environment 'shop': makes no tasks, or none with these wrappers: name a task"
    ):
        generate_task(ENV, GeneratedTask())


def test_a_request_is_read_from_a_record() -> None:
    wanted = GeneratedTask(split="seeds", number=4, families=("contact",), levels=(2,))
    assert read_generated({GENERATED: wanted.to_row()}) == wanted
    rows: list[dict[str, Any]] = [
        {},
        {GENERATED: {}},
        {GENERATED: {**wanted.to_row(), "levels": ["a"]}},
        {GENERATED: 3},
    ]
    assert [row for row in rows if read_generated(row) is not None] == []
