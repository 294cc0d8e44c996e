"""Write an episode as an ATIF document (Harbor's Agent Trajectory Interchange Format), version 1.7.

An agent step in ATIF holds an action and its results; a step of gymcp holds the messages seen before the action, and
the action. Messages that are not results therefore become steps of their own before the agent's step. Fields that ATIF
lacks go to ``extra`` under the key ``gymcp``, which other readers ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymcp import __version__
from gymcp.exchange.conversation import ToolIndex, function_schema, replace_surrogates, to_plain_json
from gymcp.exchange.source import Episode
from gymcp.exchange.trees import BRANCH_KEY, encode_place
from gymcp.store import Run
from gymcp.store.record_json import STORED_NAMES, decode_calls, encode_side_answers, encode_times
from gymcp.store.validation import build_record
from gymcp.types import Json, Message, Sampled, Step, ToolCall, ToolResult, Trajectory, Usage

VERSION = "ATIF-v1.7"
GYMCP_KEY = "gymcp"
"""Key of gymcp's own fields in ``extra``."""
SIDE_ANSWERS_KEY = "gymcp_side_answers"
"""Key of the side answers in ``extra``: earlier versions refuse a field that they do not know under `GYMCP_KEY`."""
ATIF_BRANCH_KEY = f"gymcp_{BRANCH_KEY}"
"""Key of a branch's place in ``extra``."""
NO_STEP_MESSAGE = "no step was taken"

_ROOT = (
    "env", "task", "group", "seed", "trial", "parent", "initial_key", "final_key", "final_state", "outcome", "score",
    "components", "reason", "usage", "provenance",
)  # fmt: skip
_STEP = ("turn", "reward", "state_key", "world_key", "state_ref", "valid", "agent_s", "user_acts")
RESULT_FIELDS = {name: STORED_NAMES.get(name, name) for name in ("is_error", "seconds", "content_bytes", "cost")}
"""Fields of a `ToolResult` that ATIF lacks, with their names in documents."""


