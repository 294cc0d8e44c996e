"""The learner: shared prefixes, micro-batches, updates, checkpoints, and rows of recorded episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models as tiny
import torch
from peft import LoraConfig, get_peft_model

from gymcp.errors import ConfigError
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.learner.forward import token_values, why_no_shared_prefix
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings, learning_rate
from gymcp.trainers.learner.losses import Denominators
from gymcp.trainers.learner.micro_batch_loss import count_sequences, measure_loss
from gymcp.trainers.learner.micro_batches import common_prefix_length, plan_micro_batches
from gymcp.trainers.learner.token_rows import Row, rows_of
from gymcp.trainers.settings.loss import Loss, TruncatedWeight
from gymcp.types import Action, Observation, Sampled, Step, Trajectory

SETTINGS = LearnerSettings(learning_rate=1e-3)


@pytest.mark.parametrize("longer", [0, 3, 60])  # nothing is padded; most rows are; so much that calls are cut
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_shared_prefix_changes_neither_values_nor_gradients(kind: str, longer: int) -> None:
    model, rows = tiny.model(kind), tiny.group(1, longer=longer)
    assert common_prefix_length(rows) == 40
    plain, plain_gradients = tiny.gradients(model, rows, 0)
    shared, shared_gradients = tiny.gradients(model, rows, 40)
    assert torch.allclose(plain, shared, atol=1e-5)
    for a, b in zip(plain_gradients, shared_gradients, strict=True):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, float(a.abs().max()))


@pytest.mark.parametrize("longer", [0, 3])
def test_token_values_equal_those_of_a_plain_forward_at_the_temperature(longer: int) -> None:
    model, rows = tiny.model(), tiny.group(2, longer=longer)
    values = token_values(model, rows, temperature=0.7).logprobs
    expected = []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.token_ids])).logits[0] / 0.7
        at = torch.log_softmax(logits, -1)
        expected += [at[t - 1, row.token_ids[t]] for t, drawn in enumerate(row.loss_mask) if drawn]
    assert torch.allclose(values, torch.stack(expected), atol=1e-5)


@pytest.mark.parametrize("kind", ["sliding windows", "linear attention"])
def test_prefixes_are_not_shared_in_a_model_that_keeps_no_keys_of_all_tokens(kind: str) -> None:
    rows = tiny.group(1, prompt=140)
    examples = [tiny.example(row, (0.5 * n - 1, 1.0)) for n, row in enumerate(rows)]
    assert (why_no_shared_prefix(tiny.model(kind)), why_no_shared_prefix(tiny.model())) == (kind, "")
    sharing, plain = (Learner(tiny.model(kind), replace(SETTINGS, share_prefixes=on)) for on in (True, False))
    one, other = (learner.update(examples, Loss(), groups=[0] * 4) for learner in (sharing, plain))
    assert one == other


def test_micro_batches_hold_every_row_once_within_the_token_bound() -> None:
    rows = [*tiny.group(1, prompt=140), *tiny.group(2, episodes=1), *tiny.group(3, prompt=140)]
    groups = [0] * 4 + [1] + [2] * 4
    for tokens in (1, 180, 10_000):
        batches = plan_micro_batches(rows, groups, tokens=tokens, share=True)
        assert sorted(place for batch in batches for place in batch.rows) == list(range(9))
        for batch in batches:
            width = max(len(rows[place].token_ids) for place in batch.rows) - batch.prefix
            assert len(batch.rows) == 1 or batch.prefix + len(batch.rows) * width <= tokens
    assert {batch.prefix for batch in plan_micro_batches(rows, groups, tokens=10_000, share=True)} == {0, 140}
    assert {batch.prefix for batch in plan_micro_batches(rows, groups, tokens=10_000, share=False)} == {0}


LOSSES = [
    Loss(),
    Loss(aggregation="seq-mean-token-mean"),
    Loss(aggregation="seq-mean-token-sum"),
    Loss(kind="gspo", clip_low=0.1, clip_high=0.1),
    Loss(kind="cispo", weight=TruncatedWeight()),
    Loss(kind="sapo"),
    Loss(kind="likelihood"),
]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_splitting_a_batch_into_micro_batches_changes_no_statistic(loss: Loss) -> None:
    rows = [*tiny.group(1, prompt=140), *tiny.group(2, prompt=140)]
    examples = [tiny.example(row, (0.5 * n - 1, 1.0)) for n, row in enumerate(rows)]
    found = []
    for tokens, share, workers in ((10_000, False, 1), (60, False, 1), (200, True, 1), (10_000, True, 3)):
        settings = replace(SETTINGS, micro_batch_tokens=tokens, share_prefixes=share, workers=workers)
        learner = Learner(tiny.model(), settings)
        update = learner.update(examples, loss, groups=[0] * 4 + [1] * 4)
        found.append((update.loss, update.grad_norm, update.entropy))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0], rel=1e-4)
    assert found[3] == pytest.approx(found[0], rel=1e-4)


def test_updates_with_several_workers_are_reproducible() -> None:
    rows = [*tiny.group(1), *tiny.group(2)]
    examples = [tiny.example(row, (0.5 * n - 1, 1.0)) for n, row in enumerate(rows)]
    first, second = (Learner(tiny.model(), replace(SETTINGS, micro_batch_tokens=60, workers=3)) for _ in range(2))
    for learner in (first, second):
        for _ in range(3):
            learner.update(examples, Loss(), groups=[0] * 4 + [1] * 4)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_updates_raise_the_probability_of_rewarded_rows_and_lower_that_of_others() -> None:
    good, bad = tiny.group(1, episodes=2)
    learner = Learner(tiny.model(), SETTINGS)
    before = learner.logprobs([good, bad])
    for _ in range(3):
        learner.update([tiny.example(good, (1.0, 1.0)), tiny.example(bad, (-1.0, -1.0))], Loss())
    after = learner.logprobs([good, bad])
    assert after[0].sum() > before[0].sum()
    assert after[1].sum() < before[1].sum()


def test_only_drawn_tokens_are_trained_on() -> None:
    row = tiny.group(1, episodes=1)[0]
    assert Learner(tiny.model(), SETTINGS).update([tiny.example(row, (1.0, 1.0))], Loss()).tokens == sum(row.loss_mask)


def test_a_learner_goes_on_from_its_checkpoint_bit_exactly(tmp_path: Path) -> None:
    examples = [tiny.example(row, (1.0, -0.5)) for row in tiny.group(1)]
    straight = Learner(tiny.model(), SETTINGS)
    for _ in range(4):
        straight.update(examples, Loss())
    first = Learner(tiny.model(), SETTINGS)
    for _ in range(2):
        first.update(examples, Loss())
    first.save(tmp_path)
    second = Learner(tiny.model(seed=9), SETTINGS).load(tmp_path)
    for _ in range(2):
        second.update(examples, Loss())
    assert second.steps == 4
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    Learner(tiny.model("llama"), SETTINGS).save(tmp_path)
    with pytest.raises(ConfigError, match="those of another model"):
        Learner(tiny.model(), SETTINGS).load(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no learner\.pt"):
        Learner(tiny.model(), SETTINGS).load(tmp_path / "nothing")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft 0.21 asks transformers 5.23
def test_an_update_changes_the_adapter_and_no_frozen_weight(tmp_path: Path) -> None:
    base = tiny.model()
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    frozen = {name: weight.clone() for name, weight in adapted.named_parameters() if not weight.requires_grad}
    learner = Learner(adapted, SETTINGS)  # type: ignore[arg-type]
    examples = [tiny.example(row, (1.0, 1.0)) for row in tiny.group(1)]
    rows = [example.row for example in examples]
    before = sum(row.sum() for row in learner.logprobs(rows, [0] * 4))
    for _ in range(3):
        learner.update(examples, Loss(), groups=[0] * 4)
    assert sum(row.sum() for row in learner.logprobs(rows, [0] * 4)) > before
    assert all(torch.equal(weight, frozen[name]) for name, weight in adapted.named_parameters() if name in frozen)
    learner.save(tmp_path)
    assert (tmp_path / "learner.pt").stat().st_size < 100_000


def test_a_non_finite_loss_changes_no_weight() -> None:
    learner = Learner(tiny.model(), SETTINGS)
    before = [weight.clone() for weight in learner.model.parameters()]
    with pytest.raises(FloatingPointError, match="update 1 is not finite; no weight was changed"):
        learner.update([tiny.example(tiny.group(1)[0], (np.inf, 1.0))], Loss())
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def move(learner: Learner, rows: list[Row], updates: int = 2) -> None:
    """Change the weights by a few updates."""
    for _ in range(updates):
        learner.update([tiny.example(row, (1.0, 1.0)) for row in rows], Loss(kind="likelihood"))


def test_the_divergence_from_the_reference_is_the_k3_estimate() -> None:
    rows, learner = tiny.group(1), Learner(tiny.model(), SETTINGS)
    learner.set_reference()
    at_first = learner.logprobs(rows)
    move(learner, rows)
    now, then = learner.logprobs(rows), learner.reference_logprobs(rows)
    assert all(np.array_equal(a, b) for a, b in zip(at_first, then, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(now, learner.logprobs(rows), strict=True))
    ratio = np.concatenate([b - a for a, b in zip(now, then, strict=True)])  # log p_reference - log p
    tokens = sum(sum(row.loss_mask) for row in rows)
    by_hand = float((np.exp(ratio) - 1 - ratio).sum()) / tokens
    update = learner.update([tiny.example(row, (0.0, 0.0)) for row in rows], Loss(kl=0.1))
    assert by_hand > 0
    assert update.kl_reference == pytest.approx(by_hand, rel=1e-4)
    assert update.loss == pytest.approx(0.1 * by_hand, rel=1e-4)


def test_a_kl_loss_pulls_back_to_the_reference_also_after_a_checkpoint(tmp_path: Path) -> None:
    settings = replace(SETTINGS, betas=(0.0, 0.95))  # without momentum, which would carry it further away
    rows, learner = tiny.group(1), Learner(tiny.model(), settings)
    learner.set_reference()
    move(learner, rows)
    learner.save(tmp_path)
    again = Learner(tiny.model(seed=9), settings).load(tmp_path)
    still = [tiny.example(row, (0.0, 0.0)) for row in rows]
    distances = [again.update(still, Loss(kl=1.0)).kl_reference for _ in range(2)]
    assert distances[0] == learner.update(still, Loss(kl=1.0)).kl_reference
    assert distances[1] < distances[0]
    with pytest.raises(ConfigError, match="none was kept"):
        Learner(tiny.model(), SETTINGS).update(still, Loss(kl=1.0))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft 0.21 asks transformers 5.23
def test_the_reference_of_an_adapter_is_the_model_without_it() -> None:
    base, rows = tiny.model(), tiny.group(1)
    without = Learner(tiny.model(), SETTINGS).logprobs(rows)
    adapted: Any = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    learner = Learner(adapted, SETTINGS)
    learner.set_reference()
    move(learner, rows)
    with adapted.disable_adapter():
        disabled = learner.logprobs(rows)
    for plain, off, reference, now in zip(
        without, disabled, learner.reference_logprobs(rows), learner.logprobs(rows), strict=True
    ):
        assert np.allclose(plain, off, atol=1e-6)
        assert np.allclose(reference, off, atol=1e-6)
        assert not np.allclose(now, off, atol=1e-3)


def test_bfloat16_arithmetic_over_float32_weights_gives_nearly_the_same_update() -> None:
    rows = tiny.group(1)
    examples = [tiny.example(row, (1.0, -0.5)) for row in rows]
    exact, rounded = (Learner(tiny.model(), replace(SETTINGS, autocast=on)) for on in (False, True))
    first, second = (learner.update(examples, Loss(), groups=[0] * 4) for learner in (exact, rounded))
    assert second.entropy == pytest.approx(first.entropy, rel=2e-2)
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=5e-2)
    assert second.grad_norm != first.grad_norm
    assert {weight.dtype for weight in rounded.model.parameters()} == {torch.float32}


def test_clipped_tokens_are_counted_by_the_ratio_that_the_loss_clips() -> None:
    """One token of the sequence becomes likelier and the other less likely, so that the sequence's ratio is 1."""
    new, old, mask = torch.tensor([[0.1, -0.1]]), torch.zeros(1, 2), torch.ones(1, 2)
    shares = []
    for loss in (Loss(clip_low=0.05, clip_high=0.05), Loss(kind="gspo", clip_low=0.05, clip_high=0.05)):
        stats = measure_loss(loss, torch.zeros(()), new, old, mask, torch.zeros(2))
        shares.append(stats.clipped / stats.tokens)
    assert shares == [1.0, 0.0]


