"""An agent of the user in an episode: whatever it does ends its own episode at most, with an outcome that says so.

====================================================  =====================================================
the agent                                             end of its episode
====================================================  =====================================================
raises, or cannot be made                             ``agent_error``
gives something that is no action                     ``agent_error``
holds up the event loop for `HOLD_UP_S` seconds       ``agent_error``
does not answer until its time is over                ``budget_exhausted`` (`gymcp.agents.runner.rollout`)
exceeds its budget, or the model's context            ``budget_exhausted``
raises PolicyInfraError: its model is not there       ``policy_infra``, tried again
calls tools that are not there                        goes on: the call has an error result
====================================================  =====================================================
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymcp.agents.policies.metering import meter_usage, sum_usages
from gymcp.agents.strategies.budgets import Budget, BudgetTracker
from gymcp.agents.strategies.interruptible import Interruptible, LoopHeldUp
from gymcp.errors import PolicyInfraError, PromptTooLong
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, Closes, Resumes
from gymcp.types import Action, Decision, GiveUp, ModelUsage, Observation, Sampled, Step, ToolCall
from gymcp.user_code import describe_error, format_own_traceback, is_finite_number, locate_error

HOLD_UP_S = 30.0
"""Seconds that an agent may run without waiting for anything; all other episodes stand still as long."""
CANCEL_GRACE_S = 5.0
"""Seconds that a cancelled agent has for its cleanup."""
CLOSE_S = 10.0
"""Seconds that the `close` of an agent may take."""
MAX_TEXT_CHARS = 1_000_000
"""Characters of one text of an agent; far more than a model writes, and what a record can hold."""
MAX_CALLS = 1_000
"""Calls of one action; an environment runs 64 by default."""
MAX_INTEGER = 2**63 - 1
"""Largest token, position or number of a context that a record can hold."""
MAX_REASON_CHARS = 1_000
"""Characters of the reason why an agent failed that are recorded."""
_SIDE_ANSWERS = "a decision with side_answers, which only agent programs have"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """The error with which a decision of the agent ended."""

    error: BaseException


class GuardedAgent:
    """The user's agent of one episode. It is made at the first observation."""

    def __init__(self, make: Callable[[], Agent], budget: Budget, reported: set[str]) -> None:
        """`reported`: failures of the run that have been shown on standard error; each is shown once."""
        self._make = make
        self._budget = BudgetTracker(budget)
        self._reported = reported
        self._agent: Agent | None = None
        self._record: tuple[Step, ...] | None = None
        """Steps to go on from, until the user's agent has been given them."""
        self._call_ids: set[str] = set()

    def check(self) -> None:
        """Make an agent and throw it away. Raises ConfigError if that fails."""
        self._make()

    async def act(self, observation: Observation) -> Decision | GiveUp:
        """The agent's decision, with its use of the run's model. Raises PolicyInfraError."""
        if exhausted := self._budget.exhausted:
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=exhausted)
        answer, used = await _run_in_own_task(self._ask(observation))
        if isinstance(answer, _Failed):
            return self._explain(answer.error)
        if fault := find_fault(answer, self._call_ids):
            return self._fail(f"the agent gave {fault}", "")
        if isinstance(answer, GiveUp):
            return answer
        decision = answer if isinstance(answer, Decision) else Decision(action=answer)
        self._call_ids |= {call.id for call in decision.action.tool_calls}
        spent = used or decision.spent
        self._budget.spend(spent or ModelUsage(model=""), 0.0)
        return replace(decision, spent=spent)

    async def close(self) -> None:
        """Close the user's agent if it has a `close`. Show an error of it; the episode stays as it is."""
        agent: object = self._agent
        if not isinstance(agent, Closes):
            return
        ended = None
        try:
            async with asyncio.timeout(CLOSE_S):
                ended, _ = await _run_in_own_task(_close(agent))
        except TimeoutError:
            self._report(f"the agent's close took more than {CLOSE_S:g} s", "")
        if isinstance(ended, _Failed):
            self._report(f"the agent's close raised {describe_error(ended.error)}", format_own_traceback(ended.error))

    def can_resume(self) -> bool:
        """Make an agent and throw it away; return True if it can go on from a record."""
        return isinstance(self._make(), Resumes)

    def resume(self, steps: Sequence[Step]) -> None:
        """Let the user's agent go on from the record: it is given the steps before its first decision."""
        self._record = tuple(steps)
        self._call_ids |= {call.id for step in steps for call in step.action.tool_calls}
        for step in steps:
            drawn = len(step.sampled.ids) if step.sampled is not None else 0
            self._budget.spend(step.model_usage or ModelUsage(model="", completion_tokens=drawn), 0.0)

    async def _ask(self, observation: Observation) -> object:
        if self._agent is None:
            self._agent = self._make()
        if self._record is not None:
            steps, self._record = self._record, None
            agent: object = self._agent
            if not isinstance(agent, Resumes):
                raise TypeError("it has no method resume(steps), so it cannot take a branch")
            agent.resume(steps)
        return await self._agent.act(observation)

    def _explain(self, error: BaseException) -> GiveUp:
        """The end of the episode after an error of the agent. Raises PolicyInfraError."""
        if isinstance(error, PromptTooLong):
            return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=f"context: {error}")
        if isinstance(error, PolicyInfraError):
            raise error
        if isinstance(error, LoopHeldUp):
            place = locate_error(error)
            where = f"{place}: " if place else ""
            return self._fail(f"{where}the agent held up all episodes for {error}; let it await what takes long", "")
        return self._fail(f"the agent raised {describe_error(error)}", format_own_traceback(error))

    def _fail(self, reason: str, details: str) -> GiveUp:
        """The end of the episode as ``agent_error``; the first failure of a kind is shown."""
        reason = " ".join(reason.split())[:MAX_REASON_CHARS]
        self._report(reason, details)
        return GiveUp(outcome=Outcome.AGENT_ERROR, reason=reason)

    def _report(self, reason: str, details: str) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            log.warning("%s", details or reason)


