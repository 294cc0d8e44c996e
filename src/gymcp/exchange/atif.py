"""One episode as an ATIF document (Agent Trajectory Interchange Format, of Harbor), version 1.7.

An ATIF agent step holds an action and what it was answered; a step of ours what was seen before it, and the action. So
the messages that are no answers become steps of their own before the agent's. What ATIF has no field for goes to
``extra`` under the key ``gymcp``, which other readers pass over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymcp import __version__
from gymcp.exchange.conversation import Toolbox, clean_text, function_schema, plain
from gymcp.exchange.source import Episode
from gymcp.store import Run
from gymcp.store.checked import made
from gymcp.store.codec import decode_calls
from gymcp.types import Json, Message, Sampled, Step, ToolCall, ToolResult, Trajectory, Usage

VERSION = "ATIF-v1.7"
OURS = "gymcp"
"""Key of ``extra`` that is ours."""
EMPTY = "no step was taken"

_ROOT = (
    "env", "task", "group", "seed", "trial", "parent", "initial_key", "final_key", "final_state", "outcome", "score",
    "components", "reason", "usage", "provenance",
)  # fmt: skip
_STEP = ("turn", "reward", "state_key", "world_key", "state_ref", "valid", "agent_s", "user_acts")
_RESULT = ("is_error", "seconds", "bytes", "cost")


def to_atif(episode: Episode, run: Run) -> dict[str, Json]:
    """The document, valid under Harbor's own schema. Tokens, logprobs, rewards and state keys are in it."""
    trajectory = episode.trajectory
    box = Toolbox(trajectory.steps)
    model = next(iter(trajectory.usage.models), None)
    steps = [
        part
        for index, step in enumerate(trajectory.steps)
        for part in _parts(step, trajectory.steps[index - 1] if index else None, box, scripted=model is None)
    ] or [{"source": "system", "message": EMPTY}]
    if episode.advantages is not None:
        agents = [step for step in steps if "reward" in step.get("extra", {}).get(OURS, {})]
        for step, advantage in zip(agents, episode.advantages, strict=True):
            step["extra"][OURS]["advantage"] = advantage
    found: dict[str, Json] = {
        "schema_version": VERSION,
        "session_id": f"{run.folder.name} {run.created}",
        "trajectory_id": trajectory.id,
        "agent": {
            "name": str(run.config.get("agent", "unknown")),
            "version": str(run.versions.get("gymcp", __version__)),
            **({"model_name": model} if model else {}),
            "tool_definitions": [function_schema(tool) for tool in box.tools],
            "extra": {OURS: {"annotations": [tool.annotations for tool in box.tools], "config": run.config}},
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _final(trajectory.usage, len(steps)),
        "extra": {
            "reward": trajectory.score,
            OURS: {
                **{name: getattr(trajectory, name) for name in _ROOT},
                "tags": episode.row.tags,
                "grader": episode.row.grader,
            },
        },
    }
    cleaned: dict[str, Json] = plain(found)
    return cleaned


def _final(usage: Usage, steps: int) -> dict[str, Json]:
    priced = {"total_cost_usd": usage.cost} if usage.cost else {}
    tokens = {"total_prompt_tokens": usage.prompt_tokens, "total_completion_tokens": usage.completion_tokens}
    return {**tokens, **priced, "total_steps": steps}


def _parts(step: Step, before: Step | None, box: Toolbox, *, scripted: bool) -> list[dict[str, Json]]:
    """What was said to the agent since its last action, and the action with its results."""
    found: list[dict[str, Json]] = []
    seen: list[dict[str, Json]] = []
    answers = {result.call_id: result.content for result in before.results} if before else {}
    for message in step.observation.messages:
        note: dict[str, Json] = {"role": message.role}
        if message.role == "tool":
            note |= {"tool_call_id": message.tool_call_id, "is_error": message.is_error}
            if answers.get(message.tool_call_id or "") != message.content:  # cut short for the agent, say
                note["content"] = message.content
        elif message.role == "assistant":
            note["tool_calls"] = message.tool_calls
            found.append({"source": "agent", "message": message.content, "is_copied_context": True})
        else:
            found.append({"source": message.role, "message": message.content})
        seen.append(note)
    return [*found, _agent_step(step, seen, box, scripted=scripted)]


def _agent_step(step: Step, seen: list[dict[str, Json]], box: Toolbox, *, scripted: bool) -> dict[str, Json]:
    ours: dict[str, Json] = {name: getattr(step, name) for name in _STEP}
    ours |= {"observation": seen, "tools": box.offered(step)}
    found: dict[str, Json] = {"source": "agent", "message": step.action.text, "extra": {OURS: ours}}
    if step.sampled is not None:
        found |= {"metrics": _metrics(step.sampled), "llm_call_count": 1}
    elif scripted:
        found["llm_call_count"] = 0
    if step.action.tool_calls:
        found["tool_calls"] = [_call(call) for call in step.action.tool_calls]
    known = {call.id for call in step.action.tool_calls}
    if step.results:
        found["observation"] = {"results": [_result(result, known) for result in step.results]}
    return found


def _metrics(sampled: Sampled) -> dict[str, Json]:
    return {
        "prompt_tokens": len(sampled.prompt_ids),
        "completion_tokens": len(sampled.ids),
        "prompt_token_ids": sampled.prompt_ids,
        "completion_token_ids": sampled.ids,
        "logprobs": sampled.logprobs,
        "extra": {OURS: {"versions": sampled.versions, "finish": sampled.finish}},
    }


def _call(call: ToolCall) -> dict[str, Json]:
    found: dict[str, Json] = {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
    ours: dict[str, Json] = {"problem": call.problem} if call.problem else {}
    if isinstance(call.arguments, str):  # the schema wants an object
        found["arguments"] = {}
        ours["arguments"] = call.arguments
    return {**found, **({"extra": {OURS: ours}} if ours else {})}


def _result(result: ToolResult, known: set[str]) -> dict[str, Json]:
    ours: dict[str, Json] = {name: getattr(result, name) for name in _RESULT}
    if result.call_id in known:
        return {"source_call_id": result.call_id, "content": result.content, "extra": {OURS: ours}}
    return {"content": result.content, "extra": {OURS: {**ours, "call_id": result.call_id}}}


def name_of(trajectory: Trajectory, number: int) -> str:
    """A file name that sorts in the order of recording and is safe everywhere."""
    task = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in clean_text(trajectory.task))
    return f"{number:06d}-{task[:80]}-{trajectory.trial}.json"


def message_of_note(note: Mapping[str, Any], text: str) -> Message:
    """The message that `to_atif` has made a note of, with its text."""
    return made(
        Message,
        {
            "role": note["role"],
            "content": text,
            "tool_calls": decode_calls(note.get("tool_calls", ())),
            "tool_call_id": note.get("tool_call_id"),
            "is_error": note.get("is_error", False),
        },
    )