def test_divergences_are_measured_without_bias_at_the_tokens_that_the_old_policy_drew() -> None:
    """The mean over all tokens of a vocabulary, each as often as the old policy draws it, is the exact divergence."""
    old, new, reference = (torch.tensor([p]).log() for p in ([0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]))
    found = []
    for token in range(3):
        one = [each[:, token : token + 1] for each in (new, old, reference)]
        mask = torch.ones(1, 1)
        found.append(measure_loss(Loss(), mask.sum(), one[0], one[1], mask, torch.zeros(1), one[2]))
    often = old.exp()[0].tolist()
    kl = sum(share * each.kl for share, each in zip(often, found, strict=True))
    from_reference = sum(share * each.kl_reference for share, each in zip(often, found, strict=True))
    assert kl == pytest.approx(float((old.exp() * (old - new)).sum()), rel=1e-5)
    assert from_reference == pytest.approx(float((new.exp() * (new - reference)).sum()), rel=1e-5)


def test_the_learner_divides_by_rows_that_have_a_token_that_counts() -> None:
    one, other = (tiny.example(row, (1.0, 1.0)) for row in tiny.group(1, episodes=2))
    nothing = replace(other, counted=(np.zeros_like(other.counted[0]),))
    expected = Denominators(tokens=float(sum(one.row.loss_mask)), sequences=1.0)
    assert count_sequences([one, nothing], [one.counted[0], nothing.counted[0]], "episode").denominators == expected


