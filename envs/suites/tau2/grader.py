"""tau2's verdicts: upstream's own checks over the recorded states, in a sandbox of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gymcp.envs.suites.tau2.suite import install_tau2, judge_server
from gymcp.envs.suites.upstream.grader_process import Worker
from gymcp.errors import GraderError
from gymcp.evaluators.graders.matching import server_calls
from gymcp.protocols import StateReader
from gymcp.types import Json, Score, Task, ToolCall, Trajectory

_worker = Worker(lambda: judge_server(install_tau2()), "--judge")


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Upstream's reward: the product of the checks in the task's reward basis, 1 or 0.

    Every check is a component, in the basis or not: ``env_assertion``, ``action``, ``communicate`` and ``db`` (both
    databases are those after the gold). Raises GraderError where no state was recorded, or upstream's code failed.
    """
    if trajectory.final_state is None:
        raise GraderError(f"trajectory {trajectory.id}: no final state was recorded")
    agents = list(_made(call for step in trajectory.steps for call in server_calls(step)))
    users = list(_made(call for step in trajectory.steps for act in step.user_acts for call in act.calls))
    found = _worker.ask(
        {
            "task": task.target["task"],
            "state": states(trajectory.final_state),
            "agent_calls": agents,
            "user_calls": agents if task.target["solo"] else users,
            "said": [step.action.text for step in trajectory.steps if not step.action.tool_calls],
        }
    )
    components = {name.casefold(): value for name, value in found["parts"].items()}
    return Score(value=found["reward"], components=components, reason=found["why"])


def _made(calls: Iterable[ToolCall]) -> Iterable[Json]:
    for call in calls:
        if isinstance(call.arguments, Mapping):
            yield {"name": call.name, "arguments": dict(call.arguments)}
