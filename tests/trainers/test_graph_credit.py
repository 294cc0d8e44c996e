"""Presets that read the graph of states: against the output of their authors' code, or by hand."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_records import visit

from gymcp.errors import ConfigError
from gymcp.trainers.credit.anchors import similar_text_codes
from gymcp.trainers.credit.assign import advantages, assign_credit
from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.graph.shapers import GoalDistance, HistoryKeys, MeanReturns, StateValues
from gymcp.trainers.credit.graph.state_graph import build_state_graph, measure_goal_distances
from gymcp.trainers.credit.graph.transitions import decode_transitions, encode_states
from gymcp.trainers.credit.preset import Preset, make_single_loss
from gymcp.trainers.credit.presets import PARITY, make_preset
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch, batch_of, batch_of_columns

OFFICIAL: dict[str, Any] = json.loads(Path(__file__).with_name("graph_vectors.json").read_text())
REWARD = 10.0
"""Reward of the authors' code for success, which scales their advantages unless a deviation divides them."""
GRAPH_PRESETS = ("hgpo", "graphgpo", "g2po", "gagpo")
"""Presets that can have texts as nodes."""
NO_STATES = batch_of([visit(1.0, ("w", "x"), key=""), visit(0.0, ("w", "x"), key="")])


def official_batch() -> StepBatch:
    episodes = OFFICIAL["episodes"]
    return batch_of_columns(
        [[0.0] * (len(each["states"]) - 1) + [float(each["solved"])] for each in episodes],
        [each["group"] for each in episodes],
        [each["states"] for each in episodes],
        valid=[[float(valid) for valid in each["valid"]] for each in episodes],
    )


@pytest.mark.parametrize(
    ("name", "row"), [(name, row) for name in ("hgpo", "graphgpo", "g2po") for row in range(len(OFFICIAL[name]))]
)
def test_the_authors_code_gives_the_same_advantages(name: str, row: int) -> None:
    vector = OFFICIAL[name][row]
    found = assign_credit(official_batch(), make_preset(name, **{**PARITY[name], **vector["options"]})).advantage
    scale = REWARD if vector["options"]["norm"] == "mean" else 1.0
    # the authors add 1e-6 to the sum of hgpo's weights, which is 1 at least
    exact = 1e-6 * (1.0 + np.abs(found)) if name == "hgpo" else 1e-6
    assert np.all(np.abs(found - np.array(vector["advantages"]) / scale) <= exact)


def test_the_authors_code_gives_the_same_values_of_states() -> None:
    batch, _ = StateValues(gamma=0.95)(official_batch(), Trackers())
    here = batch.column("value_after") - batch.column("gain")
    assert here == pytest.approx(np.array(OFFICIAL["g2po_state_values"]) / REWARD, abs=1e-6)


def test_distances_go_over_the_transitions_of_all_episodes() -> None:
    """The second episode fails, but reaches x, from which the first goes on to success; b has no success at all."""
    batch = batch_of_columns(
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0]], ["a", "a", "b"], [["s", "x", "y"], ["p", "x", "q"], ["s"]]
    )
    graph = build_state_graph(batch)
    distance = measure_goal_distances(graph)
    inf = math.inf
    assert distance[graph.before].tolist() == [3, 2, 1, 3, 2, inf, inf]
    assert distance[graph.after].tolist() == [2, 1, 0, 2, inf, inf, inf]
    found, _ = GoalDistance(gamma=0.5)(batch, Trackers())
    # a dead end is one step beyond the farthest, 3; in b there is nothing to be far from
    assert found.column("nearness").tolist() == [0.25, 0.5, 1.0, 0.25, 0.0625, 0.0625, 0.5]
    found, _ = GoalDistance(gamma=0.5, progress=True)(batch, Trackers())
    assert found.column("nearness").tolist() == [1.0, 1.0, 1.0, 1.0, 0.125, 0.5, 0.5]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.booleans(), st.lists(st.integers(0, 5), min_size=1, max_size=8)),
        min_size=1,
        max_size=6,
    )
)
def test_distances_are_those_of_the_shortest_ways(episodes: list[tuple[int, bool, list[int]]]) -> None:
    rewards = [[0.0] * (len(states) - 1) + [float(solved)] for _, solved, states in episodes]
    batch = batch_of_columns(rewards, [group for group, _, _ in episodes], [states for _, _, states in episodes])
    graph = build_state_graph(batch)
    expected = np.full(graph.nodes, np.inf)
    expected[graph.states : graph.states + graph.groups] = 0.0
    for _ in range(graph.nodes):  # Bellman and Ford
        np.minimum.at(expected, graph.before, expected[graph.after] + 1.0)
    assert measure_goal_distances(graph).tolist() == expected.tolist()


