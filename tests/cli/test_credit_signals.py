"""``gymcp credit`` reads the newest grades; signals of gold are computed, those of a model refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.cli.evaluation.run_report import find_credit
from gymcp.cli.training import credit_diagnosis, credit_run
from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Action, Observation, Step, Task, ToolCall, ToolResult, Trajectory


def play(task: Task, calls: tuple[ToolCall, ...], trial: int, score: float) -> Trajectory:
    """An episode with one step for each call."""
    seen = Observation(messages=(), tools=())
    steps = tuple(
        Step(
            turn=0,
            observation=seen,
            action=Action(tool_calls=(call,)),
            results=(ToolResult(call_id=call.id, content=""),),
            state_key=f"{trial}-{call.name}",
        )
        for call in calls
    )
    return Trajectory(
        id=f"{task.id}-{trial}", env="backoffice", task=task.id, group=task.id, trial=trial, steps=steps, score=score,
        outcome=Outcome.SCORED,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of one task: solved after a needless call, and failed."""
    task = load_env(load_spec("backoffice")).suite.tasks[0]
    gold = tuple(call for turn in task.gold for call in turn.calls)
    needless = ToolCall(id="x", name="nothing", arguments={})
    config = {"env": "backoffice", "source": "backoffice", "agent": "scripted"}
    with create_run(tmp_path / "run", config), TrajectoryStore.open(tmp_path / "run", write=True) as store:
        store.append(play(task, (needless, *gold[:1]), 0, 1.0), {})
        store.append(play(task, (needless, needless), 1, 0.0), {})
    return tmp_path / "run"


def count_executions(folder: Path) -> tuple[Path, Path]:
    """An environment file like backoffice, and the file that gets a line whenever it is run."""
    runs = folder / "runs.txt"
    file = folder / "counted.py"
    file.write_text(
        f"with open({str(runs)!r}, 'a') as file:\n    file.write('run\\n')\n"
        "from gymcp.envs import load_spec\n\nENV = load_spec('backoffice')\n"
    )
    return file, runs


@pytest.mark.parametrize("preset", ["grpo", "capo"])
def test_the_environment_is_run_once(
    preset: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, runs = count_executions(tmp_path)
    credit_run.run(folder, preset, {}, env=str(file), save=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    assert runs.read_text() == "run\n"


def test_the_environment_is_run_once_for_the_diagnosis(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, runs = count_executions(tmp_path)
    credit_diagnosis.run(folder, "grpo", {}, env=str(file), as_json=True)
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    assert runs.read_text() == "run\n"


def grade_again(folder: Path, **scores: float | None) -> None:
    """Grade the episodes that end with these numbers of trials, as trial_N=SCORE; None: the grader failed."""
    with TrajectoryStore.open(folder, write=True) as store:
        for record in store.iter_trajectories():
            score = scores[f"trial_{record.trial}"]
            outcome = Outcome.GRADER_ERROR if score is None else Outcome.SCORED
            store.add_grade(replace(record, score=score, outcome=outcome), grader="another")


def credit_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[float, float]]:
    """(score, advantage of its steps) of each episode."""
    credit_run.run(folder, "grpo", {}, env=None, save=False, as_json=True)
    rows = json.loads(capsys.readouterr().out)["advantages"]
    return [(row["score"], round(row["steps"][0], 3)) for row in rows]


def test_advantages_are_those_of_the_newest_grades(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert credit_of(folder, capsys) == [(1.0, 0.707), (0.0, -0.707)]
    grade_again(folder, trial_0=0.0, trial_1=1.0)
    assert credit_of(folder, capsys) == [(0.0, -0.707), (1.0, 0.707)]
    grade_again(folder, trial_0=0.0, trial_1=None)
    assert credit_of(folder, capsys) == [(0.0, 0.0)]


def test_the_diagnosis_and_the_reports_advice_see_the_newest_grades(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grade_again(folder, trial_0=0.0, trial_1=0.0)
    credit_diagnosis.run(folder, "grpo", {}, env=None, as_json=True)
    assert json.loads(capsys.readouterr().out)["success"] == 0.0
    found = find_credit(folder, {})
    assert found is not None
    assert found.advice[0].startswith("1 of 1 groups ended alike (1 failed, 0 solved)")


def test_the_scripted_critic_reads_the_gold_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    credit_run.run(folder, "capo", {}, env=None, save=False, as_json=True)
    solved, failed = (row["steps"] for row in json.loads(capsys.readouterr().out)["advantages"])
    assert solved[1] > solved[0] > 0 > failed[0] == failed[1]


def test_a_signal_of_a_model_is_refused_by_name(folder: Path) -> None:
    for preset, signals in (("igpo", "gold_logprob"), ("spa", "progress, value"), ("epo", "entropy")):
        with pytest.raises(ConfigError, match=f"the preset needs {signals} of every step, which only the model that"):
            credit_run.run(folder, preset, {}, env=None, save=False, as_json=True)


RISK = {"cost": "cost_risk"}
UNKNOWN = "no column 'cost_risk' in the batch, because the costs that the run's environment declares are not known"


def record_two_ways(folder: Path, source: str) -> Path:
    """A run of one task that was solved with one call, and with three."""
    calls = tuple(ToolCall(id=str(number), name="open", arguments={}) for number in range(3))
    with create_run(folder, {"env": source, "source": source}), TrajectoryStore.open(folder, write=True) as store:
        for trial, own in enumerate((calls[:1], calls)):
            store.append(replace(play(Task(id="t", prompts=("",)), own, trial, 1.0), env=source), {})
    return folder


@pytest.mark.parametrize("kind", ["run.json", "training.json"])
def test_costs_are_those_that_the_environment_of_the_run_declares(kind: str, tmp_path: Path) -> None:
    run = record_two_ways(tmp_path / "run", "rounds" if kind == "run.json" else "nowhere")
    if kind == "training.json":
        (run / kind).write_text(json.dumps({"iteration": 1, "recipe": {"env": "rounds", "name": "mine"}}))
    # every call of rounds has the same risk: sin(pi / 2) = 1 beside sin(pi 3/4) = 0.707
    found = credit_run.advantages_of(run, "otc", RISK)
    assert found == {"t-0": pytest.approx([0.707], abs=1e-3), "t-1": pytest.approx([-0.707] * 3, abs=1e-3)}


def test_a_cost_is_refused_if_the_environment_of_the_run_is_not_at_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = record_two_ways(tmp_path / "run", "nowhere")
    with pytest.raises(ConfigError, match=UNKNOWN):
        credit_run.advantages_of(run, "otc", RISK)
    with pytest.raises(ConfigError, match=UNKNOWN):
        credit_diagnosis.run(run, "otc", RISK, env=None, as_json=True)
    assert credit_run.advantages_of(run, "otc", {}) == credit_run.advantages_of(run, "otc", RISK, "rounds")
    credit_diagnosis.run(run, "otc", RISK, env="rounds", as_json=True)
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
