"""Predictions of what other presets reach, from a training run with GRPO."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chain import play
from test_credit_diagnosis import a_diagnosis, episode

from gymcp.cli.training import credit_diagnosis
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.diagnosis.prediction import predict_success, scale_gain
from gymcp.trainers.credit.diagnosis.signal import Signal, SignalEstimate
from gymcp.types import Json

TOOLS = ("forward", "rest", "back", "trap")


def test_success_is_predicted_in_log_odds() -> None:
    # from odds of 1:4 to 1:1 is a factor of 4; twice as far is a factor of 16: 4:1
    assert scale_gain(0.2, 0.5, 2.0) == pytest.approx(0.8)
    assert scale_gain(0.2, 0.5, 1.0) == pytest.approx(0.5)
    assert scale_gain(0.2, 0.5, 0.0) == pytest.approx(0.2)
    assert 0.5 < scale_gain(0.0, 0.5, 1.5) < scale_gain(0.0, 1.0, 1.5) < 1.0


def test_a_prediction_follows_the_signals_of_variants_that_divide_by_the_deviation() -> None:
    found, plain = predict_success(a_diagnosis(), 0.2, 0.5)
    assert (found.preset, plain.preset) == ("gigpo, gamma 0.9", "gigpo, step_weight 0")
    assert found.success == pytest.approx(0.8)
    assert (found.low, found.high) == pytest.approx((scale_gain(0.2, 0.5, 1.8), scale_gain(0.2, 0.5, 2.2)))
    assert predict_success(a_diagnosis(), 0.5, 0.5) == ()
    shares = replace(a_diagnosis().signal, signals=(Signal(preset="gigpo, norm mean", ratio=2.0, low=1.8, high=2.2),))
    assert predict_success(replace(a_diagnosis(), signal=shares), 0.2, 0.5) == ()


@pytest.mark.parametrize("against", [{"steps": 11}, {"alone": 0.9}, {"success": 0.02}, {"best": 0.5}])
def test_no_difference_is_predicted_with_short_episodes_or_another_reason(against: dict[str, Any]) -> None:
    found, *_ = predict_success(a_diagnosis(**against), 0.2, 0.5)
    assert (found.success, found.low, found.high) == pytest.approx((0.5, 0.43, 0.57))


def test_without_signals_only_no_difference_can_be_predicted() -> None:
    silent = replace(a_diagnosis(), signal=SignalEstimate(signals=(), steps_used=0.0, missing="few groups"))
    assert predict_success(silent, 0.2, 0.5) == ()
    assert [each.preset for each in predict_success(replace(silent, steps=80 * 2), 0.2, 0.5)] == ["gigpo"]


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


def diagnose(run: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Json], **more: Any) -> Any:
    credit_diagnosis.run(run, "gigpo", options, env=None, as_json=True, **more)
    return json.loads(capsys.readouterr().out)


def test_a_training_with_grpo_predicts_what_gigpo_would_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_training(tmp_path / "run", "grpo")
    found = diagnose(run, capsys, {"gamma": 1.0, "step_weight": 0.0})
    assert {"gigpo", "gigpo, gamma 1, step_weight 0"} <= {each["preset"] for each in found["signal"]["signals"]}
    predicted = [each["preset"] for each in found["predicted"]]
    assert predicted == [
        "gigpo",
        "gigpo, step_weight 0",
        "gigpo, step_weight 1, gamma 0.95",
        "gigpo, gamma 1, step_weight 0",
    ]
    credit_diagnosis.run(run, "gigpo", {}, env=None, as_json=False)
    printed = capsys.readouterr().out
    assert "held-out success after as many episodes, if GRPO goes from 20.0 % to 50.0 %" in " ".join(printed.split())


def test_the_course_of_grpo_can_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_training(tmp_path / "run", "gigpo")
    found = diagnose(run, capsys, {}, grpo="30,60.5")
    signals = {each["preset"]: each["ratio"] for each in found["signal"]["signals"]}
    assert len(found["predicted"]) == 3
    for each in found["predicted"]:
        assert each["success"] == pytest.approx(scale_gain(0.3, 0.605, signals[each["preset"]]))
    for wrong in ("30", "30,60,70", "high,60", "30,160", "nan,50"):
        with pytest.raises(ConfigError, match=f"--grpo {wrong}: must be success before and after in per cent"):
            diagnose(run, capsys, {}, grpo=wrong)


@pytest.mark.parametrize(("preset", "shares"), [("gigpo", (0.2, 0.5)), ("grpo", (0.2,)), ("grpo", (0.5, 0.2))])
def test_another_preset_a_single_evaluation_and_a_fall_predict_nothing(
    preset: str, shares: tuple[float, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_training(tmp_path / "run", preset, shares)
    assert diagnose(run, capsys, {})["predicted"] == []
