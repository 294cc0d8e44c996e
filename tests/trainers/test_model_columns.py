"""Columns that only a model can compute (entropies, a critic's values), and training on batches that have them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import small_models as tiny
import torch

from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.returns import gae
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.token_credit import mean_by_step
from gymcp.trainers.credit.step_batch import batch_of
from gymcp.trainers.credit.tree.presets import make_tree_preset
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.iteration import TrainingSetup, train_on_batch
from gymcp.trainers.run.model_columns import add_model_columns
from gymcp.types import Action, Observation, Sampled, Step, Trajectory

SETTINGS = LearnerSettings(learning_rate=1e-3)


def episode(number: int, score: float, steps: int = 3) -> Trajectory:
    """An episode of one task. All episodes begin with the same tokens; those of equal score share a few more."""
    rng = random.Random(int(score))
    prompt = [*range(10, 30), *(rng.randrange(97) for _ in range(4))]
    records = []
    for at in range(steps):
        ids = tuple(random.Random(100 * number + at).randrange(97) for _ in range(2 + at))
        spans = (("0", 0, len(ids)),)
        sampled = Sampled(prompt_ids=tuple(prompt), ids=ids, logprobs=(-4.0,) * len(ids), versions=spans)
        records.append(
            Step(
                turn=0,
                observation=Observation(messages=(), tools=()),
                action=Action(text="x"),
                sampled=sampled,
                state_key=f"{score}-{at}",
            )
        )
        prompt += [*ids, 5, 6, 7]
    return Trajectory(
        id=str(number), env="e", task="t", group="e/t", trial=number, steps=tuple(records), score=score,
        outcome=Outcome.SCORED,
    )  # fmt: skip


EPISODES = [episode(n, float(n % 2)) for n in range(6)]


def learner(**changes: object) -> Learner:
    return Learner(tiny.model(), replace(SETTINGS, **changes))  # type: ignore[arg-type]


def critic(epochs: int = 4) -> Critic:
    return Critic(32, torch.device("cpu"), learning_rate=1e-2, epochs=epochs, seed=0)


def test_the_entropy_of_a_step_is_the_mean_over_its_tokens() -> None:
    batch, targets = add_model_columns(batch_of(EPISODES), make_preset("empg"), learner(), None)
    expected = []
    for record in EPISODES:
        (row,) = rows_of(record)
        logits = tiny.model()(input_ids=torch.tensor([row.token_ids])).logits[0].detach()
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        expected += [float(entropy[start - 1 : end - 1].mean()) for _, start, end in row.steps]
    assert targets is None
    assert batch.column("entropy") == pytest.approx(expected, abs=1e-5)


def test_tokens_have_the_entropies_whose_mean_is_that_of_their_step() -> None:
    batch, _ = add_model_columns(batch_of(EPISODES), make_tree_preset("aepo"), learner(), None)
    plain, _ = add_model_columns(batch_of(EPISODES), make_preset("empg"), learner(), None)
    assert batch.token_counts is not None
    assert batch.token_counts.tolist() == [2, 3, 4] * len(EPISODES)
    of_tokens = batch.token_columns["token_entropy"]
    assert mean_by_step(of_tokens, batch) == pytest.approx(plain.column("entropy"), abs=1e-6)
    assert batch.column("token_entropy").tolist() == of_tokens[np.cumsum([0, *batch.token_counts])[:-1]].tolist()


def test_values_belong_to_their_steps_however_rows_are_grouped() -> None:
    head = critic()
    rows = [row for record in EPISODES for row in rows_of(record)]
    head.fit(learner().features(rows), np.linspace(-1, 1, 18))
    found = []
    for tokens, share in ((10_000, True), (30, False)):
        own_learner = learner(micro_batch_tokens=tokens, share_prefixes=share)
        batch, targets = add_model_columns(batch_of(EPISODES), make_preset("ppo"), own_learner, head)
        assert targets is not None
        found.append(batch.column("value"))
    for n, record in enumerate(EPISODES):
        (row,) = rows_of(record)
        hidden = tiny.model().get_decoder()(input_ids=torch.tensor([row.token_ids])).last_hidden_state[0].detach()
        own = head.values(hidden[[start - 1 for _, start, _ in row.steps]])
        for column in found:
            assert column[3 * n : 3 * n + 3] == pytest.approx(own, abs=1e-5)


def test_a_critic_learns_the_lambda_return_of_steps() -> None:
    """The prompt tells if the episode succeeds, so that the value of its steps can be learnt."""
    head, own_learner, batch = critic(epochs=60), learner(), batch_of(EPISODES)
    preset = make_preset("ppo", gamma=0.9, lam=0.8)
    before, first = add_model_columns(batch, preset, own_learner, head)
    assert first is not None
    assert not before.column("value").any()
    by_hand = gae(batch.column("reward"), np.zeros(18), batch.starts, gamma=0.9, lam=0.8)
    assert first.returns == pytest.approx(by_hand)
    assert first.returns[3:6] == pytest.approx([0.72**2, 0.72, 1.0])  # the second episode succeeds at its third step
    for _ in range(4):
        _, targets = add_model_columns(batch, preset, own_learner, head)
        assert targets is not None
        head.fit(targets.features, targets.returns)
    after, last = add_model_columns(batch, preset, own_learner, head)
    assert last is not None
    assert last.explained > 0.9 > first.explained
    assert after.column("value")[5] > 0.8
    assert after.column("value")[2] < 0.2


@pytest.mark.parametrize("name", ["ppo", "empg", "flow_grpo", "hdpo", "gigpo"])
def test_an_iteration_trains_by_the_preset(name: str) -> None:
    policy = learner()
    before = [weight.clone() for weight in policy.model.parameters()]
    policy.set_reference()
    setup = TrainingSetup(preset=make_preset(name), learner=policy, critic=critic() if name == "ppo" else None)
    result = train_on_batch(setup, EPISODES, {}, Trackers())
    assert result.metrics["grad_norm"] > 0
    assert result.metrics["advantage/active"] > 0
    assert ("critic/loss" in result.metrics) == (name == "ppo")
    assert ("kl_reference" in result.metrics) == (name == "flow_grpo")
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["arpo", "aepo", "treepo"])
def test_an_iteration_trains_by_a_preset_of_trees(name: str) -> None:
    """Episodes that never fork; each token of aepo has an advantage of its own."""
    policy = learner()
    setup = TrainingSetup(preset=make_tree_preset(name), learner=policy, critic=None)
    result = train_on_batch(setup, EPISODES, {}, Trackers())
    assert result.metrics["grad_norm"] > 0
    assert result.metrics["advantage/active"] == 1.0


@pytest.mark.parametrize(
    "learn", [{"overlong_tokens": 9, "overlong_buffer": 4}, {"cost_weight": 1.0}], ids=["overlong", "cost"]
)
def test_a_critic_learns_the_score_less_its_penalties(learn: dict[str, float]) -> None:
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": "ppo", "lam": 1.0}, "learn": learn})
    preset, head, policy = build_preset(recipe), critic(), learner()
    short = episode(7, 1.0, steps=2)  # 5 tokens, and 9 in the others
    result = train_on_batch(
        TrainingSetup(preset=preset, learner=policy, critic=head), [*EPISODES, short], {}, Trackers()
    )
    assert result.metrics["critic/loss"] > 0
    _, targets = add_model_columns(batch_of([EPISODES[1], short]), preset, policy, critic())
    assert targets is not None
    penalty = 1.0 if "overlong_tokens" in learn else 0.0
    assert targets.returns.tolist() == pytest.approx([1.0 - penalty] * 3 + [1.0] * 2)


def test_a_batch_without_advantage_changes_no_weight_although_there_is_momentum() -> None:
    policy = learner()
    setup = TrainingSetup(preset=make_preset("grpo"), learner=policy, critic=None, minibatches=2)
    groups = [replace(record, group="other") for record in EPISODES]
    moved = train_on_batch(setup, [*EPISODES, *groups], {}, Trackers())
    before = [weight.clone() for weight in policy.model.parameters()]
    alike = [replace(record, score=1.0) for record in [*EPISODES, *groups]]
    still = train_on_batch(setup, alike, {}, Trackers())
    assert [(each.metrics["updates"], each.metrics["updates/skipped"]) for each in (moved, still)] == [(2, 0), (2, 2)]
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def draw_again(weights: Learner, record: Trajectory, version: str) -> Trajectory:
    """The record as an engine with these weights would have it."""
    (row,), (found,) = rows_of(record), weights.logprobs(rows_of(record))
    steps = []
    for step, (_, start, end) in zip(record.steps, row.steps, strict=True):
        assert step.sampled is not None
        spans = ((version, 0, end - start),)
        sampled = replace(step.sampled, logprobs=tuple(found[start:end].tolist()), versions=spans)
        steps.append(replace(step, sampled=sampled))
    return replace(record, steps=tuple(steps))


def test_tokens_of_other_weights_are_counted_and_compared_with_what_their_engine_recorded() -> None:
    earlier = Learner(tiny.model(seed=5), SETTINGS)
    records = [draw_again(earlier, EPISODES[0], "3"), *(draw_again(learner(), each, "4") for each in EPISODES[1:])]
    found = {}
    for version in ("", "4"):
        setup = TrainingSetup(preset=make_preset("grpo"), learner=learner(), critic=None)
        found[version] = train_on_batch(setup, records, {}, Trackers(), version=version).metrics
    assert (found[""].get("tokens/stale"), found["4"]["tokens/stale"]) == (None, 9)
    assert (found[""]["kl"], found[""]["clipped"]) == (0.0, 0.0)
    assert found["4"]["kl"] > 0
    assert found["4"]["clipped"] > 0
    fresh = TrainingSetup(preset=make_preset("grpo"), learner=learner(), critic=None)
    now = [draw_again(learner(), each, "4") for each in EPISODES]
    assert train_on_batch(fresh, now, {}, Trackers(), version="4").metrics["tokens/stale"] == 0


def test_ratios_to_weights_that_recorded_nothing_are_refused() -> None:
    first = EPISODES[0]
    bare = []
    for step in first.steps:
        assert step.sampled is not None
        bare.append(replace(step, sampled=replace(step.sampled, logprobs=(0.0,) * len(step.sampled.ids))))
    records = [replace(first, steps=tuple(bare)), *EPISODES[1:]]
    policy = learner()
    setup = TrainingSetup(preset=make_preset("grpo"), learner=policy, critic=None)
    with pytest.raises(ConfigError, match=r"1 of 6 rows were drawn by weights '0' without recorded .* has weights '1'"):
        train_on_batch(setup, records, {}, Trackers(), version="1")
    assert policy.steps == 0
    assert train_on_batch(setup, records, {}, Trackers(), version="0").metrics["tokens/stale"] == 0


def test_a_step_without_tokens_has_no_entropy() -> None:
    first = EPISODES[0]
    gap = replace(first, steps=(replace(first.steps[0], sampled=None), *first.steps[1:]))
    with pytest.raises(ConfigError, match="a step of the batch has no tokens"):
        add_model_columns(batch_of([gap]), make_preset("empg"), learner(), None)


def test_a_critic_that_diverges_is_an_error_before_the_policy_changes() -> None:
    policy, head = learner(), critic()
    before = [weight.clone() for weight in policy.model.parameters()]
    wild = [replace(EPISODES[0], score=1e30), *EPISODES[1:]]
    with pytest.raises(FloatingPointError, match="critic is not finite"):
        train_on_batch(TrainingSetup(preset=make_preset("ppo"), learner=policy, critic=head), wild, {}, Trackers())
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
