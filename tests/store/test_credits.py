"""Credit of each step, which trainers store for the viewer beside the record."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from records import episode

from gymcp.errors import StoreError
from gymcp.store import StepCredit, TrajectoryStore
from gymcp.store.database import FILE_NAME


def credit(id: str, *advantages: float, preset: str = "gigpo") -> StepCredit:
    steps = len(advantages)
    return StepCredit(
        trajectory=id,
        preset=preset,
        options={"gamma": 0.9},
        rewards=(0.0,) * (steps - 1) + (1.0,),
        returns=(0.9,) * steps,
        advantages=advantages,
    )


def test_a_credit_comes_back_unchanged_and_replaces_the_previous_one(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("a"), {})
        store.add_credits([credit("a-0-0", 0.1, 1 / 3), credit("a-0-0", 2.0, -2.0, preset="grpo")])
        store.add_credits([credit("a-0-0", 0.5, -0.5)])
    with TrajectoryStore.open(tmp_path) as store:
        found = {each.preset: each for each in store.credits("a-0-0")}
    assert (found["gigpo"].advantages, found["grpo"].advantages) == ((0.5, -0.5), (2.0, -2.0))
    assert (found["gigpo"].rewards, found["gigpo"].options) == ((0.0, 1.0), {"gamma": 0.9})
    assert found["gigpo"].assigned_at


@pytest.mark.parametrize(
    ("id", "advantages", "why"),
    [("b-0-0", (1.0, 1.0), "is not there"), ("a-0-0", (1.0,), "has 2 steps, not")],
)
def test_a_credit_that_fits_no_trajectory_is_refused_with_its_whole_batch(
    tmp_path: Path, id: str, advantages: tuple[float, ...], why: str
) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("a"), {})
        with pytest.raises(StoreError, match=why):
            store.add_credits([credit("a-0-0", 1.0, 1.0, preset="good"), credit(id, *advantages)])
        assert store.credits("a-0-0") == ()


def test_a_file_without_a_table_of_credits_is_read_and_gets_one_when_written(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("a"), {})
    with sqlite3.connect(tmp_path / FILE_NAME) as old:
        old.execute("DROP TABLE credits")
    old.close()
    with TrajectoryStore.open(tmp_path) as store:
        assert store.credits("a-0-0") == ()
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.add_credits([credit("a-0-0", 1.0, 0.0)])
        assert store.credits("a-0-0")[0].advantages == (1.0, 0.0)


def test_options_of_another_type_are_one_error(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("a"), {})
        store.add_credits([credit("a-0-0", 1.0, 0.0)])
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as db:
        db.execute("UPDATE credits SET options = '0'")
    with TrajectoryStore.open(tmp_path) as store, pytest.raises(StoreError, match="options is not an object"):
        store.credits("a-0-0")
