"""A run that grows: more tasks or more trials on --resume; and the values that --tasks takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import BANK, gymcp

from gymcp.cli.option_types import read_patterns
from gymcp.errors import ConfigError, StoreError
from gymcp.store import TrajectoryStore, open_run


def evaluate(run: Path, *options: object) -> Any:
    return gymcp("eval", BANK, "--out", run, "--json", *options)


def episodes(run: Path) -> dict[tuple[str, int], str]:
    """(task, trial) -> id of the episode."""
    with TrajectoryStore.open(run) as store:
        return {(row.task, row.trial): row.id for row in store.summaries()}


def test_a_run_grows_by_tasks_and_by_trials_and_keeps_every_episode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert evaluate(run, "--limit", 1).returncode == 0
    first = episodes(run)
    assert evaluate(run, "--limit", 2, "--trials", 2, "--resume").returncode == 0
    second = episodes(run)
    done = evaluate(run, "--limit", 0, "--trials", 2, "--resume")
    assert done.returncode == 0, done.stderr
    third = episodes(run)
    assert (len(first), len(second), len(third)) == (1, 4, 6)
    assert first.items() <= second.items() <= third.items()
    summary = json.loads(done.stdout)
    assert (summary["episodes"], summary["scored"], summary["success"]) == (6, 6, 1.0)
    recorded = open_run(run)
    assert (recorded.config["limit"], recorded.config["trials"]) == (0, 2)
    assert [(growth.was, growth.now) for growth in recorded.growths] == [
        ({"limit": 1, "trials": 1}, {"limit": 2, "trials": 2}),
        ({"limit": 2}, {"limit": 0}),
    ]
    graded = gymcp("grade", run, "--json")
    assert json.loads(graded.stdout)["changed"] == 0
    again = evaluate(run, "--limit", 0, "--trials", 2, "--resume")
    assert (again.returncode, episodes(run)) == (0, third)
    assert len(open_run(run).growths) == 2


def test_a_growth_that_was_edited_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert evaluate(run, "--limit", 1).returncode == 0
    record = json.loads((run / "run.json").read_text())
    for wrong in (3, [3], [{"at": ""}], [{"at": "", "was": "x", "now": {}}]):
        (run / "run.json").write_text(json.dumps({**record, "growths": wrong}))
        with pytest.raises(StoreError, match=r"run\.json is not the record of a run"):
            open_run(run)


def test_tasks_are_named_by_id_by_glob_and_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("# two of them\npay_back_5\n\n  pay_back_1*  \n")
    spellings = (("pay_back_5,pay_back_1*",), ("pay_back_5", "--tasks", "pay_back_100"), ("@mine.txt",))
    for number, spelling in enumerate(spellings):
        run = tmp_path / str(number)
        done = gymcp("eval", BANK, "--out", run, "--tasks", *spelling, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {task for task, _ in episodes(run)} == {"pay_back_5", "pay_back_100"}
    assert open_run(tmp_path / "2").config["tasks"] == ["pay_back_5", "pay_back_1*"]


@pytest.mark.parametrize(
    ("given", "patterns"),
    [
        (None, "*"),
        ("x*", "x*"),
        (["a"], "a"),
        (["a,b", "c", "a"], ("a", "b", "c")),
        ([" a , b "], ("a", "b")),
    ],
)
def test_patterns_are_joined_without_doubles(given: list[str] | str | None, patterns: object) -> None:
    assert read_patterns(given) == patterns


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([","], "--tasks: names no task"),
        (["@nowhere.txt"], "--tasks @nowhere.txt: cannot be read: No such file or directory"),
        (["@empty.txt"], "--tasks @empty.txt: names no task"),
        (["@binary.txt"], "--tasks @binary.txt: cannot be read: not UTF-8"),
    ],
)
def test_a_wrong_value_is_refused(given: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.txt").write_text("# none\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_patterns(given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
