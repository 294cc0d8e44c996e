"""AgentDojo's own graders over recorded states, and its tasks as JSON: upstream's code, in a sandbox of its own."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

from gymcp.mcp_servers.programs.agentdojo.server import SUITES, declare, make_environment, rebuild, stub, told
from gymcp.mcp_servers.programs.judge_main import run_judge

Json = Any
BENCHMARK = "v1.2.2"
CANARY = "<CANARY---{}--->"


def main() -> None:
    _prepare()
    run_judge(lambda: {name: _suite(name) for name in SUITES}, _judge, fork=True)


def _prepare() -> None:
    """Upstream's package without its pipelines, which import every vendor's client."""
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

    {"utility": bool, "attack": bool | null}: has the user's task been done, has the attacker's goal been reached.
    """
    suite = _upstream(question["suite"])
    before = make_environment(question["initial_state"])
    after = rebuild(type(before), question["final_state"]["environment"])
    if declare(after) != question["final_state"]["environment"]:
        raise ValueError("the recorded state is not one of upstream's worlds")
    # both made in one way: upstream compares how its objects were made, too
    return _verdicts(suite, question, rebuild(type(before), declare(before)), after)


def _verdicts(suite: Any, question: Json, before: Any, after: Any) -> Json:
    call = importlib.import_module("agentdojo.functions_runtime").FunctionCall
    text = importlib.import_module("agentdojo.types").text_content_block_from_string
    calls = [call(function=made["name"], args=made["arguments"]) for made in question["calls"]]

    def passes(task: Any) -> bool:
        return bool(suite._check_task_result(task, [text(question["output"])], before, after, calls))

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
                "gold": _gold(task, _world(name, data, vectors)),
                "output": task.GROUND_TRUTH_OUTPUT,
            }
            for task in suite.injection_tasks.values()
        ],
    }


def _user_task(name: str, data: Json, vectors: Json, task: Any) -> Json:
    gold = _gold(task, _world(name, data, vectors))
    after = _world(name, data, vectors)
    for _ in _played(name, after, gold):
        pass
    canaries = {vector: CANARY.format(vector) for vector in vectors}
    seen = "\n".join(_played(name, _world(name, data, canaries), gold))
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
            if (calls := _gold(attack, after)) != _gold(attack, _world(name, data, vectors))
        },
        "passes_at_once": _passes({**question, "calls": [], "output": ""}, data, vectors),
    }


def _passes(question: Json, data: Json, vectors: Json) -> bool:
    name = question["suite"]
    before, after = _world(name, data, vectors), _world(name, data, vectors)
    for _ in _played(name, after, question["calls"]):
        pass
    return bool(_verdicts(_upstream(name), question, before, after)["utility"])


def _played(name: str, world: Any, calls: Json) -> Iterator[str]:
    runtime = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(_upstream(name).tools)
    for made in calls:
        result, error = runtime.run_function(world, made["name"], made["arguments"])
        yield error or told(result)


def _gold(task: Any, world: Any) -> list[Json]:
    calls = [call.model_dump(mode="json", include={"function", "args"}) for call in task.ground_truth(world)]
    return [{"name": call["function"], "arguments": call["args"]} for call in calls]


def _world(name: str, data: Json, values: Json) -> Any:
    return make_environment({"suite": name, "environment": _filled(data, values)})


def _filled(value: Json, values: Json) -> Json:
    """Every ``{vector}`` in a text, keys included, replaced by its value."""
    if isinstance(value, str):
        for vector, text in values.items():
            value = value.replace("{" + vector + "}", text)
        return value
    if isinstance(value, dict):
        return {_filled(key, values): _filled(inner, values) for key, inner in value.items()}
    return [_filled(inner, values) for inner in value] if isinstance(value, list) else value
