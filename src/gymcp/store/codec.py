"""Records to bytes and back, without loss.

Text is UTF-8 with ``surrogatepass``: JSON escapes would merge a lone high and a lone low surrogate into one character.
NaN is kept (a model may write it in an argument) although no record with one equals itself.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from operator import attrgetter, is_

import numpy as np

from gymcp.store.arrays import pack_float_column, pack_int_column, unpack_float_column, unpack_int_column
from gymcp.types import Action, Json, Message, Observation, Sampled, Step, Tool, ToolCall, ToolResult, UserAct

STEPS_PER_ROW = 64
"""Encoded together, which is faster and smaller than each by itself; sqlite's limit for a row is 1 GB."""

_COMPRESS_ABOVE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """Up to `STEPS_PER_ROW` steps, one after the other, as the database keeps them: what holds no tokens is JSON."""

    payload: bytes
    prompt_ids: bytes | None = None
    """Only what follows the tokens shared with the step before; how many that are is in the payload."""
    ids: bytes | None = None
    logprobs: bytes | None = None


def dumps(value: Json, *, ascii_only: bool = False) -> str:
    """Compact JSON of a value that may hold records and mappings. Raises TypeError, ValueError or RecursionError."""
    return (_ASCII_ENCODER if ascii_only else _ENCODER).encode(value)


def pack(value: Json) -> bytes:
    """JSON, compressed where it is long. zlib starts with ``x``, which no JSON does."""
    raw = dumps(value).encode("utf-8", "surrogatepass")
    return zlib.compress(raw, 1) if len(raw) > _COMPRESS_ABOVE else raw


def unpack(data: bytes) -> Json:
    """What `pack` was given."""
    raw = zlib.decompress(data) if data[:1] == b"x" else data
    return json.loads(raw.decode("utf-8", "surrogatepass"))


def pack_floats(values: Sequence[float]) -> bytes:
    """[T] -> little-endian float64, without loss."""
    return np.array(values, dtype="<f8").tobytes()


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """What `pack_floats` was given."""
    return tuple(np.frombuffer(data, dtype="<f8").tolist())


def text(value: str) -> str | bytes:
    """A column's value: text, or bytes where it holds lone surrogates, which sqlite refuses as text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def untext(value: str | bytes) -> str:
    """What `text` was given."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def pack_tools(tools: tuple[Tool, ...]) -> tuple[str, bytes]:
    """The name and the bytes under which a list of tools is kept once. The order of schema keys is part of it."""
    for known, ref, data in tuple(_PACKED_TOOLS):
        if len(known) == len(tools) and all(map(is_, known, tools)):
            return ref, data
    data = pack(tools)
    ref = "tools:" + hashlib.sha256(data).hexdigest()
    _PACKED_TOOLS.appendleft((tools, ref, data))
    return ref, data


_PACKED_TOOLS: deque[tuple[tuple[Tool, ...], str, bytes]] = deque(maxlen=16)
"""The last ones: most episodes of a run are offered the very same records."""


def unpack_tools(data: bytes) -> tuple[Tool, ...]:
    """What `pack_tools` was given."""
    return tuple(Tool(**fields) for fields in unpack(data))


def encode_steps(steps: tuple[Step, ...]) -> tuple[list[StepRow], dict[str, bytes]]:
    """[T] -> rows of `STEPS_PER_ROW` steps, and the tool lists they name."""
    rows: list[StepRow] = []
    interned: dict[str, bytes] = {}
    tools: tuple[Tool, ...] | None = None
    tools_ref = ""
    before: Sampled | None = None
    for start in range(0, len(steps), STEPS_PER_ROW):
        payloads: list[Json] = []
        new: list[tuple[int, ...]] = []
        drawn: list[Sampled] = []
        for step in steps[start : start + STEPS_PER_ROW]:
            if step.observation.tools is not tools:
                tools = step.observation.tools
                tools_ref, packed = pack_tools(tools)
                interned[tools_ref] = packed
            payload = _plain(step)
            payload["observation"] = {"messages": step.observation.messages, "tools": tools_ref}
            payloads.append(payload)
            if (sampled := step.sampled) is None:
                continue
            shared = _shared_prefix(sampled.prompt_ids, before)
            payload["sampled"] = {
                "shared": shared,
                "sizes": (len(sampled.prompt_ids) - shared, len(sampled.ids), len(sampled.logprobs)),
                "versions": sampled.versions,
                "finish": sampled.finish,
            }
            new.append(sampled.prompt_ids[shared:])
            drawn.append(sampled)
            before = sampled
        rows.append(_row(payloads, new, drawn))
    return rows, interned


def _row(payloads: list[Json], new: list[tuple[int, ...]], drawn: list[Sampled]) -> StepRow:
    if not drawn:
        return StepRow(payload=pack({"steps": payloads}))
    columns = {
        "prompt_ids": pack_int_column(new),
        "ids": pack_int_column([sampled.ids for sampled in drawn]),
        "logprobs": pack_float_column([sampled.logprobs for sampled in drawn]),
    }
    kinds = {name: kind for name, (kind, _) in columns.items()}
    return StepRow(
        payload=pack({"steps": payloads, "kinds": kinds}), **{name: data for name, (_, data) in columns.items()}
    )


