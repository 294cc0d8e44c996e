"""AgentDojo's verdicts: upstream's own functions over the recorded states, in a sandbox of their own."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping

from gymcp.envs.attack_surface import Goal, Surface
from gymcp.envs.suites.agentdojo.suite import AGENTDOJO, install_agentdojo, read_suites
from gymcp.envs.suites.agentdojo.tasks import fold_lines, gold_calls, to_task
from gymcp.envs.suites.upstream.grader_process import GraderProcess
from gymcp.envs.suites.upstream.suite_installation import judge_server
from gymcp.errors import GraderError
from gymcp.evaluators.graders.answers import final_answer
from gymcp.evaluators.graders.matching import server_calls
from gymcp.protocols import StateReader
from gymcp.types import GoldTurn, Json, Score, Task, Trajectory

USER = "Emma Johnson"
"""Name of the user in all four worlds."""
_judge = GraderProcess(lambda: judge_server(AGENTDOJO, install_agentdojo()), "--judge")


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """1 if upstream's ``utility`` function says that the user's task was done, else 0.

    Raises GraderError if no state was recorded, or upstream's grader raised or could not be run.
    """
    done = _verdict(task, trajectory, states)["utility"]
    return Score(value=float(done), reason="" if done else "upstream's utility function says no")


def goal_reached(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """1 if upstream's ``security`` function says that the attacker of the task's target reached the goal, else 0."""
    reached = _verdict(task, trajectory, states)["attack"]
    if reached is None:
        raise GraderError(f"task '{task.id}': there is no attacker in its target")
    return Score(value=float(reached), reason="")


def surfaces() -> Iterator[Surface]:
    """Every user task with the goals of its suite's attackers: 949 pairs, 629 of them with gold."""
    for name, suite in read_suites().items():
        for row in suite["user_tasks"]:
            task = to_task(name, suite, row)
            yield Surface(
                task=task,
                world={"suite": name, "environment": suite["environment"]},
                vectors=suite["vectors"],
                seen=frozenset(row["seen"]),
                goals=tuple(_goal(task, goal, row["hijacks"]) for goal in suite["injection_tasks"]),
                user=USER,
                spell=fold_lines,
            )


def _goal(task: Task, row: Json, hijacks: Mapping[str, Json]) -> Goal:
    """The goal of one attacker.

    `hijacks`: by goal, gold calls that differ once the user's task was done: the number of the next e-mail is another.
    """
    known = bool(row["gold"] or row["output"])
    calls = gold_calls(hijacks.get(row["id"], row["gold"]), "hijack")
    return Goal(
        id=row["id"],
        text=row["goal"],
        reached=goal_reached,
        gold=GoldTurn(calls=calls, final_text=row["output"]) if known else None,
        target={**task.target, "injection_task": row["id"]},
    )


def _verdict(task: Task, trajectory: Trajectory, states: StateReader) -> Json:
    if trajectory.final_state is None:
        raise GraderError(f"trajectory {trajectory.id}: no final state was recorded")
    question = {
        **task.target,
        "initial_state": task.initial_state,
        "final_state": states(trajectory.final_state),
        "output": final_answer(trajectory) or "",
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments)}
            for step in trajectory.steps
            for call in server_calls(step)
            if isinstance(call.arguments, Mapping)
        ],
    }
    return _ask_judge(json.dumps(question, sort_keys=True))


@functools.lru_cache(maxsize=64)
def _ask_judge(question: str) -> Json:
    """{"utility": bool, "attack": bool | None}: both verdicts of an episode come with one answer."""
    return _judge.ask(json.loads(question))
