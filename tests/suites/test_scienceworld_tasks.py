"""ScienceWorld's tasks from records in the cache: numbers, ids, the ends of splits, and which records a task needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymcp.envs.suites.scienceworld import records
from gymcp.envs.suites.scienceworld.tasks import FAMILIES, make_tasks
from gymcp.envs.suites.upstream.suite_installation import choose_install_sandbox
from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox.unconfined import Unconfined

SPLITS = {"train": [0, 1, 2, 3], "dev": [4], "test": [5, 6]}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache with the splits and no record, on a machine without Java."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    records._write(records._splits_path(), dict.fromkeys(FAMILIES, SPLITS))


def write_records(family: str, *numbers: int, solved: bool = True) -> None:
    for number in numbers:
        record = {"description": family, "start": "", "gold": ["wait1"], "solved": solved}
        records._write(records._path((family, number)), record)


def ids(split: str, count: int, first: int = 0) -> list[str]:
    return [task.id for task in make_tasks(split, families=["boil"], count=count, first=first)]


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
        next(iter(make_tasks("train", sandbox=Missing())))