def decode_steps(rows: Iterable[StepRow], tools: Callable[[str], tuple[Tool, ...]]) -> tuple[Step, ...]:
    """What `encode_steps` was given; `tools` finds a tool list by its name.

    Rows without their token columns give steps without `Step.sampled`.
    """
    steps: list[Step] = []
    context: tuple[int, ...] = ()
    for row in rows:
        payload = unpack(row.payload)
        if "steps" not in payload:
            payload = _of_format_1(payload, row)
        prompts, ids, logprobs = _columns(payload, row)
        for step in payload["steps"]:
            sampled = step.pop("sampled")
            if sampled is None or row.ids is None:
                steps.append(_step(step, None, tools))
                continue
            n_new, n_ids, n_logprobs = sampled["sizes"]
            record = Sampled(
                prompt_ids=context[: sampled["shared"]] + tuple(islice(prompts, n_new)),
                ids=tuple(islice(ids, n_ids)),
                logprobs=tuple(islice(logprobs, n_logprobs)),
                versions=tuple((version, start, end) for version, start, end in sampled["versions"]),
                finish=sampled["finish"],
            )
            context = record.prompt_ids + record.ids
            steps.append(_step(step, record, tools))
    return tuple(steps)


def _columns(payload: Mapping[str, Json], row: StepRow) -> tuple[Iterator[int], Iterator[int], Iterator[float]]:
    if row.prompt_ids is None or row.ids is None or row.logprobs is None:
        return iter(()), iter(()), iter(())
    kinds = payload["kinds"]
    return (
        iter(unpack_int_column(kinds["prompt_ids"], row.prompt_ids)),
        iter(unpack_int_column(kinds["ids"], row.ids)),
        iter(unpack_float_column(kinds["logprobs"], row.logprobs)),
    )


def _of_format_1(step: dict[str, Json], row: StepRow) -> dict[str, Json]:
    """A row of one step, whose sizes were those of its columns."""
    sampled = step["sampled"]
    if sampled is None or row.prompt_ids is None or row.ids is None or row.logprobs is None:
        return {"steps": [step]}
    kind = sampled["dtype"]
    width = int(kind[-1])
    sampled["sizes"] = (len(row.prompt_ids) // width, len(row.ids) // width, len(row.logprobs) // 8)
    return {"steps": [step], "kinds": {"prompt_ids": kind, "ids": kind, "logprobs": "<f8"}}


def _step(fields: dict[str, Json], sampled: Sampled | None, tools: Callable[[str], tuple[Tool, ...]]) -> Step:
    observation, action, results = fields.pop("observation"), fields.pop("action"), fields.pop("results")
    return Step(
        observation=Observation(
            messages=tuple(_message(message) for message in observation["messages"]),
            tools=tools(observation["tools"]),
        ),
        action=Action(text=action["text"], tool_calls=_calls(action["tool_calls"])),
        results=decode_results(results),
        user_acts=decode_acts(fields.pop("user_acts", ())),
        sampled=sampled,
        **fields,
    )


def decode_acts(acts: Iterable[Mapping[str, Json]]) -> tuple[UserAct, ...]:
    """What a user did, from its JSON."""
    return tuple(UserAct(calls=_calls(act["calls"]), results=decode_results(act["results"])) for act in acts)


def decode_results(results: Iterable[Mapping[str, Json]]) -> tuple[ToolResult, ...]:
    """What calls gave, from its JSON."""
    made = ({**result, "made": ToolCall(**result["made"])} if result.get("made") else result for result in results)
    return tuple(ToolResult(**result) for result in made)


def _plain(value: object) -> Json:
    kind = type(value)
    if kind not in _FIELDS:
        names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
        _FIELDS[kind] = (names, attrgetter(*names)) if len(names) > 1 else None
    if (found := _FIELDS[kind]) is not None:
        return dict(zip(found[0], found[1](value), strict=True))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{kind.__name__} is not JSON")


_FIELDS: dict[type, tuple[tuple[str, ...], Callable[[object], tuple[Json, ...]]] | None] = {}
"""Names and values of each record's class; None for a class that is no record. Every record has two fields or more."""
# without a look for circles, which would end in a RecursionError as well
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_plain)
_ASCII_ENCODER = json.JSONEncoder(ensure_ascii=True, check_circular=False, separators=(",", ":"), default=_plain)


def _calls(calls: Iterable[Mapping[str, Json]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(**call) for call in calls)


def _message(fields: dict[str, Json]) -> Message:
    return Message(**{**fields, "tool_calls": _calls(fields["tool_calls"])})


def _shared_prefix(prompt: tuple[int, ...], before: Sampled | None) -> int:
    """How many tokens begin it that the step before ended with: mostly all of that step's."""
    if before is None:
        return 0
    read, whole = len(before.prompt_ids), len(before.prompt_ids) + len(before.ids)
    if prompt[:read] == before.prompt_ids and prompt[read:whole] == before.ids:
        return whole
    context = before.prompt_ids + before.ids
    return next((n for n, (a, b) in enumerate(zip(prompt, context, strict=False)) if a != b), min(len(prompt), whole))
