"""Records as JSON and back. Fields keep the name that the first runs were recorded with (`STORED_NAMES`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter

from gymcp.store.validation import build_record, require_integer, require_number, require_text
from gymcp.types import (
    Action,
    Json,
    Message,
    ModelUsage,
    RequestTimes,
    Sampled,
    SideAnswer,
    ToolCall,
    ToolResult,
    Trajectory,
    UserToolCalls,
)

STORED_NAMES: Mapping[str, str] = {"parse_error": "problem", "executed_call": "made", "content_bytes": "bytes"}
"""Fields of `ToolCall` and `ToolResult` whose name in run folders, exports and digests is an older one."""
BESIDE_STEPS = frozenset({"reasoning", "request_times", "model_usage", "context", "side_answers"})
"""Fields of `Step`, `Sampled` and `Trajectory` that run folders and exports keep beside them, or leave out: a reader of
an earlier version refuses a record with a field that it does not know."""

_CURRENT_NAMES = {stored: name for name, stored in STORED_NAMES.items()}


def dumps(value: Json, *, ascii_only: bool = False) -> str:
    """Compact JSON of a value that may hold records and mappings. Raises TypeError, ValueError or RecursionError."""
    return (_ASCII_ENCODER if ascii_only else _ENCODER).encode(value)


def decode_versions(spans: Iterable[Sequence[Json]]) -> tuple[tuple[str, int, int], ...]:
    """`Sampled.versions`, from its JSON. Raises ValueError or TypeError."""
    return tuple(
        (require_text(version, "a version"), require_integer(start, "its start"), require_integer(end, "its end"))
        for version, start, end in spans
    )


def decode_action(found: Mapping[str, Json]) -> Action:
    """An action, from JSON. Raises KeyError or TypeError."""
    return build_record(Action, {"text": found["text"], "tool_calls": decode_calls(found["tool_calls"])})


def decode_acts(acts: Iterable[Mapping[str, Json]]) -> tuple[UserToolCalls, ...]:
    """A user's calls and their results, from JSON. Raises KeyError or TypeError."""
    return tuple(
        UserToolCalls(calls=decode_calls(act["calls"]), results=decode_results(act["results"])) for act in acts
    )


def decode_results(results: Iterable[Mapping[str, Json]]) -> tuple[ToolResult, ...]:
    """Results of calls, from JSON. Raises TypeError."""
    return tuple(map(_decode_result, results))


def _decode_result(found: Mapping[str, Json]) -> ToolResult:
    fields = _rename_stored(found)
    if fields.get("executed_call"):
        fields["executed_call"] = _decode_call(fields["executed_call"])
    return build_record(ToolResult, fields)


def decode_calls(calls: Iterable[Mapping[str, Json]]) -> tuple[ToolCall, ...]:
    """Calls, from JSON. Raises TypeError."""
    return tuple(map(_decode_call, calls))


def _decode_call(found: Json) -> ToolCall:
    return build_record(ToolCall, _rename_stored(found))


def _rename_stored(found: Json) -> dict[str, Json]:
    """The fields of a stored record under the names that its class has now. Raises TypeError if it is no table."""
    return {_CURRENT_NAMES.get(name, name): value for name, value in require_table(found).items()}


def decode_message(found: Mapping[str, Json]) -> Message:
    """A message, from JSON. Raises KeyError or TypeError."""
    return build_record(Message, {**found, "tool_calls": decode_calls(found["tool_calls"])})


def encode_times(times: RequestTimes | None) -> Json:
    """[seconds of the request, seconds until its first token or null]; None if the times are not known."""
    return None if times is None else [times.request_s, times.first_token_s]


def decode_times(found: Json) -> RequestTimes | None:
    """The times that `encode_times` encoded. Raises TypeError or ValueError for any other value."""
    if found is None:
        return None
    request_s, first_token_s = require_list(found)
    return build_record(RequestTimes, {"request_s": request_s, "first_token_s": first_token_s})


def decode_model_usage(found: Json) -> ModelUsage | None:
    """The use of a model for one answer, from JSON; None if it is not known. Raises TypeError or ValueError."""
    return None if found is None else build_record(ModelUsage, require_table(found))


# ------------------------------------------------------------------------------------------------------ side answers
# One value per episode. A later answer of a context holds only the tokens that it does not share with the one before.


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
                **({"replaced": True} if answer.replaced else {}),
            }
        )
        if sampled is not None:
            last[answer.context] = sampled
    return {"contexts": contexts, "answers": answers}


def add_side_answers(
    trajectory: Trajectory, found: Json, *, tokens: bool = True, spend_tokens: Callable[[int], None] | None = None
) -> Trajectory:
    """The trajectory with what `encode_side_answers` encoded; without `tokens`, `SideAnswer.sampled` is None.

    `spend_tokens`: called with the number of tokens of each prompt, to raise if they are too many. Raises ValueError,
    KeyError or TypeError for a value from elsewhere.
    """
    if found is None:
        return trajectory
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
            sampled = last[context] = _decode_sampled(require_table(sampled), last.get(context))
            if spend_tokens is not None:
                spend_tokens(len(sampled.prompt_ids))
        spent = decode_model_usage(fields["spent"])
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


def _decode_sampled(found: Mapping[str, Json], before: Sampled | None) -> Sampled:
    shared = require_integer(found["shared"], "the number of shared tokens")
    context = before.prompt_ids + before.ids if shared and before is not None else ()
    if not 0 <= shared <= len(context):
        raise ValueError(f"an answer shares {shared} tokens with one that has {len(context)}")
    new = _read_tokens(found["prompt_ids"])
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


def require_table(value: Json) -> dict[str, Json]:
    """The value, if it is a JSON object; raises TypeError otherwise."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} where a table should be")
    return value


def require_list(value: Json) -> list[Json]:
    """The value, if it is a JSON array; raises TypeError otherwise."""
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list should be")
    return value


def to_stored_fields(value: object) -> Json:
    """Stored name -> value of a record's fields but `BESIDE_STEPS`, or a mapping as a dictionary.

    Raises TypeError for any other value.
    """
    kind = type(value)
    if kind not in _FIELDS:
        names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        names = tuple(name for name in names if name not in BESIDE_STEPS)
        stored = tuple(STORED_NAMES.get(name, name) for name in names)
        _FIELDS[kind] = (stored, attrgetter(*names)) if len(names) > 1 else None
    if (found := _FIELDS[kind]) is not None:
        return dict(zip(found[0], found[1](value), strict=True))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{kind.__name__} is not JSON")


_FIELDS: dict[type, tuple[tuple[str, ...], Callable[[object], tuple[Json, ...]]] | None] = {}
"""Stored names and values of each record class; None for other classes. Every record has two fields or more."""
# circular values are not looked for: they end in a RecursionError as well
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=to_stored_fields)
_ASCII_ENCODER = json.JSONEncoder(
    ensure_ascii=True, check_circular=False, separators=(",", ":"), default=to_stored_fields
)
