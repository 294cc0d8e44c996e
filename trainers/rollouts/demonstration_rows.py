"""Recorded episodes as a model would have had to write them: rows for supervised learning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gymcp.agents.prompts.context import Context
from gymcp.agents.prompts.rendering import Renderer
from gymcp.errors import ConfigError
from gymcp.trainers.learner.token_rows import Example, Row, rows_of
from gymcp.types import Sampled, Trajectory


def tokenize_record(record: Trajectory, renderer: Renderer, system: str = "") -> Trajectory:
    """The record with tokens: the prompt that the renderer makes before each step, and the tokens of the step's action.

    No policy drew these tokens, so their log-probabilities are 0 and mean nothing. If all steps have recorded tokens
    already, the record stays as it is: those are exactly the tokens that some policy drew.
    """
    if all(step.sampled is not None for step in record.steps):
        return record
    context = Context(renderer, system)
    steps = []
    for step in record.steps:
        context.add_observation(step.observation)
        prompt = tuple(context.ids)
        ids = tuple(renderer.encode_action(step.action, step.observation.tools))
        context.add_sample(ids, step.action.tool_calls)
        spans = (("demonstration", 0, len(ids)),)
        sampled = Sampled(prompt_ids=prompt, ids=ids, logprobs=(0.0,) * len(ids), versions=spans)
        steps.append(replace(step, sampled=sampled))
    return replace(record, steps=tuple(steps), side_answers=())


def demonstration_examples(
    records: Iterable[Trajectory],
    renderer: Renderer,
    *,
    system: str = "",
    most_tokens: int | None = None,
    prompt_loss_weight: float = 0.0,
) -> list[Example]:
    """One example for each context of each record, in which every action is learnt.

    Contexts longer than `most_tokens` are left out. `prompt_loss_weight`: weight of prompt and tool-result tokens in
    the loss (action tokens have weight 1); above 0, all tokens but the first are learnt. Raises ConfigError if no
    example is left.
    """
    examples = []
    for record in records:
        for row in rows_of(tokenize_record(record, renderer, system)):
            if most_tokens is None or len(row.token_ids) <= most_tokens:
                weights = np.where(row.loss_mask, 1.0, prompt_loss_weight)
                learnt = _learn_all_tokens(row) if prompt_loss_weight else row
                mask = np.array(learnt.loss_mask)
                examples.append(Example(row=learnt, advantages=(weights * mask,), counted=(mask,)))
    if not examples:
        raise ConfigError("warm start: no demonstration is left to learn from; are all longer than the context?")
    return examples


def _learn_all_tokens(row: Row) -> Row:
    """The row as if all its tokens but the first had been drawn, in one step."""
    length = len(row.token_ids)
    return replace(row, loss_mask=(False,) + (True,) * (length - 1), steps=((0, 1, length),), inner=())
