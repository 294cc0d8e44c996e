"""Training on trees: rows, gradients, pairs, every preset, and runs that branch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import model as make_model
from toy import TASKS, Training, start_training
from toy_trees import STEPS, grow_trees

from gymcp.trainers import preference_loss
from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.tree.pairs import find_step_pairs
from gymcp.trainers.credit.tree.presets import TREE_PRESETS, make_tree_preset
from gymcp.trainers.credit.tree.tree_batch import find_tree, join_trees
from gymcp.trainers.learner.forward import token_values
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.micro_batch_loss import batch_loss, make_batch
from gymcp.trainers.learner.preference_update import StepTokens, measure_margins, weigh_pairs
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.run.iteration import make_examples, train_on_batch
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Sampled, Step

pytestmark = pytest.mark.usefixtures("one_thread")
UPDATES, CHECKPOINT_AT = 3, 2
LEARNT = [name for name in TREE_PRESETS if name != "ui_s1"]
"""Presets of trees that fork, or may; `test_ui_s1` trains on episodes that are kept on a path."""


def sampled_of(step: Step) -> Sampled:
    assert step.sampled is not None
    return step.sampled


def logprob_of(model: torch.nn.Module, step: Step) -> torch.Tensor:
    """[tokens] log-probabilities of a step's tokens in the context in which they were drawn, by a plain forward."""
    sampled = sampled_of(step)
    logits: torch.Tensor = model(input_ids=torch.tensor([[*sampled.prompt_ids, *sampled.ids]])).logits[0].double()
    places = torch.arange(len(sampled.prompt_ids) - 1, len(sampled.prompt_ids) + len(sampled.ids) - 1)
    return logits[places].log_softmax(-1).gather(1, torch.tensor(sampled.ids)[:, None])[:, 0]


def gradient_of(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]).double()


def loss_of(learner: Learner, examples: list[Example], loss: Loss) -> torch.Tensor:
    rows = [example.row for example in examples]
    batch = make_batch(examples, loss, [1.0], old=learner.logprobs(rows))
    return batch_loss(batch, range(len(rows)), token_values(learner.model, rows, prefix=0))[0]


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float(other.abs().max()) > 0 and float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def test_each_drawn_token_is_learnt_once_in_the_context_in_which_it_was_drawn() -> None:
    model = make_model()
    records, forks = grow_trees(model, seed=1)
    batch = join_trees(records, forks)
    examples, _ = make_examples(assign_credit(batch, make_tree_preset("treepo")))
    learnt = Counter(
        (tuple(row.token_ids[:start]), tuple(row.token_ids[start:end]))
        for row in (example.row for example in examples)
        for _, start, end in row.steps
    )
    steps = {id(step): step for record in records for step in record.steps}
    assert learnt == Counter((sampled_of(step).prompt_ids, sampled_of(step).ids) for step in steps.values())
    assert sum(sum(example.row.loss_mask) for example in examples) == sum(
        len(sampled_of(s).ids) for s in steps.values()
    )
    assert len(steps) == 4 * (STEPS + 2 + 1 + STEPS) < sum(len(record.steps) for record in records)


@pytest.mark.parametrize("name", ["treepo", "arpo"])
def test_the_gradient_is_that_of_the_mean_over_steps_by_hand(name: str) -> None:
    """One task, six steps by hand, each in its own context, with advantages of the definition."""
    learner = Learner(make_model(), LearnerSettings())
    records, forks = grow_trees(learner.model, seed=5)
    records = [record for record in records if record.task == "2" and record.trial == 0]
    first, one, two = records
    scores = [record.score or 0.0 for record in records]
    assert len(set(scores)) == 2
    everywhere, above_2 = sum(scores) / 3, (scores[0] + scores[2]) / 2
    if name == "treepo":  # each leaf beside the subtrees that more than one leaf shares: task, step 1, step 2
        leaf = [
            scores[0] - (everywhere + everywhere + above_2) / 3,
            scores[1] - (everywhere + everywhere) / 2,
            scores[2] - (everywhere + everywhere + above_2) / 3,
        ]
    else:
        deviation = float(np.std(scores, ddof=1)) + 1e-6
        leaf = [(score - everywhere) / deviation for score in scores]
    shared = [(first.steps[0], sum(leaf) / 3), (first.steps[1], (leaf[0] + leaf[2]) / 2)]
    own = [(first.steps[2], leaf[0]), (one.steps[1], leaf[1]), (one.steps[2], leaf[1]), (two.steps[2], leaf[2])]
    total = sum(-advantage * logprob_of(learner.model, step).sum() for step, advantage in shared + own)
    by_hand = gradient_of(torch.as_tensor(total) / (6 * 2), learner.model)

    preset = make_tree_preset(name, **({"whiten": False} if name == "treepo" else {}))
    examples, _ = make_examples(assign_credit(join_trees(records, forks), preset))
    found = gradient_of(loss_of(learner, examples, preset.loss), learner.model)
    assert is_same(found, by_hand)