def to_atif(episode: Episode, run: Run) -> dict[str, Json]:
    """The document, valid under Harbor's own schema, with tokens, logprobs, rewards and state keys."""
    trajectory = episode.trajectory
    tool_index = ToolIndex(trajectory.steps)
    model = next(iter(trajectory.usage.models), None)
    side = encode_side_answers(trajectory)
    steps = [
        part
        for index, step in enumerate(trajectory.steps)
        for part in _mark_copied(
            _step_documents(step, trajectory.steps[index - 1] if index else None, tool_index, scripted=model is None),
            index < episode.shared,
        )
    ] or [{"source": "system", "message": NO_STEP_MESSAGE}]
    if episode.advantages is not None:
        agents = [step for step in steps if "reward" in step.get("extra", {}).get(GYMCP_KEY, {})]
        for step, advantage in zip(agents, episode.advantages, strict=True):
            if advantage is not None:
                step["extra"][GYMCP_KEY]["advantage"] = advantage
    document: dict[str, Json] = {
        "schema_version": VERSION,
        "session_id": f"{run.folder.name} {run.created}",
        "trajectory_id": trajectory.id,
        "agent": {
            "name": str(run.config.get("agent", "unknown")),
            "version": str(run.versions.get("gymcp", __version__)),
            **({"model_name": model} if model else {}),
            "tool_definitions": [function_schema(tool) for tool in tool_index.tools],
            "extra": {
                GYMCP_KEY: {"annotations": [tool.annotations for tool in tool_index.tools], "config": run.config}
            },
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _final_metrics(trajectory.usage, len(steps)),
        "extra": {
            "reward": trajectory.score,
            GYMCP_KEY: {
                **{name: getattr(trajectory, name) for name in _ROOT},
                "tags": episode.row.tags,
                "grader": episode.row.grader,
            },
            **({SIDE_ANSWERS_KEY: side} if side is not None else {}),
            **({ATIF_BRANCH_KEY: encode_place(episode.branch)} if episode.branch is not None else {}),
        },
    }
    cleaned: dict[str, Json] = to_plain_json(document)
    return cleaned


def _mark_copied(documents: list[dict[str, Json]], is_shared: bool) -> list[dict[str, Json]]:
    """The document steps; those that a branch shares are marked as copied, so that no reader counts them twice."""
    return [{**each, "is_copied_context": True} for each in documents] if is_shared else documents


def _final_metrics(usage: Usage, steps: int) -> dict[str, Json]:
    priced = {"total_cost_usd": usage.cost} if usage.cost else {}
    tokens = {"total_prompt_tokens": usage.prompt_tokens, "total_completion_tokens": usage.completion_tokens}
    return {**tokens, **priced, "total_steps": steps}


def _step_documents(step: Step, before: Step | None, tool_index: ToolIndex, *, scripted: bool) -> list[dict[str, Json]]:
    """Document steps for the messages to the agent since its last action, and for the action with its results."""
    documents: list[dict[str, Json]] = []
    seen: list[dict[str, Json]] = []
    answers = {result.call_id: result.content for result in before.results} if before else {}
    for message in step.observation.messages:
        note: dict[str, Json] = {"role": message.role}
        if message.role == "tool":
            note |= {"tool_call_id": message.tool_call_id, "is_error": message.is_error}
            if answers.get(message.tool_call_id or "") != message.content:  # for example cut for the agent
                note["content"] = message.content
        elif message.role == "assistant":
            note["tool_calls"] = message.tool_calls
            documents.append({"source": "agent", "message": message.content, "is_copied_context": True})
        else:
            documents.append({"source": message.role, "message": message.content})
        seen.append(note)
    return [*documents, _agent_step(step, seen, tool_index, scripted=scripted)]


def _agent_step(step: Step, seen: list[dict[str, Json]], tool_index: ToolIndex, *, scripted: bool) -> dict[str, Json]:
    ours: dict[str, Json] = {name: getattr(step, name) for name in _STEP}
    ours |= {"observation": seen, "tools": tool_index.tool_numbers(step)}
    document: dict[str, Json] = {"source": "agent", "message": step.action.text, "extra": {GYMCP_KEY: ours}}
    if metrics := _encode_metrics(step):
        document["metrics"] = metrics
    if step.sampled is not None:
        document["llm_call_count"] = 1
    elif scripted:
        document["llm_call_count"] = 0
    if step.action.tool_calls:
        document["tool_calls"] = [_encode_call(call) for call in step.action.tool_calls]
    known = {call.id for call in step.action.tool_calls}
    if step.results:
        document["observation"] = {"results": [_encode_result(result, known) for result in step.results]}
    return document


def _encode_metrics(step: Step) -> dict[str, Json]:
    """Tokens of the step, times of its request and use of the model, for which ATIF has no fields of its own."""
    metrics = _encode_sampled(step.sampled) if step.sampled is not None else {}
    more = {"request_times": encode_times(step.request_times), "model_usage": step.model_usage}
    if known := {name: value for name, value in more.items() if value is not None}:
        ours = metrics.get("extra", {}).get(GYMCP_KEY, {})
        metrics["extra"] = {GYMCP_KEY: {**ours, **known}}
    return metrics


def _encode_sampled(sampled: Sampled) -> dict[str, Json]:
    return {
        "prompt_tokens": len(sampled.prompt_ids),
        "completion_tokens": len(sampled.ids),
        "prompt_token_ids": sampled.prompt_ids,
        "completion_token_ids": sampled.ids,
        "logprobs": sampled.logprobs,
        "extra": {GYMCP_KEY: {"versions": sampled.versions, "finish": sampled.finish}},
    }


def _encode_call(call: ToolCall) -> dict[str, Json]:
    document: dict[str, Json] = {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
    ours: dict[str, Json] = {"problem": call.parse_error} if call.parse_error else {}
    if isinstance(call.arguments, str):  # the schema wants an object
        document["arguments"] = {}
        ours["arguments"] = call.arguments
    return {**document, **({"extra": {GYMCP_KEY: ours}} if ours else {})}


def _encode_result(result: ToolResult, known: set[str]) -> dict[str, Json]:
    ours: dict[str, Json] = {key: getattr(result, name) for name, key in RESULT_FIELDS.items()}
    if result.call_id in known:
        return {"source_call_id": result.call_id, "content": result.content, "extra": {GYMCP_KEY: ours}}
    return {"content": result.content, "extra": {GYMCP_KEY: {**ours, "call_id": result.call_id}}}


def file_name(trajectory: Trajectory, number: int) -> str:
    """File name of a document: it sorts in the order of recording and is safe on every file system."""
    task = "".join(
        c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in replace_surrogates(trajectory.task)
    )
    return f"{number:06d}-{task[:80]}-{trajectory.trial}.json"


def decode_note(note: Mapping[str, Any], text: str) -> Message:
    """The message that `to_atif` has written as a note, with its text."""
    return build_record(
        Message,
        {
            "role": note["role"],
            "content": text,
            "tool_calls": decode_calls(note.get("tool_calls", ())),
            "tool_call_id": note.get("tool_call_id"),
            "is_error": note.get("is_error", False),
        },
    )
