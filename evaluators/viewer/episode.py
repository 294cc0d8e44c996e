"""Episodes for the page: plain JSON of bounded size, whatever the record holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from gymcp.errors import StoreError
from gymcp.evaluators.json_diff import list_changes, shorten_value
from gymcp.evaluators.viewer.divergence import compare_episodes
from gymcp.evaluators.viewer.runs import NotFound, OpenedRun, Runs
from gymcp.evaluators.viewer.trees.path_credits import credits_on_path
from gymcp.store import StepCredit
from gymcp.types import Json, Sampled, Step, ToolCall, ToolResult, Trajectory

MAX_TEXT_CHARS = 6_000
"""Most characters of one text; the page can ask for more of it."""
MAX_WHOLE_CHARS = 100_000
"""Most characters of one text that was asked for: a browser takes seconds to lay out a million."""
MAX_STEPS = 400
MAX_TOKENS = 2_000
"""Most sampled tokens of one step."""
MAX_SIDE_ANSWERS = 200
"""Most answers of an episode that are shown beside its steps."""
MAX_SIBLINGS = 64
"""Most episodes of a group that are searched for shared anchors."""

Decode = Callable[[Sequence[int]], list[str]]
"""Function from token ids to the text of each."""


def find(runs: Runs, n: int) -> tuple[OpenedRun, str]:
    """The run and the id of an episode. Raises NotFound."""
    if (place := runs.index.locate(n)) is None:
        raise NotFound(f"no episode {n}")
    return runs.opened[place[0]], place[1]


def load(opened: OpenedRun, id: str, *, tokens: bool = False) -> Trajectory:
    """The recorded episode with its newest grade. Raises NotFound if it cannot be read."""
    try:
        return opened.store.load(id, tokens=tokens, graded=not opened.damaged)
    except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotFound(f"this episode cannot be read: {error}") from error


def episode_object(runs: Runs, n: int, decode: Decode | None) -> dict[str, Json]:
    """As much of an episode as fits on a page. Raises NotFound."""
    opened, id = find(runs, n)
    record = load(opened, id, tokens=True)
    credits = credits_on_path(runs, opened, n, id)
    tree = runs.index.tree(n)
    anchors, siblings = _anchors(runs, opened, n, record)
    return {
        "n": n,
        "run": opened.number,
        "id": record.id,
        "task": record.task,
        "trial": record.trial,
        "group": record.group,
        "seed": str(record.seed),
        "parent": record.parent,
        **next(({"branch": leaf.branch, "shared": leaf.shared} for leaf in tree if leaf.n == n), {}),
        "leaves": len(tree),
        "outcome": str(record.outcome),
        "score": record.score,
        "reason": cut_text(record.reason),
        "components": dict(record.components),
        "usage": {**asdict(record.usage), "harness_s": record.usage.harness_s},
        "provenance": shorten_value(dict(record.provenance)) if record.provenance else "",
        "siblings": siblings,
        "counterpart": runs.index.counterpart(n) if len(runs.opened) > 1 else None,
        "credits": [_credit(credit) for credit in credits],
        "length": len(record.steps),
        "steps": [
            {**step_object(opened, record, at, decode), "anchor": anchors[at]}
            for at in range(min(len(record.steps), MAX_STEPS))
        ],
        "side_answers": side_answer_objects(record, decode),
    }


def side_answer_objects(record: Trajectory, decode: Decode | None) -> dict[str, Json]:
    """Answers of the model that are no step: how many of each kind, and the first of them."""
    own = set(map(id, record.own_side_answers))
    shown = [
        {
            "step": answer.step,
            "context": answer.context,
            "kind": "replaced" if answer.replaced else "agent" if id(answer) in own else "side call",
            "asked": answer.asked[:MAX_TEXT_CHARS],
            "text": answer.action.text[:MAX_TEXT_CHARS],
            "calls": [_call(call) for call in answer.action.tool_calls],
            "tokens": _tokens(answer.sampled, decode) if answer.sampled else None,
        }
        for answer in record.side_answers[:MAX_SIDE_ANSWERS]
    ]
    return {"agent": len(own), "side": len(record.side_answers) - len(own), "shown": shown}


def step_object(opened: OpenedRun, record: Trajectory, at: int, decode: Decode | None) -> dict[str, Json]:
    """One step, with the changes that it made."""
    step = record.steps[at]
    return {
        "at": at,
        "turn": step.turn,
        "context": step.context,
        "messages": [
            {"role": message.role, "is_error": message.is_error, "text": cut_text(message.content)}
            for message in step.observation.messages
        ],
        "reasoning": cut_text(step.reasoning),
        "text": cut_text(step.action.text),
        "calls": [_call(call) for call in step.action.tool_calls],
        "results": [_result(result) for result in step.results],
        "user": [
            {"call": _call(call), "result": _result(result)}
            for act in step.user_acts
            for call, result in zip(act.calls, act.results, strict=True)
        ],
        "reward": step.reward,
        "valid": step.valid,
        "agent_s": step.agent_s,
        "request": None if step.request_times is None else asdict(step.request_times),
        "tool_s": sum(result.seconds for result in step.results),
        "state_key": step.state_key,
        "world_key": step.world_key,
        "state": describe_changes(opened, record, at, at + 1),
        "tokens": _tokens(step.sampled, decode) if step.sampled else None,
    }


def _call(call: ToolCall) -> dict[str, Json]:
    return {"name": call.name, "arguments": cut_text(format_arguments(call.arguments)), "problem": call.parse_error}


def _result(result: ToolResult) -> dict[str, Json]:
    numbers = {"seconds": result.seconds, "bytes": result.content_bytes, "cost": result.cost}
    return {"text": cut_text(result.content), "is_error": result.is_error, **numbers}


def cut_text(text: str) -> Json:
    """The text, or its beginning and its length."""
    return text if len(text) <= MAX_TEXT_CHARS else {"text": text[:MAX_TEXT_CHARS], "length": len(text)}


def format_arguments(arguments: Json) -> str:
    """The arguments as JSON, or the raw text that a model wrote instead."""
    return (
        arguments
        if isinstance(arguments, str)
        else json.dumps(dict(arguments), ensure_ascii=False, indent=2, default=str)
    )


def whole_text(runs: Runs, n: int, at: int, part: str, item: int) -> str:
    """A text of a step that was cut, from its beginning. Raises NotFound."""
    opened, id = find(runs, n)
    record = load(opened, id)
    for key, text in _texts(record, (at,)):
        if key == (at, part, item):
            return _whole(text)
    raise NotFound(f"episode {n} has no {part} {item} in step {at}")


def cut_texts(record: Trajectory) -> dict[str, Json]:
    """The texts that the episode's page shows only the beginning of, by ``STEP-PART-ITEM``."""
    steps_shown = range(min(len(record.steps), MAX_STEPS))
    return {
        f"{at}-{part}-{item}": _whole(text)
        for (at, part, item), text in _texts(record, steps_shown)
        if len(text) > MAX_TEXT_CHARS
    }


