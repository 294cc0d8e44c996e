"""Records as bytes and back, without loss.

Text is UTF-8 with ``surrogatepass``: JSON escapes would merge a lone high and a lone low surrogate into one character.
NaN is kept (a model may write it in an argument) although no record that holds NaN equals itself.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_

import numpy as np

from gymcp.store.arrays import pack_float_column, pack_int_column, unpack_float_column, unpack_int_column
from gymcp.store.record_json import (
    decode_action,
    decode_acts,
    decode_message,
    decode_model_usage,
    decode_results,
    decode_times,
    decode_versions,
    dumps,
    encode_times,
    require_list,
    require_table,
    to_stored_fields,
)
from gymcp.store.validation import build_record, require_text
from gymcp.types import Json, Observation, Sampled, Step, Tool

STEPS_PER_ROW = 64
"""Steps that are encoded together, which is faster and smaller than one by one; sqlite's limit for a row is 1 GB."""

MAX_JSON_BYTES = 128_000_000
"""Size of the longest value, as JSON. A step of 64 calls, each with the longest result, has half of that."""
MAX_EPISODE_BYTES = 4 * MAX_JSON_BYTES
"""Size of all values of one episode together, as JSON."""
MAX_ROW_BYTES = MAX_JSON_BYTES // 4
"""Size of the steps that are encoded together, as JSON; a longer step is a row by itself."""
MAX_PROMPT_TOKENS = 100_000_000
"""Tokens of all prompts of one episode together: in memory each step has its own prompt."""
_COMPRESS_ABOVE = 1024
"""Bytes of JSON above which a value is compressed."""


class ReadBudget:
    """Bytes and tokens of an episode that may still be read: a short file can decompress to endless content."""

    def __init__(self, max_bytes: int = MAX_EPISODE_BYTES) -> None:
        self._bytes = max_bytes
        self._tokens = MAX_PROMPT_TOKENS

    @property
    def is_spent(self) -> bool:
        """True if more bytes were read than there may be."""
        return self._bytes < 0

    def spend_bytes(self, size: int) -> None:
        """Count `size` bytes. Raises ValueError if the episode is longer than any that gymcp writes."""
        self._bytes -= size
        if self._bytes < 0:
            raise ValueError(f"the episode is longer than {MAX_EPISODE_BYTES:,} bytes")

    def spend_tokens(self, tokens: int) -> None:
        """Count tokens of a prompt. Raises ValueError if the prompts have more tokens than any that gymcp writes."""
        self._tokens -= tokens
        if self._tokens < 0:
            raise ValueError(f"its prompts have more than {MAX_PROMPT_TOKENS:,} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """Up to `STEPS_PER_ROW` consecutive steps as the database keeps them: JSON, and a column for each kind of token."""

    payload: bytes
    prompt_ids: bytes | None = None
    """Tokens after those shared with the previous step; the payload holds the number of shared tokens."""
    ids: bytes | None = None
    logprobs: bytes | None = None


def pack(value: Json) -> bytes:
    """JSON, compressed if it is long. zlib starts with ``x``, as no JSON does. Raises ValueError if it is too long."""
    raw = dumps(value).encode("utf-8", "surrogatepass")
    if len(raw) <= _COMPRESS_ABOVE:
        return raw
    if len(raw) > MAX_JSON_BYTES:
        raise ValueError(f"a value of {len(raw):,} bytes of JSON; the most is {MAX_JSON_BYTES:,}")
    return zlib.compress(raw, 1)


def unpack(data: bytes, budget: ReadBudget | None = None) -> Json:
    """The value that `pack` encoded. Raises ValueError, TypeError or RecursionError for bytes from elsewhere.

    Its size counts against `budget`.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"a {type(data).__name__} where bytes should be")
    raw = _decompress(data) if data[:1] == b"x" else data
    if budget is not None:
        budget.spend_bytes(len(raw))
    return json.loads(raw.decode("utf-8", "surrogatepass"))


