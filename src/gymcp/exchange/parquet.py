"""Write Parquet with the columns that trainers use: one row for every contiguous context of an episode.

An episode is one row if its context was never shortened, or if its policy gives no tokens; in the latter case the token
columns are null. This module needs the extra ``export``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from gymcp.exchange.conversation import ToolIndex, function_schema, messages_of, replace_surrogates, to_plain_json
from gymcp.exchange.source import Episode
from gymcp.store.record_json import dumps
from gymcp.trainers.learner.token_rows import Row, rows_of
from gymcp.types import Json

ROWS_AT_A_TIME = 64
"""Rows in memory at a time; they form a row group of the file."""

_FUNCTION = pa.struct({"name": pa.string(), "arguments": pa.string()})
_CALL = pa.struct({"id": pa.string(), "type": pa.string(), "function": _FUNCTION})
_MESSAGES = pa.list_(
    pa.struct({"role": pa.string(), "content": pa.string(), "tool_calls": pa.list_(_CALL), "tool_call_id": pa.string()})
)
_SPANS = pa.list_(pa.struct({"version": pa.string(), "start": pa.int64(), "end": pa.int64()}))
_STEPS = pa.list_(
    pa.struct(
        {
            "step": pa.int64(),
            "start": pa.int64(),
            "end": pa.int64(),
            "reward": pa.float64(),
            "advantage": pa.float64(),
            "state_key": pa.string(),
            "valid": pa.bool_(),
        }
    )
)
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "row": pa.int64(),
        "data_source": pa.string(),
        "task": pa.string(),
        "trial": pa.int64(),
        "uid": pa.string(),
        "outcome": pa.string(),
        "reward": pa.float64(),
        "components": pa.string(),
        "tags": pa.list_(pa.string()),
        "prompt": _MESSAGES,
        "completion": _MESSAGES,
        "messages": _MESSAGES,
        "tools": pa.string(),
        "prompt_ids": pa.list_(pa.int64()),
        "completion_ids": pa.list_(pa.int64()),
        "env_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float64()),
        "advantages": pa.list_(pa.float64()),
        "policy_versions": _SPANS,
        "steps": _STEPS,
    }
)


def write_parquet(episodes: Iterable[Episode], file: BinaryIO) -> int:
    """Write the file while reading the episodes, and return the number of its rows."""
    rows = (row for episode in episodes for row in table_rows(episode))
    count = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        while batch := list(islice(rows, ROWS_AT_A_TIME)):
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
            count += len(batch)
    return count


def table_rows(episode: Episode) -> Iterator[dict[str, Json]]:
    """The rows of one episode; none if it has no step."""
    trajectory = episode.trajectory
    if not trajectory.steps:
        return
    tool_index = ToolIndex(trajectory.steps)
    shared: dict[str, Json] = {
        "id": trajectory.id,
        "data_source": trajectory.env,
        "task": trajectory.task,
        "trial": trajectory.trial,
        "uid": trajectory.group,
        "outcome": str(trajectory.outcome),
        "reward": trajectory.score,
        "components": dumps(to_plain_json(trajectory.components)),
        "tags": [replace_surrogates(tag) for tag in episode.row.tags],
        "tools": dumps(to_plain_json([function_schema(tool) for tool in tool_index.tools])),
    }
    shared |= {name: replace_surrogates(shared[name]) for name in ("id", "data_source", "task", "uid")}
    tokens = any(step.sampled is not None for step in trajectory.steps)
    if not tokens:
        whole = [{"step": index, "start": None, "end": None} for index in range(len(trajectory.steps))]
        yield {**shared, "row": 0, **_conversation(episode, 0, len(trajectory.steps)), "steps": _steps(episode, whole)}
        return
    for number, row in enumerate(rows_of(trajectory)):
        first, last = row.spans[0][0], row.spans[-1][0]
        yield {**shared, "row": number, **_conversation(episode, first, last + 1), **_tokens(episode, row)}


def _conversation(episode: Episode, first: int, end: int) -> dict[str, Json]:
    """Messages of steps `first` to `end`; the prompt is the conversation before the first of their actions."""
    prompt, completion = messages_of(episode.trajectory.steps[:end], first)
    return {"prompt": prompt, "completion": completion, "messages": prompt + completion}


def _tokens(episode: Episode, row: Row) -> dict[str, Json]:
    """Token columns: the prompt ends before the first token that was drawn; positions count from there."""
    begin = row.spans[0][1]
    spans = [{"step": step, "start": start - begin, "end": end - begin} for step, start, end in row.steps]
    advantages = None
    if episode.advantages is not None:
        advantages = [0.0] * (len(row.token_ids) - begin)
        for step, start, end in row.spans:
            advantages[start - begin : end - begin] = [episode.advantages[step]] * (end - start)
    return {
        "prompt_ids": row.token_ids[:begin],
        "completion_ids": row.token_ids[begin:],
        "env_mask": [int(drawn) for drawn in row.loss_mask[begin:]],
        "logprobs": row.logprobs[begin:],
        "advantages": advantages,
        "policy_versions": [
            {"version": replace_surrogates(version), "start": start, "end": end} for version, start, end in row.versions
        ],
        "steps": _steps(episode, spans),
    }


def _steps(episode: Episode, spans: list[dict[str, Json]]) -> list[dict[str, Json]]:
    steps = []
    for span in spans:
        step = episode.trajectory.steps[span["step"]]
        advantage = None if episode.advantages is None else episode.advantages[span["step"]]
        about = {"reward": step.reward, "state_key": replace_surrogates(step.state_key), "valid": step.valid}
        steps.append({**span, **about, "advantage": advantage})
    return steps
