"""Presets checked by hand if there is no reference vector. Properties of all presets are in test_degenerate.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.trainers.credit.assign import advantages, assign_credit
from gymcp.trainers.credit.estimators import AdvantageTerm, beta_density, estimate_advantage
from gymcp.trainers.credit.filters import DropUninformative, KeepCleanest
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.step_batch import batch_of, batch_of_columns
from gymcp.types import Action, GoldTurn, Observation, Step, Task, ToolCall, ToolResult, Trajectory


def test_gigpo_splits_credit_where_episodes_diverge() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0]]  # same first state; then one episode succeeds
    found = advantages(
        make_preset("gigpo", norm="mean", step_weight=1.0, gamma=1.0), rewards, ["g", "g"], [["s", "x"], ["s", "y"]]
    )
    assert found == [[1.0, 0.5], [-1.0, -0.5]]


def test_gigpo_never_compares_states_across_groups() -> None:
    rewards, options = [[1.0], [0.0]], {"norm": "mean", "step_weight": 1.0}
    found = advantages(make_preset("gigpo", **options), rewards, ["a", "b"], [["s"], ["s"]])
    alone = advantages(make_preset("gigpo", **options, anchor=["state"]), rewards, ["a", "b"], [["s"], ["s"]])
    assert (found, alone) == ([[0.0], [0.0]], [[0.5], [-0.5]])


@pytest.mark.parametrize(
    ("rewards", "gamma", "expected"),
    [
        # Rows: returns .5, 1 and 0: mean .5, deviation .5, and 1e-6 more.
        ([[0.0, 1.0], [0.0]], 0.5, [[0.0, 0.999998], [-0.999998]]),
        # Rows: .25, .5, 1, 0: mean .4375, deviation sqrt(.546875 / 3), and 1e-6 more.
        ([[0.0, 0.0, 1.0], [0.0]], 0.5, [[-0.43915402, 0.14638467, 1.31746206], [-1.02469272]]),
    ],
)
def test_eapo_compares_discounted_rows(rewards: list[list[float]], gamma: float, expected: list[list[float]]) -> None:
    found = advantages(make_preset("eapo", gamma=gamma), rewards, ["g"] * len(rewards))
    assert found == [pytest.approx(row, abs=1e-6) for row in expected]


def test_gdpo_keeps_a_large_component_from_drowning_a_small_one() -> None:
    """Each component is +-1/sqrt 2 in its group, so two that disagree cancel, whatever their sizes."""
    preset = make_preset("gdpo", components=["big", "small"], epsilon=0.0)
    found = advantages(
        preset,
        [[0.0]] * 4,
        ["a", "a", "b", "b"],
        big=[[100.0], [0.0], [100.0], [0.0]],
        small=[[0.0], [0.1], [0.1], [0]],
    )
    # Sums: 0, 0, sqrt 2, -sqrt 2; their deviation over the batch is sqrt(4 / 3).
    assert [row[0] for row in found] == pytest.approx([0.0, 0.0, math.sqrt(1.5), -math.sqrt(1.5)])


def test_gdpo_weighs_its_components() -> None:
    preset = make_preset("gdpo", components=["x", "y"], weights=[1.0, 3.0], epsilon=0.0)
    found = advantages(preset, [[0.0]] * 2, ["a", "a"], x=[[1.0], [0.0]], y=[[0.0], [1.0]])
    # .7071 - 3 * .7071 and its negative; over their deviation, +-1 / sqrt 2.
    assert [row[0] for row in found] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


def test_bnpo_divides_by_the_density_of_group_means() -> None:
    """Means .25 and .75: variance .125, strength 1, so both parameters are 1 + .5 / 3 and the two densities equal."""
    rewards = [[1.0], [0.0], [0.0], [0.0], [1.0], [1.0], [1.0], [0.0]]
    found = [row[0] for row in advantages(make_preset("bnpo"), rewards, ["a"] * 4 + ["b"] * 4)]
    alpha = 7 / 6
    density = (0.25 * 0.75) ** (alpha - 1) * math.gamma(2 * alpha) / math.gamma(alpha) ** 2
    assert found == pytest.approx([each / density for each in (0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75)])


def test_bnpo_does_not_scale_if_all_groups_are_alike() -> None:
    found = advantages(make_preset("bnpo"), [[1.0], [0.0], [1.0], [0.0]], ["a", "a", "b", "b"])
    assert [row[0] for row in found] == [0.5, -0.5, 0.5, -0.5]
    assert beta_density(np.array([0.5]), np.array([0.5])).tolist() == [1.0]


def test_aspo_rewards_early_tool_use_within_its_bound() -> None:
    """Both solved, tools at tokens 0 and 10 of 20: a quarter from the mean, times -2 is +-.5, more than .7 |A|."""
    columns = {"calls": [[1.0, 0.0], [0.0, 1.0], [0.0]], "tokens": [[10.0, 10.0], [10.0, 10.0], [5.0]]}
    rewards = [[0.0, 1.0], [0.0, 1.0], [0.0]]
    found = advantages(make_preset("aspo"), rewards, ["g"] * 3, **columns)
    plain = advantages(make_preset("grpo"), rewards, ["g"] * 3)
    most = 0.7 * plain[0][0]
    assert plain[0][0] == pytest.approx((1 / 3) / (math.sqrt(1 / 3) + 1e-6), abs=1e-9)
    assert found[0] == pytest.approx([plain[0][0] + most] * 2)
    assert found[1] == pytest.approx([plain[1][0] - most] * 2)
    assert found[2] == plain[2]


def test_aspo_leaves_episodes_without_tools_unchanged() -> None:
    rewards = [[1.0], [0.0]]
    found = advantages(make_preset("aspo"), rewards, ["g"] * 2, calls=[[0.0], [0.0]])
    assert found == advantages(make_preset("grpo"), rewards, ["g"] * 2)


def record(task: str, group: str, score: float | None, *calls: tuple[str, dict[str, Any]], **more: Any) -> Trajectory:
    made = tuple(ToolCall(id=str(n), name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls))
    observation = Observation(messages=(), tools=())
    steps = tuple(
        Step(
            turn=0,
            observation=observation,
            action=Action(tool_calls=(call,)),
            results=(ToolResult(call_id=call.id, content=""),),
            state_key=f"{group}{n}",
        )
        for n, call in enumerate(made)
    )
    said = Step(turn=0, observation=observation, action=Action(text="it is done"), state_key=f"{group}end")
    return Trajectory(id="", env="shop", task=task, group=group, steps=(*steps, said), score=score, **more)


GOLD = Task(
    id="t",
    prompts=("",),
    gold=(
        GoldTurn(
            calls=(ToolCall(id="0", name="find", arguments={"q": 1}), ToolCall(id="1", name="buy", arguments={"n": 2})),
            final_text="done",
        ),
    ),
)


def test_a_trajectory_weighs_as_much_as_all_its_tokens() -> None:
    """The baseline of OPO: sum(length * score) / sum(length) = (10 * 1 + 30 * 0) / 40."""
    term = AdvantageTerm(signal="reward", by_tokens=True)
    tokens = [[2.0, 8.0], [10.0, 20.0]]
    batch = batch_of_columns([[0.0, 1.0], [0.0, 0.0]], ["g", "g"], tokens=tokens)
    assert estimate_advantage(term, batch).tolist() == [0.75, 0.75, -0.25, -0.25]
    others = replace(term, centre="leave_one_out")  # the mean of the others: 0 and 1
    assert estimate_advantage(others, batch).tolist() == [1.0, 1.0, -1.0, -1.0]
    alone = replace(term, singleton="raw")
    assert estimate_advantage(alone, batch_of_columns([[1.0]], ["g"], tokens=[[9.0]])).tolist() == [1.0]


def test_matchtir_rewards_the_calls_that_match_gold() -> None:
    right = record("t", "g", 1.0, ("find", {"q": 1}), ("buy", {"n": 2}))
    wrong = record("t", "g", 0.0, ("find", {"q": 1}), ("sell", {"n": 2}))
    credit = assign_credit(batch_of([right, wrong], {"t": GOLD}), make_preset("matchtir"))
    assert credit.batch.column("matched").tolist() == pytest.approx([1.0, 1.0, 0.5, 1.0, 0.0, 0.5])
    better, worse = np.split(credit.advantage, 2)
    assert (better[:2] > 0).all()
    assert (worse[:2] < 0).all()
    assert better[2] > 0 > worse[2]  # the last step itself was as good: half of its credit is the episode's


def test_matchtir_refuses_a_task_without_gold() -> None:
    with pytest.raises(ConfigError, match="task 't' has no gold calls"):
        assign_credit(batch_of([record("t", "g", 1.0)]), make_preset("matchtir"))


def test_lost_episodes_never_enter_a_batch() -> None:
    lost = [record("t", "g", None, outcome=outcome) for outcome in Outcome if not outcome.has_score]
    kept = record("t", "g", 0.0, outcome=Outcome.AGENT_ERROR)
    batch = batch_of([*lost, kept])
    assert (batch.tasks, batch.column("reward").tolist()) == (("shop/t",), [0.0])
    with pytest.raises(ConfigError, match="no trajectory with a score"):
        batch_of(lost)


def test_groups_with_equal_scores_are_dropped() -> None:
    batch = batch_of_columns([[1.0], [1.0], [1.0], [0.0], [0.0]], ["same", "same", "split", "split", "alone"])
    kept = batch.keep(DropUninformative()(batch))
    assert kept.tasks == ("split", "split", "alone")
    assert kept.column("reward").tolist() == [1.0, 0.0, 0.0]


def test_roc_keeps_the_cleanest_successes() -> None:
    batch = batch_of_columns(
        [[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]],
        ["g"] * 6,
        calls=[[4.0]] * 6,
        errors=[[2.0], [0.0], [1.0], [0], [0], [0]],
    )
    assert KeepCleanest(keep=4)(batch).tolist() == [False, True, True, True, True, False]


def test_roc_counts_a_partial_score_as_a_failure() -> None:
    batch = batch_of_columns(
        [[1.0], [0.3], [0.3], [0.3], [0.3], [0.0]], ["g", "g", "g", "same", "same", "lone"], calls=[[1.0]] * 6
    )
    assert KeepCleanest(keep=4)(batch).tolist() == [True, True, True, False, False, False]


@pytest.mark.parametrize("name", ["reinforce_pp", "ppo"])
@pytest.mark.parametrize("tokens", [[[0.0], [1.0]], [[0.0], [0.0]]])
def test_a_batch_without_two_tokens_to_compare_has_no_advantage(name: str, tokens: list[list[float]]) -> None:
    found = advantages(make_preset(name), [[1.0], [0.0]], ["a", "b"], tokens=tokens, value=[[0.0], [0.0]])
    assert found == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gigo", {}, "no preset 'gigo'; have reinforce_pp, rloo, grpo"),
        ("gigpo", {"omega": 1}, "preset 'gigpo': no option 'omega'; have gamma, step_weight"),
        ("gdpo", {}, "needs components"),
    ],
)
def test_an_unknown_preset_or_option_is_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_preset(name, **options)


@pytest.mark.parametrize(("name", "column"), [("empg", "entropy"), ("ppo", "value")])
def test_a_missing_column_is_named(name: str, column: str) -> None:
    with pytest.raises(ConfigError, match=f"needs the column {column}"):
        advantages(make_preset(name), [[1.0]], ["g"])
