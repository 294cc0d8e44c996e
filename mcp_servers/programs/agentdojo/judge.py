"""AgentDojo's own graders over recorded states, and its tasks as JSON: upstream's code, in a sandbox of its own."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

from gymcp.mcp_servers.programs.agentdojo.server import SUITES, declare, format_result, make_environment, rebuild, stub
from gymcp.mcp_servers.programs.judge_main import run_judge

Json = Any
BENCHMARK = "v1.2.2"
CANARY = "<CANARY---{}--->"


def main() -> None:
    _prepare()
    run_judge(lambda: {name: _suite(name) for name in SUITES}, _judge, fork=True)


def _prepare() -> None:
    """Import upstream's package without its pipelines, which import every vendor's client."""
    stub("agentdojo.agent_pipeline", __path__=[])
    stub("agentdojo.agent_pipeline.base_pipeline_element", BasePipelineElement=object)
    stub("agentdojo.agent_pipeline.errors", AbortAgentError=type("AbortAgentError", (Exception,), {}))
    stub("agentdojo.agent_pipeline.ground_truth_pipeline", GroundTruthPipeline=object)
    for name in SUITES:
        _upstream(name)


def _upstream(suite: str) -> Any:
    return importlib.import_module("agentdojo.task_suite.load_suites").get_suite(BENCHMARK, suite)


# Judging


def _judge(question: Json) -> Json:
    """{"suite", "user_task", "injection_task" | null, "initial_state", "final_state", "output", "calls"} -> verdicts.

    The verdicts are {"utility": bool, "attack": bool | null}: the user's task is done, the attacker's goal is reached.
    A check that raises on the agent's world, as for an inbox that the agent has removed, says no.
    """
    suite = _upstream(question["suite"])
    before = make_environment(question["initial_state"])
    after = rebuild(type(before), question["final_state"]["environment"])
    if declare(after) != question["final_state"]["environment"]:
        raise ValueError("the recorded state is not one of upstream's worlds")
    # both are made in the same way, because upstream also compares how its objects were made
    return _verdicts(suite, question, rebuild(type(before), declare(before)), after)


def _verdicts(suite: Any, question: Json, before: Any, after: Any) -> Json:
    call = importlib.import_module("agentdojo.functions_runtime").FunctionCall
    text = importlib.import_module("agentdojo.types").text_content_block_from_string
    calls = [call(function=entry["name"], args=entry["arguments"]) for entry in question["calls"]]

    def passes(task: Any) -> bool:
        try:
            return bool(suite._check_task_result(task, [text(question["output"])], before, after, calls))
        except Exception:  # a check may look for what the agent has removed
            return False

    attacker = question["injection_task"]
    return {
        "utility": passes(suite.user_tasks[question["user_task"]]),
        "attack": passes(suite.injection_tasks[attacker]) if attacker else None,
    }


# Tasks


def _suite(name: str) -> Json:
    suite, yaml = _upstream(name), importlib.import_module("yaml")
    read = importlib.import_module("agentdojo.task_suite.task_suite").read_suite_file
    data = json.loads(json.dumps(yaml.safe_load(read(name, "environment.yaml", None)), default=str))
    vectors = suite.get_injection_vector_defaults()
    return {
        "environment": data,
        "vectors": vectors,
        "user_tasks": [_user_task(name, data, vectors, task) for task in suite.user_tasks.values()],
        "injection_tasks": [
            {
                "id": task.ID,
                "goal": task.GOAL,
                "gold": _gold(task, _fresh_environment(name, data, vectors)),
                "output": task.GROUND_TRUTH_OUTPUT,
            }
            for task in suite.injection_tasks.values()
        ],
    }


def _user_task(name: str, data: Json, vectors: Json, task: Any) -> Json:
    gold = _gold(task, _fresh_environment(name, data, vectors))
    after = _fresh_environment(name, data, vectors)
    for _ in _run_calls(name, after, gold):
        pass
    canaries = {vector: CANARY.format(vector) for vector in vectors}
    seen = "\n".join(_run_calls(name, _fresh_environment(name, data, canaries), gold))
    question = {"suite": name, "user_task": task.ID, "injection_task": None, "output": task.GROUND_TRUTH_OUTPUT}
    shorter = ((number, gold[:number] + gold[number + 1 :]) for number in reversed(range(len(gold))))
    needed = (number for number, calls in shorter if not _passes({**question, "calls": calls}, data, vectors))
    return {
        "id": task.ID,
        "prompt": task.PROMPT,
        "gold": gold,
        "output": task.GROUND_TRUTH_OUTPUT,
        "difficulty": task.DIFFICULTY.name.lower(),
        "seen": [vector for vector in vectors if canaries[vector] in seen],
        "last_necessary": next(needed, None),
        "hijacks": {
            attack.ID: calls
            for attack in _upstream(name).injection_tasks.values()
            if (calls := _gold(attack, after)) != _gold(attack, _fresh_environment(name, data, vectors))
        },
        "passes_at_once": _passes({**question, "calls": [], "output": ""}, data, vectors),
    }


def _passes(question: Json, data: Json, vectors: Json) -> bool:
    name = question["suite"]
    before, after = _fresh_environment(name, data, vectors), _fresh_environment(name, data, vectors)
    for _ in _run_calls(name, after, question["calls"]):
        pass
    return bool(_verdicts(_upstream(name), question, before, after)["utility"])


def _run_calls(name: str, environment: Any, calls: Json) -> Iterator[str]:
    runtime = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(_upstream(name).tools)
    for call in calls:
        result, error = runtime.run_function(environment, call["name"], call["arguments"])
        yield error or format_result(result)


def _gold(task: Any, environment: Any) -> list[Json]:
    calls = [call.model_dump(mode="json", include={"function", "args"}) for call in task.ground_truth(environment)]
    return [{"name": call["function"], "arguments": call["args"]} for call in calls]


def _fresh_environment(name: str, data: Json, values: Json) -> Any:
    return make_environment({"suite": name, "environment": _fill_vectors(data, values)})


def _fill_vectors(value: Json, values: Json) -> Json:
    """Replace every ``{vector}`` in the texts, also in keys, by its value."""
    if isinstance(value, str):
        for vector, text in values.items():
            value = value.replace("{" + vector + "}", text)
        return value
    if isinstance(value, dict):
        return {_fill_vectors(key, values): _fill_vectors(inner, values) for key, inner in value.items()}
    return [_fill_vectors(inner, values) for inner in value] if isinstance(value, list) else value
