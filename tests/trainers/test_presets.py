"""Presets checked by hand where no reference vector is, and what holds of all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymcp.errors import ConfigError
from gymcp.trainers.batch import StepBatch, batch_of, batch_of_columns
from gymcp.trainers.channels import beta_density
from gymcp.trainers.credit import advantages, assign_credit
from gymcp.trainers.presets import PRESETS, make_preset
from gymcp.trainers.selectors import CleanSuccesses, Informative
from gymcp.types import Action, GoldTurn, Observation, Outcome, Step, Task, ToolCall, ToolResult, Trajectory


def test_gigpo_splits_credit_where_episodes_part_ways() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0]]  # same first state; then one episode succeeds
    found = advantages(make_preset("gigpo", gamma=1.0), rewards, ["g", "g"], [["s", "x"], ["s", "y"]])
    assert found == [[1.0, 0.5], [-1.0, -0.5]]


def test_gigpo_never_compares_states_across_groups() -> None:
    found = advantages(make_preset("gigpo"), [[1.0], [0.0]], ["a", "b"], [["s"], ["s"]])
    alone = advantages(make_preset("gigpo", anchor=["state"]), [[1.0], [0.0]], ["a", "b"], [["s"], ["s"]])
    assert (found, alone) == ([[0.0], [0.0]], [[0.5], [-0.5]])


@pytest.mark.parametrize(
    ("rewards", "gamma", "expected"),
    [
        # Rows: returns .5, 1 and 0: mean .5, deviation .5.
        ([[0.0, 1.0], [0.0]], 0.5, [[0.0, 1.0], [-1.0]]),
        # Rows: .25, .5, 1, 0: mean .4375, deviation sqrt(.546875 / 3).
        ([[0.0, 0.0, 1.0], [0.0]], 0.5, [[-0.43915, 0.14638, 1.31746], [-1.02470]]),
    ],
)
def test_eapo_compares_discounted_rows(rewards: list[list[float]], gamma: float, expected: list[list[float]]) -> None:
    found = advantages(make_preset("eapo", gamma=gamma), rewards, ["g"] * len(rewards))
    assert found == [pytest.approx(row, abs=1e-5) for row in expected]


def test_gdpo_keeps_a_large_component_from_drowning_a_small_one() -> None:
    """Each is +-1/sqrt 2 in its group, so they cancel where they disagree, whatever their sizes."""
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


def test_bnpo_is_no_scaling_where_all_groups_are_alike() -> None:
    found = advantages(make_preset("bnpo"), [[1.0], [0.0], [1.0], [0.0]], ["a", "a", "b", "b"])
    assert [row[0] for row in found] == [0.5, -0.5, 0.5, -0.5]
    assert beta_density(np.array([0.5]), np.array([0.5])).tolist() == [1.0]


def test_aspo_pays_for_early_use_within_its_bound() -> None:
    """Both solved, tools at tokens 0 and 10 of 20: a quarter from the mean, times -2 is +-.5, more than .7 |A|."""
    columns = {"calls": [[1.0, 0.0], [0.0, 1.0], [0.0]], "tokens": [[10.0, 10.0], [10.0, 10.0], [5.0]]}
    rewards = [[0.0, 1.0], [0.0, 1.0], [0.0]]
    found = advantages(make_preset("aspo"), rewards, ["g"] * 3, **columns)
    plain = advantages(make_preset("grpo"), rewards, ["g"] * 3)
    most = 0.7 * plain[0][0]
    assert plain[0][0] == pytest.approx(0.57735, abs=1e-5)
    assert found[0] == pytest.approx([plain[0][0] + most] * 2)
    assert found[1] == pytest.approx([plain[1][0] - most] * 2)
    assert found[2] == plain[2]


def test_aspo_leaves_episodes_without_tools_alone() -> None:
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


def test_matchtir_rewards_the_calls_that_match_gold() -> None:
    right = record("t", "g", 1.0, ("find", {"q": 1}), ("buy", {"n": 2}))
    wrong = record("t", "g", 0.0, ("find", {"q": 1}), ("sell", {"n": 2}))
    credit = assign_credit(batch_of([right, wrong], {"t": GOLD}), make_preset("matchtir"))
    assert credit.batch.column("matched").tolist() == pytest.approx([1.0, 1.0, 0.5, 1.0, 0.0, 0.5])
    better, worse = np.split(credit.advantage, 2)
    assert (better[:2] > 0).all()
    assert (worse[:2] < 0).all()
    assert better[2] > 0 > worse[2]  # the last step itself was as good: half of its credit is the episode's


def test_matchtir_without_gold_says_so() -> None:
    with pytest.raises(ConfigError, match="task 't' has no gold calls"):
        assign_credit(batch_of([record("t", "g", 1.0)]), make_preset("matchtir"))


def test_lost_episodes_never_enter_a_batch() -> None:
    lost = [record("t", "g", None, outcome=outcome) for outcome in Outcome if not outcome.has_score]
    kept = record("t", "g", 0.0, outcome=Outcome.AGENT_ERROR)
    batch = batch_of([*lost, kept])
    assert (batch.tasks, batch.column("reward").tolist()) == (("shop/t",), [0.0])
    with pytest.raises(ConfigError, match="no trajectory with a score"):
        batch_of(lost)


def test_groups_that_say_nothing_are_dropped() -> None:
    batch = batch_of_columns([[1.0], [1.0], [1.0], [0.0], [0.0]], ["same", "same", "split", "split", "alone"])
    kept = batch.keep(Informative()(batch))
    assert kept.tasks == ("split", "split", "alone")
    assert kept.column("reward").tolist() == [1.0, 0.0, 0.0]


def test_roc_keeps_the_cleanest_successes() -> None:
    batch = batch_of_columns(
        [[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]],
        ["g"] * 6,
        calls=[[4.0]] * 6,
        errors=[[2.0], [0.0], [1.0], [0], [0], [0]],
    )
    assert CleanSuccesses(keep=4)(batch).tolist() == [False, True, True, True, True, False]


def test_roc_takes_a_part_of_the_score_for_a_failure_that_says_something() -> None:
    batch = batch_of_columns(
        [[1.0], [0.3], [0.3], [0.3], [0.3], [0.0]], ["g", "g", "g", "same", "same", "lone"], calls=[[1.0]] * 6
    )
    assert CleanSuccesses(keep=4)(batch).tolist() == [True, True, True, False, False, False]


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
def test_a_preset_that_is_not_there_is_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_preset(name, **options)


@pytest.mark.parametrize(("name", "column"), [("empg", "entropy"), ("ppo", "value")])
def test_what_a_preset_needs_is_asked_for_by_name(name: str, column: str) -> None:
    with pytest.raises(ConfigError, match=f"needs the column {column}"):
        advantages(make_preset(name), [[1.0]], ["g"])


ALL = [name for name in PRESETS if name not in ("matchtir", "gdpo")]
Episodes = list[tuple[int, list[tuple[float, int, float]]]]
episodes = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(
            st.tuples(st.integers(0, 3).map(float), st.integers(0, 3), st.integers(1, 5).map(float)),
            min_size=1,
            max_size=5,
        ),
    ),
    min_size=1,
    max_size=8,
)


def made(drawn: Episodes, score: Any = lambda value: value) -> StepBatch:
    rewards = [[0.0] * (len(steps) - 1) + [score(float(steps[-1][0] > 1))] for _, steps in drawn]
    return batch_of_columns(
        rewards,
        [group for group, _ in drawn],
        [[(group, state) for _, state, _ in steps] for group, steps in drawn],
        calls=[[value for value, _, _ in steps] for _, steps in drawn],
        tokens=[[count for _, _, count in steps] for _, steps in drawn],
        entropy=[[value + 0.1 * count for value, _, count in steps] for _, steps in drawn],
        value=[[0.1 * value for value, _, _ in steps] for _, steps in drawn],
    )


def rows(batch: StepBatch, name: str) -> list[list[float]]:
    credit = assign_credit(batch, make_preset(name))
    return [row.tolist() for row in np.split(credit.advantage, batch.starts[1:-1])]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30, deadline=None)
@given(drawn=episodes, seed=st.integers(0, 1000))
def test_the_order_of_episodes_does_not_matter(name: str, drawn: Episodes, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(drawn)).tolist()
    plain, shuffled = rows(made(drawn), name), rows(made([drawn[i] for i in order]), name)
    assert [pytest.approx(plain[i], abs=1e-7) for i in order] == shuffled


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30, deadline=None)
@given(drawn=episodes)
def test_credit_is_finite_and_one_number_a_step(name: str, drawn: Episodes) -> None:
    found = rows(made(drawn), name)
    assert [len(row) for row in found] == [len(steps) for _, steps in drawn]
    assert all(math.isfinite(value) for row in found for value in row)


GROUPED = [name for name in ALL if name not in ("reinforce_pp", "rebn", "empg", "ppo", "eapo", "aspo", "bnpo")]


@pytest.mark.parametrize("name", GROUPED)
@settings(max_examples=30, deadline=None)
@given(drawn=episodes)
def test_other_groups_in_the_batch_change_nothing(name: str, drawn: Episodes) -> None:
    together = rows(made(drawn), name)
    for group in {group for group, _ in drawn}:
        alone = rows(made([episode for episode in drawn if episode[0] == group]), name)
        assert [row for row, (g, _) in zip(together, drawn, strict=True) if g == group] == [
            pytest.approx(row, abs=1e-9) for row in alone
        ]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "loop", "gigpo", "san", "flow_grpo"])
@settings(max_examples=30, deadline=None)
@given(drawn=episodes)
def test_a_constant_added_to_all_scores_changes_nothing(name: str, drawn: Episodes) -> None:
    """With gamma 1 where there are returns: a discount makes a constant depend on how far the end is."""
    options = {"gamma": 1.0} if name == "gigpo" else {}
    found = [
        assign_credit(made(drawn, lambda value, shift=shift: value + shift), make_preset(name, **options)).advantage
        for shift in (0.0, 2.0)
    ]
    assert found[0].tolist() == pytest.approx(found[1].tolist(), abs=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gigpo", "san", "flow_grpo", "otc"])
def test_a_group_of_one_gets_nothing(name: str) -> None:
    assert advantages(make_preset(name), [[0.0, 1.0]], ["g"], [["s", "t"]]) == [[0.0, 0.0]]


@pytest.mark.parametrize(
    "name", ["grpo", "dr_grpo", "rloo", "loop", "gigpo", "san", "flow_grpo", "otc", "hdpo", "bnpo"]
)
@pytest.mark.parametrize("score", [0.0, 0.1, 1.0])
def test_equal_episodes_have_no_advantage(name: str, score: float) -> None:
    found = advantages(make_preset(name), [[0.0, score]] * 3, ["g"] * 3, [["s", "t"]] * 3, calls=[[1.0, 0.0]] * 3)
    assert found == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("name", ["grpo", "rloo", "gigpo"])
def test_a_group_given_twice_under_another_name_gets_the_same_twice(name: str) -> None:
    rewards, anchors = [[0.0, 1.0], [0.0, 0.0], [1.0]], [["s", "x"], ["s", "y"], ["s"]]
    once = advantages(make_preset(name), rewards, ["a"] * 3, anchors)
    twice = advantages(make_preset(name), rewards * 2, ["a"] * 3 + ["b"] * 3, anchors * 2)
    assert twice == [pytest.approx(row) for row in once * 2]