def _texts(record: Trajectory, places: Sequence[int]) -> Iterator[tuple[tuple[int, str, int], str]]:
    """((step, part, item), text) of the reason, and of every text of these steps that a page can ask for."""
    yield (0, "reason", 0), record.reason
    for at in places:
        if not 0 <= at < len(record.steps):
            continue
        step = record.steps[at]
        for item, message in enumerate(step.observation.messages):
            yield (at, "message", item), message.content
        yield (at, "text", 0), step.action.text
        yield (at, "reasoning", 0), step.reasoning
        for item, call in enumerate(step.action.tool_calls):
            yield (at, "call", item), format_arguments(call.arguments)
        for item, result in enumerate(step.results):
            yield (at, "result", item), result.content


def _whole(text: str) -> str:
    return (
        text
        if len(text) <= MAX_WHOLE_CHARS
        else f"{text[:MAX_WHOLE_CHARS]}\n… {len(text) - MAX_WHOLE_CHARS:,} more are in the store"
    )


def anchor_objects(runs: Runs, n: int, places: Sequence[int]) -> dict[int, list[dict[str, Json]]]:
    """For each of these steps, the steps of the group that were taken in the same state, itself first.

    Raises NotFound.
    """
    opened, id = find(runs, n)
    record = load(opened, id)
    if missing := [at for at in places if not 0 <= at < len(record.steps)]:
        raise NotFound(f"episode {n} has no step {missing[0]}")
    wanted = {record.steps[at].state_key for at in places}
    steps: dict[str, list[dict[str, Json]]] = {key: [] for key in wanted}
    for other, other_id, trial, score in runs.index.siblings(n, MAX_SIBLINGS):
        member = record if other_id == id else load(opened, other_id)
        credits = credits_on_path(runs, opened, other, other_id)
        for place, step in enumerate(member.steps):
            if step.state_key in wanted:
                about = {"n": other, "at": place, "trial": trial, "score": score, "credits": _credit_at(credits, place)}
                steps[step.state_key].append({**_step_summary(step), **about})
    return {
        at: sorted(
            steps[record.steps[at].state_key],
            key=lambda each: (each["n"] != n or each["at"] != at, each["trial"], each["at"]),
        )
        for at in places
    }


