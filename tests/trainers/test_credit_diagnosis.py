"""Sources of the credit of a recorded run: figures of runs that can be counted by hand, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gymcp.errors import ConfigError
from gymcp.trainers.credit.diagnosis.advice import advise
from gymcp.trainers.credit.diagnosis.diagnosis import Diagnosis, GroupEnds, count_ends, diagnose
from gymcp.trainers.credit.diagnosis.gradient_factors import (
    action_codes,
    lacks_steps,
    name_variant,
    presets_to_measure,
)
from gymcp.trainers.credit.diagnosis.progress import ProgressComparison, measure_progress
from gymcp.trainers.credit.diagnosis.signal import Signal, SignalEstimate
from gymcp.trainers.credit.diagnostics import AnchorStatistics
from gymcp.trainers.credit.graph.state_graph import measure_distances_to_success
from gymcp.trainers.credit.presets import gigpo, make_preset
from gymcp.trainers.credit.step_batch import batch_of, batch_of_columns
from gymcp.types import Action, GoldTurn, Json, Message, Observation, Step, Task, ToolCall, Trajectory

Place = tuple[str, str]
"""State in which the agent acts, and the tool that it calls; no tool: a message."""


def episode(group: str, score: float, *places: Place, keys: bool = True, log: bool = False) -> Trajectory:
    """The episode; with `log`, the servers are opaque, so that every call has another key."""
    steps = tuple(
        Step(
            turn=0,
            observation=Observation(messages=(Message(role="tool", content=state),), tools=()),
            action=Action(text="" if tool else "done", tool_calls=(call(tool),) if tool else ()),
            state_key=f"{group}{state}" if keys else "",
            world_key=f"log {n}" if log else f"after {state} {tool}",
            state_ref=None if log else f"{state}{tool}",
        )
        for n, (state, tool) in enumerate(places)
    )
    return Trajectory(id="", env="e", task=group, group=group, steps=steps, initial_key="start", score=score)


def call(tool: str, number: int = 0) -> ToolCall:
    return ToolCall(id="c", name=tool, arguments={"n": number})


RECORDS = [
    episode("a", 1.0, ("s", "go"), ("x", "rest"), ("x", "go"), ("end", "")),
    episode("a", 0.0, ("s", "rest"), ("s", "go"), ("x", "fall"), ("pit", "go")),
    episode("a", 0.0, ("pit", "go"), ("pit", "climb"), ("x", "")),
    episode("b", 0.0, ("s", "go"), ("x", "go")),
    episode("b", 0.0, ("s", "go")),
    episode("c", 1.0, ("s", "go")),
    episode("c", 1.0, ("s", "go")),
    episode("d", 0.0, ("s", "go")),
]


def test_groups_are_counted_by_how_they_ended() -> None:
    ends = count_ends(batch_of(RECORDS))
    assert ends == GroupEnds(groups=3, failed=1, solved=1, single=1)
    assert ends.alike == 2


def test_scores_that_differ_do_not_end_alike_although_all_failed() -> None:
    batch = batch_of_columns([[0.25], [0.5], [0.5], [0.5]], ["a", "a", "b", "b"])
    assert count_ends(batch) == GroupEnds(groups=2, failed=1, solved=0, single=0)


def test_distance_to_success_joins_the_ways_of_several_episodes() -> None:
    inf = float("inf")
    batch = batch_of(RECORDS)
    # the pit is left in the third episode only, to x, from which the first one reaches the end
    assert measure_distances_to_success(batch).tolist() == [3, 2, 2, 1, 3, 3, 2, 3, 3, 3, 2, *[inf] * 3, 1, 1, inf]


def test_progress_is_told_by_recorded_transitions() -> None:
    (found,) = measure_progress(batch_of(RECORDS))
    # group a: failed ones make s -> x and pit -> x of 7 steps; group c is solved in one step each, b and d tell nothing
    assert found == ProgressComparison(by="transitions", steps=13, in_failed=2 / 7, none_in_solved=1 / 6)


def test_progress_is_told_by_gold_calls_that_were_not_made_before() -> None:
    gold = {name: Task(id=name, prompts=("",), gold=(GoldTurn(calls=(call("go"), call("go"))),)) for name in "abcd"}
    _, found = measure_progress(batch_of(RECORDS, gold))
    # failed: a 1 of 4, a 1 of 2 (its message is no call), b 2 of 2 and 1 of 1, d 1 of 1; the second of a has two "go"
    assert (found.by, found.steps) == ("gold", 15)
    assert found.in_failed == pytest.approx((2 + 1 + 2 + 1 + 1) / 10)
    assert found.none_in_solved == pytest.approx(1 / 5)
    some = {name: task for name, task in gold.items() if name != "d"}
    assert [each.by for each in measure_progress(batch_of(RECORDS, some))] == ["transitions"]


def test_actions_are_told_apart_by_their_calls() -> None:
    steps = [
        Action(tool_calls=(call("go", 1),)),
        Action(text="hm", tool_calls=(call("go", 1),)),
        Action(tool_calls=(call("go", 2),)),
        Action(text="done"),
        Action(text="finished"),
    ]
    seen = Observation(messages=(), tools=())
    made = tuple(Step(turn=0, observation=seen, action=action) for action in steps)
    unusable = (replace(made[0], valid=False), replace(made[2], valid=False))
    record = Trajectory(id="", env="e", task="t", steps=(*made, *unusable), score=1.0)
    assert action_codes(batch_of([record])).tolist() == [0, 0, 1, 2, 2, 3, 3]


def test_presets_that_need_a_model_or_gold_are_not_measured() -> None:
    names = set(presets_to_measure(batch_of(RECORDS)))
    assert {"grpo", "loop", "gigpo", "gigpo, step_weight 0"} <= names
    assert names & {"ppo", "empg", "gdpo", "matchtir", "r3"} == set()
    assert names & {"dapo", "asymre"} == set()  # base methods, whose first gradient is grpo's or says nothing here
    assert "matchtir" in presets_to_measure(batch_of(RECORDS, {"a": Task(id="a", prompts=("",))}))


def test_a_preset_of_the_user_is_measured_beside_the_others() -> None:
    mine = {"gigpo, norm mean, step_weight 0": gigpo(norm="mean", step_weight=0.0)}
    assert set(presets_to_measure(batch_of(RECORDS), mine)) == {*presets_to_measure(batch_of(RECORDS)), *mine}
    assert "critic" not in presets_to_measure(batch_of(RECORDS), {"critic": make_preset("ppo")})


@pytest.mark.parametrize(
    ("options", "name", "without"),
    [
        ({}, "gigpo", False),
        ({"norm": "mean", "step_weight": 0.0}, "gigpo, norm mean, step_weight 0", True),
        ({"step_weight": 0.5, "gamma": 0.85}, "gigpo, step_weight 0.5, gamma 0.85", False),
    ],
)
def test_the_name_of_a_variant_tells_if_it_compares_steps(options: dict[str, Json], name: str, without: bool) -> None:
    assert name_variant("gigpo", options) == name
    assert lacks_steps(name) is without


def test_a_diagnosis_has_all_figures() -> None:
    found = diagnose(RECORDS, {}, gigpo(gamma=1.0))
    assert (found.episodes, found.steps, found.success, found.call_logs) == (8, 17, 3 / 8, False)
    assert found.anchors.singletons == pytest.approx(3 / 17)  # the end in a, x in b, and s in d
    assert found.signal.missing.startswith("0 groups have a state that enough")


def test_opaque_servers_are_told_by_keys_that_never_return() -> None:
    one, other = (episode("a", score, ("s", "go"), ("x", "go"), log=True) for score in (1.0, 0.0))
    found = diagnose([one, other], {}, gigpo())
    assert found.call_logs
    assert "a log of the calls stands for it" in advise(found)[-1]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (RECORDS[-1:], "credit: each of the 1 groups has one episode, and nothing to compare it with: record several"),
        (
            [episode("a", score, ("s", "go"), keys=False) for score in (0.0, 1.0)],
            "credit: 2 of 2 steps have no state key, so steps cannot be compared: record the episodes with gymcp",
        ),
        ([], "credit: no trajectory with a score and a step is left"),
    ],
)
def test_runs_without_a_diagnosis_are_refused(records: Sequence[Trajectory], said: str) -> None:
    with pytest.raises(ConfigError, match=said[:60]):
        diagnose(records, {}, gigpo())


def a_diagnosis(
    *, alone: float = 0.3, success: float = 0.2, steps: int = 14, ends: tuple[int, int] = (2, 1), best: float = 2.0
) -> Diagnosis:
    """A diagnosis of 80 episodes in 10 groups."""
    signals = (
        Signal(preset="gigpo, gamma 0.9", ratio=best, low=0.9 * best, high=1.1 * best),
        Signal(preset="gigpo, step_weight 0", ratio=0.9, low=0.8, high=1.0),
    )
    return Diagnosis(
        episodes=80,
        steps=80 * steps,
        success=success,
        ends=GroupEnds(groups=10, failed=ends[0], solved=ends[1], single=0),
        anchors=AnchorStatistics(
            states=9, mean_group=2.0, largest_group=9, singletons=alone, self_repeats=0.1, step_share=0.4,
            follows_turn=0.2,
        ),
        progress=(),
        signal=SignalEstimate(signals=signals, steps_used=0.9),
        call_logs=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "sentences"),
    [
        (
            a_diagnosis(),
            (
                "Step credit is likely to pay here: 70 % of steps recur, episodes have 14 steps, 20 % succeed.",
                "The gradient of gigpo, gamma 0.9 has 2.0 times (1.8 to 2.2) GRPO's signal-to-noise ratio, so"
                " about that many times fewer episodes would teach the same. Without its step part it has 0.9 times.",
            ),
        ),
        (
            a_diagnosis(ends=(7, 1), alone=0.9, steps=2, success=0.02, best=0.5),
            (
                "8 of 10 groups ended alike (7 failed, 1 solved), so their scores teach nothing: use easier tasks, or"
                " demonstrations first.",
                "Step credit is not likely to pay here: episodes have 2.0 steps, so there is little to tell apart;"
                " only 10 % of steps share their state with another step; 2 % of episodes succeed, so most groups"
                " hold no success; its gradient has less signal than GRPO's.",
                "The gradient of gigpo, gamma 0.9 has 0.5 times (0.5 to 0.6) GRPO's signal-to-noise ratio. Without"
                " its step part it has 0.9 times.",
            ),
        ),
        (
            a_diagnosis(ends=(1, 8), success=0.95),
            (
                "9 of 10 groups ended alike (1 failed, 8 solved), so their scores teach nothing: use harder tasks.",
                "Step credit is not likely to pay here: 95 % of episodes succeed already.",
                "The gradient of gigpo, gamma 0.9 has 2.0 times (1.8 to 2.2) GRPO's signal-to-noise ratio, so"
                " about that many times fewer episodes would teach the same. Without its step part it has 0.9 times.",
            ),
        ),
        (
            a_diagnosis(steps=5, best=1.0),
            (
                "Step credit may pay a little here: 70 % of steps recur, episodes have 5 steps, 20 % succeed.",
                "The gradient of gigpo, gamma 0.9 has 1.0 times (0.9 to 1.1) GRPO's signal-to-noise ratio. Without"
                " its step part it has 0.9 times.",
            ),
        ),
    ],
    ids=["pays", "cannot pay", "too easy", "pays a little"],
)
def test_advice_follows_from_the_figures(found: Diagnosis, sentences: tuple[str, ...]) -> None:
    assert advise(found) == sentences
