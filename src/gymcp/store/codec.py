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
from gymcp.store.checked import made, text_of, whole_of
from gymcp.types import Action, Json, Message, Observation, Sampled, Step, Tool, ToolCall, ToolResult, UserToolCalls

STEPS_PER_ROW = 64
"""Encoded together, which is faster and smaller than each by itself; sqlite's limit for a row is 1 GB."""

MAX_JSON_BYTES = 128_000_000
"""Of one value, as JSON. A step of 64 calls, whose results fill what an agent is shown, has half of that."""
MAX_EPISODE_BYTES = 4 * MAX_JSON_BYTES
"""Size of all values of one episode, as JSON."""
MAX_ROW_BYTES = MAX_JSON_BYTES // 4
"""Of steps that are encoded together, as JSON; one that is longer is a row by itself."""
MAX_PROMPT_TOKENS = 100_000_000
"""Tokens of all prompts of one episode together: each step has its own in memory."""
_COMPRESS_ABOVE = 1024


class Room:
    """How much of an episode may still be read: a short file may stand for endless content."""

    def __init__(self) -> None:
        self._bytes = MAX_EPISODE_BYTES
        self._tokens = MAX_PROMPT_TOKENS

    def take(self, size: int) -> None:
        """Raises ValueError if an episode is longer than any that gymcp writes."""
        self._bytes -= size
        if self._bytes < 0:
            raise ValueError(f"the episode is longer than {MAX_EPISODE_BYTES:,} bytes")

    def take_prompt(self, tokens: int) -> None:
        """Raises ValueError if prompts have more tokens than any that gymcp writes."""
        self._tokens -= tokens
        if self._tokens < 0:
            raise ValueError(f"its prompts have more than {MAX_PROMPT_TOKENS:,} tokens")


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
    """JSON, compressed if it is long. zlib starts with ``x``, which no JSON does. Raises ValueError if too long."""
    raw = dumps(value).encode("utf-8", "surrogatepass")
    if len(raw) <= _COMPRESS_ABOVE:
        return raw
    if len(raw) > MAX_JSON_BYTES:
        raise ValueError(f"a value of {len(raw):,} bytes of JSON; the most is {MAX_JSON_BYTES:,}")
    return zlib.compress(raw, 1)


def unpack(data: bytes, room: Room | None = None) -> Json:
    """What `pack` was given. Raises ValueError, TypeError or RecursionError for what `pack` has not made.

    What it takes up is taken of `room`.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"a {type(data).__name__} where bytes should be")
    raw = _inflated(data) if data[:1] == b"x" else data
    if room is not None:
        room.take(len(raw))
    return json.loads(raw.decode("utf-8", "surrogatepass"))


def _inflated(data: bytes) -> bytes:
    """Raises ValueError for more than `MAX_JSON_BYTES`, without reading on."""
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
    """What `text` was given. Raises TypeError or ValueError for what it has not made."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} where a text should be")
    return value.decode("utf-8", "surrogatepass")


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


def unpack_tools(data: bytes, room: Room | None = None) -> tuple[Tool, ...]:
    """What `pack_tools` was given. Raises ValueError or TypeError for what it has not made."""
    return tuple(made(Tool, _object(fields)) for fields in _list(unpack(data, room)))


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
        rows += _rows(payloads, new, drawn)
    return rows, interned


def _rows(payloads: list[Json], new: list[tuple[int, ...]], drawn: list[Sampled]) -> list[StepRow]:
    """One row, or several if that would be too long."""
    try:
        return [_row(payloads, new, drawn)]
    except _LongRow:
        half = len(payloads) // 2
        sampled = sum("sampled" in payload and payload["sampled"] is not None for payload in payloads[:half])
        return [
            *_rows(payloads[:half], new[:sampled], drawn[:sampled]),
            *_rows(payloads[half:], new[sampled:], drawn[sampled:]),
        ]


class _LongRow(Exception):
    """A row of several steps is longer than `MAX_ROW_BYTES`."""


