"""ScienceWorld's tasks from records in the cache: numbers, ids, the ends of splits, and which records a task needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gymcp.envs.catalog.scienceworld import ENV
from gymcp.envs.generated_tasks import GeneratedTask, generate_task
from gymcp.envs.spec import FIRST_DEMONSTRATION, LoadedEnv
from gymcp.envs.suites.scienceworld import installation, records, suite_is_made
from gymcp.envs.suites.scienceworld.tasks import FAMILIES, make_suite, make_tasks
from gymcp.envs.suites.upstream.suite_installation import choose_install_sandbox
from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.mcp_servers.sandbox.unconfined import Unconfined
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curriculum import demonstration_tasks, heldout_tasks, training_tasks
from gymcp.types import Suite

SPLITS = {"train": [0, 1, 2, 3], "dev": [4], "test": [5, 6]}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache with the splits and no record, on a machine without Java."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    records._write(records.SPLITS, dict.fromkeys(FAMILIES, SPLITS))


def write_records(family: str, *numbers: int, solved: bool = True) -> None:
    for number in numbers:
        record = {"description": family, "start": "", "gold": ["wait1"], "solved": solved}
        records._write(records.name_record((family, number)), record)


def ids(split: str, count: int, first: int = 0) -> list[str]:
    return [task.id for task in make_tasks(split, families=["boil"], count=count, first=first)]


def test_training_has_no_end_and_no_id_twice() -> None:
    write_records("boil", 0, 2, 3)
    write_records("boil", 1, solved=False)
    assert ids("train", 6) == [
        "boil-0",
        "boil-2-for-1",
        "boil-2",
        "boil-0-again-1",
        "boil-2-for-1-again-1",
        "boil-2-again-1",
    ]
    assert ids("train", 2, FIRST_DEMONSTRATION) == ["boil-3", "boil-3-again-1"]


def test_the_other_splits_end_with_their_last_variation() -> None:
    write_records("boil", 4, 5, 6)
    assert (ids("dev", 3), ids("test", 3), ids("test", 1, first=2)) == (["boil-4"], ["boil-5", "boil-6"], [])


def test_a_training_run_never_gets_a_task_twice_and_none_that_is_demonstrated_or_held_out() -> None:
    kinds = ("boil", "melt")
    for name in kinds:
        write_records(name, *range(7))
    env = LoadedEnv(spec=ENV, servers=(), suite=Suite(name="scienceworld", version="test", tasks=()))
    recipe = make_recipe(
        {
            **{"env": "scienceworld", "tasks": {"families": [*kinds]}, "rollout": {"groups": 4}},
            **{"warm_start": {"tasks": 2}, "evaluation": {"splits": ["test"]}},
        }
    )
    trained = [task for iteration in range(3) for task, _ in training_tasks(env, recipe, iteration)]
    shown, tested = demonstration_tasks(env, recipe), heldout_tasks(env, recipe, "test")
    assert len({task.id for task in trained}) == len(trained) == 12
    assert [task.id for task in tested] == ["boil-5", "melt-5", "boil-6", "melt-6"]
    worlds = [{json.dumps(task.initial_state) for task in tasks} for tasks in (trained, shown, tested)]
    assert [len(each) for each in worlds] == [6, 2, 4]
    assert len(worlds[0] | worlds[1] | worlds[2]) == 12


def test_one_task_needs_only_its_own_record() -> None:
    write_records(FAMILIES[3], 1)
    assert generate_task(ENV, GeneratedTask(number=len(FAMILIES) + 3)).id == f"{FAMILIES[3]}-1"
    assert len(make_tasks("train", count=2)) == 2 * len(FAMILIES)
    with pytest.raises(ConfigError, match="split 'test' has no task 60 of these families and levels"):
        generate_task(ENV, GeneratedTask(split="test", number=2 * len(FAMILIES)))


def test_a_suite_is_made_when_each_kind_has_a_solved_record() -> None:
    for name in FAMILIES:
        write_records(name, 5)
    assert not suite_is_made(), "there is no simulator"
    installation._folder().mkdir(parents=True)
    assert suite_is_made()
    write_records("boil", 5, solved=False)
    assert not suite_is_made(), "the next one has not been played"
    write_records("boil", 6)
    assert suite_is_made()
    records._path(records.name_record(("melt", 5))).unlink()
    assert not suite_is_made()


def test_a_suite_needs_no_run_of_the_simulator(tmp_path: Path) -> None:
    """The records that gymcp brings are those of this code: else `python benchmarks/precomputed.py --write` is due."""
    records._path(records.SPLITS).unlink()
    before = sorted(tmp_path.rglob("*"))
    assert [task.tags[1] for task in make_suite().tasks] == list(FAMILIES)
    assert sorted(tmp_path.rglob("*")) == before


class Missing(Unconfined):
    """A sandbox that the machine does not have."""

    def check(self) -> None:
        raise SandboxUnavailable("bwrap: not found")


@pytest.mark.parametrize(
    ("runs_unconfined", "says"),
    [(True, "docker, or --sandbox none to run it unconfined"), (False, "docker; --sandbox none cannot run it")],
)
def test_only_a_sandbox_that_can_run_the_code_is_offered(runs_unconfined: bool, says: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"gymcp suites install scienceworld --sandbox {says}$"):
        choose_install_sandbox("scienceworld", "it runs", Missing(), runs_unconfined=runs_unconfined)


def test_scienceworld_offers_no_install_without_a_sandbox() -> None:
    with pytest.raises(SandboxUnavailable, match=r"--sandbox docker; --sandbox none cannot run it$"):
        make_tasks("train", sandbox=Missing())[0]
