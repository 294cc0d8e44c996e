"""Records of an episode: a step before its calls, the usage of the whole, and the graded trajectory."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gymcp.envs.anchors import anchor_parts, extend_history
from gymcp.envs.episodes.episode_state import EpisodeState
from gymcp.envs.episodes.usage import EpisodeClock, UsageMeter, usage_by_tool
from gymcp.envs.episodes.user_turn import UserSession
from gymcp.envs.worlds.world import EpisodeSetup
from gymcp.evaluators.grading import apply_grader
from gymcp.mcp_servers.digest import digest
from gymcp.outcome import Outcome
from gymcp.protocols import StateReader
from gymcp.types import Decision, ModelUsage, Step, Trajectory, Usage


def begin_step(
    setup: EpisodeSetup, state: EpisodeState, world_key: str, decision: Decision, agent_s: float
) -> tuple[EpisodeState, Step]:
    """The state while the step runs, and the step before its calls.

    `agent_s`: seconds that the agent took to decide.
    """
    spec, history = setup.env.spec, state.history
    if spec.anchor == "world+history":
        history = extend_history(history, state.observation)
    parts = anchor_parts(spec.anchor, state.turn, world_key, state.observation, history)
    step = Step(
        turn=state.turn,
        observation=state.observation,
        action=decision.action,
        state_key=digest([spec.name, spec.version, setup.task.id, *parts]),
        sampled=decision.sampled,
        valid=decision.action.is_usable,
        agent_s=agent_s,
        reasoning=decision.reasoning,
        request_times=decision.request_times,
        model_usage=_find_untold_usage(decision),
        context=decision.context,
    )
    return state.begin_step(agent_s, history).add_side_answers(decision.side_answers), step


def _find_untold_usage(decision: Decision) -> ModelUsage | None:
    """The decision's use of the model, unless its tokens tell it: those of one answer without a price."""
    spent, sampled = decision.spent, decision.sampled
    if spent is None or sampled is None:
        return spent
    told = (len(sampled.prompt_ids), len(sampled.ids), 0.0)
    return None if (spent.prompt_tokens, spent.completion_tokens, spent.cost) == told else spent


def make_usage(state: EpisodeState, agent: UsageMeter, user: UserSession, clock: EpisodeClock) -> Usage:
    """The usage of an episode so far, with steps that were taken back, and the cost of calls that were run again."""
    steps = (*state.steps, *agent.undone)
    results = [result for step in steps for result in step.results]
    return Usage(
        tool_calls=len(results),
        tool_errors=sum(result.is_error for result in results),
        user_calls=_count_user_calls(steps),
        prompt_tokens=agent.prompt_tokens,
        completion_tokens=agent.completion_tokens,
        cost=total_cost(state, agent, user),
        user_cost=user.meter.cost,
        wall_s=clock.wall_s,
        reset_s=clock.reset_s,
        agent_s=state.agent_s,
        tool_s=clock.aborted_s + math.fsum(result.seconds for result in results),
        user_s=user.seconds,
        tools=usage_by_tool(steps),
        models={name: dict(entry) for name, entry in agent.models.items()},
    )


def subtract_shared(usage: Usage, steps: Sequence[Step], shared: int) -> Usage:
    """The usage of an episode with these steps, without the calls of the first `shared` ones.

    The episode that it was forked from has made these calls and paid for them.
    """
    before = steps[:shared]
    results = [result for step in before for result in step.results]
    return replace(
        usage,
        tool_calls=max(0, usage.tool_calls - len(results)),
        tool_errors=max(0, usage.tool_errors - sum(result.is_error for result in results)),
        user_calls=max(0, usage.user_calls - _count_user_calls(before)),
        cost=max(0.0, usage.cost - cost_of(before)),
        tool_s=max(0.0, usage.tool_s - math.fsum(result.seconds for result in results)),
        tools=_subtract_tools(usage.tools, usage_by_tool(before)),
    )


def _subtract_tools(
    tools: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]
) -> dict[str, Mapping[str, float]]:
    """The figures of each tool that was called more often than before."""
    return {
        name: {key: max(0, value - before.get(name, {}).get(key, 0)) for key, value in entry.items()}
        for name, entry in tools.items()
        if entry["calls"] > before.get(name, {}).get("calls", 0)
    }


def _count_user_calls(steps: Sequence[Step]) -> int:
    return sum(len(tool_calls.calls) for step in steps for tool_calls in step.user_acts)


def cost_of(steps: Sequence[Step]) -> float:
    """Cost of the agent's calls in these steps."""
    return math.fsum(result.cost for step in steps for result in step.results)


def total_cost(state: EpisodeState, agent: UsageMeter, user: UserSession) -> float:
    """Cost of the agent's and the user's model and of the agent's tools, for calls that were run again, too."""
    return math.fsum([agent.cost, agent.replay_cost, user.meter.cost, cost_of(state.steps), cost_of(agent.undone)])


def add_reason(record: Trajectory, note: str) -> Trajectory:
    """The record with a note behind its reason."""
    return replace(record, reason=f"{record.reason}; {note}" if record.reason else note)


def grade_record(
    setup: EpisodeSetup, record: Trajectory, states: StateReader, notes: Sequence[str], *, judging_s: float = 0.0
) -> tuple[Trajectory, float]:
    """The graded record, and the reward of its last step.

    The reason is the record's own, the grader's and the `notes` of the agent's decisions, each once. `judging_s`:
    seconds of waiting for a judge, which count as grading.
    """
    started = time.perf_counter()
    why = f"out of budget ({record.reason})" if record.outcome is Outcome.BUDGET_EXHAUSTED else record.reason
    graded = apply_grader(setup.env.spec.grade, setup.task, record, states)
    reward = graded.score or 0.0
    steps = graded.steps
    reasons = dict.fromkeys(reason for reason in (why, graded.reason, *notes) if reason)
    trajectory = replace(
        graded,
        steps=(*steps[:-1], replace(steps[-1], reward=reward)) if steps else (),
        reason="; ".join(reasons),
        usage=replace(graded.usage, grading_s=judging_s + time.perf_counter() - started),
    )
    return trajectory, reward
