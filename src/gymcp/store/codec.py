"""Records to bytes and back, without loss.

Text is UTF-8 with ``surrogatepass``: JSON escapes would merge a lone high and a lone low surrogate into one character.
NaN is kept (a model may write it in an argument) although no record with one equals itself.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass

import numpy as np
import numpy.typing as npt

from gymcp.types import Action, Json, Message, Observation, Sampled, Step, Tool, ToolCall, ToolResult

Tokens = npt.NDArray[np.int64]

_COMPRESS_ABOVE = 1024
_NO_TOKENS: Tokens = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step as the database keeps it."""

    payload: bytes
    prompt_ids: bytes | None = None
    """Only what follows the tokens shared with the step before; its length is in the payload."""
    ids: bytes | None = None
    logprobs: bytes | None = None
    """float64, so that a loaded record equals the one that was stored."""


def dumps(value: Json) -> str:
    """Compact JSON of a value that may hold records and mappings. Raises TypeError, ValueError or RecursionError."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


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
    data = pack(tools)
    return "tools:" + hashlib.sha256(data).hexdigest(), data


def unpack_tools(data: bytes) -> tuple[Tool, ...]:
    """What `pack_tools` was given."""
    return tuple(Tool(**fields) for fields in unpack(data))


def encode_steps(steps: tuple[Step, ...]) -> tuple[list[StepRow], dict[str, bytes]]:
    """[T] -> one row per step, and the tool lists they name."""
    rows: list[StepRow] = []
    interned: dict[str, bytes] = {}
    tools: tuple[Tool, ...] | None = None
    tools_ref = ""
    context = _NO_TOKENS
    for step in steps:
        if step.observation.tools is not tools:
            tools = step.observation.tools
            tools_ref, packed = pack_tools(tools)
            interned[tools_ref] = packed
        payload = _plain(step)
        payload["observation"] = {"messages": step.observation.messages, "tools": tools_ref}
        if step.sampled is None:
            rows.append(StepRow(payload=pack(payload)))
            continue
        prompt, ids = _tokens(step.sampled.prompt_ids), _tokens(step.sampled.ids)
        shared = _shared_prefix(prompt, context)
        width = "<i4" if _fits_int32(prompt) and _fits_int32(ids) else "<i8"
        payload["sampled"] = {
            "shared": shared,
            "dtype": width,
            "versions": step.sampled.versions,
            "finish": step.sampled.finish,
        }
        rows.append(
            StepRow(
                payload=pack(payload),
                prompt_ids=prompt[shared:].astype(width).tobytes(),
                ids=ids.astype(width).tobytes(),
                logprobs=np.array(step.sampled.logprobs, dtype="<f8").tobytes(),
            )
        )
        context = np.concatenate((prompt, ids))
    return rows, interned


def decode_steps(rows: list[StepRow], tools: Callable[[str], tuple[Tool, ...]]) -> tuple[Step, ...]:
    """What `encode_steps` was given; `tools` finds a tool list by its name."""
    steps: list[Step] = []
    context = _NO_TOKENS
    for row in rows:
        fields = unpack(row.payload)
        observation = fields.pop("observation")
        sampled = fields.pop("sampled")
        action = fields.pop("action")
        results = fields.pop("results")
        record = None
        if sampled is not None and row.prompt_ids is not None and row.ids is not None and row.logprobs is not None:
            new = np.frombuffer(row.prompt_ids, dtype=sampled["dtype"]).astype(np.int64)
            ids = np.frombuffer(row.ids, dtype=sampled["dtype"]).astype(np.int64)
            prompt = np.concatenate((context[: sampled["shared"]], new))
            context = np.concatenate((prompt, ids))
            record = Sampled(
                prompt_ids=tuple(prompt.tolist()),
                ids=tuple(ids.tolist()),
                logprobs=tuple(np.frombuffer(row.logprobs, dtype="<f8").tolist()),
                versions=tuple((version, start, end) for version, start, end in sampled["versions"]),
                finish=sampled["finish"],
            )
        steps.append(
            Step(
                observation=Observation(
                    messages=tuple(_message(message) for message in observation["messages"]),
                    tools=tools(observation["tools"]),
                ),
                action=Action(text=action["text"], tool_calls=_calls(action["tool_calls"])),
                results=tuple(ToolResult(**result) for result in results),
                sampled=record,
                **fields,
            )
        )
    return tuple(steps)


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _calls(calls: list[dict[str, Json]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(**call) for call in calls)


def _message(fields: dict[str, Json]) -> Message:
    return Message(**{**fields, "tool_calls": _calls(fields["tool_calls"])})


def _tokens(ids: tuple[int, ...]) -> Tokens:
    return np.array(ids, dtype=np.int64)


def _fits_int32(ids: Tokens) -> bool:
    limits = np.iinfo(np.int32)
    return not ids.size or (int(ids.min()) >= limits.min and int(ids.max()) <= limits.max)


def _shared_prefix(prompt: Tokens, context: Tokens) -> int:
    """How many tokens the two begin with alike: the prompt of a turn is mostly the turn before."""
    length = min(prompt.size, context.size)
    different = np.flatnonzero(prompt[:length] != context[:length])
    return int(different[0]) if different.size else length