def _credit_at(credits: Sequence[StepCredit], place: int) -> list[dict[str, Json]]:
    return [
        {"preset": credit.preset, "return": credit.returns[place], "advantage": credit.advantages[place]}
        for credit in credits
        if place < len(credit.advantages)  # without a score, the last steps have none
    ]


def comparison_object(runs: Runs, n: int, other: int, decode: Decode | None) -> dict[str, Json]:
    """Two episodes and their first divergence. Raises NotFound."""
    one, another = (load(*find(runs, each)) for each in (n, other))
    return {
        "a": episode_object(runs, n, decode),
        "b": episode_object(runs, other, decode),
        **compare_episodes(one, another, MAX_STEPS),
    }


def _step_summary(step: Step) -> dict[str, Json]:
    return {
        "text": cut_text(step.action.text),
        "calls": [
            {"name": call.name, "arguments": cut_text(format_arguments(call.arguments))}
            for call in step.action.tool_calls
        ],
        "results": [{"text": cut_text(result.content), "is_error": result.is_error} for result in step.results],
    }


def describe_changes(opened: OpenedRun, record: Trajectory, start: int, end: int) -> Json:
    """Changes that steps `start` to `end` made in the world, or the reason why they are unknown.

    None without steps, and if no state is recorded.
    """
    if end <= start:
        return None
    step = record.steps[end - 1]
    before_key = record.steps[start - 1].world_key if start else record.initial_key
    if step.state_ref is None:
        return None if step.world_key == before_key else {"unknown": "the world changed; its servers tell no state"}
    if step.world_key == before_key:
        return {"count": 0, "changes": []}
    # the record has no address of the first state; if the servers declare their state, its digest is the address
    before_ref = record.steps[start - 1].state_ref if start else record.initial_key
    try:
        return list_changes(opened.store.state(before_ref or ""), opened.store.state(step.state_ref))
    except (KeyError, StoreError):
        return {"unknown": "the world changed; the state before or after is not recorded"}
    except RecursionError:
        return {"unknown": "the world changed; its states are too deeply nested to compare"}


def _tokens(sampled: Sampled, decode: Decode | None) -> Json:
    ids = sampled.ids[:MAX_TOKENS]
    return {
        "prompt": len(sampled.prompt_ids),
        "drawn": len(sampled.ids),
        "finish": sampled.finish,
        "ids": ids,
        "logprobs": sampled.logprobs[:MAX_TOKENS],
        "texts": decode(ids) if decode else None,
        "versions": sampled.versions,
    }


def _credit(credit: StepCredit) -> Json:
    return {
        "preset": credit.preset,
        "options": dict(credit.options),
        "assigned_at": credit.assigned_at,
        "rewards": credit.rewards[:MAX_STEPS],
        "returns": credit.returns[:MAX_STEPS],
        "advantages": credit.advantages[:MAX_STEPS],
    }


def _anchors(runs: Runs, opened: OpenedRun, n: int, record: Trajectory) -> tuple[list[Json], list[Json]]:
    """Number of steps and of episodes of the group in the state of each step; and the group."""
    siblings = runs.index.siblings(n, MAX_SIBLINGS)
    steps: dict[str, int] = {}
    episodes: dict[str, set[int]] = {}
    for other, id, _, _ in siblings:
        try:
            member = record if other == n else load(opened, id)
        except NotFound:
            continue
        for step in member.steps:
            steps[step.state_key] = steps.get(step.state_key, 0) + 1
            episodes.setdefault(step.state_key, set()).add(other)
    anchors = [
        {"steps": steps[step.state_key], "episodes": len(episodes[step.state_key])} if step.state_key else None
        for step in record.steps
    ]
    group = [{"n": other, "trial": trial, "score": score} for other, _, trial, score in siblings]
    return anchors, sorted(group, key=lambda each: each["trial"])
