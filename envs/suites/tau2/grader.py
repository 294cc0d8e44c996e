"""tau2's verdicts: upstream's own checks over the recorded states, in a sandbox of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gymcp.envs.suites.tau2.suite import TAU2, install_tau2
from gymcp.envs.suites.upstream.grader_process import GraderProcess
from gymcp.envs.suites.upstream.suite_installation import judge_server
from gymcp.errors import GraderError
from gymcp.evaluators.graders.matching import server_calls
from gymcp.protocols import StateReader
from gymcp.types import Json, Score, Task, ToolCall, Trajectory

_judge = GraderProcess(lambda: judge_server(TAU2, install_tau2()), "--judge")


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Upstream's reward: the product of the checks in the task's reward basis, 1 or 0.

    Every check is a component, in the basis or not: ``env_assertion``, ``action``, ``communicate`` and ``db`` (both
    databases are those after the gold). Raises GraderError if no state was recorded, or upstream's code failed.
    """
    if trajectory.final_state is None:
        raise GraderError(f"trajectory {trajectory.id}: no final state was recorded")
    agent_calls = list(_calls_as_json(call for step in trajectory.steps for call in server_calls(step)))
    user_calls = list(_calls_as_json(call for step in trajectory.steps for act in step.user_acts for call in act.calls))
    verdict = _judge.ask(
        {
            "task": task.target["task"],
            "state": states(trajectory.final_state),
            "agent_calls": agent_calls,
            "user_calls": agent_calls if task.target["solo"] else user_calls,
            "said": [step.action.text for step in trajectory.steps if not step.action.tool_calls],
        }
    )
    components = {name.casefold(): value for name, value in verdict["parts"].items()}
    return Score(value=verdict["reward"], components=components, reason=verdict["why"])


def _calls_as_json(calls: Iterable[ToolCall]) -> Iterable[Json]:
    """Name and arguments of each call; a call whose arguments are no object is left out."""
    for call in calls:
        if isinstance(call.arguments, Mapping):
            yield {"name": call.name, "arguments": dict(call.arguments)}
