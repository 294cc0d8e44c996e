"""Rows of an agent with several contexts: each context is one row, and side calls are in none."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from gymcp.errors import ConfigError
from gymcp.trainers.credit.step_batch import batch_of
from gymcp.trainers.learner.forward import TokenValues
from gymcp.trainers.learner.losses import Denominators
from gymcp.trainers.learner.micro_batch_loss import batch_loss, make_batch
from gymcp.trainers.learner.token_rows import make_example, rows_of
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Action, Observation, Sampled, SideAnswer, Step, ToolCall, Trajectory


def make_sample(prompt: tuple[int, ...], *ids: int) -> Sampled:
    return Sampled(prompt_ids=prompt, ids=ids, logprobs=(-1.0,) * len(ids), versions=(("3", 0, len(ids)),))


def step(context: int, sampled: Sampled | None) -> Step:
    shown = Observation(messages=(), tools=())
    return Step(turn=0, observation=shown, action=Action(text="x"), sampled=sampled, context=context)


CALL = ToolCall(id="1", name="ask_helper", arguments={})
DELEGATES = SideAnswer(step=0, context=0, action=Action(tool_calls=(CALL,)), sampled=make_sample((1, 2), 3))
TITLE = SideAnswer(step=0, context=1, action=Action(text="title"), sampled=make_sample((40, 41), 42))
HELPER_PAYS = step(2, make_sample((10, 11), 12))
REPORTS = SideAnswer(step=1, context=2, action=Action(text="paid"), sampled=make_sample((10, 11, 12, 13), 14))
ENDS = step(0, make_sample((1, 2, 3, 4), 5))
LATE = SideAnswer(step=2, context=0, action=Action(text="more"), sampled=make_sample((1, 2, 3, 4, 5, 6), 7))


def record(*side_answers: SideAnswer) -> Trajectory:
    return Trajectory(id="1", env="e", task="t", steps=(HELPER_PAYS, ENDS), side_answers=side_answers, score=1.0)


def test_every_context_of_the_agent_is_a_row_and_a_title_is_none() -> None:
    main, helper = rows_of(record(DELEGATES, TITLE, REPORTS))
    assert main.token_ids == (1, 2, 3, 4, 5)
    assert main.loss_mask == (False, False, True, False, True)
    assert (main.steps, main.inner) == (((1, 4, 5),), ((0, 2, 3),))
    assert main.versions == (("3", 0, 1), ("3", 1, 2))
    assert helper.token_ids == (10, 11, 12, 13, 14)
    assert (helper.steps, helper.inner) == (((0, 2, 3),), ((1, 4, 5),))


def test_an_answer_is_credited_with_the_step_that_it_led_to() -> None:
    main, helper = (
        make_example(row, [np.array([0.5, -2.0])], [np.array([True, True])])
        for row in rows_of(record(DELEGATES, REPORTS, LATE))
    )
    assert main.advantages[0].tolist() == [0, 0, 0.5, 0, -2.0, 0, -2.0]
    assert helper.advantages[0].tolist() == [0, 0, 0.5, 0, -2.0]
    assert main.counted[0].tolist() == [False, False, True, False, True, False, True]


def test_the_tokens_of_a_step_are_those_of_all_its_answers() -> None:
    assert batch_of([record(DELEGATES, TITLE, REPORTS, LATE)]).column("tokens").tolist() == [2, 3]


def test_a_context_that_acts_only_by_its_own_tools_is_a_row() -> None:
    hands_over = SideAnswer(step=0, context=5, action=Action(tool_calls=(CALL,)), sampled=make_sample((70, 71), 72))
    first, *others = rows_of(record(hands_over))
    assert sorted(row.token_ids for row in (first, *others)) == [(1, 2, 3, 4, 5), (10, 11, 12), (70, 71, 72)]
    (alone,) = (row for row in (first, *others) if row.token_ids[0] == 70)
    assert (alone.steps, alone.inner, alone.spans) == ((), ((0, 2, 3),), ((0, 2, 3),))


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_a_step_and_the_answers_that_led_to_it_are_one_sequence(kind: Literal["ppo", "gspo"]) -> None:
    """The rows of the first step: a token of the helper, one in the main context, and two in a row without a step."""
    hands_over = SideAnswer(step=0, context=5, action=Action(tool_calls=(CALL,)), sampled=make_sample((70, 71), 72, 73))
    flags = [np.array([True, True])]
    examples = [
        make_example(row, [np.array([0.5, -2.0])], flags, episode=0)
        for row in rows_of(record(DELEGATES, REPORTS, hands_over))
    ]
    loss = Loss(kind=kind, sequence="step", aggregation="seq-mean-token-mean")
    batch = make_batch(examples, loss, [1.0])
    assert batch.drawn.denominators == Denominators(tokens=6.0, sequences=2.0)
    parts = 0.0
    for place, example in enumerate(examples):  # the row without a step is a micro-batch of its own
        values = torch.full((sum(example.row.loss_mask),), -1.0)
        parts += float(batch_loss(batch, [place], TokenValues(logprobs=values, entropy=values))[0])
    assert parts == pytest.approx(-(0.5 - 2.0) / 2)  # the first update: all ratios are 1
    again = torch.full((6,), -1.0)
    whole, stats = batch_loss(batch, range(3), TokenValues(logprobs=again, entropy=again))
    assert float(whole) == pytest.approx(parts)
    assert stats.tokens == 6.0


def test_an_episode_whose_steps_have_no_tokens_cannot_be_trained_on() -> None:
    bare = Trajectory(id="1", env="e", task="t", steps=(step(0, None),), side_answers=(DELEGATES,), score=1.0)
    with pytest.raises(ConfigError, match="no tokens are recorded"):
        rows_of(bare)
