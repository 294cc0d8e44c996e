"""Work that rows of one task share in an update: equal rows are computed once, and few tokens are padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import small_models as tiny
import torch

from gymcp.trainers.learner.forward import token_values
from gymcp.trainers.learner.micro_batches import (
    MicroBatch,
    cut_where_padding_grows,
    find_distinct,
    plan_micro_batches,
)


def test_rows_behind_a_prefix_are_cut_where_they_would_be_padded_by_more_tokens_than_allowed() -> None:
    lengths = [330, 260, 200, 150, 110, 70, 70]  # padding of the runs: 70, 50, 80; with the next row: 200, 140
    assert cut_where_padding_grows(lengths, 128) == [slice(0, 2), slice(2, 4), slice(4, 7)]
    assert cut_where_padding_grows(lengths, 10_000) == [slice(0, 7)]
    assert cut_where_padding_grows(lengths, 0) == [*(slice(n, n + 1) for n in range(5)), slice(5, 7)]
    rows, seen = tiny.group(1, longer=60), list[torch.Size]()
    model = tiny.model()
    model.get_input_embeddings().register_forward_hook(lambda module, ids, out: seen.append(ids[0].shape))
    tiny.gradients(model, rows, 40)
    assert seen == [(1, 40), (3, 129), (1, 189)]


@pytest.mark.parametrize("prefix", [0, 40])
def test_equal_rows_are_computed_once_and_count_as_often_as_they_are_there(prefix: int) -> None:
    one, other, third = tiny.group(1, episodes=3)
    rows = [one, other, one, third, other, one]
    model, seen = tiny.model(), list[int]()
    model.get_input_embeddings().register_forward_hook(lambda module, ids, out: seen.append(len(ids[0])))
    found, found_gradients = tiny.gradients(model, rows, prefix)
    assert seen == ([1, 3] if prefix else [3])
    each = [token_values(model, [row], prefix=prefix) for row in rows]
    values = torch.cat([row.logprobs for row in each])
    expected = torch.autograd.grad((values * torch.linspace(-1, 1, len(values))).sum(), list(model.parameters()))
    assert torch.allclose(found, values, atol=1e-5)
    assert torch.allclose(
        token_values(model, rows, prefix=prefix).entropy, torch.cat([row.entropy for row in each]), atol=1e-5
    )
    for a, b in zip(found_gradients, expected, strict=True):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, float(b.abs().max()))


def test_rows_with_the_same_tokens_that_were_drawn_at_other_places_are_not_equal() -> None:
    (row,) = tiny.group(1, episodes=1)
    moved = replace(row, steps=((0, 42, 43), *row.steps[1:]))
    again = replace(row, logprobs=tuple(-1.0 * drawn for drawn in row.loss_mask))
    assert find_distinct([row, moved, again, moved]) == ([row, moved], [0, 1, 0, 1])


def test_equal_rows_share_a_micro_batch_and_count_once() -> None:
    short, middle, long = tiny.group(1, episodes=3, prompt=210)
    rows, most = [short, middle, long, short, middle, long, short], len(long.token_ids)
    expected = [(2, 5), (1, 4), (0, 3, 6)]
    for share, prefix in ((False, 0), (True, 210)):
        plan = plan_micro_batches(rows, [0] * 7, tokens=most, share=share)
        assert plan == [MicroBatch(rows=places, prefix=prefix) for places in expected]
    (alone,) = plan_micro_batches([long] * 4, [0] * 4, tokens=most, share=True)
    assert alone == MicroBatch(rows=(0, 1, 2, 3), prefix=0)  # one row shares its prompt with no other
