"""JSON lines: one whole episode per line, tokens included, without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymcp.errors import ConfigError
from gymcp.exchange.source import Episode
from gymcp.exchange.trees import BRANCH_KEY, encode_place
from gymcp.outcome import Outcome
from gymcp.store.record_json import (
    BESIDE_STEPS,
    add_side_answers,
    decode_action,
    decode_acts,
    decode_message,
    decode_model_usage,
    decode_results,
    decode_times,
    decode_versions,
    dumps,
    encode_side_answers,
    encode_times,
    require_list,
)
from gymcp.store.validation import build_record, require_integer, require_number, require_text
from gymcp.types import Json, Observation, Sampled, Step, Tool, Trajectory, Usage
from gymcp.visible_text import one_line

FORMAT = "gymcp-1"
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, StopIteration)
"""Errors from reading a document whose parts have the wrong types."""


def to_line(episode: Episode) -> str:
    """The line, in ASCII so that lone surrogates come back. A tool list is written once; steps hold its number."""
    tool_lists: list[tuple[Tool, ...]] = []
    numbers: dict[int, int] = {}
    steps = []
    for step in episode.trajectory.steps:
        tools = step.observation.tools
        if id(tools) not in numbers:
            numbers[id(tools)] = len(tool_lists)
            tool_lists.append(tools)
        steps.append(
            {**_field_values(step), "observation": {**_field_values(step.observation), "tools": numbers[id(tools)]}}
        )
    line: dict[str, Json] = {
        "format": FORMAT,
        "tags": episode.row.tags,
        "attempt": episode.row.attempt,
        "grader": episode.row.grader,
        "trajectory": {**_field_values(episode.trajectory), "steps": steps},
        "tools": tool_lists,
    }
    times = [encode_times(step.request_times) for step in episode.trajectory.steps]
    if any(times):
        line["request_times"] = times
    usages = [step.model_usage for step in episode.trajectory.steps]
    if any(usages):
        line["model_usage"] = usages
    if (side := encode_side_answers(episode.trajectory)) is not None:
        line["side_answers"] = side
    if episode.branch is not None:
        line[BRANCH_KEY] = encode_place(episode.branch)
    if episode.advantages is not None:
        line["advantages"] = list(episode.advantages)
    return dumps(line, ascii_only=True)


def from_line(found: Mapping[str, Json], where: str) -> tuple[Trajectory, tuple[str, ...]]:
    """The trajectory and its tags. Raises ConfigError for a line that `to_line` has not written."""
    if found.get("format") != FORMAT:
        raise ConfigError(f"{where}: is of format {found.get('format')!r}; this gymcp reads {FORMAT}")
    try:
        tool_lists = [tuple(build_record(Tool, tool) for tool in tools) for tools in found["tools"]]
        fields = dict(found["trajectory"])
        steps = [_read_step(step, tool_lists) for step in fields["steps"]]
        times, usages = (
            require_list(found.get(name) or [None] * len(steps)) for name in ("request_times", "model_usage")
        )
        fields["steps"] = tuple(
            replace(step, request_times=decode_times(time), model_usage=decode_model_usage(usage))
            for step, time, usage in zip(steps, times, usages, strict=True)
        )
        fields["outcome"] = Outcome(fields["outcome"])
        fields["usage"] = build_record(Usage, fields["usage"])
        tags = tuple(require_text(tag, "a tag") for tag in found["tags"])
        return add_side_answers(build_record(Trajectory, fields), found.get("side_answers")), tags
    except MALFORMED as error:
        raise ConfigError(
            f"{where}: is no episode of format {FORMAT}: {type(error).__name__}: {one_line(str(error))}"
        ) from error


def _field_values(record: Any) -> dict[str, Json]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__ if name not in BESIDE_STEPS}


def _read_step(found: Mapping[str, Json], tool_lists: list[tuple[Tool, ...]]) -> Step:
    fields = dict(found)
    observation, sampled = fields["observation"], fields["sampled"]
    place = require_integer(observation["tools"], "the number of its tools")
    if not 0 <= place < len(tool_lists):
        raise ValueError(f"it names tools {place} of {len(tool_lists)}")
    fields |= {
        "observation": Observation(
            messages=tuple(map(decode_message, observation["messages"])), tools=tool_lists[place]
        ),
        "action": decode_action(fields["action"]),
        "results": decode_results(fields["results"]),
        "user_acts": decode_acts(fields.get("user_acts", ())),
        "sampled": None if sampled is None else _read_sampled(sampled),
    }
    return build_record(Step, fields)


def _read_sampled(found: Mapping[str, Json]) -> Sampled:
    return build_record(
        Sampled,
        {
            "prompt_ids": read_tokens(found["prompt_ids"], "prompt_ids"),
            "ids": read_tokens(found["ids"], "ids"),
            "logprobs": read_logprobs(found["logprobs"]),
            "versions": decode_versions(found["versions"]),
            "finish": found["finish"],
        },
    )


def read_tokens(found: Json, name: str) -> tuple[int, ...]:
    """[L] token ids, from JSON. Raises TypeError for any other value."""
    if not isinstance(found, list):
        raise TypeError(f"{name} are no list")
    return tuple(require_integer(each, name) for each in found)


def read_logprobs(found: Json) -> tuple[float, ...]:
    """[L] logprobs, from JSON. Raises TypeError for any other value."""
    if not isinstance(found, list):
        raise TypeError("logprobs are no list")
    return tuple(float(require_number(each, "a logprob")) for each in found)
