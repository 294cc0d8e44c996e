"""tau2's own graders over recorded states, and its telecom tasks as JSON: upstream's code, in a sandbox of its own."""

from __future__ import annotations

import functools
import gzip
import importlib
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.programs.judge_main import run_judge
from gymcp.mcp_servers.programs.tau2.server import call, declare, make_environment, rebuild, stand_in, tools, upstream

Json = Any
TAU2 = "inspect_evals.tau2"


def main() -> None:
    _prepare()
    run_judge(_suite, _judge)


def _prepare() -> None:
    for name in ("toml", "yaml"):  # for files that are not read here
        sys.modules[name] = types.ModuleType(name)
    stand_in()
    vars(sys.modules["inspect_ai.model"]).update(ChatMessageAssistant=ToolCallMessage, ChatMessageUser=TextMessage)
    vars(sys.modules["inspect_ai.scorer"]).update(Score=Verdict)


class ToolCallMessage:
    """Replaces the framework's message with a tool call."""

    def __init__(self, name: str, arguments: Json) -> None:
        self.tool_calls = [types.SimpleNamespace(function=name, arguments=arguments)]


class TextMessage:
    """Replaces the framework's message with a text of the agent to the user."""

    def __init__(self, content: str) -> None:
        self.content = content


class Verdict:
    """Replaces the framework's score."""

    def __init__(self, value: str, explanation: str | None = None) -> None:
        self.value, self.explanation = value, explanation

    @property
    def in_short(self) -> str:
        return (self.explanation or "no reason given").splitlines()[0]


# Judging


def _judge(question: Json) -> Json:
    """{"task", "state", "agent_calls", "user_calls", "said"} -> {"reward", "parts", "why"}.

    `state` is the state that the server declared. `parts` has the results of all of upstream's checks; the reward is
    the product of those in the task's reward basis.
    """
    environment = rebuild(question["state"])
    declared, state = declare(environment), question["state"]
    if (declared["agent"], declared["user"]["db"]) != (state["agent"], state["user"]["db"]):
        raise ValueError("the recorded state is not one of upstream's worlds")
    return _reward(question["task"], environment, question["agent_calls"], question["user_calls"], question["said"])


def _reward(
    task: str, environment: Any, agent_calls: Sequence[Json], user_calls: Sequence[Json], said: Sequence[str]
) -> Json:
    common, telecom = (importlib.import_module(f"{TAU2}.{name}.scorer") for name in ("common", "telecom"))
    state = types.SimpleNamespace(
        metadata={"instance": "agent", "task": _tasks()[task]},
        messages=[*(ToolCallMessage(**user_call) for user_call in user_calls), *map(TextMessage, said)],
    )
    agent = types.SimpleNamespace(messages=[ToolCallMessage(**agent_call) for agent_call in agent_calls])
    verdicts = {  # the databases last: their check creates another environment for the gold calls
        "ENV_ASSERTION": _run_scorer(telecom.env_assertions(), state),
        "ACTION": _run_scorer(common.evaluate_required_actions(get_agent_state=lambda instance: agent), state),
        "COMMUNICATE": _run_scorer(common.score_communicated_info(), state),
        "DB": Verdict("CORRECT" if _hashes(environment) == _gold_hashes(task) else "INCORRECT", "other databases"),
    }
    parts = {name: float(verdict.value == "CORRECT") for name, verdict in verdicts.items()}
    basis = _tasks()[task]["evaluation_criteria"]["reward_basis"]
    reward = float(all(parts[name] for name in basis))
    why = "; ".join(f"{name}: {verdicts[name].in_short}" for name in basis if not parts[name])
    return {"reward": reward, "parts": parts, "why": why}


def _run_scorer(scorer: Callable[..., Any], state: Any) -> Verdict:
    """The verdict of one of upstream's scorers, a coroutine that never waits. One that raises says no."""
    try:
        scorer(state, None).send(None)
    except StopIteration as done:
        verdict: Verdict = done.value
        return verdict
    except Exception as error:  # a check may look for what the agent has changed
        return Verdict("INCORRECT", f"upstream's check raised {type(error).__name__}: {error}")
    raise RuntimeError("a scorer of upstream's waits for something")


def _hashes(environment: Any) -> list[str]:
    """Upstream's hashes of the agent's and the user's database."""
    return [environment.tools.db.get_hash(), environment.user_tools.db.get_hash()]


@functools.cache
def _gold_hashes(task: str) -> list[str]:
    """Hashes of a fresh environment after the gold calls; it replaces the one that upstream's scorers look at."""
    return _hashes(_run_actions(task, _tasks()[task]["evaluation_criteria"]["actions"]))


# Tasks


@functools.cache
def _tasks() -> dict[str, Json]:
    """Upstream's tasks by id."""
    with gzip.open(_data() / "tasks.json.gz", "rt", encoding="utf-8") as file:
        return {task["id"]: task for task in json.load(file)}


def _data() -> Path:
    path: Path = importlib.import_module(f"{TAU2}.utils").TAU2_DATA_DIR
    return path / "domains" / "telecom"


def _suite() -> Json:
    """{"tasks", "texts", "guidelines", "user_tools"}: the material of the tasks and their prompts."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in _data().glob("*.txt")}
    splits = json.loads((_data() / "split_tasks.json").read_text(encoding="utf-8"))
    members = {name: frozenset(ids) for name, ids in splits.items()}
    rows = [_row(task, [name for name in sorted(members) if task["id"] in members[name]]) for task in _tasks().values()]
    guidelines = importlib.import_module(f"{TAU2}.utils").USER_SIMULATOR_GUIDELINES_WITH_TOOLS
    user_tools = [make.__name__ for make in upstream("user_tools").all_telecom_user_tools]
    return {"tasks": rows, "texts": texts, "guidelines": guidelines, "user_tools": user_tools}


def _row(task: Json, splits: Sequence[str]) -> Json:
    gold = task["evaluation_criteria"]["actions"]
    shorter = ((number, [*gold[:number], *gold[number + 1 :]]) for number in reversed(range(len(gold))))
    model = importlib.import_module(f"{TAU2}.data_model.tasks").Task.model_validate(task)
    return {
        "id": task["id"],
        "splits": splits,
        "ticket": task["ticket"],
        "scenario": str(model.user_scenario),
        "setup": task["initial_state"]["initialization_actions"],
        "gold": [{name: action[name] for name in ("requestor", "name", "arguments")} for action in gold],
        "last_necessary": next((number for number, actions in shorter if not _passes(task["id"], actions)), None),
        "passes_at_once": _passes(task["id"], []),
    }


def _passes(task: str, actions: Sequence[Json]) -> bool:
    calls: dict[str, list[Json]] = {"user": [], "assistant": []}
    for action in actions:
        calls[action["requestor"]].append({"name": action["name"], "arguments": action["arguments"]})
    return bool(_reward(task, _run_actions(task, actions), calls["assistant"], calls["user"], [])["reward"])


def _run_actions(task: str, actions: Sequence[Mapping[str, Json]]) -> Any:
    """A fresh environment after these calls; calls that fail change nothing, as in an episode."""
    environment = make_environment(_tasks()[task]["initial_state"]["initialization_actions"])
    for action in actions:
        try:
            call(tools()[action["name"]], action["arguments"])
        except ToolError:
            continue
        finally:
            environment.sync_tools()
    return environment


if __name__ == "__main__":
    main()
