"""Rows that share tokens at several depths: each of these is computed once, and no value or gradient changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_models as tiny
import torch
from toy_trees import grow_trees

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.tree.presets import make_tree_preset
from gymcp.trainers.credit.tree.tree_batch import join_trees
from gymcp.trainers.learner import forward
from gymcp.trainers.learner.forward import hidden_features, select_runs, token_values
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.micro_batches import common_prefix_length, plan_micro_batches
from gymcp.trainers.learner.prefix_tree import (
    Call,
    CallCosts,
    Segment,
    estimate_cost,
    find_segments,
    mark_visible,
    place_tokens,
    plan_calls,
)
from gymcp.trainers.learner.token_rows import Row
from gymcp.trainers.run.iteration import make_examples
from gymcp.trainers.settings.loss import Loss

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7), (1, 2, 8), (1, 2, 3, 4)]
"""Two rows that branch behind four tokens, one behind two, and one that ends where others branch."""
SEGMENTS = [
    Segment(parent=-1, start=1, end=2, row=3, last=5),
    Segment(parent=0, start=2, end=4, row=3, last=4),
    Segment(parent=1, start=4, end=5, row=0, last=3),
    Segment(parent=1, start=4, end=6, row=1, last=4),
    Segment(parent=0, start=2, end=3, row=2, last=5),
]
MANY_CALLS, ONE_CALL = CallCosts(width=1, overhead=0), CallCosts(width=1000, overhead=1000)


def count_tree_tokens(rows: Sequence[Row], prefix: int = 0) -> int:
    """Tokens behind the prefix, of which each is counted once with all tokens before it."""
    return len({row.token_ids[:end] for row in rows for end in range(prefix + 1, len(row.token_ids) + 1)})


def branch(row: Row, at: int, rng: random.Random, *, length: int) -> Row:
    """A row that goes on behind the first `at` tokens of another, none of which it has drawn, as a branch does."""
    tokens = (*row.token_ids[:at], *(rng.randrange(97) for _ in range(length)))
    spans = ((0, at + 1, at + length // 2), (1, at + length // 2 + 2, len(tokens)))
    mask = tuple(any(start <= t < end for _, start, end in spans) for t in range(len(tokens)))
    return replace(row, token_ids=tokens, loss_mask=mask, logprobs=tuple(-3.0 * drawn for drawn in mask), steps=spans)


def grow_rows(seed: int, *, leaves: int = 6, prompt: int = 40, length: int = 18) -> list[Row]:
    """Rows of one task, each of which but the first branches off an earlier one at any token behind the prompt."""
    rng = random.Random(seed)
    rows = [tiny.row([rng.randrange(97) for _ in range(prompt)], rng, length=length)]
    while len(rows) < leaves:
        parent = rng.choice(rows)
        at = rng.randrange(prompt + 4, len(parent.token_ids) - 1)
        rows.append(branch(parent, at, rng, length=rng.randrange(8, length)))
    return rows


def test_each_token_is_in_one_segment() -> None:
    segments, ends = find_segments(TEXTS, 1)
    assert (segments, ends) == (SEGMENTS, [2, 3, 4, 1])
    assert [[TEXTS[each.row][each.start : each.end]] for each in segments] == [
        [(2,)],
        [(3, 4)],
        [(5,)],
        [(6, 7)],
        [(8,)],
    ]
    empty, _ = find_segments([(1, 2), (3, 4)], 0)
    assert [(each.parent, each.start, each.end, each.last) for each in empty] == [
        (-1, 0, 0, 3),
        (0, 0, 2, 2),
        (0, 0, 2, 3),
    ]


def test_a_token_sees_its_own_path_alone() -> None:
    whole = Call(first=0, last=5, parent=-1, is_read=False)
    visible = mark_visible(SEGMENTS, whole)
    assert visible is not None
    assert visible.astype(int).tolist() == [  # before: 1; then 2 | 3 4 | 5 | 6 7 | 8
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 1, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 0, 0, 1],
    ]
    assert mark_visible(SEGMENTS, Call(first=1, last=2, parent=0, is_read=True)) is None
    places = place_tokens(SEGMENTS, [whole], [2, 3, 4, 1])
    assert [each.tolist() for each in places] == [[0, 1, 2, 3], [0, 1, 2, 4, 5], [0, 6], [0, 1, 2]]


def test_calls_are_as_many_as_pays() -> None:
    assert plan_calls(SEGMENTS, ONE_CALL)[0] == [Call(first=0, last=5, parent=-1, is_read=False)]
    calls, cost = plan_calls(SEGMENTS, MANY_CALLS)
    assert calls == [
        Call(first=0, last=1, parent=-1, is_read=True),
        Call(first=1, last=2, parent=0, is_read=True),
        Call(first=2, last=3, parent=1, is_read=False),
        Call(first=3, last=4, parent=1, is_read=False),
        Call(first=4, last=5, parent=0, is_read=False),
    ]
    # tokens times those that each is compared with: 1 (1 + 1), 2 (2 + 2), 1 (4 + 1), 2 (4 + 2), 1 (2 + 1), and 6 each
    assert cost == 2 + 8 + 5 + 12 + 3 + 6 * 7


@pytest.mark.parametrize("seed", range(20))
def test_no_other_calls_cost_less(seed: int) -> None:
    """Every segment with branches is in one of three ways; all of them are tried."""
    rng = random.Random(seed)
    texts = [tuple(rng.randrange(2) for _ in range(rng.randrange(2, 7))) for _ in range(6)]
    costs = CallCosts(width=rng.choice((1, 3)), overhead=rng.choice((0, 1, 3)))
    segments, _ = find_segments(texts, 0)

    def try_all(number: int) -> float:
        segment = segments[number]
        own = segment.end - segment.start
        size = sum(each.end - each.start for each in segments[number : segment.last])
        options = [estimate_cost(costs, size, segment.start)]
        branches = [n for n, each in enumerate(segments) if each.parent == number]
        if branches:
            head = estimate_cost(costs, own, segment.start) if own else 0.0
            options += [head + estimate_cost(costs, size - own, segment.end), head + sum(map(try_all, branches))]
        return min(options)

    calls, cost = plan_calls(segments, costs)
    assert cost == try_all(0)
    covered = [number for call in calls for number in range(call.first, call.last)]
    assert sorted(covered) == [n for n, each in enumerate(segments) if each.end > each.start or n in covered]
    read = {call.first for call in calls if call.is_read}
    assert {call.parent for call in calls} <= {-1, 0, *read}


@pytest.mark.parametrize(
    ("overhead", "calls"), [(0, 11), (5, 3), (10_000, 1)]
)  # each segment alone; some together; all
@pytest.mark.parametrize("prefix", [0, 40])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_nested_prefixes_change_neither_values_nor_gradients(
    kind: str, prefix: int, overhead: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forward.CALL_TOKENS, "cpu", overhead)
    rows = grow_rows(3)
    again = replace(rows[1], steps=rows[1].steps[:1])  # the same tokens, of which fewer were drawn
    rows = [*rows, again, rows[0], replace(rows[2], token_ids=rows[2].token_ids[:-2], steps=rows[2].steps[:1])]
    assert common_prefix_length(rows) == 40
    model, seen = tiny.model(kind), list[torch.Size]()
    plain, plain_gradients = tiny.gradients(model, rows, 0)
    model.get_input_embeddings().register_forward_hook(lambda module, ids, out: seen.append(ids[0].shape))
    nested, nested_gradients = tiny.gradients(model, rows, prefix, nested=True)
    assert sum(shape[0] * shape[1] for shape in seen) == prefix + count_tree_tokens(rows, prefix)
    assert len(seen) == calls + (prefix > 0)
    assert torch.allclose(plain, nested, atol=1e-5)
    for a, b in zip(plain_gradients, nested_gradients, strict=True):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, float(a.abs().max()))


def test_entropies_and_features_are_those_of_plain_rows() -> None:
    model, rows = tiny.model(), grow_rows(4)
    plain, nested = (token_values(model, rows, nested=on, temperature=0.7) for on in (False, True))
    assert torch.allclose(plain.entropy, nested.entropy, atol=1e-5)
    for places in ("step", "step end", "token"):
        expected, found = (hidden_features(model, rows, places, nested=on) for on in (False, True))
        assert torch.allclose(expected, found, atol=1e-5)


def test_an_update_on_trees_is_that_of_plain_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the learner, which nests rows if calls cost little; the beginning of all prompts is shared, too."""
    monkeypatch.setitem(forward.CALL_TOKENS, "cpu", 0)
    tasks = [grow_rows(seed, leaves=5, prompt=120, length=30) for seed in range(8)]
    start = tasks[0][0].token_ids[:100]
    tasks = [[replace(row, token_ids=(*start, *row.token_ids[100:])) for row in own] for own in tasks]
    examples = [tiny.example(row, (1.0, 0.5 * n - 2)) for own in tasks for n, row in enumerate(own)]
    groups = [n // 5 for n in range(len(examples))]
    found, gradients, computed = [], [], []
    for settings in (LearnerSettings(), LearnerSettings(nest_prefixes=False), LearnerSettings(share_prefixes=False)):
        model, counts = tiny.model(), list[int]()
        model.get_input_embeddings().register_forward_hook(lambda _, ids, out, to=counts: to.append(ids[0].numel()))
        learner = Learner(model, replace(settings, learning_rate=1e-3, max_grad_norm=1e9))
        counts.clear()
        found.append(learner.update(examples, Loss(), groups=groups))
        computed.append(sum(counts))
        learner.save(tmp_path)
        moments = torch.load(tmp_path / "learner.pt", weights_only=True)["optimizer"]["state"].values()
        gradients.append(torch.cat([each["exp_avg"].flatten() for each in moments]) * 10)
    assert computed[0] == 2 * 100 + sum(20 + count_tree_tokens(own, 120) for own in tasks)
    assert computed[0] < computed[1] < computed[2]
    for update, gradient in zip(found[1:], gradients[1:], strict=True):
        assert (found[0].loss, found[0].grad_norm) == pytest.approx((update.loss, update.grad_norm), rel=1e-5)
        assert float((gradients[0] - gradient).abs().max()) <= 1e-5 * max(1.0, float(gradient.abs().max()))
    assert float(gradients[0].abs().max()) > 0.01


def test_recorded_trees_have_the_gradient_of_plain_rows() -> None:
    learner = Learner(tiny.model(), LearnerSettings())
    batch = join_trees(*grow_trees(learner.model, seed=1))
    examples, groups = make_examples(assign_credit(batch, make_tree_preset("treepo")))
    rows = [example.row for example, group in zip(examples, groups, strict=True) if group == groups[0]]
    assert len(rows) == 4
    plain, plain_gradients = tiny.gradients(learner.model, rows, 0)
    nested, nested_gradients = tiny.gradients(learner.model, rows, common_prefix_length(rows), nested=True)
    assert torch.allclose(plain, nested, atol=1e-5)
    for a, b in zip(plain_gradients, nested_gradients, strict=True):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, float(a.abs().max()))


