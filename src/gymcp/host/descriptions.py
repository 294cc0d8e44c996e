"""Records of gymcp as the wire has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gymcp.envs.spec import LoadedEnv
from gymcp.host import wire
from gymcp.types import Message, Task, Tool, Trajectory


def describe_environment(env: LoadedEnv) -> wire.Environment:
    """The environment with the sizes of its splits."""
    splits: dict[str, int] = {}
    for task in env.suite.tasks:
        splits[task.split] = splits.get(task.split, 0) + 1
    return wire.Environment(
        name=env.spec.name,
        version=env.spec.version,
        description=env.spec.description,
        suite=env.suite.name,
        suite_version=env.suite.version,
        tasks=len(env.suite.tasks),
        splits=splits,
        generates=env.spec.more_tasks is not None,
    )


def describe_task(task: Task) -> wire.TaskEntry:
    """The task without what only its user or grader may say."""
    return wire.TaskEntry(id=task.id, split=task.split, tags=task.tags, user_turns=len(task.prompts))


def describe_tools(tools: Iterable[Tool]) -> tuple[wire.ToolEntry, ...]:
    """Tools on offer; one without a schema takes no arguments."""
    return tuple(
        wire.ToolEntry(
            name=tool.name,
            description=tool.description,
            input_schema=dict(tool.input_schema) or {"type": "object", "properties": {}},
        )
        for tool in tools
    )


def describe_messages(messages: Iterable[Message]) -> tuple[wire.TalkMessage, ...]:
    """Messages of the user, and the handbook."""
    return tuple(
        wire.TalkMessage(role="system" if message.role == "system" else "user", content=message.content)
        for message in messages
    )


def make_verdict(trajectory: Trajectory, folder: Path) -> wire.Verdict:
    """The end of a recorded episode."""
    usage = trajectory.usage
    return wire.Verdict(
        id=trajectory.id,
        environment=trajectory.env,
        task=trajectory.task,
        trial=trajectory.trial,
        seed=trajectory.seed,
        outcome=str(trajectory.outcome),
        score=trajectory.score,
        success=trajectory.success,
        reason=trajectory.reason,
        components={name: float(value) for name, value in trajectory.components.items()},
        metrics={
            "steps": float(len(trajectory.steps)),
            "user_turns": float(len({step.turn for step in trajectory.steps})),
            "tool_calls": float(usage.tool_calls),
            "tool_errors": float(usage.tool_errors),
            "cost": usage.cost,
            "wall_s": usage.wall_s,
            "agent_s": usage.agent_s,
            "tool_s": usage.tool_s,
        },
        run=str(folder),
    )
