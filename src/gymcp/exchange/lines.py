"""JSON lines: one whole episode a line, tokens included. Nothing of a trajectory is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymcp.errors import ConfigError
from gymcp.exchange.source import Episode
from gymcp.store.checked import made, number_of, text_of, whole_of
from gymcp.store.codec import decode_action, decode_acts, decode_message, decode_results, decode_versions, dumps
from gymcp.types import Json, Observation, Outcome, Sampled, Step, Tool, Trajectory, Usage

FORMAT = "gymcp-1"
NOT_OURS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, StopIteration)
"""What reading raises of a document whose parts are of other kinds than they should be."""


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
        kept = [tuple(made(Tool, tool) for tool in tools) for tools in found["tools"]]
        fields = dict(found["trajectory"])
        fields["steps"] = tuple(_step(step, kept) for step in fields["steps"])
        fields["outcome"] = Outcome(fields["outcome"])
        fields["usage"] = made(Usage, fields["usage"])
        tags = tuple(text_of(tag, "a tag") for tag in found["tags"])
        return made(Trajectory, fields), tags
    except NOT_OURS as error:
        raise ConfigError(f"{where}: is no episode of format {FORMAT}: {type(error).__name__}: {error}") from error


def _fields(record: Any) -> dict[str, Json]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _step(found: Mapping[str, Json], kept: list[tuple[Tool, ...]]) -> Step:
    fields = dict(found)
    observation, sampled = fields["observation"], fields["sampled"]
    place = whole_of(observation["tools"], "the number of its tools")
    if not 0 <= place < len(kept):
        raise ValueError(f"it names tools {place} of {len(kept)}")
    fields |= {
        "observation": Observation(messages=tuple(map(decode_message, observation["messages"])), tools=kept[place]),
        "action": decode_action(fields["action"]),
        "results": decode_results(fields["results"]),
        "user_acts": decode_acts(fields.get("user_acts", ())),
        "sampled": None if sampled is None else _sampled(sampled),
    }
    return made(Step, fields)


def _sampled(found: Mapping[str, Json]) -> Sampled:
    return made(
        Sampled,
        {
            "prompt_ids": tokens_of(found["prompt_ids"], "prompt_ids"),
            "ids": tokens_of(found["ids"], "ids"),
            "logprobs": logprobs_of(found["logprobs"]),
            "versions": decode_versions(found["versions"]),
            "finish": found["finish"],
        },
    )


def tokens_of(found: Json, name: str) -> tuple[int, ...]:
    """[L], from JSON. Raises TypeError for what are no tokens."""
    if not isinstance(found, list):
        raise TypeError(f"{name} are no list")
    return tuple(whole_of(each, name) for each in found)


def logprobs_of(found: Json) -> tuple[float, ...]:
    """[L], from JSON. Raises TypeError for what are no numbers."""
    if not isinstance(found, list):
        raise TypeError("logprobs are no list")
    return tuple(float(number_of(each, "a logprob")) for each in found)
