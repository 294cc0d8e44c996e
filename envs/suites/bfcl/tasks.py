"""Task records from upstream's BFCL files. Code in these files is read with `ast`, never run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from gymcp.errors import UsageError
from gymcp.mcp_servers.programs.bfcl import STATELESS
from gymcp.types import EpisodeLimits, GoldTurn, Json, Task, ToolCall, ToolOffer

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
DONE = "Done."
UNABLE = "I cannot do this with what I have been given."


def read_tasks(private: Path, code: Path) -> list[Json]:
    """A row for each task: id, category, setup, prompts, gold, missed and excluded functions, steps_per_turn.

    `code` is the folder of upstream's classes: their signatures name the arguments that gold passes by position.
    """
    parameters = _parameters(code)
    constants = _constants(private / "default_prompts.py")
    tasks = []
    for category in CATEGORIES:
        questions = _lines(private / "questions" / f"{category}.json")
        golds = {row["id"]: row["ground_truth"] for row in _lines(private / "gold" / f"{category}.json")}
        for entry in questions:
            missed = entry.get("missed_function", {})
            tasks.append(
                {
                    "id": entry["id"],
                    "category": category,
                    "setup": {
                        "classes": entry["involved_classes"],
                        "config": {
                            name: entry["initial_config"][name]
                            for name in entry["involved_classes"]
                            if name in entry["initial_config"] and name not in STATELESS  # theirs repeats gold
                        },
                        "long_context": category == "long_context",
                    },
                    "prompts": [
                        constants["DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC"]
                        if str(turn) in missed
                        else _user_text(entry["id"], messages)
                        for turn, messages in enumerate(entry["question"])
                    ],
                    "gold": [[_call(text, parameters) for text in turn] for turn in golds[entry["id"]]],
                    "missed": missed,
                    "excluded": entry.get("excluded_function", []),
                    # upstream stops a turn after the step that follows its limit
                    "steps_per_turn": constants["MAXIMUM_STEP_LIMIT"] + 1,
                }
            )
    return tasks


def to_task(row: Json, *, withhold_excluded: bool) -> Task:
    turns = len(row["prompts"])
    return Task(
        id=row["id"],
        prompts=tuple(row["prompts"]),
        initial_state=row["setup"],
        target=row["target"],
        gold=tuple(_gold_turn(index, calls) for index, calls in enumerate(row["gold"])),
        last_necessary=row["last_necessary"] and tuple(row["last_necessary"]),
        offer=ToolOffer(withheld=_withheld(row, withhold_excluded)),
        limits=EpisodeLimits(steps=turns * row["steps_per_turn"], steps_per_turn=row["steps_per_turn"]),
        tags=(row["category"], *row["setup"]["classes"]),
    )


def _gold_turn(index: int, calls: Json) -> GoldTurn:
    return GoldTurn(
        calls=tuple(
            ToolCall(id=f"gold-{index}-{number}", name=call["name"], arguments=call["arguments"])
            for number, call in enumerate(calls)
        ),
        final_text=DONE if calls else UNABLE,
    )


def _withheld(row: Json, withhold_excluded: bool) -> tuple[frozenset[str], ...]:
    """The functions withheld in each turn.

    A function that the gold of a turn calls is on offer in it, though one task's gold calls what its prompt lacks.
    """
    always = set(row["excluded"]) if withhold_excluded else set()
    turns = []
    for index, calls in enumerate(row["gold"]):
        later = {name for turn, names in row["missed"].items() if int(turn) > index for name in names}
        turns.append(frozenset((always | later) - {call["name"] for call in calls}))
    return tuple(turns) if any(turns) else ()


def _user_text(task: str, messages: Json) -> str:
    if len(messages) != 1 or messages[0]["role"] != "user":
        raise UsageError(f"{task}: a turn is expected to be one message of the user; this is another version of BFCL")
    return str(messages[0]["content"])


def _call(text: str, parameters: dict[str, list[str]]) -> Json:
    """{"name": "f", "arguments": {"a": 1, "b": 2}} for ``f(1, b=2)``. Raises ValueError for anything but literals."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"not a call: {text}")
    by_name = [(keyword.arg, keyword.value) for keyword in call.keywords]
    arguments = [*zip(parameters[call.func.id], call.args, strict=False), *by_name]
    return {"name": call.func.id, "arguments": {name: ast.literal_eval(value) for name, value in arguments}}


def _parameters(code: Path) -> dict[str, list[str]]:
    """The parameters of each method in order, without ``self``."""
    parameters = {}
    for path in sorted(code.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                parameters[node.name] = [argument.arg for argument in node.args.args[1:]]
    return parameters


def _constants(path: Path) -> dict[str, Json]:
    """The constants of a module that are one literal each."""
    constants = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue  # computed from other constants
    return constants


def _lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