def _decompress(data: bytes) -> bytes:
    """The decompressed bytes. Raises ValueError for more than `MAX_JSON_BYTES`, without reading on."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, MAX_JSON_BYTES)
    except zlib.error as error:
        raise ValueError(f"compressed content is damaged: {error}") from error
    if not stream.eof:
        long = len(raw) >= MAX_JSON_BYTES
        raise ValueError(f"more than {MAX_JSON_BYTES:,} bytes of JSON" if long else "compressed content lacks its end")
    return raw


def pack_floats(values: Sequence[float]) -> bytes:
    """[T] -> little-endian float64, without loss."""
    return np.array(values, dtype="<f8").tobytes()


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """The numbers that `pack_floats` encoded."""
    return tuple(np.frombuffer(data, dtype="<f8").tolist())


def encode_text(value: str) -> str | bytes:
    """The value of a column: text, or bytes if it holds lone surrogates, which sqlite refuses as text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def decode_text(value: str | bytes) -> str:
    """The text that `encode_text` encoded. Raises TypeError or ValueError for any other value."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} where a text should be")
    return value.decode("utf-8", "surrogatepass")


def pack_tools(tools: tuple[Tool, ...]) -> tuple[str, bytes]:
    """The content address and the bytes of a list of tools, which is stored once. The order of schema keys counts."""
    for known, ref, data in tuple(_PACKED_TOOLS):
        if len(known) == len(tools) and all(map(is_, known, tools)):
            return ref, data
    data = pack(tools)
    ref = "tools:" + hashlib.sha256(data).hexdigest()
    _PACKED_TOOLS.appendleft((tools, ref, data))
    return ref, data


_PACKED_TOOLS: deque[tuple[tuple[Tool, ...], str, bytes]] = deque(maxlen=16)
"""The last lists that were packed: most episodes of a run offer the very same records."""


def unpack_tools(data: bytes, budget: ReadBudget | None = None) -> tuple[Tool, ...]:
    """The tools that `pack_tools` encoded. Raises ValueError or TypeError for bytes from elsewhere."""
    return tuple(build_record(Tool, require_table(fields)) for fields in require_list(unpack(data, budget)))


def encode_steps(steps: tuple[Step, ...], before: Sampled | None = None) -> tuple[list[StepRow], dict[str, bytes]]:
    """[T] -> rows of `STEPS_PER_ROW` steps, and the tool lists that they refer to, by content address.

    `before`: tokens before the first step that are stored elsewhere, with which `decode_steps` must be called.
    """
    rows: list[StepRow] = []
    interned: dict[str, bytes] = {}
    tools: tuple[Tool, ...] | None = None
    tools_ref = ""
    for start in range(0, len(steps), STEPS_PER_ROW):
        payloads: list[Json] = []
        new: list[tuple[int, ...]] = []
        drawn: list[Sampled] = []
        for step in steps[start : start + STEPS_PER_ROW]:
            if step.observation.tools is not tools:
                tools = step.observation.tools
                tools_ref, packed = pack_tools(tools)
                interned[tools_ref] = packed
            payload = to_stored_fields(step)
            payload["observation"] = {"messages": step.observation.messages, "tools": tools_ref}
            payloads.append(payload)
            if (sampled := step.sampled) is None:
                continue
            shared = _count_common_prefix(sampled.prompt_ids, before)
            payload["sampled"] = {
                "shared": shared,
                "sizes": (len(sampled.prompt_ids) - shared, len(sampled.ids), len(sampled.logprobs)),
                "versions": sampled.versions,
                "finish": sampled.finish,
            }
            new.append(sampled.prompt_ids[shared:])
            drawn.append(sampled)
            before = sampled
        rows += _rows(payloads, _list_beside(steps[start : start + STEPS_PER_ROW]), new, drawn)
    return rows, interned


def _list_beside(steps: Sequence[Step]) -> dict[str, list[Json]]:
    """Name -> [T] values of the fields in `BESIDE_STEPS`, as a row keeps them."""
    return {
        "reasoning": [step.reasoning for step in steps],
        "request_times": [encode_times(step.request_times) for step in steps],
        "model_usage": [step.model_usage for step in steps],
    }


def _rows(
    payloads: list[Json], beside: Mapping[str, list[Json]], new: list[tuple[int, ...]], drawn: list[Sampled]
) -> list[StepRow]:
    """One row, or several if one would be too long."""
    try:
        return [_row(payloads, beside, new, drawn)]
    except _LongRow:
        half = len(payloads) // 2
        sampled = sum("sampled" in payload and payload["sampled"] is not None for payload in payloads[:half])
        return [
            *_rows(payloads[:half], _cut_each(beside, 0, half), new[:sampled], drawn[:sampled]),
            *_rows(payloads[half:], _cut_each(beside, half, None), new[sampled:], drawn[sampled:]),
        ]


def _cut_each(beside: Mapping[str, list[Json]], start: int, end: int | None) -> dict[str, list[Json]]:
    return {name: values[start:end] for name, values in beside.items()}


class _LongRow(Exception):
    """A row of several steps is longer than `MAX_ROW_BYTES`."""


def _row(
    payloads: list[Json], all_beside: Mapping[str, list[Json]], new: list[tuple[int, ...]], drawn: list[Sampled]
) -> StepRow:
    beside: dict[str, Json] = {name: values for name, values in all_beside.items() if any(values)}
    if not drawn:
        return StepRow(payload=_pack_row({"steps": payloads, **beside}, len(payloads)))
    columns = {
        "prompt_ids": pack_int_column(new),
        "ids": pack_int_column([sampled.ids for sampled in drawn]),
        "logprobs": pack_float_column([sampled.logprobs for sampled in drawn]),
    }
    kinds = {name: kind for name, (kind, _) in columns.items()}
    return StepRow(
        payload=_pack_row({"steps": payloads, "kinds": kinds, **beside}, len(payloads)),
        **{name: data for name, (_, data) in columns.items()},
    )


def _pack_row(value: Json, steps: int) -> bytes:
    raw = dumps(value).encode("utf-8", "surrogatepass")
    if len(raw) > MAX_ROW_BYTES and steps > 1:
        raise _LongRow
    if len(raw) > MAX_JSON_BYTES:
        raise ValueError(f"a step of {len(raw):,} bytes of JSON; the most is {MAX_JSON_BYTES:,}")
    return zlib.compress(raw, 1) if len(raw) > _COMPRESS_ABOVE else raw


def decode_steps(
    rows: Iterable[StepRow],
    tools: Callable[[str], tuple[Tool, ...]],
    budget: ReadBudget | None = None,
    before: Sampled | None = None,
) -> tuple[Step, ...]:
    """The steps that `encode_steps` encoded; `tools` returns a tool list by its content address.

    Rows without their token columns give steps without `Step.sampled`. Raises ValueError, KeyError or TypeError for
    rows from elsewhere, and for more content than `budget` allows.
    """
    budget = budget or ReadBudget()
    steps: list[Step] = []
    context: tuple[int, ...] = () if before is None else before.prompt_ids + before.ids
    for row in rows:
        payload = require_table(unpack(row.payload, budget))
        if "steps" not in payload:
            payload = _upgrade_format_1(payload, row)
        prompts, ids, logprobs = _columns(payload, row)
        beside = (_read_beside(payload, name, None) for name in ("request_times", "model_usage"))
        reasonings = _read_beside(payload, "reasoning", "")
        for step, reasoning, times, usage in zip(payload["steps"], reasonings, *beside, strict=True):
            sampled = step.pop("sampled")
            step["reasoning"] = reasoning
            step["request_times"] = decode_times(times)
            step["model_usage"] = decode_model_usage(usage)
            if sampled is None or row.ids is None:
                steps.append(_step(step, None, tools))
                continue
            n_new, n_ids, n_logprobs = sampled["sizes"]
            shared = sampled["shared"]
            if not 0 <= shared <= len(context):
                raise ValueError(f"it shares {shared} tokens with a step that has {len(context)}")
            budget.spend_tokens(shared + n_new)
            record = build_record(
                Sampled,
                {
                    "prompt_ids": context[:shared] + tuple(islice(prompts, n_new)),
                    "ids": tuple(islice(ids, n_ids)),
                    "logprobs": tuple(islice(logprobs, n_logprobs)),
                    "versions": decode_versions(sampled["versions"]),
                    "finish": sampled["finish"],
                },
            )
            context = record.prompt_ids + record.ids
            steps.append(_step(step, record, tools))
    return tuple(steps)


def _read_beside(payload: Mapping[str, Json], name: str, default: Json) -> list[Json]:
    """[T] values that a row keeps beside its steps; `default` for each if none was recorded."""
    return require_list(payload.get(name) or [default] * len(payload["steps"]))


def _columns(payload: Mapping[str, Json], row: StepRow) -> tuple[Iterator[int], Iterator[int], Iterator[float]]:
    if row.prompt_ids is None or row.ids is None or row.logprobs is None:
        return iter(()), iter(()), iter(())
    kinds = payload["kinds"]
    for column in (row.prompt_ids, row.ids, row.logprobs):
        if not isinstance(column, bytes):
            raise TypeError(f"its tokens are a {type(column).__name__}, not bytes")
    return (
        iter(unpack_int_column(kinds["prompt_ids"], row.prompt_ids)),
        iter(unpack_int_column(kinds["ids"], row.ids)),
        iter(unpack_float_column(kinds["logprobs"], row.logprobs)),
    )


def _upgrade_format_1(step: dict[str, Json], row: StepRow) -> dict[str, Json]:
    """A row of format 1, which held one step, in the form of format 2: the sizes are those of its columns."""
    sampled = step["sampled"]
    if sampled is None or row.prompt_ids is None or row.ids is None or row.logprobs is None:
        return {"steps": [step]}
    kind = sampled["dtype"]
    width = int(kind[-1])
    sampled["sizes"] = (len(row.prompt_ids) // width, len(row.ids) // width, len(row.logprobs) // 8)
    return {"steps": [step], "kinds": {"prompt_ids": kind, "ids": kind, "logprobs": "<f8"}}


def _step(fields: dict[str, Json], sampled: Sampled | None, tools: Callable[[str], tuple[Tool, ...]]) -> Step:
    observation, action, results = fields.pop("observation"), fields.pop("action"), fields.pop("results")
    return build_record(
        Step,
        {
            **fields,
            "observation": Observation(
                messages=tuple(decode_message(message) for message in observation["messages"]),
                tools=tools(require_text(observation["tools"], "the name of its tools")),
            ),
            "action": decode_action(action),
            "results": decode_results(results),
            "user_acts": decode_acts(fields.get("user_acts", ())),
            "sampled": sampled,
        },
    )


def _count_common_prefix(prompt: tuple[int, ...], before: Sampled | None) -> int:
    """Number of leading tokens that the prompt shares with the previous step's context: mostly all of that context."""
    if before is None:
        return 0
    read, whole = len(before.prompt_ids), len(before.prompt_ids) + len(before.ids)
    if prompt[:read] == before.prompt_ids and prompt[read:whole] == before.ids:
        return whole
    context = before.prompt_ids + before.ids
    return next((n for n, (a, b) in enumerate(zip(prompt, context, strict=False)) if a != b), min(len(prompt), whole))