def test_the_gradient_on_pairs_is_that_of_the_preference_loss() -> None:
    """Rows of the better and the worse step are weighed apart; together they have the gradient of DPO."""
    learner = Learner(make_model(), LearnerSettings())
    learner.set_reference()
    records, forks = grow_trees(learner.model, seed=2)
    batch = join_trees(records, forks)
    steps = [step for source in batch.sources for step in source.steps]
    with torch.no_grad():
        before = torch.stack([logprob_of(learner.model, step).sum() for step in steps])
    for weight in learner.model.parameters():  # away from the reference, so that the pairs have different weights
        weight.data += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    found = find_step_pairs(find_tree(batch))
    assert len(found.chosen) >= 3
    now = [logprob_of(learner.model, step).sum() for step in steps]
    loss = preference_loss(
        torch.stack([now[n] for n in found.chosen]),
        torch.stack([now[n] for n in found.rejected]),
        reference_chosen=before[found.chosen],
        reference_rejected=before[found.rejected],
        beta=0.7,
    )
    by_hand = gradient_of(loss, learner.model)
    examples, groups = make_examples(assign_credit(batch, make_tree_preset("step_dpo")))
    spans = [StepTokens(row=b, start=s, end=e) for b, each in enumerate(examples) for _, s, e in each.row.steps]
    pairs = [(spans[c], spans[r]) for c, r in zip(found.chosen, found.rejected, strict=True)]
    margins = measure_margins(learner, [each.row for each in examples], pairs, groups, beta=0.7)
    assert np.logaddexp(0.0, -margins).mean() == pytest.approx(loss.item(), abs=1e-6)
    weighed = weigh_pairs(examples, pairs, margins, beta=0.7)
    ours = gradient_of(loss_of(learner, weighed, Loss(kind="likelihood")), learner.model)
    assert is_same(ours, by_hand)


def advance(training: Training, updates: int) -> None:
    while training.updates < updates:
        records, forks = grow_trees(training.model, seed=training.updates)
        result = train_on_batch(training.setup, records, TASKS, training.trackers, forks=forks)
        training.trackers = result.trackers
        training.updates += 1


def weights_of(training: Training) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in training.model.parameters()])


@pytest.mark.parametrize("name", LEARNT)
def test_a_preset_trains_on_trees_and_a_resumed_run_is_the_same(name: str, tmp_path: Path) -> None:
    training = start_training(name)
    start = weights_of(training)
    advance(training, CHECKPOINT_AT)
    training.save(tmp_path)
    advance(training, UPDATES)
    assert bool(weights_of(training).isfinite().all())
    assert not torch.equal(weights_of(training), start)
    resumed = start_training(name, seed=7)
    resumed.load(tmp_path)
    advance(resumed, UPDATES)
    assert torch.equal(weights_of(resumed), weights_of(training))


def test_step_dpo_widens_the_margin_of_its_pairs() -> None:
    training = start_training("step_dpo")
    records, forks = grow_trees(training.model, seed=0)
    found = [train_on_batch(training.setup, records, TASKS, Trackers(), forks=forks).metrics for _ in range(6)]
    assert found[0]["loss"] == pytest.approx(np.log(2))
    assert [each["pairs/accuracy"] for each in (found[0], found[-1])] == [0.0, 1.0]


def test_segment_spo_learns_from_first_episodes_alone() -> None:
    records, forks = grow_trees(make_model(), seed=1)
    credit = assign_credit(join_trees(records, forks), make_tree_preset("segment_spo"))
    counted = credit.terms[0].counted
    is_branch = np.repeat([record.id in forks for record in credit.batch.sources], credit.batch.lengths)
    assert counted.any()
    assert not counted[is_branch].any()
