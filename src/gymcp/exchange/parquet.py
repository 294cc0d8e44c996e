"""Write Parquet with the columns that trainers use: one row for every contiguous context of an episode.

An episode is one row if its context was never shortened, or if its policy gives no tokens; in the latter case the token
columns are null. A branch of a tree has rows of its own steps; those that it shares are in the prompt, so that each
token is trained once. This module needs the extra ``export``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
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
        "parent": pa.string(),
        "branch": pa.string(),
        "shared": pa.int64(),
        "actions": pa.list_(pa.int64()),
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
    """The rows of one episode, of a branch those with steps of its own; none if it has no step.

    An episode without a step of its own that others branched off has an empty row, which their trees need.
    """
    trajectory, shared_steps = episode.trajectory, episode.shared
    if len(trajectory.steps) <= shared_steps and not episode.has_branches:
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
        "parent": trajectory.parent,
        "branch": "" if episode.branch is None else episode.branch.branch,
        "shared": shared_steps,
    }
    texts = ("id", "data_source", "task", "uid", "branch")
    shared |= {name: replace_surrogates(shared[name]) for name in texts}
    shared["parent"] = None if trajectory.parent is None else replace_surrogates(trajectory.parent)
    if all(step.sampled is None for step in trajectory.steps[shared_steps:]):
        whole = [{"step": at, "start": None, "end": None} for at in range(shared_steps, len(trajectory.steps))]
        conversation = _conversation(episode, shared_steps, len(trajectory.steps))
        yield {**shared, "row": 0, **conversation, "steps": _steps(episode, whole)}
        return
    own = [row for row in rows_of(trajectory) if row.spans[-1][0] >= shared_steps]
    for number, row in enumerate(own):
        spans = [span for span in row.spans if span[0] >= shared_steps]
        conversation = _conversation(episode, spans[0][0], spans[-1][0] + 1)
        yield {**shared, "row": number, **conversation, **_tokens(episode, row, spans)}


def _conversation(episode: Episode, first: int, end: int) -> dict[str, Json]:
    """Messages of steps `first` to `end`; the prompt is the conversation before the first of their actions."""
    steps = episode.trajectory.steps[:end]
    prompt, completion = messages_of(steps, first)
    read = accumulate(len(step.observation.messages) for step in steps)
    actions = [messages + earlier for earlier, messages in enumerate(read)]
    return {"prompt": prompt, "completion": completion, "messages": prompt + completion, "actions": actions}


def _tokens(episode: Episode, row: Row, drawn: Sequence[tuple[int, int, int]]) -> dict[str, Json]:
    """Token columns: the prompt ends before the first token of `drawn`; positions count from there.

    `drawn`: spans of the tokens that were drawn in the episode's own steps.
    """
    begin = drawn[0][1]
    shared = sum(row.loss_mask[:begin])
    own = [span for span in row.steps if span[1] >= begin]
    spans = [{"step": step, "start": start - begin, "end": end - begin} for step, start, end in own]
    advantages = None
    if episode.advantages is not None:
        advantages = [0.0] * (len(row.token_ids) - begin)
        for step, start, end in drawn:
            advantages[start - begin : end - begin] = [episode.advantages[step] or 0.0] * (end - start)
    return {
        "prompt_ids": row.token_ids[:begin],
        "completion_ids": row.token_ids[begin:],
        "env_mask": [int(drawn) for drawn in row.loss_mask[begin:]],
        "logprobs": row.logprobs[begin:],
        "advantages": advantages,
        "policy_versions": [
            {"version": replace_surrogates(version), "start": max(start - shared, 0), "end": end - shared}
            for version, start, end in row.versions
            if end > shared
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
