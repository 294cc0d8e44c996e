"""Read ATIF documents, of gymcp and of other programs, as trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymcp.errors import ConfigError
from gymcp.exchange.atif import GYMCP_KEY, RESULT_FIELDS, SIDE_ANSWERS_KEY, decode_note
from gymcp.exchange.json_lines import MALFORMED, read_logprobs, read_tokens
from gymcp.outcome import Outcome
from gymcp.store.record_json import (
    add_side_answers,
    decode_acts,
    decode_model_usage,
    decode_times,
    decode_versions,
)
from gymcp.store.validation import build_record, require_integer, require_number, require_text
from gymcp.types import Action, Json, Message, Observation, Sampled, Step, Tool, ToolCall, ToolResult, Trajectory, Usage
from gymcp.visible_text import one_line

NEWEST = (1, 8)
"""Newest known version of the format; later versions 1.x only add fields."""


def from_atif(document: Mapping[str, Json], where: str) -> tuple[Trajectory, tuple[str, ...]]:
    """The trajectory and its task's tags. Raises ConfigError if it is not ATIF, or of another major version.

    A document of another program has the outcome ``scored`` without a score, unless ``extra`` holds a number in [0, 1]
    named ``reward``. Fields that a trajectory lacks are left out, as docs/exchange.md lists.
    """
    _check_version(document, where)
    try:
        if GYMCP_KEY in (document.get("extra") or {}):
            return _read_own(document)
        return _read_other(document), ()
    except MALFORMED as error:
        raise ConfigError(
            f"{where}: is not the ATIF that it says: {type(error).__name__}: {one_line(str(error))}"
        ) from error


def _check_version(document: Mapping[str, Json], where: str) -> None:
    version = document.get("schema_version")
    if not isinstance(version, str) or not version.startswith("ATIF-v"):
        raise ConfigError(f"{where}: is no ATIF document: its schema_version is {version!r}")
    if not version.removeprefix("ATIF-v").startswith(f"{NEWEST[0]}."):
        raise ConfigError(f"{where}: is {version}; this gymcp reads ATIF-v1.0 to ATIF-v{NEWEST[0]}.{NEWEST[1]}")
    if not isinstance(document.get("steps"), list) or not isinstance(document.get("agent"), dict):
        raise ConfigError(f"{where}: is no ATIF document: it has no steps, or no agent")


def _read_own(document: Mapping[str, Json]) -> tuple[Trajectory, tuple[str, ...]]:
    fields = dict(document["extra"][GYMCP_KEY])
    tags = tuple(require_text(tag, "a tag") for tag in fields.pop("tags"))
    fields.pop("grader")
    tools = _read_tools(document["agent"])
    steps: list[Step] = []
    texts: list[str] = []
    for part in document["steps"]:
        ours = (part.get("extra") or {}).get(GYMCP_KEY)
        if ours is None:
            texts.append(part["message"])
        else:
            steps.append(_read_own_step(part, ours, iter(texts), steps[-1] if steps else None, tools))
            texts = []
    fields["outcome"] = Outcome(fields["outcome"])
    fields["usage"] = build_record(Usage, fields["usage"])
    record = build_record(Trajectory, {**fields, "id": document["trajectory_id"], "steps": tuple(steps)})
    return add_side_answers(record, document["extra"].get(SIDE_ANSWERS_KEY)), tags


def _read_own_step(
    part: Mapping[str, Json], ours: Mapping[str, Json], said: Iterator[str], before: Step | None, tools: Sequence[Tool]
) -> Step:
    fields = {key: value for key, value in ours.items() if key != "advantage"}
    answers = {result.call_id: result.content for result in before.results} if before else {}
    messages = []
    for note in fields.pop("observation"):
        text = note.get("content", answers.get(note["tool_call_id"] or "")) if note["role"] == "tool" else next(said)
        messages.append(decode_note(note, text))
    offered = tuple(tools[require_integer(place, "the place of a tool")] for place in fields.pop("tools"))
    if before is not None and before.observation.tools == offered:
        offered = before.observation.tools
    return build_record(
        Step,
        {
            **fields,
            "observation": Observation(messages=tuple(messages), tools=offered),
            "action": build_record(Action, {"text": part["message"], "tool_calls": _read_calls(part)}),
            "results": tuple(
                _read_result(result, (result.get("extra") or {}).get(GYMCP_KEY, {})) for result in _list_results(part)
            ),
            "user_acts": decode_acts(fields.pop("user_acts", ())),
            "sampled": _read_sampled(part),
            "request_times": decode_times(_read_own_metrics(part).get("request_times")),
            "model_usage": decode_model_usage(_read_own_metrics(part).get("model_usage")),
        },
    )


def _read_tools(agent: Mapping[str, Json]) -> list[Tool]:
    annotations = ((agent.get("extra") or {}).get(GYMCP_KEY) or {}).get("annotations") or []
    tools = []
    for place, described in enumerate(agent.get("tool_definitions") or []):
        function = described.get("function", described)
        tools.append(
            build_record(
                Tool,
                {
                    "name": function["name"],
                    "description": function.get("description") or "",
                    "input_schema": function.get("parameters") or {},
                    "annotations": annotations[place] if place < len(annotations) else {},
                },
            )
        )
    return tools


def _read_calls(part: Mapping[str, Json]) -> tuple[ToolCall, ...]:
    calls = []
    for call in part.get("tool_calls") or ():
        ours = (call.get("extra") or {}).get(GYMCP_KEY) or {}
        arguments = ours.get("arguments", call["arguments"])
        calls.append(
            build_record(
                ToolCall,
                {
                    "id": call["tool_call_id"],
                    "name": call["function_name"],
                    "arguments": arguments,
                    "parse_error": ours.get("problem", ""),
                },
            )
        )
    return tuple(calls)


def _list_results(part: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return list((part.get("observation") or {}).get("results") or ())


def _read_result(result: Mapping[str, Json], ours: Mapping[str, Json]) -> ToolResult:
    numbers = {name: ours[key] for name, key in RESULT_FIELDS.items() if key in ours}
    call_id = result.get("source_call_id")
    named = ours.get("call_id", "") if call_id is None else call_id
    return build_record(ToolResult, {"call_id": named, "content": _read_text(result.get("content")), **numbers})


def _read_own_metrics(part: Mapping[str, Json]) -> Mapping[str, Json]:
    return ((part.get("metrics") or {}).get("extra") or {}).get(GYMCP_KEY) or {}


def _read_sampled(part: Mapping[str, Json]) -> Sampled | None:
    """Tokens of a step; None if prompt, tokens or logprobs are missing, because training needs all three."""
    metrics = part.get("metrics") or {}
    prompt, ids, logprobs = (metrics.get(key) for key in ("prompt_token_ids", "completion_token_ids", "logprobs"))
    if prompt is None or ids is None or logprobs is None:
        return None
    ours = _read_own_metrics(part)
    return build_record(
        Sampled,
        {
            "prompt_ids": read_tokens(prompt, "prompt_token_ids"),
            "ids": read_tokens(ids, "completion_token_ids"),
            "logprobs": read_logprobs(logprobs),
            "versions": decode_versions(ours.get("versions", ())),
            "finish": ours.get("finish", "stop"),
        },
    )


def _read_other(document: Mapping[str, Json]) -> Trajectory:
    tools = tuple(_read_tools(document["agent"]))
    steps: list[Step] = []
    waiting: list[Message] = []
    reasoning: dict[str, Json] = {}
    users = 0
    for part in document["steps"]:
        text = _read_text(part["message"])
        if part["source"] != "agent":
            waiting.append(build_record(Message, {"role": part["source"], "content": text}))
            if part.get("observation"):
                waiting += [
                    Message(role="system", content=_read_text(each.get("content"))) for each in _list_results(part)
                ]
            continue
        users += sum(message.role == "user" for message in waiting)
        results = tuple(_read_result(result, {}) for result in _list_results(part))
        steps.append(
            Step(
                turn=max(0, users - 1),
                observation=Observation(messages=tuple(waiting), tools=tools),
                action=Action(text=text, tool_calls=_read_calls(part)),
                results=results,
                sampled=_read_sampled(part),
            )
        )
        if part.get("reasoning_content"):
            reasoning[str(len(steps) - 1)] = require_text(part["reasoning_content"], "reasoning_content")
        waiting = [Message(role="tool", content=r.content, tool_call_id=r.call_id or None) for r in results]
    name = require_text(document["agent"]["name"], "the agent's name")
    return Trajectory(
        id=str(document.get("trajectory_id") or document.get("session_id") or ""),
        env=name,
        task=str(document.get("session_id") or document.get("trajectory_id") or ""),
        steps=tuple(steps),
        outcome=Outcome.SCORED,
        score=_read_score((document.get("extra") or {}).get("reward")),
        usage=_read_usage(document, steps),
        provenance={
            "atif": {
                "schema_version": document["schema_version"],
                "agent": {key: value for key, value in document["agent"].items() if key != "tool_definitions"},
                "notes": document.get("notes"),
                "reasoning": reasoning,
            }
        },
    )


def _read_score(reward: Json) -> float | None:
    known = isinstance(reward, int | float) and not isinstance(reward, bool) and 0 <= reward <= 1
    return float(reward) if known else None


def _read_usage(document: Mapping[str, Any], steps: Sequence[Step]) -> Usage:
    totals = document.get("final_metrics") or {}
    prompt, completion = totals.get("total_prompt_tokens") or 0, totals.get("total_completion_tokens") or 0
    cost = float(require_number(totals.get("total_cost_usd") or 0.0, "total_cost_usd"))
    model = document["agent"].get("model_name")
    spent = {"prompt_tokens": prompt, "completion_tokens": completion, "cost": cost}
    fields = {
        "tool_calls": sum(len(step.action.tool_calls) for step in steps),
        **spent,
        "models": {require_text(model, "model_name"): {"requests": len(steps), **spent}} if model else {},
    }
    return build_record(Usage, fields)


def _read_text(content: Json) -> str:
    """Text of a message; in place of a part that is no text, its type and path in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(
        require_text(part["text"], "a part's text")
        if part["type"] == "text"
        else f"[{part['type']}: {part['source']['path']}]"
        for part in content
    )
