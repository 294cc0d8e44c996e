"""Every preset against the output of its authors' code, or of its paper's formula."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from vectors import VECTORS, near

from gymcp.trainers.credit.anchors import cluster_texts
from gymcp.trainers.credit.assign import advantages, assign_credit
from gymcp.trainers.credit.call_matching import assign_gold, hard_rewards, similarities, soft_rewards
from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale, discount, estimate_advantage
from gymcp.trainers.credit.filters import tool_penalty
from gymcp.trainers.credit.preset import make_single_loss
from gymcp.trainers.credit.presets import PARITY, Preset, make_preset
from gymcp.trainers.credit.returns import gae, returns_to_go
from gymcp.trainers.credit.shapers import OverlongPenalty, Trackers, overlong_penalties, tool_productivity
from gymcp.trainers.credit.step_batch import StepBatch, batch_of_columns
from gymcp.trainers.credit.transforms import EntropyModulation, measure_confidence
from gymcp.types import ToolCall


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_group_baselines(name: str) -> None:
    inputs = VECTORS[name]["inputs"]
    rows = [[reward] for reward in inputs["rewards"]]
    found = advantages(make_preset(name, **PARITY[name]), rows, inputs["group"])
    assert [row[0] for row in found] == near(VECTORS[name]["adv_per_traj"])


def test_reinforce_pp_whitens_over_tokens() -> None:
    inputs = VECTORS["reinforce_pp"]["inputs"]
    tokens = [[float(sum(row))] for row in inputs["mask"]]
    found = advantages(make_preset("reinforce_pp"), [[r] for r in inputs["rewards"]], inputs["group"], tokens=tokens)
    spread = [[a * m for m in row] for (a,), row in zip(found, inputs["mask"], strict=True)]
    assert spread == near(VECTORS["reinforce_pp"]["adv_tokens"])


def _gigpo_batch(inputs: dict[str, Any]) -> StepBatch:
    places = [list(rows) for _, rows in groupby(range(len(inputs["traj"])), key=lambda row: inputs["traj"][row])]
    return batch_of_columns(
        [[inputs["step_reward"][row] for row in rows] for rows in places],
        [inputs["group"][rows[0]] for rows in places],
        [[(inputs["group"][row], inputs["anchor"][row]) for row in rows] for rows in places],
        valid=[[inputs["action_valid"][row] for row in rows] for rows in places],
    )


@pytest.mark.parametrize("norm", ["mean", "mean_std"])
@pytest.mark.parametrize("unit", ["step", "trajectory"])
def test_gigpo(unit: str, norm: str) -> None:
    vector = VECTORS["gigpo"] if unit == "step" else VECTORS["gigpo_traj_weighted"]
    expected = vector[f"row_weighted_{norm}_norm" if unit == "step" else f"{norm}_norm"]
    _check_gigpo(vector, expected, make_preset("gigpo", **{**PARITY["gigpo"], "unit": unit, "norm": norm}))


@pytest.mark.parametrize("unit", ["step", "trajectory"])
def test_gigpo_penalises_an_invalid_step_after_the_returns(unit: str) -> None:
    vector = VECTORS["gigpo"] if unit == "step" else VECTORS["gigpo_traj_weighted"]
    expected = vector["row_weighted_mean_norm_penalty_0_1" if unit == "step" else "mean_norm_penalty_0_1"]
    _check_gigpo(vector, expected, make_preset("gigpo", **{**PARITY["gigpo"], "unit": unit}, invalid_penalty=0.1))


def _check_gigpo(vector: dict[str, Any], expected: dict[str, Any], preset: Preset) -> None:
    """Compare the returns, both parts of the advantage, and their sum."""
    credit = assign_credit(_gigpo_batch(vector["inputs"]), preset)
    batch, (episode, step) = credit.batch, preset.loss_terms[0].advantage_terms
    returns = discount(step, batch.column(step.signal), batch) - (batch.column(step.penalty) if step.penalty else 0.0)
    assert returns.tolist() == near(expected["step_returns_after_penalty"])
    assert estimate_advantage(episode, batch).tolist() == near(expected["A_episode"])
    assert (step.weight * estimate_advantage(step, batch)).tolist() == near(expected["A_step"])
    assert credit.advantage.tolist() == near(expected["A_total"])


def test_hdpo_compares_economy_among_solved_episodes_only() -> None:
    vector = VECTORS["hdpo"]
    inputs = vector["inputs"]
    turns = [max(calls, 1) for calls in inputs["n_tool_turns"]]
    batch = batch_of_columns(
        [[0.0] * (length - 1) + [float(ok)] for length, ok in zip(turns, inputs["answer_ok"], strict=True)],
        inputs["group"],
        calls=[[1.0] * calls or [0.0] for calls in inputs["n_tool_turns"]],
    )
    credit = assign_credit(batch, make_preset("hdpo", **PARITY["hdpo"]))
    first = batch.starts[:-1]
    accuracy, economy = credit.terms
    assert credit.batch.totals(credit.batch.column("accuracy")).tolist() == near(vector["r_acc"])
    assert np.nan_to_num(credit.batch.column("economy")[first]).tolist() == near(vector["r_tool"])
    assert accuracy.advantage[first].tolist() == near(vector["A_acc"])
    assert economy.advantage[first].tolist() == near(vector["A_tool"])
    assert economy.counted[first].tolist() == [advantage != 0 for advantage in vector["A_tool"]]
    assert (accuracy.weight, economy.weight) == (1.0, 0.15)


def _calls(rows: list[dict[str, Any]], arguments: str) -> list[ToolCall]:
    return [ToolCall(id=str(n), name=row["name"], arguments=row[arguments]) for n, row in enumerate(rows)]


def test_matchtir_similarity_and_both_matchings() -> None:
    vector = VECTORS["matchtir_similarity_and_matching"]
    table = similarities(_calls(vector["inputs"]["pred"], "arguments"), _calls(vector["inputs"]["gold"], "parameters"))
    assert table.tolist() == near(vector["similarity"])
    assert hard_rewards(table, assignment="greedy") == near(vector["hard_rewards_unmatched0"])
    assert hard_rewards(table) == near(vector["hard_true_kuhn_munkres"])
    assert soft_rewards(table) == near(vector["soft_rewards_sinkhorn_reg0_1"])


def test_the_authors_matching_is_greedy_and_ours_is_not() -> None:
    vector = VECTORS["matchtir_similarity_and_matching"]["greedy_vs_optimal"]
    table = np.array(vector["matrix"])
    assert assign_gold(table, "greedy") == vector["official_assignment"]
    assert assign_gold(table) == vector["optimal_assignment"]
    assert float(np.sum(hard_rewards(table, assignment="greedy"))) == near(vector["official_total"])
    assert float(np.sum(hard_rewards(table))) == near(vector["optimal_total"])


def test_matchtir_adds_the_episode_and_the_turn() -> None:
    vector = VECTORS["matchtir_dual_advantage"]
    inputs = vector["inputs"]
    spans = [[(0, 2), (3, 4), (5, 6)], [(0, 1), (2, 4)], [(0, 3)]]
    rewards = [
        [row[end - 1] for _, end in turns]
        for row, turns in zip(inputs["turn_reward_at_last_token"], spans, strict=True)
    ]
    preset = make_preset("matchtir", singleton="raw")
    batch = batch_of_columns(rewards, inputs["group"], matched=rewards)
    credit = assign_credit(batch, _without_shapers(preset))
    per_turn = np.split(credit.advantage, batch.starts[1:-1])
    tokens = [[0.0] * len(row) for row in inputs["mask"]]
    for row, turns, values in zip(tokens, spans, per_turn, strict=True):
        for (start, end), value in zip(turns, values, strict=True):
            row[start:end] = [float(value)] * (end - start)
    assert tokens == near(vector["adv_tokens"])


def _without_shapers(preset: Preset) -> Preset:
    return replace(preset, shapers=())


def test_otc_prices_calls_against_the_fewest_that_solved_the_task() -> None:
    for row in VECTORS["otc"]["otc_grpo_table"]:
        assert tool_productivity(row["m"], row["n"]) == near(row["r_tool"])
    for c, table in ((1.0, "otc_ppo_r_tool"), (3.0, "otc_ppo_r_tool_c3")):
        for made, expected in VECTORS["otc"][table].items():
            assert tool_productivity(int(made), 0, c=c) == near(expected)


def test_otc_remembers_the_fewest_calls_from_batch_to_batch() -> None:
    trackers = Trackers()
    for row in VECTORS["otc"]["running_minimum_sequence"]:
        batch = batch_of_columns(
            [[float(right)] for right in row["correct"]], ["q"] * 4, calls=[[float(m)] for m in row["m"]]
        )
        before = trackers if row["n_after"] is not None else Trackers()
        credit = assign_credit(batch, make_preset("otc"), before)
        assert credit.batch.column("otc").tolist() == near(row["R"])
        assert credit.advantage.tolist() == near(row["grpo_adv"])
        assert credit.trackers.fewest_calls.get("q") == row["n_after"]
        trackers = credit.trackers


@pytest.mark.parametrize("ddof", [0, 1])
def test_san_compares_within_strata_of_call_counts(ddof: int) -> None:
    vector = VECTORS["san"]
    rewards = [[reward] for reward in vector["inputs"]["rewards"]]
    calls = [[float(count)] for count in vector["inputs"]["stratum_n_search"]]
    for blend, column in ((1.0, "A_san"), (0.0, "A_global"), (0.5, "blend_alpha_0_5")):
        found = advantages(make_preset("san", ddof=ddof, blend=blend), rewards, vector["inputs"]["group"], calls=calls)
        assert [row[0] for row in found] == near(vector["expected"][f"ddof{ddof}"][column])


def test_empg_scales_by_confidence_and_centres() -> None:
    inputs = VECTORS["empg"]["inputs"]
    episodes = inputs["step_entropies"]
    batch = batch_of_columns([[0.0] * len(row) for row in episodes], ["g", "g"], entropy=episodes)
    given = np.repeat(inputs["episode_adv"], batch.lengths)
    rule = EntropyModulation(sharpness=inputs["k"], bonus_sharpness=inputs["k_f"], bonus=inputs["zeta"])
    expected = VECTORS["empg"]["expected"]
    parts = measure_confidence(batch.column("entropy"), sharpness=inputs["k"], bonus_sharpness=inputs["k_f"])
    assert [part.tolist() for part in parts] == near([expected["H_norm"], expected["g"], expected["f"]])
    assert rule.shape(batch, given).tolist() == near(expected["A_before_centering"])
    assert rule(batch, given).tolist() == near(expected["A"])


def test_loop_leaves_each_episode_out_of_its_baseline() -> None:
    vector = VECTORS["loop"]
    groups = [g for g, row in enumerate(vector["inputs"]["unit_test_fraction"]) for _ in row]
    rewards = [[value] for row in vector["inputs"]["unit_test_fraction"] for value in row]
    found = [row[0] for row in advantages(make_preset("loop"), rewards, groups)]
    assert [found[:4], found[4:]] == near(vector["adv"])


def test_flow_grpo_counts_every_step() -> None:
    vector = VECTORS["flow_grpo"]
    found = advantages(make_preset("flow_grpo"), [[0, 0, 1.0], [0.0]], ["d", "d"])
    assert [value for row in found for value in row] == near(vector["row_weighted_adv"])
    plain = advantages(make_preset("grpo"), [[0, 0, 1.0], [0.0]], ["d", "d"])
    assert [row[0] for row in plain] == near(vector["traj_weighted_adv_for_comparison"])


def test_rebn_whitens_returns_over_the_batch() -> None:
    vector = VECTORS["rebn"]
    rewards = vector["inputs"]["turn_rewards"]
    starts = np.array([0, 3, 5])
    assert returns_to_go(np.concatenate(rewards), starts, vector["inputs"]["gamma"]).tolist() == near(vector["returns"])
    found = advantages(make_preset("rebn", gamma=vector["inputs"]["gamma"]), rewards, ["a", "b"])
    assert [value for row in found for value in row] == near(vector["adv"])


def test_gae_skips_tokens_that_the_policy_did_not_sample() -> None:
    vector = VECTORS["gae_tokens_skip_obs"]
    inputs = vector["inputs"]
    drawn = np.array(inputs["mask"][0]) == 1
    found = gae(
        np.array(inputs["rewards"][0])[drawn],
        np.array(inputs["values"][0])[drawn],
        np.array([0, int(drawn.sum())]),
        gamma=inputs["gamma"],
        lam=inputs["lam"],
    )
    assert found.tolist() == near(np.array(vector["adv_unwhitened"][0])[drawn].tolist())
    targets = found + np.array(inputs["values"][0])[drawn]  # the targets of the critic
    assert targets.tolist() == near(np.array(vector["returns"][0])[drawn].tolist())


def test_ppo_whitens_gae() -> None:
    vector = VECTORS["gae_tokens_skip_obs"]
    inputs = vector["inputs"]
    drawn = np.array(inputs["mask"][0]) == 1
    rewards, values = (np.array(inputs[name][0])[drawn].tolist() for name in ("rewards", "values"))
    preset = make_preset("ppo", gamma=inputs["gamma"], lam=inputs["lam"])
    found = advantages(preset, [rewards], ["g"], value=[values])
    assert found[0] == near(np.array(vector["adv_whitened"][0])[drawn].tolist())


def test_the_overlong_penalty_grows_linearly() -> None:
    params = VECTORS["dapo_overlong"]["params"]
    rule = OverlongPenalty(max_tokens=params["L_max"], buffer=params["buffer"], factor=params["factor"])
    for length, expected in VECTORS["dapo_overlong"]["penalty"].items():
        assert overlong_penalties(np.array([float(length)]), rule).tolist() == near([expected])


def test_roc_counts_failed_calls_and_steps_out_of_form() -> None:
    """The authors count answers but one, of all turns, as out of form; here a step is that has no usable action."""
    example = VECTORS["grpo_roc_penalty"]["example"]
    turns, surplus = example["turns"], example["answer_blocks"] - 1
    for wrong, penalty in ((0, example["p_err"]), (surplus, example["p_total"])):
        batch = batch_of_columns(
            [[0.0] * (turns - 1) + [1.0]],
            ["g"],
            calls=[[float(example["tool_responses"])] + [0.0] * (turns - 1)],
            errors=[[float(example["errors"])] + [0.0] * (turns - 1)],
            valid=[[0.0] * wrong + [1.0] * (turns - wrong)],
        )
        assert tool_penalty(batch).tolist() == near([penalty])
    assert example["p_format"] == near(example["p_total"] - example["p_err"])


@pytest.mark.parametrize(("threshold", "labels"), [(0.9, "labels_thresh_0_9"), (0.95, "labels_thresh_0_95")])
def test_texts_are_clustered_by_resemblance_to_the_first_of_each(threshold: float, labels: str) -> None:
    vector = VECTORS["gigpo_similarity_grouping"]
    texts = vector["inputs"]["anchors"]
    for pair, (one, other) in (("pair01", (0, 1)), ("pair24", (2, 4))):  # the threshold is the ratio at which they join
        ratio = vector["ratios"][pair]
        joined = [cluster_texts([texts[one], texts[other]], at) for at in (ratio - 1e-6, ratio + 1e-6)]
        assert joined == [[0, 0], [0, 1]]
    assert cluster_texts(vector["inputs"]["anchors"], threshold) == vector[labels]


ALONE = [[0.0, 1.0]]
"""Rewards of a group of one episode, whose score is 1 and whose steps have the returns 1/2 and 1 at a discount of 1/2.
"""
RAW: dict[str, Any] = {"singleton": "raw"}
DEGENERATE: dict[str, tuple[str, dict[str, Any], list[list[float]], list[float]]] = {
    "GRPO all rewards equal": ("grpo", RAW, [[0.7], [0.7]], [0.0, 0.0]),
    "GRPO group of 1 (verl)": ("grpo", RAW, ALONE, [1.0, 1.0]),
    "GRPO group of 1 (TRL)": ("grpo", {}, ALONE, [0.0, 0.0]),
    "RLOO group of 1 (verl loop version)": ("rloo", RAW, ALONE, [1.0, 1.0]),
    "RLOO group of 1 (verl vectorised)": ("rloo", {}, ALONE, [0.0, 0.0]),
    "GiGPO singleton episode group": ("gigpo", RAW, ALONE, [1.0, 1.0]),
    "GiGPO singleton anchor group": ("gigpo", {"norm": "mean", "step_weight": 7.0}, [[1.0], [0.0]], [0.5, -0.5]),
    "HDPO <2 correct in group": ("hdpo", {"accuracy_weight": 0.0}, [[1.0], [0.0]], [0.0, 0.0]),
    # Half of the score's own value, and half of each return's.
    "MatchTIR singleton turn group": ("matchtir", {**RAW, "gamma": 0.5}, ALONE, [0.5 + 0.25, 0.5 + 0.5]),
    "IGPO <=1 value": ("normalise_first", {}, [[0.7]], [0.0]),
}
"""Case of the vector -> preset and options that have it, rewards of one group, and the advantages of the named code."""


@pytest.mark.parametrize("case", [row["case"] for row in VECTORS["degenerate_groups"]["table"]])
def test_a_degenerate_group_gets_what_the_named_code_gives(case: str) -> None:
    name, options, rewards, expected = DEGENERATE[case]
    if name == "normalise_first":
        term = AdvantageTerm(signal="reward", unit="step", order="norm_then_return", scale=StdScale())
        preset = make_single_loss(term)
    else:
        preset = make_preset(name, **options)
    if name == "matchtir":  # the column that its shaper would make of records is given
        preset = _without_shapers(preset)
    found = advantages(preset, rewards, ["g"] * len(rewards), matched=rewards)
    assert [value for row in found for value in row] == near(expected)
