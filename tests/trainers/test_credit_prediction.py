"""Predictions of what other presets reach, from a training run with GRPO."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from chain import play
from test_credit_diagnosis import a_diagnosis, episode

from gymcp.cli.training import credit_diagnosis
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.diagnosis.prediction import predict_success, scale_gain
from gymcp.trainers.credit.diagnosis.signal import SignalEstimate

TOOLS = ("forward", "rest", "back", "trap")


def test_success_is_predicted_in_log_odds() -> None:
    # from odds of 1:4 to 1:1 is a factor of 4; twice as far is a factor of 16: 4:1
    assert scale_gain(0.2, 0.5, 2.0) == pytest.approx(0.8)
    assert scale_gain(0.2, 0.5, 1.0) == pytest.approx(0.5)
    assert scale_gain(0.2, 0.5, 0.0) == pytest.approx(0.2)
    assert 0.5 < scale_gain(0.0, 0.5, 1.5) < scale_gain(0.0, 1.0, 1.5) < 1.0


def test_a_prediction_follows_the_signals_of_gigpo() -> None:
    predicted = {each.preset: each for each in predict_success(a_diagnosis(), 0.2, 0.5)}
    assert predicted["gigpo, norm mean_std"].success == pytest.approx(0.8)
    assert predicted["gigpo, norm mean_std"].low == pytest.approx(scale_gain(0.2, 0.5, 1.8))
    assert predicted["gigpo, step_weight 0"].success == pytest.approx(scale_gain(0.2, 0.5, 0.9))
    assert predict_success(a_diagnosis(), 0.5, 0.5) == ()


def test_no_difference_is_predicted_if_there_are_reasons_against_step_credit() -> None:
    predicted = predict_success(a_diagnosis(steps=2), 0.2, 0.5)
    assert {(each.success, each.low, each.high) for each in predicted} == {(0.5, 0.45, 0.55)}
    silent = replace(a_diagnosis(steps=2), signal=SignalEstimate(signals=(), steps_used=0.0, missing="few groups"))
    assert [each.preset for each in predict_success(silent, 0.2, 0.5)] == ["gigpo"]
    assert predict_success(replace(silent, steps=80 * 14), 0.2, 0.5) == ()


def write_training(folder: Path, preset: str, shares: tuple[float, ...] = (0.2, 0.5)) -> Path:
    """A training run of 12 groups of 16 episodes on a chain, with these evaluations."""
    played = play(groups=12, episodes=16, seed=3)
    starts = played.batch.starts
    folder.mkdir()
    with TrajectoryStore.open(folder, write=True) as store:
        for n, (first, last) in enumerate(pairwise(starts)):
            steps = zip(played.places[first:last], played.actions[first:last], strict=True)
            score = float(played.batch.column("reward")[first:last].sum())
            places = [(f"place {place}", TOOLS[action]) for place, action in steps]
            record = replace(episode(f"task {n // 16}", score, *places), id=f"{n:03}", trial=n % 16)
            store.append(record, {step.state_ref: {} for step in record.steps if step.state_ref})
    state = {"iteration": 12, "recipe": {"env": "nowhere", "name": "mine", "credit": {"preset": preset}}}
    (folder / "training.json").write_text(json.dumps(state))
    rows = [{"iteration": 12 * n, "test/seeds/success": share} for n, share in enumerate(shares)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_training_with_grpo_predicts_what_gigpo_would_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_training(tmp_path / "run", "grpo")
    options = {"norm": "mean_std", "step_weight": 0.0}
    credit_diagnosis.run(run, "gigpo", options, env=None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    signals = {each["preset"]: each["ratio"] for each in found["signal"]["signals"]}
    predicted = {each["preset"]: each["success"] for each in found["predicted"]}
    assert set(predicted) == {name for name in signals if name.startswith("gigpo")}
    assert "gigpo, norm mean_std, step_weight 0" in predicted
    assert predicted == pytest.approx({name: scale_gain(0.2, 0.5, signals[name]) for name in predicted})
    credit_diagnosis.run(run, "gigpo", {}, env=None, as_json=False)
    printed = capsys.readouterr().out
    assert "held-out success after as many episodes, if GRPO goes from 20.0 % to 50.0 %" in " ".join(printed.split())


@pytest.mark.parametrize(("preset", "shares"), [("gigpo", (0.2, 0.5)), ("grpo", (0.2,)), ("grpo", (0.5, 0.2))])
def test_another_preset_a_single_evaluation_and_a_fall_predict_nothing(
    preset: str, shares: tuple[float, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_training(tmp_path / "run", preset, shares)
    credit_diagnosis.run(run, "gigpo", {}, env=None, as_json=True)
    assert json.loads(capsys.readouterr().out)["predicted"] == []
