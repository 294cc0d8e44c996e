"""Read the Parquet that `export` writes as episodes again: what its columns carry, which is less than a record.

This module needs the extra ``export``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gymcp.errors import ConfigError
from gymcp.exchange.json_lines import MALFORMED, read_logprobs, read_tokens
from gymcp.exchange.trees import Imported, add_place
from gymcp.outcome import Outcome
from gymcp.store.validation import build_record, require_integer, require_text
from gymcp.types import Action, Json, Message, Observation, Sampled, Step, Tool, ToolCall, ToolResult, Trajectory
from gymcp.visible_text import one_line

ROWS_AT_A_TIME = 64
NEEDED = ("actions", "shared", "branch", "parent")
"""Columns that earlier versions did not write."""
PARQUET_KEY = "parquet"
"""Key of a trajectory's provenance that says that it was made of rows for training."""

Row = Mapping[str, Json]


def read_parquet(file: Path) -> Iterator[Imported]:
    """The episodes of the file, in its order; a branch with the steps of its parent before its own.

    Raises ConfigError for a file that `export` has not written, and OSError if it cannot be read.
    """
    where = f"import {file}"
    try:
        with pq.ParquetFile(file) as table:
            if missing := [name for name in NEEDED if name not in table.schema_arrow.names]:
                raise ConfigError(
                    f"{where}: has no column {missing[0]!r}: written by an earlier gymcp, or by another program; export"
                    " the run again, or import jsonl or atif"
                )
            paths: dict[str, Trajectory] = {}
            for id, rows in groupby(_read_rows(table), key=itemgetter("id")):
                found = _read_episode(list(rows), paths, where)
                if not found.branch:
                    paths = {}
                paths[id] = found.trajectory
                yield found
    except pa.ArrowException as error:
        raise ConfigError(f"{where}: is not Parquet: {one_line(str(error))[:200]}") from error


def _read_rows(table: pq.ParquetFile) -> Iterator[Row]:
    for batch in table.iter_batches(ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def _read_episode(rows: Sequence[Row], paths: Mapping[str, Trajectory], where: str) -> Imported:
    """The episode of these rows. `paths`: those of its tree that were read before, by id."""
    who = f"{where}: episode {str(rows[0]['id'])[:60]!r}"
    try:
        return _build_episode(rows, paths)
    except MALFORMED as error:
        raise ConfigError(
            f"{who}: is not as gymcp writes it: {type(error).__name__}: {one_line(str(error))}"
        ) from error


def _build_episode(rows: Sequence[Row], paths: Mapping[str, Trajectory]) -> Imported:
    head = max(rows, key=lambda row: len(row["actions"]))  # its conversation holds those of the others
    shared = require_integer(head["shared"], "shared")
    steps = _read_steps(head)
    if head["branch"]:
        parent = paths.get(head["parent"] or "")
        if parent is None or not 0 <= shared <= min(len(parent.steps), len(steps)):
            raise ValueError(f"it goes on from step {shared} of an episode that is not before it")
        steps[:shared] = [replace(step, reward=0.0) if step.reward else step for step in parent.steps[:shared]]
    for row in rows:
        for place in row["steps"] or ():
            at = require_integer(place["step"], "step")
            if not shared <= at < len(steps):
                raise ValueError(f"it tells of step {at}, and has {len(steps)}, the first {shared} of another episode")
            facts = {name: place[name] for name in ("reward", "state_key", "valid")}
            steps[at] = replace(steps[at], **facts, sampled=_read_sampled(row, place))
    fields = {
        "id": head["id"],
        "env": head["data_source"],
        "task": head["task"],
        "trial": head["trial"],
        "group": head["uid"],
        "parent": head["parent"],
        "steps": tuple(steps),
        "outcome": Outcome(head["outcome"]),
        "score": head["reward"],
        "components": json.loads(head["components"]),
        "provenance": {PARQUET_KEY: {"rows": len(rows)}},
    }
    tags = tuple(require_text(tag, "a tag") for tag in head["tags"] or ())
    place = {"place": head["branch"], "shared": shared} if head["branch"] else None
    return add_place(build_record(Trajectory, fields), tags, place)


def _read_steps(row: Row) -> list[Step]:
    """The steps of a row's conversation, without what is known of single steps."""
    messages = [_read_message(message) for message in row["messages"]]
    tools = tuple(_read_tool(described["function"]) for described in json.loads(row["tools"]))
    steps: list[Step] = []
    before, users = -1, 0
    for place in row["actions"]:
        if not before < place < len(messages) or messages[place].role != "assistant":
            raise ValueError(f"message {place} is no action")
        read, made = tuple(messages[before + 1 : place]), messages[place]
        if steps:
            steps[-1] = replace(steps[-1], results=_find_results(steps[-1].action.tool_calls, read))
        users += sum(message.role == "user" for message in read)
        steps.append(
            Step(
                turn=max(0, users - 1),
                observation=Observation(messages=read, tools=tools),
                action=Action(text=made.content, tool_calls=made.tool_calls),
            )
        )
        before = place
    return steps


def _find_results(calls: Iterable[ToolCall], read: Sequence[Message]) -> tuple[ToolResult, ...]:
    """Results of the calls, as the agent read them."""
    said = {message.tool_call_id: message.content for message in read if message.role == "tool"}
    return tuple(ToolResult(call_id=call.id, content=said[call.id]) for call in calls if call.id in said)


def _read_message(found: Row) -> Message:
    calls = tuple(_read_call(call) for call in found["tool_calls"] or ())
    fields = {name: found[name] for name in ("role", "content", "tool_call_id")}
    return build_record(Message, {**fields, "tool_calls": calls})


def _read_call(found: Row) -> ToolCall:
    text = require_text(found["function"]["arguments"], "arguments")
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = text
    fields = {"id": found["id"], "name": found["function"]["name"]}
    return build_record(ToolCall, {**fields, "arguments": arguments if isinstance(arguments, dict) else text})


def _read_tool(function: Row) -> Tool:
    described = {"name": function["name"], "description": function["description"]}
    return build_record(Tool, {**described, "input_schema": function["parameters"]})


def _read_sampled(row: Row, place: Row) -> Sampled | None:
    """Tokens of a step; None if the row has none."""
    if place["start"] is None:
        return None
    ids, mask = read_tokens(row["completion_ids"], "completion_ids"), row["env_mask"]
    start, end = (require_integer(place[name], name) for name in ("start", "end"))
    if not 0 <= start <= end <= len(ids) or len(mask) != len(ids):
        raise ValueError(f"a step has the tokens {start} to {end} of {len(ids)}")
    drawn = sum(mask[:start])  # versions count drawn tokens alone
    versions = tuple(
        (span["version"], max(span["start"] - drawn, 0), min(span["end"] - drawn, end - start))
        for span in row["policy_versions"]
        if span["end"] > drawn and span["start"] < drawn + end - start
    )
    return Sampled(
        prompt_ids=(*read_tokens(row["prompt_ids"], "prompt_ids"), *ids[:start]),
        ids=ids[start:end],
        logprobs=read_logprobs(row["logprobs"])[start:end],
        versions=versions,
    )
