"""Computations that an update leaves out change no gradient: rows without advantage, and probabilities on record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models as tiny
import torch
from peft import LoraConfig, get_peft_model

from gymcp.agents.policies.engine.engine import EngineOptions, open_engine
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.strategies.user_agents import UserAgent
from gymcp.trainers.learner.forward import token_values
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.micro_batch_loss import batch_loss, make_batch
from gymcp.trainers.learner.micro_batches import common_beginning, plan_micro_batches
from gymcp.trainers.learner.old_logprobs import find_old_logprobs
from gymcp.trainers.learner.token_rows import Example, Row, has_gradient, rows_of
from gymcp.trainers.run.training_run import records_learner_logprobs
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Action, Observation, Sampled, Sampling, Step, Trajectory

SETTINGS = LearnerSettings(learning_rate=1e-3, max_grad_norm=1e9)
LOSSES = [Loss(), Loss(aggregation="seq-mean-token-mean"), Loss(kind="gspo", sequence="step")]


@pytest.mark.parametrize("loss", LOSSES, ids=["ppo", "sequence means", "gspo"])
def test_rows_without_advantage_are_not_computed_and_still_count_in_the_mean(loss: Loss, tmp_path: Path) -> None:
    """The other learner computes them: their advantage is 1e-30, too little to be seen in a float32 gradient."""
    rows = [*tiny.group(1), *tiny.group(2)]
    found, gradients = [], []
    for nothing in (0.0, 1e-30):
        learner = Learner(tiny.model(), SETTINGS)
        advantages = [(1.0, -0.5), (nothing, nothing)] * 4
        examples = [tiny.example(row, each) for row, each in zip(rows, advantages, strict=True)]
        assert sum(has_gradient(example, (1.0,)) for example in examples) == (4 if nothing == 0.0 else 8)
        found.append(learner.update(examples, loss, groups=[0] * 4 + [1] * 4))
        gradients.append(read_gradient(learner, tmp_path))
    assert (found[0].grad_norm, found[0].loss) == pytest.approx((found[1].grad_norm, found[1].loss), rel=1e-6)
    assert found[0].tokens == found[1].tokens == found[1].computed_tokens > found[0].computed_tokens
    assert float(gradients[0].abs().max()) > 0.01
    assert float((gradients[0] - gradients[1]).abs().max()) <= 1e-6


def read_gradient(learner: Learner, folder: Path) -> torch.Tensor:
    """The gradient of the first update, from the optimiser's mean of gradients in a checkpoint."""
    learner.save(folder)
    moments = torch.load(folder / "learner.pt", weights_only=True)["optimizer"]["state"].values()
    return torch.cat([each["exp_avg"].flatten() for each in moments]) / (1 - SETTINGS.betas[0])


def examples_of_one_beginning(tokens: int) -> list[Example]:
    """Five groups of four rows; their prompts differ in the last four tokens alone."""
    rng = random.Random(0)
    start = [rng.randrange(97) for _ in range(tokens)]
    prompts = [[*start, task, *(rng.randrange(97) for _ in range(3))] for task in range(5)]
    rows = [tiny.row(prompt, rng, length=9 + 3 * n) for prompt in prompts for n in range(4)]
    return [tiny.example(row, (1.0, 0.5 * n - 2)) for n, row in enumerate(rows)]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft 0.21 asks transformers 5.23
