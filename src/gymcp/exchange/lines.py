"""JSON lines: one whole episode a line, tokens included. Nothing of a trajectory is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymcp.errors import ConfigError
from gymcp.exchange.source import Episode
from gymcp.store.codec import decode_acts, decode_results, dumps
from gymcp.types import (
    Action,
    Json,
    Message,
    Observation,
    Outcome,
    Sampled,
    Step,
    Tool,
    ToolCall,
    Trajectory,
    Usage,
)

FORMAT = "gymcp-1"


def to_line(episode: Episode) -> str:
    """ASCII, so that lone surrogates come back; tools are named once and then by their number."""
    kept: list[tuple[Tool, ...]] = []
    numbers: dict[int, int] = {}
    steps = []
    for step in episode.trajectory.steps:
        tools = step.observation.tools
        if id(tools) not in numbers:
            numbers[id(tools)] = len(kept)
            kept.append(tools)
        steps.append({**_fields(step), "observation": {**_fields(step.observation), "tools": numbers[id(tools)]}})
    line: dict[str, Json] = {
        "format": FORMAT,
        "tags": episode.row.tags,
        "attempt": episode.row.attempt,
        "grader": episode.row.grader,
        "trajectory": {**_fields(episode.trajectory), "steps": steps},
        "tools": kept,
    }
    if episode.advantages is not None:
        line["advantages"] = list(episode.advantages)
    return dumps(line, ascii_only=True)


def from_line(found: Mapping[str, Json], where: str) -> tuple[Trajectory, tuple[str, ...]]:
    """The trajectory and its tags. Raises ConfigError for what `to_line` has not written."""
    if found.get("format") != FORMAT:
        raise ConfigError(f"{where}: is of format {found.get('format')!r}; this gymcp reads {FORMAT}")
    try:
        kept = [tuple(Tool(**tool) for tool in tools) for tools in found["tools"]]
        fields = dict(found["trajectory"])
        fields["steps"] = tuple(_step(step, kept) for step in fields["steps"])
        fields["outcome"] = Outcome(fields["outcome"])
        fields["usage"] = Usage(**fields["usage"])
        return Trajectory(**fields), tuple(found["tags"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"{where}: is no episode of format {FORMAT}: {type(error).__name__}: {error}") from error


def _fields(record: Any) -> dict[str, Json]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _step(found: Mapping[str, Json], kept: list[tuple[Tool, ...]]) -> Step:
    fields = dict(found)
    observation, action, sampled = fields.pop("observation"), fields.pop("action"), fields.pop("sampled")
    results = decode_results(fields.pop("results"))
    return Step(
        observation=Observation(
            messages=tuple(replace(Message(**each), tool_calls=_calls(each)) for each in observation["messages"]),
            tools=kept[observation["tools"]],
        ),
        action=Action(text=action["text"], tool_calls=_calls(action)),
        results=results,
        user_acts=decode_acts(fields.pop("user_acts", ())),
        sampled=None if sampled is None else _sampled(sampled),
        **fields,
    )


def _calls(found: Mapping[str, Json]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(**call) for call in found["tool_calls"])


def _sampled(found: Mapping[str, Json]) -> Sampled:
    return Sampled(
        prompt_ids=tuple(found["prompt_ids"]),
        ids=tuple(found["ids"]),
        logprobs=tuple(found["logprobs"]),
        versions=tuple((version, start, end) for version, start, end in found["versions"]),
        finish=found["finish"],
    )
