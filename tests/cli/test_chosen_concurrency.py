"""``gymcp eval`` without ``--concurrency``: one line says the number and its limit, and no result depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import BANK

from gymcp.cli.configs import EvalConfig, ModelConfig
from gymcp.cli.evaluation.eval_run import run_eval
from gymcp.store import TrajectoryStore, open_run
from gymcp.types import Json

CONFIG: dict[str, Any] = {"env": str(BANK), "agent": "random", "trials": 2, "seed": 7}


def read_episodes(run: Path) -> dict[tuple[str, int], Json]:
    """(task, trial) -> everything of the episode that does not depend on time."""
    with TrajectoryStore.open(run) as store:
        records = [store.load(row.id) for row in store.summaries()]
    return {
        (record.task, record.trial): (
            record.seed,
            record.score,
            record.final_key,
            [(step.action, step.state_key, step.world_key) for step in record.steps],
        )
        for record in records
    }


def choices(run: Path) -> list[Json]:
    return [start["concurrency"] for start in open_run(run).starts]


def test_one_line_says_the_number_and_the_limit_that_binds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_eval(EvalConfig(**CONFIG, limit=1, out=tmp_path / "run"))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "at a time" in line]
    assert line == (
        "gymcp: 2 episodes at a time; the limit is the number of episodes to play; --concurrency sets another number"
    )
    (choice,) = choices(tmp_path / "run")
    assert (choice["episodes"], choice["limit"]) == (2, "tasks")
    assert {"memory", "cpu", "files", "process", "tasks"} == choice["limits"].keys()


def test_a_named_number_is_taken_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_eval(EvalConfig(**CONFIG, limit=1, concurrency=5, out=tmp_path / "run"))
    assert "at a time" not in capsys.readouterr().err
    assert choices(tmp_path / "run") == [{"episodes": 5, "limit": "given"}]


def test_the_chosen_number_changes_no_result(tmp_path: Path) -> None:
    for name, concurrency in (("chosen", None), ("one", 1), ("many", 16)):
        run_eval(EvalConfig(**CONFIG, concurrency=concurrency, out=tmp_path / name))
    assert len(read_episodes(tmp_path / "chosen")) == 6
    assert read_episodes(tmp_path / "chosen") == read_episodes(tmp_path / "one") == read_episodes(tmp_path / "many")
    configs = [open_run(tmp_path / name).config for name in ("chosen", "one", "many")]
    assert configs[0] == configs[1] == configs[2]


def test_a_run_goes_on_with_another_number_and_records_both(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_eval(EvalConfig(**CONFIG, limit=1, concurrency=1, out=run))
    result = run_eval(EvalConfig(**CONFIG, limit=3, out=run, resume=True))
    assert (result.summary["episodes"], result.summary["scored"]) == (6, 6)
    assert [choice["limit"] == "given" for choice in choices(run)] == [True, False]


def test_the_slots_of_a_local_model_bind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelConfig(slots=2)
    run_eval(EvalConfig(env=str(BANK), policy="tiny:compact", trials=2, model=model, out=tmp_path / "run"))
    assert "2 episodes at a time; the limit is the model in this process (2 slots" in capsys.readouterr().err
    assert choices(tmp_path / "run")[0]["limit"] == "slots"