def _row(payloads: list[Json], new: list[tuple[int, ...]], drawn: list[Sampled]) -> StepRow:
    if not drawn:
        return StepRow(payload=_pack_row({"steps": payloads}, len(payloads)))
    columns = {
        "prompt_ids": pack_int_column(new),
        "ids": pack_int_column([sampled.ids for sampled in drawn]),
        "logprobs": pack_float_column([sampled.logprobs for sampled in drawn]),
    }
    kinds = {name: kind for name, (kind, _) in columns.items()}
    return StepRow(
        payload=_pack_row({"steps": payloads, "kinds": kinds}, len(payloads)),
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
    rows: Iterable[StepRow], tools: Callable[[str], tuple[Tool, ...]], room: Room | None = None
) -> tuple[Step, ...]:
    """What `encode_steps` was given; `tools` finds a tool list by its name.

    Rows without their token columns give steps without `Step.sampled`. Raises ValueError, KeyError or TypeError for
    what `encode_steps` has not made, and for more than `room` has.
    """
    room = room or Room()
    steps: list[Step] = []
    context: tuple[int, ...] = ()
    for row in rows:
        payload = _object(unpack(row.payload, room))
        if "steps" not in payload:
            payload = _of_format_1(payload, row)
        prompts, ids, logprobs = _columns(payload, row)
        for step in payload["steps"]:
            sampled = step.pop("sampled")
            if sampled is None or row.ids is None:
                steps.append(_step(step, None, tools))
                continue
            n_new, n_ids, n_logprobs = sampled["sizes"]
            shared = sampled["shared"]
            if not 0 <= shared <= len(context):
                raise ValueError(f"it shares {shared} tokens with a step that has {len(context)}")
            room.take_prompt(shared + n_new)
            record = made(
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


def _of_format_1(step: dict[str, Json], row: StepRow) -> dict[str, Json]:
    """A row of one step, whose sizes were those of its columns."""
    sampled = step["sampled"]
    if sampled is None or row.prompt_ids is None or row.ids is None or row.logprobs is None:
        return {"steps": [step]}
    kind = sampled["dtype"]
    width = int(kind[-1])
    sampled["sizes"] = (len(row.prompt_ids) // width, len(row.ids) // width, len(row.logprobs) // 8)
    return {"steps": [step], "kinds": {"prompt_ids": kind, "ids": kind, "logprobs": "<f8"}}


def decode_versions(spans: Iterable[Sequence[Json]]) -> tuple[tuple[str, int, int], ...]:
    """`Sampled.versions`, from its JSON. Raises ValueError or TypeError."""
    return tuple(
        (text_of(version, "a version"), whole_of(start, "its start"), whole_of(end, "its end"))
        for version, start, end in spans
    )


def _step(fields: dict[str, Json], sampled: Sampled | None, tools: Callable[[str], tuple[Tool, ...]]) -> Step:
    observation, action, results = fields.pop("observation"), fields.pop("action"), fields.pop("results")
    return made(
        Step,
        {
            **fields,
            "observation": Observation(
                messages=tuple(decode_message(message) for message in observation["messages"]),
                tools=tools(text_of(observation["tools"], "the name of its tools")),
            ),
            "action": decode_action(action),
            "results": decode_results(results),
            "user_acts": decode_acts(fields.get("user_acts", ())),
            "sampled": sampled,
        },
    )


def decode_action(found: Mapping[str, Json]) -> Action:
    """An action, from its JSON. Raises KeyError or TypeError."""
    return made(Action, {"text": found["text"], "tool_calls": decode_calls(found["tool_calls"])})


def decode_acts(acts: Iterable[Mapping[str, Json]]) -> tuple[UserToolCalls, ...]:
    """What a user did, from its JSON. Raises KeyError or TypeError."""
    return tuple(
        UserToolCalls(calls=decode_calls(act["calls"]), results=decode_results(act["results"])) for act in acts
    )


def decode_results(results: Iterable[Mapping[str, Json]]) -> tuple[ToolResult, ...]:
    """What calls gave, from its JSON. Raises TypeError."""
    return tuple(
        made(ToolResult, {**result, "made": made(ToolCall, _object(result["made"]))} if result.get("made") else result)
        for result in map(_object, results)
    )


def decode_calls(calls: Iterable[Mapping[str, Json]]) -> tuple[ToolCall, ...]:
    """Calls, from their JSON. Raises TypeError."""
    return tuple(made(ToolCall, _object(call)) for call in calls)


def decode_message(found: Mapping[str, Json]) -> Message:
    """A message, from its JSON. Raises KeyError or TypeError."""
    return made(Message, {**found, "tool_calls": decode_calls(found["tool_calls"])})


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} where a table should be")
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list should be")
    return value


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


def _shared_prefix(prompt: tuple[int, ...], before: Sampled | None) -> int:
    """How many tokens begin it that the step before ended with: mostly all of that step's."""
    if before is None:
        return 0
    read, whole = len(before.prompt_ids), len(before.prompt_ids) + len(before.ids)
    if prompt[:read] == before.prompt_ids and prompt[read:whole] == before.ids:
        return whole
    context = before.prompt_ids + before.ids
    return next((n for n, (a, b) in enumerate(zip(prompt, context, strict=False)) if a != b), min(len(prompt), whole))