def test_history_keys_tell_states_apart_by_the_way_to_them() -> None:
    batch = batch_of_columns([[0.0] * 3, [0.0] * 3, [0.0] * 2], "ggg", [["s", "x", "y"], ["s", "x", "y"], ["x", "y"]])
    keyed, _ = HistoryKeys(length=2)(batch, Trackers())
    assert _pairs(keyed, "history1") == {(1, 4), (2, 5), (2, 7), (5, 7)}
    assert _pairs(keyed, "history2") == {(2, 5)}


def _pairs(batch: StepBatch, name: str) -> set[tuple[int, int]]:
    key = batch.keys[name].tolist()
    return {(i, j) for j in range(len(key)) for i in range(j) if key[i] == key[j]}


def test_hgpo_averages_the_comparisons_that_a_step_has() -> None:
    """In y after x after s: 1 and 0, +-1/2 at each of three levels. In y after x alone: a third, which failed."""
    rewards, states = [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0]], [["s", "x", "y"], ["s", "x", "y"], ["x", "y"]]
    found = advantages(make_preset("hgpo", gamma=1.0), rewards, "ggg", states)
    y = (2 * (2 / 3) + 3 * (2 / 3) + 4 * (1 / 2)) / 9  # weights 2, 3, 4; at the last level only two were there
    assert found[0] == pytest.approx([0.5, (2 * (2 / 3) + 3 * (1 / 2)) / 5, y])
    assert found[2] == pytest.approx([-1 / 3, (2 * (-1 / 3) + 3 * (-1 / 3)) / 5])


def test_hgpo_without_history_is_the_step_part_of_gigpo() -> None:
    batch = official_batch()
    gigpo = assign_credit(batch, make_preset("gigpo", norm="mean", step_weight=1.0, gamma=0.95)).advantage
    without = assign_credit(batch, make_preset("gigpo", norm="mean", step_weight=0.0)).advantage
    assert assign_credit(batch, make_preset("hgpo", history=0)).advantage == pytest.approx(gigpo - without)