async def _close(agent: Closes) -> None:
    closing: object = agent.close()  # the user's, which may be a plain function
    if inspect.isawaitable(closing):
        await closing


async def _run_in_own_task(asked: Coroutine[Any, Any, object]) -> tuple[Any, ModelUsage | None]:
    """The user's coroutine's result, or `_Failed`, and its use of the run's model. A cancellation ends it in time."""
    work = Interruptible(asked, HOLD_UP_S)
    task = asyncio.ensure_future(_collect(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_GRACE_S)
        work.drop()
        task.cancel()
        raise
    if task.cancelled():  # by the agent itself
        return _Failed(error=asyncio.CancelledError("it cancelled itself")), None
    return task.result()


async def _collect(work: Interruptible[object]) -> tuple[object, ModelUsage | None]:
    """The result of the work, or `_Failed`, and the use of metered models for it."""
    with meter_usage() as usages:
        try:
            answer = await work
        except (Exception, SystemExit, LoopHeldUp) as error:  # the user's code, which may raise anything
            log.debug("the agent raised", exc_info=error)
            answer = _Failed(error=error)
        return answer, sum_usages(usages)


def find_fault(answer: Any, call_ids: set[str]) -> str | None:
    """The reason why an agent's answer is no decision; None if it is one. `call_ids`: those of earlier calls."""
    if isinstance(answer, GiveUp):
        if answer.side_answers:
            return _SIDE_ANSWERS
        if answer.outcome in (Outcome.BUDGET_EXHAUSTED, Outcome.AGENT_ERROR) and isinstance(answer.reason, str):
            return None
        return f"up with the outcome {answer.outcome!s:.60}: it must be budget_exhausted or agent_error"
    if isinstance(answer, Decision):
        return _find_fault_of_decision(answer) or _find_fault_of_action(answer.action, call_ids)
    return _find_fault_of_action(answer, call_ids)


def _find_fault_of_decision(decision: Any) -> str | None:
    if not _are_texts(decision.reason, decision.reasoning):
        return "a Decision whose reason or reasoning is no text, or a very long one"
    if decision.sampled is not None and not _is_sample(decision.sampled):
        return "a Decision whose sampled is not what the model has drawn"
    if decision.side_answers:
        return _SIDE_ANSWERS
    if decision.context is not None and not (_is_integer(decision.context) and decision.context >= 0):
        return f"a Decision whose context is no whole number from 0 to {MAX_INTEGER}"
    if decision.spent is not None and not _is_usage(decision.spent):
        return "a Decision whose spent is no ModelUsage with amounts of 0 or more"
    return None


def _find_fault_of_action(action: Any, call_ids: set[str]) -> str | None:
    if not isinstance(action, Action):
        kind = "None" if action is None else f"{type(action).__name__} {action!r:.60}"
        return f"{kind} as its answer, which must be an Action, a Decision or a GiveUp"
    text, calls = _fields(action, "text", "tool_calls")
    if not _are_texts(text) or not isinstance(calls, tuple) or len(calls) > MAX_CALLS:
        return f"an Action whose text is no text, or a very long one, or whose tool_calls are no tuple of {MAX_CALLS}"
    seen = set(call_ids)
    for call in calls:
        if fault := _find_fault_of_call(call):
            return fault
        if call.id in seen:
            return f"two calls with the id '{call.id[:60]}': every call of an episode needs an id of its own"
        seen.add(call.id)
    return None


def _find_fault_of_call(call: object) -> str | None:
    if not isinstance(call, ToolCall) or not _are_texts(*_fields(call, "id", "name", "parse_error")):
        return f"a call that is no ToolCall with an id and a name: {call!r:.100}"
    (arguments,) = _fields(call, "arguments")
    if not isinstance(arguments, Mapping) and not _are_texts(arguments):
        return f"a call of '{call.name[:60]}' whose arguments are neither a mapping nor a text"
    return None


def _fields(record: object, *names: str) -> list[Any]:
    """Values of a record of the user's, which may be of any type."""
    return [getattr(record, name) for name in names]


def _are_texts(*values: object) -> bool:
    return all(isinstance(value, str) and len(value) <= MAX_TEXT_CHARS for value in values)


def _is_integer(value: object) -> bool:
    return type(value) is int and abs(value) <= MAX_INTEGER


def _is_sample(sampled: object) -> bool:
    if not isinstance(sampled, Sampled):
        return False
    prompt_ids, ids, logprobs, versions = _fields(sampled, "prompt_ids", "ids", "logprobs", "versions")
    if not all(isinstance(value, tuple) for value in (prompt_ids, ids, logprobs, versions)):
        return False
    are_tokens = all(map(_is_integer, (*prompt_ids, *ids))) and all(map(is_finite_number, logprobs))
    are_spans = all(
        [type(part) for part in span] == [str, int, int] and all(map(_is_integer, span[1:])) for span in versions
    )
    return are_tokens and are_spans and len(ids) == len(logprobs) and sampled.finish in ("stop", "length")


def _is_usage(spent: object) -> bool:
    if not isinstance(spent, ModelUsage) or not _are_texts(spent.model):
        return False
    amounts = _fields(spent, "prompt_tokens", "completion_tokens", "cost")
    return all(is_finite_number(amount) and amount >= 0 for amount in amounts)
