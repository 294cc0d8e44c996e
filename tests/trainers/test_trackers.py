"""Memory of presets from batch to batch: chances of success, least costs, entropies; a save keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

import pytest

from gymcp.trainers.credit.assign import Credit, assign_credit
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.shapers import Trackers, tool_productivity, update_least
from gymcp.trainers.credit.signals.success_tracker import success_chance, update_counts
from gymcp.trainers.credit.step_batch import batch_of_columns


def credit(preset: str, scores: Sequence[float], trackers: Trackers, **options: object) -> Credit:
    """Credit of one episode of one step for each of tasks "0", "1" ..., each with an entropy of 1 nat."""
    rewards = [[score] for score in scores]
    tasks = [str(n) for n in range(len(scores))]
    batch = batch_of_columns(
        rewards, tasks, entropy=[[1.0]] * len(scores), cost_seconds=[[2.0 + n] for n in range(len(scores))]
    )
    return assign_credit(batch, make_preset(preset, **options), trackers)


def test_the_chance_of_success_follows_the_scores_and_forgets() -> None:
    counts = update_counts({}, ["a", "a", "b"], [1.0, 0.0, 1.0], memory=0.9)
    assert counts == {
        "a": (pytest.approx(0.9 * 1.45), pytest.approx(0.9 * 0.45 + 1.0)),
        "b": (1.45, pytest.approx(0.45)),
    }
    assert success_chance(counts["b"]) == pytest.approx(1.45 / 1.9)
    many = update_counts({}, ["a"] * 500, [1.0] * 500, memory=0.96)
    assert sum(many["a"]) == pytest.approx(25.0)  # 1 / (1 - 0.96)


def test_spo_compares_a_single_episode_with_the_task_s_chance_before_it() -> None:
    """Chances 1/2, then 1.46 / 1.96 and .48 / 1.96; surprises .2551 and .7551: mean .5051, deviation .3536."""
    first = credit("spo", [1.0, 0.0], Trackers())
    assert first.advantage.tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert first.trackers.success_counts == {"0": (1.48, 0.48), "1": (0.48, 1.48)}
    second = credit("spo", [1.0, 1.0], first.trackers)
    expected = [1 - 1.48 / 1.96, 1 - 0.48 / 1.96]
    assert second.batch.column("surprise").tolist() == pytest.approx(expected)
    assert second.advantage.tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


def test_a_success_that_was_expected_teaches_less_than_one_that_was_not() -> None:
    trackers = Trackers(success_counts={"0": (9.0, 1.0), "1": (1.0, 9.0), "2": (5.0, 5.0)})
    found = credit("spo", [1.0, 1.0, 0.0], trackers).advantage
    assert found[1] > found[0] > found[2]


def test_the_least_cost_of_a_task_falls_only_with_its_solved_episodes() -> None:
    assert update_least({"a": 3.0}, ["a", "a", "b"], [2.0, 1.0, 5.0], [True, False, False]) == {"a": 2.0}
    found = credit("otc", [1.0, 0.0], Trackers(least_cost={"cost_seconds/0": 1.0}), cost="cost_seconds")
    assert found.trackers.least_cost == {"cost_seconds/0": 1.0}
    assert found.trackers.fewest_calls == {}
    assert found.batch.column("otc").tolist() == [pytest.approx(tool_productivity(2.0, 1.0)), 0.0]
    cheaper = credit("otc", [0.0, 1.0], found.trackers, cost="cost_seconds")
    assert cheaper.trackers.least_cost == {"cost_seconds/0": 1.0, "cost_seconds/1": 3.0}


def test_the_ppo_form_of_otc_compares_with_a_critic_and_knows_no_fewest() -> None:
    batch = batch_of_columns([[0.0, 1.0], [1.0]], "gg", calls=[[1.0, 1.0], [0.0]], value=[[0.0, 0.0], [0.0]])
    found = assign_credit(batch, make_preset("otc", form="ppo"))
    factor = math.cos(2 * math.pi / 5)
    assert found.batch.column("otc").tolist() == pytest.approx([0.0, factor, 1.0])
    mean, values = (2 * factor + 1) / 3, [factor, factor, 1.0]
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert found.advantage.tolist() == pytest.approx([(value - mean) / deviation for value in values])


@pytest.mark.parametrize(
    ("preset", "options"), [("spo", {}), ("otc", {}), ("otc", {"cost": "cost_seconds"}), ("epo", {"iterations": 9})]
)
def test_saved_trackers_go_on_as_those_in_memory(preset: str, options: dict[str, object]) -> None:
    kept = saved = Trackers()
    for scores in ([1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]):
        one, other = credit(preset, scores, kept, **options), credit(preset, scores, saved, **options)
        assert one.advantage.tolist() == other.advantage.tolist()
        kept = one.trackers
        saved = Trackers(**json.loads(json.dumps(asdict(other.trackers))))
    assert json.dumps(asdict(kept)) == json.dumps(asdict(saved))
    assert kept != Trackers()
