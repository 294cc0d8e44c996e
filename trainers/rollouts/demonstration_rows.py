"""Recorded episodes as a model would have had to write them: rows for supervised learning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gymcp.agents.prompts.context import Context
from gymcp.agents.prompts.rendering import Renderer
from gymcp.errors import ConfigError
from gymcp.trainers.learner.token_rows import Example, rows_of
from gymcp.types import Row, Sampled, Trajectory


def demonstrated(record: Trajectory, renderer: Renderer, system: str = "") -> Trajectory:
    """The record with tokens: what the renderer shows before each step, and what writing the step's action takes.

    Nothing was drawn, so the log-probabilities are 0 and mean nothing. Tokens that are recorded already stay, where all
    steps have them: they are exactly what some policy drew.
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
    return replace(record, steps=tuple(steps))


def demonstrations(
    records: Iterable[Trajectory],
    renderer: Renderer,
    *,
    system: str = "",
    most_tokens: int | None = None,
    context: float = 0.0,
) -> list[Example]:
    """One example a context of each record, in which every action is to be learnt; longer ones are left out.

    `context`: what each token that is no action counts, beside 1; above 0 all are to be foretold. Raises ConfigError
    where nothing is left.
    """
    found = []
    for record in records:
        for row in rows_of(demonstrated(record, renderer, system)):
            if most_tokens is None or len(row.token_ids) <= most_tokens:
                worth = np.where(row.loss_mask, 1.0, context)
                if context:
                    row = _whole(row)  # noqa: PLW2901
                mask = np.array(row.loss_mask)
                found.append(Example(row=row, advantages=(worth * mask,), counted=(mask,)))
    if not found:
        raise ConfigError("warm start: no demonstration is left to learn from; are all longer than the context?")
    return found


def _whole(row: Row) -> Row:
    """The row as if all its tokens but the first had been drawn, in one step."""
    length = len(row.token_ids)
    return replace(row, loss_mask=(False,) + (True,) * (length - 1), steps=((0, 1, length),))