@pytest.mark.parametrize("loss", LOSSES[:4], ids=str)
def test_an_episode_counts_once_into_however_many_rows_edits_have_cut_it(loss: Loss) -> None:
    """Two rows of one episode beside one of another, in the first update, in which all ratios are 1."""
    rows = tiny.group(1, episodes=3)
    examples = [
        replace(tiny.example(row, (1.0, -0.5)), episode=episode) for row, episode in zip(rows, (0, 0, 1), strict=True)
    ]
    tokens = [[end - start for _, start, end in row.steps] for row in rows]
    sums = [first - 0.5 * second for first, second in tokens]
    length = [sum(map(sum, tokens[:2])), sum(tokens[2])]
    by_hand = {
        "token-mean": sum(sums) / sum(length),
        "seq-mean-token-sum": sum(sums) / 2,
        "seq-mean-token-mean": ((sums[0] + sums[1]) / length[0] + sums[2] / length[1]) / 2,
    }
    for tokens_at_once in (10_000, 60):  # the rows of the episode are in one micro-batch, or in two
        learner = Learner(tiny.model(), replace(SETTINGS, micro_batch_tokens=tokens_at_once))
        assert learner.update(examples, loss, groups=[0] * 3).loss == pytest.approx(-by_hand[loss.averaging], rel=1e-5)