def test_graphgpo_credits_progress_within_a_failedvisit() -> None:
    """From s one failed episode goes on to x, which leads to success, and one to q, which does not."""
    rewards = [[0.0, 0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    states = [["s", "x", "y"], ["s", "x"], ["s", "q"]]
    preset = make_preset("graphgpo", gamma=0.5, norm="mean", episode_weight=0.0)
    # s: 1/4, 1/4 and, one beyond the farthest, 1/16; x: 1/2 and 1/16
    expected = [[0.0625, 0.21875, 0.0], [0.0625, -0.21875], [-0.125, 0.0]]
    assert advantages(preset, rewards, "ggg", states) == [pytest.approx(row) for row in expected]
    assert advantages(make_preset("grpo"), rewards, "ggg", states)[1][0] < 0.0


def test_gagpo_takes_the_mean_return_of_a_state_for_its_value() -> None:
    """s is worth (1/4 + 0) / 2, x 1/2 and y 0."""
    rewards, states = [[0.0, 1.0], [0.0, 0.0]], [["s", "x"], ["s", "y"]]
    batch, _ = MeanReturns(gamma=0.5)(batch_of_columns(rewards, "gg", states), Trackers())
    assert batch.column("value").tolist() == [0.25, 1.0, 0.25, 0.0]
    found = advantages(make_preset("gagpo", gamma=0.5, lam=1.0), rewards, "gg", states)
    # errors: 1/2 - 1/4, 1 - 1, 0 - 1/4, 0; divided by their deviation, sqrt(1/8 / 3)
    assert found[0] == pytest.approx([0.25 * math.sqrt(24), 0.0], abs=1e-4)
    assert found[1] == pytest.approx([-0.25 * math.sqrt(24), 0.0], abs=1e-4)


def test_gagpo_sums_errors_with_lam() -> None:
    """Alone in its states, an episode's values are its returns, so every error is 0; with another, lam spreads them."""
    rewards, states = [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], [["s", "x", "y"], ["t", "x", "y"]]
    found = {lam: advantages(make_preset("gagpo", gamma=1.0, lam=lam), rewards, "gg", states) for lam in (0.0, 1.0)}
    # values: s 1, t 0, x 1/2, y 1/2; errors -1/2, 0, 1/2 and 1/2, 0, -1/2
    assert np.sign(found[0.0]).tolist() == [[-1, 0, 1], [1, 0, -1]]
    assert np.sign(np.round(found[1.0], 9)).tolist() == [[0, 1, 1], [0, -1, -1]]


# --- Nodes: digests of worlds, or texts.


SAME_TEXT = [visit(1.0, ("paid", "ok"), ("shipped", "sent")), visit(0.0, ("unpaid", "ok"), ("unpaid", "failed"))]
"""Both read "ok" in their first step; the worlds differ."""


@pytest.mark.parametrize("name", GRAPH_PRESETS)
def test_worlds_that_differ_are_not_one_node_although_their_texts_are_equal(name: str) -> None:
    batch, episode_part = batch_of(SAME_TEXT), {"graphgpo": {"episode_weight": 0.0}}.get(name, {})
    by_text = assign_credit(batch, make_preset(name, nodes="text", **episode_part)).advantage
    by_world = assign_credit(batch, make_preset(name, **episode_part)).advantage
    assert by_text[0] > by_text[2]
    if name != "g2po":  # g2po compares gains of all steps of the task, too
        assert by_world[[0, 2]].tolist() == [0.0, 0.0]


def test_similar_texts_are_one_node_if_asked() -> None:
    seen = "one page of red shoes, number {}".format
    records = [visit(1.0, ("w", seen(1))), visit(0.0, ("v", seen(2)))]
    apart, together = (
        assign_credit(batch_of(records), make_preset("hgpo", nodes=nodes)).advantage.tolist()
        for nodes in ("text", "similar")
    )
    assert (apart, together) == ([0.0, 0.0], [0.5, -0.5])


def test_gigpo_can_compare_steps_with_similar_texts() -> None:
    seen = "one page of red shoes, number {}".format
    batch = batch_of([visit(1.0, ("w", seen(1))), visit(0.0, ("v", seen(2)))])
    presets = (make_preset("gigpo", norm="mean", step_weight=1.0, nodes=nodes) for nodes in ("recorded", "similar"))
    assert [assign_credit(batch, each).advantage.tolist() for each in presets] == [[0.5, -0.5], [1.0, -1.0]]


def test_similar_texts_of_two_groups_are_two_nodes() -> None:
    records = [visit(1.0, ("w", "seen"), group=group) for group in "ghg"]
    assert similar_text_codes(records, 0.95).tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", GRAPH_PRESETS)
@pytest.mark.parametrize("nodes", ["recorded", "world"])
def test_states_that_were_never_digested_are_refused(name: str, nodes: str) -> None:
    batch = batch_of([visit(1.0, ("w", "x"), key=""), visit(0.0, ("w", "x"))])
    with pytest.raises(ConfigError, match="1 of 2 steps have no state key"):
        assign_credit(batch, make_preset(name, nodes=nodes))


@pytest.mark.parametrize(
    "preset",
    [make_preset("gigpo"), make_single_loss(AdvantageTerm(signal="reward", key=("group", "state"), unit="step"))],
    ids=["gigpo", "of the user"],
)
def test_undigested_states_are_refused_by_presets_that_compare_by_state(preset: Preset) -> None:
    with pytest.raises(ConfigError, match=r"2 of 2 steps have no state key, .* choose a preset that compares whole"):
        assign_credit(NO_STATES, preset)


@pytest.mark.parametrize(
    "options", [{"anchor": ("group", "turn")}, {"nodes": "turn"}, {"nodes": "text"}, {"nodes": "similar"}]
)
def test_gigpo_needs_no_digests_to_compare_by_turn_or_text(options: dict[str, Any]) -> None:
    preset = make_preset("gigpo", norm="mean", step_weight=1.0, **options)
    assert assign_credit(NO_STATES, preset).advantage.tolist() == [1.0, -1.0]


def test_nodes_of_texts_need_records() -> None:
    with pytest.raises(ConfigError, match="nodes = 'text' needs recorded trajectories; the batch has bare columns"):
        advantages(make_preset("graphgpo", nodes="text"), [[1.0], [0.0]], "gg", [["s"], ["s"]])


# --- Memory of earlier batches.

TO_X = [visit(0.0, ("s", ""), ("x", "")), visit(0.0, ("s", ""), ("q", ""))]
FROM_X = [visit(1.0, ("p", ""), ("x", ""), ("y", "")), visit(0.0, ("p", ""), ("z", ""))]
STEPS_ONLY: dict[str, Any] = {"gamma": 0.5, "norm": "mean", "episode_weight": 0.0}


def test_tigpo_joins_ways_that_different_batches_found() -> None:
    """x leads to success in the first batch, and s to x in the second, in which all episodes fail."""
    preset = make_preset("tigpo", **STEPS_ONLY)
    first = assign_credit(batch_of(FROM_X), preset)
    second = assign_credit(batch_of(TO_X), preset, first.trackers)
    # x is two steps from the goal and s three, so that q counts as four steps: 1/4 against 1/16
    assert second.advantage.tolist() == [0.09375, 0.0, -0.09375, 0.0]
    assert assign_credit(batch_of(TO_X), preset).advantage.tolist() == [0.0] * 4


def test_tigpo_remembers_nothing_of_other_tasks() -> None:
    others = [replace(each, task="other") for each in FROM_X]
    preset = make_preset("tigpo", **STEPS_ONLY)
    trackers = assign_credit(batch_of(others), preset).trackers
    assert assign_credit(batch_of(TO_X), preset, trackers).advantage.tolist() == [0.0] * 4


def test_tigpo_forgets_nothing_and_keeps_no_way_twice() -> None:
    preset, trackers = make_preset("tigpo"), Trackers()
    for records in (FROM_X, TO_X, FROM_X, TO_X):
        trackers = assign_credit(batch_of(records), preset, trackers).trackers
    (remembered,) = trackers.transitions.values()
    codes, of_task = decode_transitions([remembered])
    ways = [["p", "x"], ["p", "z"], ["s", "q"], ["s", "x"], ["x", "y"], ["y", ""]]
    assert sorted(codes.tolist()) == sorted(decode_transitions([ways])[0].tolist())
    assert (list(trackers.transitions), of_task.tolist()) == (["e/t"], [0] * 6)
    assert trackers.earlier_scores == {"e/t": [0.0, 0.0]}


def test_tigpo_compares_scores_with_those_of_the_last_time() -> None:
    """All fail after a time when one of two succeeded: GRPO has no contrast, tigpo 0 against a mean of 1/4."""
    preset = make_preset("tigpo", norm="mean", step_weight=0.0)
    trackers = assign_credit(batch_of(FROM_X), preset).trackers
    assert assign_credit(batch_of(TO_X), preset, trackers).advantage.tolist() == [-0.25] * 4
    scaled = make_preset("tigpo", step_weight=0.0)
    deviation = math.sqrt((3 * 0.25**2 + 0.75**2) / 3)
    assert assign_credit(batch_of(TO_X), scaled, trackers).advantage[0] == pytest.approx(-0.25 / deviation, abs=1e-6)


def test_the_memory_of_tigpo_is_read_from_a_checkpoint_as_it_was() -> None:
    preset = make_preset("tigpo")
    trackers = assign_credit(batch_of(FROM_X), preset).trackers
    restored = Trackers(**json.loads(json.dumps(asdict(trackers))))
    found = [assign_credit(batch_of(TO_X), preset, each) for each in (trackers, restored)]
    assert found[0].advantage.tolist() == found[1].advantage.tolist()
    assert found[0].trackers == found[1].trackers


def test_the_memory_of_an_earlier_version_is_read() -> None:
    """It has pairs of names; those of the test are no digests, so each stands for its own."""
    preset = make_preset("tigpo", **STEPS_ONLY)
    before = Trackers(transitions={"e/t": [["p", "x"], ["p", "z"], ["x", "y"], ["y", ""]]})
    now = assign_credit(batch_of(FROM_X), preset).trackers
    found = [assign_credit(batch_of(TO_X), preset, each) for each in (before, now)]
    assert found[0].advantage.tolist() == found[1].advantage.tolist() == [0.09375, 0.0, -0.09375, 0.0]


def test_states_are_remembered_by_the_first_64_bits_of_their_keys() -> None:
    digests = ["0123456789abcdef" + "f" * 48, "fedcba9876543210" + "0" * 48]
    assert [f"{code:016x}" for code in encode_states(digests).tolist()] == [each[:16] for each in digests]
    mixed = encode_states([*digests, "q"]).tolist()  # a key that is no digest changes no other
    assert mixed[:2] == encode_states(digests).tolist()
    assert mixed[2] == encode_states(["q"])[0]


def test_tigpo_is_graphgpo_as_long_as_nothing_is_remembered() -> None:
    batch = official_batch()
    found, expected = (assign_credit(batch, make_preset(name)).advantage for name in ("tigpo", "graphgpo"))
    assert found == pytest.approx(expected)


# --- Words.


def test_the_explanation_names_the_average_and_the_history() -> None:
    lines = explain_preset(make_preset("hgpo", history=1))
    assert lines[-1].endswith("advantages [0.475, 0], [-0.475, 0, 0]")
    text = "\n".join(lines)
    assert "(2 A1(i,t) + 3 A2(i,t)) / the weights of those that are not 0" in text
    assert "compared among steps of the same task in the same state, reached through the same state" in text


def test_the_explanation_says_what_the_columns_are() -> None:
    text = "\n".join(explain_preset(make_preset("graphgpo", gamma=0.2)))
    assert "A2(i,t) = (nearness(i,t) - mean nearness) / (std nearness + 1e-07)" in text
    assert "made from the record: GoalDistance(gamma=0.2, progress=False): Column nearness: gamma^d for a step" in text
