"""BFCL multi-turn's verdict from the record alone, equal to that of upstream's `multi_turn_checker`.

A user turn passes if its gold is empty, or if three things hold: the agent called a tool in it, the public state of
every world equals the gold's, and each gold response of the turn is among all responses so far, as often as the gold
has it. An episode passes if all turns pass and none is missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gymcp.errors import GraderError
from gymcp.evaluators.json_diff import ABSENT, Difference, DiffRule, differences
from gymcp.protocols import StateReader
from gymcp.types import Json, Score, Task, Trajectory

MAX_INLINE_CHARS = 2000
"""Most characters of a value that a target holds; for a longer value it holds the digest."""
DIGEST = "$sha256"
_PYTHON_RULE = DiffRule(lists="whole", nan_equals_nan=False, true_equals_one=True, missing_keys_first=True)
"""Rule by which upstream compares states: values are equal if Python finds them equal."""
_TAGS = re.compile(r"\.\$(?:directory|file)\[1\]|\$number:")
"""Parts of a path that only serve the JSON encoding and say nothing to a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """Record of one user turn."""

    acted: bool
    """True if the agent called at least one tool with readable arguments."""
    responses: tuple[str, ...]
    state: Json
    """Public state after the turn: class -> attribute -> value; None if the turn is not graded."""


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Score 1 if upstream's checker says valid, else 0.

    Components: ``turns_passed``, the share of graded turns that pass; ``did_not_act``, the share of turns with empty
    gold in which the agent rightly called nothing (only if there are such turns). Raises GraderError if the record
    lacks a state.
    """
    return judge(task.target, _play_turns(task.target, trajectory, states))


def judge(target: Json, played: Sequence[PlayedTurn]) -> Score:
    """Verdict on the turns that were played, in order; with fewer turns than the target's, the episode broke off."""
    turns: Sequence[Json] = target["turns"]
    responses: Counter[str] = Counter()
    faults: list[str] = []
    graded = passed = 0
    for number, turn in enumerate(turns, start=1):
        fault = "the episode ended before it"
        if number <= len(played):
            responses.update(played[number - 1].responses)
            fault = _fault(turn, played[number - 1], responses) if turn is not None else ""
        graded += turn is not None
        passed += turn is not None and not fault
        if fault:
            faults.append(f"turn {number} of {len(turns)}: {fault}")
    components = {"turns_passed": passed / graded if graded else 1.0}
    silent = [index for index, turn in enumerate(turns) if turn is None]
    if silent:
        components["did_not_act"] = sum(i < len(played) and not played[i].acted for i in silent) / len(silent)
    return Score(value=0.0 if faults else 1.0, components=components, reason=faults[0] if faults else "")


def make_target(turns: Sequence[PlayedTurn | None]) -> Json:
    """The target of gold turns as they were played; None is a turn with empty gold."""
    return {
        "turns": [
            turn
            and {
                "responses": list(turn.responses),
                "state": {
                    name: {key: _shorten(value) for key, value in attributes.items()}
                    for name, attributes in turn.state.items()
                },
            }
            for turn in turns
        ]
    }


def _fault(turn: Json, played: PlayedTurn, so_far: Counter[str]) -> str:
    """Reason why the turn does not pass; empty if it does."""
    if not played.acted:
        return "no tool was called"
    for name, attributes in turn["state"].items():
        for key, expected in attributes.items():
            value = (played.state.get(name) or {}).get(key, {"$missing": True})
            if not _equal(value, expected):
                return _difference(value, expected, f"{name}.{key}")
    missing = Counter(turn["responses"]) - so_far
    if missing:
        return f"no call has answered {_brief(next(iter(missing)))}"
    return ""


def _play_turns(target: Json, trajectory: Trajectory, states: StateReader) -> list[PlayedTurn]:
    reached = max((step.turn for step in trajectory.steps), default=-1) + 1
    turns = []
    for index, expected in enumerate(target["turns"][:reached]):
        steps = [step for step in trajectory.steps if step.turn == index]
        calls = [call for step in steps for call in step.action.tool_calls]
        acted = any(_is_readable(call.arguments) for call in calls)
        state = None
        if acted and expected is not None:
            ref = steps[-1].state_ref
            if ref is None:
                raise GraderError(f"trajectory {trajectory.id}: turn {index + 1} has no recorded state")
            try:
                state = states(ref)["public"]
            except KeyError as error:
                raise GraderError(f"trajectory {trajectory.id}: state {ref} is not in the store") from error
        responses = tuple(result.content for step in steps for result in step.results)
        turns.append(PlayedTurn(acted=acted, responses=responses, state=state))
    return turns


def _is_readable(arguments: Mapping[str, Json] | str) -> bool:
    """False for arguments that upstream cannot decode: it skips such a call as if it had not been made."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
    return isinstance(arguments, Mapping)


def _shorten(value: Json) -> Json:
    text = _canonical(value)
    if len(text) <= MAX_INLINE_CHARS:
        return value
    return {DIGEST: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()}


def _equal(found: Json, expected: Json) -> bool:
    if isinstance(expected, dict) and DIGEST in expected:
        return bool(_shorten(found) == expected)
    return bool(found == expected)


def _canonical(value: Json) -> str:
    """One text for all values that Python finds equal: 1 == 1.0 == True, in any order of keys."""
    return json.dumps(_normalise_numbers(value), sort_keys=True)


def _normalise_numbers(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _normalise_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_normalise_numbers(inner) for inner in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _difference(found: Json, expected: Json, place: str) -> str:
    """First difference of the two values, in words."""
    if isinstance(expected, dict) and DIGEST in expected:
        difference = Difference((), expected, found)
    else:
        difference = next(differences(expected, found, _PYTHON_RULE))
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in difference.path)
    place = _TAGS.sub("", f"{place}{''.join(steps)}")
    if difference.right is ABSENT:
        return f"{place} is missing"
    if difference.left is ABSENT:
        return f"{place} should not be there"
    return f"{place} differs: expected {_brief(difference.left)}, found {_brief(difference.right)}"


def _brief(value: Json) -> str:
    if isinstance(value, dict) and DIGEST in value:
        return "another long value"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:120] + "…"