def test_the_steps_of_eapo_are_its_samples() -> None:
    """In a later update each step has a ratio of its own, and counts once in the mean, however long it is."""
    rows, loss = tiny.group(1, episodes=2), make_preset("eapo").loss
    loss = replace(loss, clip_low=1.0, clip_high=9.0)  # no ratio is clipped
    learner = Learner(tiny.model(), SETTINGS)
    old = learner.logprobs(rows)
    move(learner, rows)
    change = [now - before for now, before in zip(learner.logprobs(rows), old, strict=True)]
    steps = [
        advantage * np.exp(of_row[start:end].mean())
        for row, of_row in zip(rows, change, strict=True)
        for advantage, (_, start, end) in zip((1.0, -0.5), row.steps, strict=True)
    ]
    update = learner.update([tiny.example(row, (1.0, -0.5)) for row in rows], loss, old=old)
    assert update.loss == pytest.approx(-float(np.mean(steps)), rel=1e-4)


def test_learning_rates_follow_warm_up_and_schedule() -> None:
    settings = LearnerSettings(learning_rate=1.0, warmup_steps=2, total_steps=6, schedule="linear")
    assert [learning_rate(settings, step) for step in range(7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert learning_rate(replace(settings, schedule="cosine"), 4) == pytest.approx(0.5)
    assert learning_rate(replace(settings, schedule="constant"), 400) == 1.0


def step(prompt: tuple[int, ...], ids: tuple[int, ...]) -> Step:
    sampled = Sampled(prompt_ids=prompt, ids=ids, logprobs=(-1.0,) * len(ids), versions=(("v0", 0, len(ids)),))
    return Step(turn=0, observation=Observation(messages=(), tools=()), action=Action(), sampled=sampled)


def test_a_row_holds_exactly_the_tokens_that_the_engine_read_and_drew() -> None:
    record = Trajectory(id="", env="e", task="t", steps=(step((1, 2), (3,)), step((1, 2, 3, 4), (5, 6))))
    (row,) = rows_of(record)
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.loss_mask == (False, False, True, False, True, True)
    assert row.logprobs == (0.0, 0.0, -1.0, 0.0, -1.0, -1.0)
    assert (row.steps, row.versions) == (((0, 2, 3), (1, 4, 6)), (("v0", 0, 1), ("v0", 1, 3)))


def test_an_edited_context_opens_a_new_row() -> None:
    record = Trajectory(id="", env="e", task="t", steps=(step((1, 2), (3,)), step((1, 9), (5,))))
    assert [row.token_ids for row in rows_of(record)] == [(1, 2, 3), (1, 9, 5)]


def test_an_episode_without_tokens_cannot_be_trained_on() -> None:
    record = Trajectory(id="", env="e", task="t", steps=(replace(step((1,), (2,)), sampled=None),))
    with pytest.raises(ConfigError, match="no tokens are recorded"):
        rows_of(record)