@pytest.mark.parametrize("adapted", [False, True])
def test_the_common_beginning_of_all_prompts_is_encoded_twice_in_an_update(adapted: bool, tmp_path: Path) -> None:
    """Once for the micro-batches, and once for its own gradient; also if its first keys and values are frozen."""
    examples, groups = examples_of_one_beginning(150), [n // 4 for n in range(20)]
    seen: list[tuple[int, ...]] = []
    found, gradients = [], []
    for share in (True, False):
        model: Any = tiny.model()
        model.get_input_embeddings().register_forward_hook(lambda module, ids, out: seen.append(tuple(ids[0].shape)))
        if adapted:
            model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
            for name, weight in model.named_parameters():
                if "lora_B" in name:  # at 0, as they begin, nothing reaches the other half
                    torch.nn.init.constant_(weight, 0.1)
        learner = Learner(model, replace(SETTINGS, share_prefixes=share))
        seen.clear()
        found.append(learner.update(examples, Loss(), groups=groups))
        if share:
            assert seen == [(1, 150), *[(1, 4), (4, 18)] * 5, (1, 150)]
        gradients.append(read_gradient(learner, tmp_path))
    assert (found[0].grad_norm, found[0].loss) == pytest.approx((found[1].grad_norm, found[1].loss), rel=1e-5)
    assert float(gradients[1].abs().max()) > 1e-3
    assert float((gradients[0] - gradients[1]).abs().max()) <= 1e-6


def test_a_beginning_is_encoded_by_itself_only_if_that_saves_work() -> None:
    for tokens, saves in ((134, True), (133, False)):  # three of five micro-batches save them: 402 tokens, or 399
        rows = [example.row for example in examples_of_one_beginning(tokens)]
        micros = plan_micro_batches(rows, [n // 4 for n in range(20)], tokens=8192, share=True)
        assert common_beginning(rows, micros) == (rows[0].token_ids[:tokens] if saves else ())
    assert common_beginning(rows, plan_micro_batches(rows, [0] * 20, tokens=8192, share=False)) == ()


def test_the_entropy_of_an_update_without_advantages_is_what_the_engine_recorded() -> None:
    still = [tiny.example(row, (0.0, 0.0)) for row in tiny.group(1)]
    update = Learner(tiny.model(), SETTINGS).update(still, Loss())
    assert (update.skipped, update.computed_tokens, update.entropy) == (True, 0, 3.0)
    assert update.tokens == sum(sum(example.row.loss_mask) for example in still)


def draw_rows(model: Any, *, temperature: float) -> list[Row]:
    """Rows of one step each, drawn by the engine from the model's weights."""

    async def draw() -> list[Sampled]:
        options = EngineOptions(max_context=64)
        async with asyncio.timeout(120), open_engine(model, slots=4, version="7", options=options) as engine:
            asked = [Sampling(max_tokens=6 + seed, temperature=temperature, seed=seed) for seed in range(6)]
            return list(await asyncio.gather(*(engine.sample(list(range(3, 20)), each) for each in asked)))

    rows: list[Row] = []
    for sampled in asyncio.run(draw()):
        step = Step(turn=0, observation=Observation(messages=(), tools=()), action=Action(), sampled=sampled)
        rows += rows_of(Trajectory(id="", env="e", task="t", steps=(step,)))
    return rows


def gradient(learner: Learner, examples: Sequence[Example], old: Sequence[Floats], temperature: float) -> torch.Tensor:
    batch = make_batch(examples, Loss(), [1.0], old=old)
    values = token_values(learner.model, [example.row for example in examples], temperature=temperature)
    part, _ = batch_loss(batch, range(len(examples)), values)
    parts = torch.autograd.grad(part, list(learner.model.parameters()))
    return torch.cat([each.flatten() for each in parts])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_log_probabilities_give_the_gradient_of_computed_ones(temperature: float) -> None:
    learner = Learner(tiny.model(), replace(SETTINGS, temperature=temperature))
    rows = draw_rows(learner.model, temperature=temperature)
    examples = [give_advantage(row, 1.0 - 0.5 * n) for n, row in enumerate(rows)]
    options: Any = {"weights": [1.0], "groups": [0] * len(rows), "several": True, "version": "7"}
    computed, recorded = (
        find_old_logprobs(learner, examples, Loss(), engine_shares_weights=shares, **options)
        for shares in (False, True)
    )
    assert computed is not None
    assert recorded is not None
    assert [np.array_equal(values, row.logprobs) for values, row in zip(recorded, rows, strict=True)] == [True] * 6
    learner.update(examples, Loss())
    one, other = (gradient(learner, examples, old, temperature) for old in (computed, recorded))
    assert float(one.abs().max()) > 0.01
    assert float((one - other).abs().max()) <= 1e-6


def test_an_agent_that_may_change_the_temperature_is_not_taken_at_the_engines_word() -> None:
    own = UserAgent(name="a.py:A", source="/a.py:A", digest="", make=object, takes_model=True)
    expected = {None: True, ProgramSettings(argv=("true",)): True, own: False}
    assert {agent: records_learner_logprobs(agent, "", SETTINGS) for agent in expected} == expected
    assert not records_learner_logprobs(None, "vllm:http://host#m", SETTINGS)
    assert not records_learner_logprobs(None, "", replace(SETTINGS, autocast=True))


def give_advantage(row: Row, advantage: float) -> Example:
    mask = np.array(row.loss_mask)
    return Example(row=row, advantages=(np.where(mask, advantage, 0.0),), counted=(mask,))
