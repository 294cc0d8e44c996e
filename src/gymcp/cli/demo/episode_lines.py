"""Episodes as lines for a terminal: one line for an episode, or a line for each message, call, result and change."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import islice

from gymcp.evaluators.json_diff import list_changes
from gymcp.evaluators.transcript import AnswerEvent, CallEvent, MessageEvent, ResultEvent, step_events
from gymcp.protocols import StateReader
from gymcp.types import Json, ToolCall, Trajectory
from gymcp.visible_text import one_line

MAX_CHANGES = 2
"""Changes of the world that are shown for each step."""
MAX_MESSAGE_LINES = 3
"""Lines of a message of the user that is shown."""
MAX_PARTS = 3
"""Last parts of a place in the world that are shown."""
_LABEL_WIDTH = 8
_ID_WIDTH = 30


def summarise_episode(trajectory: Trajectory, width: int) -> str:
    """The episode on one line: task, score, calls, and the reason if the score is not full."""
    names = [call.name for step in trajectory.steps for call in step.action.tool_calls]
    score = "no score" if trajectory.score is None else f"score {trajectory.score:g}"
    calls = f"{len(names)} call{'' if len(names) == 1 else 's'}"
    rest = ", ".join(names) if trajectory.success else trajectory.reason
    task = cut_line(one_line(trajectory.task), _ID_WIDTH)
    return cut_line(f"  {task:<{_ID_WIDTH}}  {score}  {calls:>8}  {one_line(rest)}", width)


def describe_episode(trajectory: Trajectory, read_state: StateReader, *, width: int, most: int) -> list[str]:
    """The episode as at most `most` lines of at most `width` characters, and a last one with the score.

    `read_state`: the recorded state of an address; a step whose states are not recorded has no line about the world.
    """
    lines = [line for label, text in _iter_lines(trajectory, read_state) for line in _lay_out(label, text, width)]
    hidden = len(lines) - most
    if hidden > 0:
        lines[most:] = [f"  {'':<{_LABEL_WIDTH}}... {hidden} more lines"]
    score = "none" if trajectory.score is None else f"{trajectory.score:g}"
    reason = "" if trajectory.success else f": {trajectory.reason}"
    return [cut_line(line, width) for line in [*lines, f"  {'score':<{_LABEL_WIDTH}}{score}{one_line(reason)}"]]


def _lay_out(label: str, text: str, width: int) -> list[str]:
    """The text beside its label: a message of the user on up to `MAX_MESSAGE_LINES` lines, any other text on one."""
    begin, indent = f"  {label:<{_LABEL_WIDTH}}", " " * (_LABEL_WIDTH + 2)
    if label != "user":
        return [begin + one_line(text)]
    return textwrap.wrap(
        one_line(text),
        max(width, len(begin) + 10),
        initial_indent=begin,
        subsequent_indent=indent,
        max_lines=MAX_MESSAGE_LINES,
        placeholder=" ...",
    ) or [begin]


def _iter_lines(trajectory: Trajectory, read_state: StateReader) -> Iterator[tuple[str, str]]:
    """(label, text) of each message, call, result and change."""
    before = trajectory.initial_key  # the first server's address, if servers declare their state
    for step in trajectory.steps:
        for event in step_events(step):
            if isinstance(event, MessageEvent):
                yield event.message.role, event.message.content
            elif isinstance(event, AnswerEvent) and event.text:
                yield "agent", event.text
            elif isinstance(event, CallEvent):
                yield "call", format_call(event.call)
            elif isinstance(event, ResultEvent):
                yield ("error" if event.result.is_error else "result"), event.result.content
        if step.state_ref is not None and step.state_ref != before:
            yield from (("world", text) for text in _iter_changes(read_state, before, step.state_ref))
            before = step.state_ref


def _iter_changes(read_state: StateReader, before: str, after: str) -> Iterator[str]:
    try:
        changes = list_changes(read_state(before), read_state(after))
    except KeyError:
        return
    for change in islice(changes["changes"], MAX_CHANGES):
        yield _format_change(change)
    if changes["count"] > MAX_CHANGES:
        yield f"and {changes['count'] - MAX_CHANGES} more changes"


def _format_change(change: Mapping[str, Json]) -> str:
    parts = change["path"]
    path = ".".join(parts if len(parts) <= MAX_PARTS else ["..", *parts[-MAX_PARTS:]])
    if change["kind"] == "added":
        return f"{path} + {change['after']}"
    if change["kind"] == "removed":
        return f"{path} - {change['before']}"
    return f"{path}: {change['before']} -> {change['after']}"


def format_call(call: ToolCall) -> str:
    """The call as code: ``cd(folder="document")``."""
    if isinstance(call.arguments, str):
        return f"{call.name}({call.arguments})"
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join(pairs)})"


def cut_line(line: str, width: int) -> str:
    """The line, or its beginning and dots in `width` characters."""
    return line if len(line) <= width else f"{line[: max(0, width - 3)]}..."
