"""``gymcp credit`` on presets with signals: those of gold are computed, those of a model refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gymcp.cli.training import credit_run
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


def test_the_scripted_critic_reads_the_gold_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    credit_run.run(folder, "capo", {}, env=None, save=False, as_json=True)
    solved, failed = (row["steps"] for row in json.loads(capsys.readouterr().out)["advantages"])
    assert solved[1] > solved[0] > 0 > failed[0] == failed[1]


def test_a_signal_of_a_model_is_refused_by_name(folder: Path) -> None:
    for preset, signals in (("igpo", "gold_logprob"), ("spa", "progress, value"), ("epo", "entropy")):
        with pytest.raises(ConfigError, match=f"the preset needs {signals} of every step, which only the model that"):
            credit_run.run(folder, preset, {}, env=None, save=False, as_json=True)