def test_rows_are_nested_if_that_saves_work() -> None:
    costs = CallCosts(width=128, overhead=256)
    tree, group = grow_rows(5, prompt=200, length=400), tiny.group(1, prompt=200, longer=60)
    assert {micro.nested for micro in plan_micro_batches(tree, [0] * 6, tokens=10_000, share=True, costs=costs)} == {
        True
    }
    for rows, share, own in ((group, True, costs), (tree, False, costs), (tree, True, None)):
        plan = plan_micro_batches(rows, [0] * len(rows), tokens=10_000, share=share, costs=own)
        assert {micro.nested for micro in plan} == {False}
    apart = plan_micro_batches(tree, range(6), tokens=10_000, share=True, costs=costs)  # each of its own task
    assert {micro.nested for micro in apart} == {False}


@pytest.mark.parametrize("tokens", [1, 700, 900, 10_000])
def test_trees_hold_every_row_once_within_the_token_bound(tokens: int) -> None:
    tree = grow_rows(5, leaves=9, prompt=200, length=400)
    rows = [*tree, tree[4]]
    plan = plan_micro_batches(rows, [0] * 10, tokens=tokens, share=True, costs=CallCosts(width=128, overhead=256))
    assert sorted(place for micro in plan for place in micro.rows) == list(range(10))
    for micro in plan:
        own = [rows[place] for place in micro.rows]
        assert micro.nested
        assert count_tree_tokens(own) <= tokens or len({row.token_ids for row in own}) == 1


def test_places_that_are_read_twice_add_their_gradients() -> None:
    values = torch.arange(14.0).reshape(7, 2).requires_grad_()
    places = np.array([2, 3, 4, 3, 4, 5, 0, 4])
    picked = select_runs(values, places)
    assert torch.equal(picked, values[torch.from_numpy(places)])
    (found,) = torch.autograd.grad(picked.sum(), values)
    assert found[:, 0].tolist() == [1, 0, 1, 2, 3, 1, 0]
    assert select_runs(values, places[:0]).shape == (0, 2)
