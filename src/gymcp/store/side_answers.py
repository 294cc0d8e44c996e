"""Answers of the model beside the steps, and the contexts of the steps, as JSON: one value per episode.

Runs of earlier versions have none. A later answer of a context holds only the tokens that it does not share with the
answer before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gymcp.store.codec import ReadBudget
from gymcp.store.record_json import decode_action, decode_versions, require_list, require_table
from gymcp.store.validation import build_record, require_integer, require_number
from gymcp.types import Json, ModelUsage, Sampled, SideAnswer, Trajectory


def encode_side_answers(trajectory: Trajectory) -> Json:
    """The contexts of the steps and the side answers; None if no step names its context and there is no side answer."""
    contexts = [step.context for step in trajectory.steps]
    if not trajectory.side_answers and all(context is None for context in contexts):
        return None
    last: dict[int, Sampled] = {}
    answers: list[Json] = []
    for answer in trajectory.side_answers:
        before, sampled = last.get(answer.context), answer.sampled
        answers.append(
            {
                "step": answer.step,
                "context": answer.context,
                "asked": answer.asked,
                "action": {"text": answer.action.text, "tool_calls": answer.action.tool_calls},
                "spent": answer.spent,
                "sampled": None if sampled is None else _encode_sampled(sampled, before),
            }
        )
        if sampled is not None:
            last[answer.context] = sampled
    return {"contexts": contexts, "answers": answers}


def add_side_answers(
    trajectory: Trajectory, found: Json, budget: ReadBudget | None = None, *, tokens: bool = True
) -> Trajectory:
    """The trajectory with what `encode_side_answers` encoded; without `tokens`, `SideAnswer.sampled` is None.

    Raises ValueError, KeyError or TypeError for a value from elsewhere, and for more tokens than `budget` allows.
    """
    if found is None:
        return trajectory
    budget = budget or ReadBudget()
    contexts = require_list(found["contexts"])
    steps = tuple(
        replace(step, context=None if context is None else require_integer(context, "a context"))
        for step, context in zip(trajectory.steps, contexts, strict=True)
    )
    last: dict[int, Sampled] = {}
    answers: list[SideAnswer] = []
    for each in require_list(found["answers"]):
        fields = require_table(each)
        context = require_integer(fields["context"], "a context")
        sampled = fields["sampled"] if tokens else None
        if sampled is not None:
            sampled = last[context] = _decode_sampled(require_table(sampled), last.get(context), budget)
        spent = None if fields["spent"] is None else build_record(ModelUsage, require_table(fields["spent"]))
        action = decode_action(fields["action"])
        answers.append(build_record(SideAnswer, {**fields, "action": action, "spent": spent, "sampled": sampled}))
    return replace(trajectory, steps=steps, side_answers=tuple(answers))


def _encode_sampled(sampled: Sampled, before: Sampled | None) -> dict[str, Json]:
    context = () if before is None else before.prompt_ids + before.ids
    shared = len(context) if sampled.prompt_ids[: len(context)] == context else 0
    return {
        "shared": shared,
        "prompt_ids": sampled.prompt_ids[shared:],
        "ids": sampled.ids,
        "logprobs": sampled.logprobs,
        "versions": sampled.versions,
        "finish": sampled.finish,
    }


def _decode_sampled(found: Mapping[str, Json], before: Sampled | None, budget: ReadBudget) -> Sampled:
    shared = require_integer(found["shared"], "the number of shared tokens")
    context = before.prompt_ids + before.ids if shared and before is not None else ()
    if not 0 <= shared <= len(context):
        raise ValueError(f"an answer shares {shared} tokens with one that has {len(context)}")
    new = _read_tokens(found["prompt_ids"])
    budget.spend_tokens(shared + len(new))
    logprobs = tuple(float(require_number(each, "a logprob")) for each in require_list(found["logprobs"]))
    fields = {
        "prompt_ids": context[:shared] + new,
        "ids": _read_tokens(found["ids"]),
        "logprobs": logprobs,
        "versions": decode_versions(found["versions"]),
        "finish": found["finish"],
    }
    return build_record(Sampled, fields)


def _read_tokens(found: Json) -> tuple[int, ...]:
    return tuple(require_integer(each, "a token") for each in require_list(found))
