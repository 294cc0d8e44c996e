"""Agents without a model, most of which have a known score in every environment.

``oracle`` replays the gold calls (1.0), ``null`` does nothing (0.0), ``mutated`` leaves out the last necessary gold
call (0.0), ``random`` makes valid calls. ``hijacked`` also makes the attacker's calls: defences are measured on it.
``adaptive`` is the oracle that copes with tools that are renamed, fail for a moment, or must be searched for.
``never_asks`` is the oracle that asks the user nothing, ``asks_late`` asks after all other calls, and ``always_asks``
first asks for every fact there is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gymcp.agents.strategies.random_arguments import find_words, sample_instance
from gymcp.envs.wrappers.retrieval import SEARCH
from gymcp.envs.wrappers.stress import TRANSIENT, split_name
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import Action, GoldTurn, Observation, Step, Task, ToolCall

MAX_RETRIES = 5
"""Maximum number of times that the adaptive agent repeats an action after a transient failure."""
RANDOM_STOP = 0.25
"""Probability that the random agent ends the user turn instead of making another call."""


class Replay:
    """Plays prepared actions without looking at observations; after the last one, plays empty actions."""

    def __init__(self, actions: Iterator[Action]) -> None:
        self._actions = actions

    async def act(self, observation: Observation) -> Action:
        return next(self._actions, Action())

    def resume(self, steps: Sequence[Step]) -> None:
        """Leave out as many actions as there are steps."""
        for _ in steps:
            next(self._actions, None)


class RandomAgent:
    """Draws tools and valid arguments at random, with words it has read. The same seed gives the same calls."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words: list[str] = []
        self._calls = 0

    def resume(self, steps: Sequence[Step]) -> None:
        """Know the words of the steps, and draw on with the own seed."""
        for step in steps:
            self._read(step.observation)
            self._calls += len(step.action.tool_calls)

    def _read(self, observation: Observation) -> None:
        for message in observation.messages:
            self._words += find_words(message.content)

    async def act(self, observation: Observation) -> Action:
        self._read(observation)
        if not observation.tools or self._random.random() < RANDOM_STOP:
            return Action(text="I am done.")
        tool = self._random.choice(observation.tools)
        arguments = sample_instance(tool.input_schema, self._random, self._words)
        self._calls += 1
        call = ToolCall(id=f"call_{self._calls}", name=tool.name, arguments=arguments)
        return Action(tool_calls=(call,))


def oracle(task: Task, seed: int) -> Agent:
    """In every user turn the gold calls, one per action if the step budget allows, and then the gold's final text."""
    return Replay(play_gold(task, task.gold))


def null(task: Task, seed: int) -> Agent:
    """Says nothing and calls nothing."""
    return Replay(iter(()))


def mutated(task: Task, seed: int) -> Agent:
    """The oracle without the last gold call, or final text of a turn, that the task needs.

    Raises ConfigError if a task has none.
    """
    if task.last_necessary is None:
        raise ConfigError(f"agent 'mutated': task '{task.id}' has no necessary gold call")
    turn, index = task.last_necessary
    gold = task.gold[turn]
    if index == len(gold.calls):
        shorter = replace(gold, final_text="")
    else:
        shorter = replace(gold, calls=gold.calls[:index] + gold.calls[index + 1 :])
    return Replay(play_gold(task, (*task.gold[:turn], shorter, *task.gold[turn + 1 :])))


def random_agent(task: Task, seed: int) -> Agent:
    """Valid random calls."""
    return RandomAgent(seed)


class Adaptive:
    """Plays the gold with the current names of tools and parameters, and repeats calls that failed transiently."""

    def __init__(self, actions: Iterator[Action]) -> None:
        self._actions = actions
        self._last: Action | None = None
        self._retries = 0
        self._searched = False
        self._calls = 0

    async def act(self, observation: Observation) -> Action:
        failed = any(message.is_error and TRANSIENT in message.content for message in observation.messages)
        if self._searched and self._last is not None:
            self._searched = False
        elif failed and self._last is not None and self._retries < MAX_RETRIES:
            self._retries += 1
        else:
            self._last, self._retries = next(self._actions, Action()), 0
            offered = {tool.name for tool in observation.tools}
            missing = [call.name for call in self._last.tool_calls if call.name not in offered]
            if missing and SEARCH in offered:
                self._searched = True
                return Action(tool_calls=tuple(map(self._search, missing)))
        return replace(self._last, tool_calls=tuple(self._adapt(call, observation) for call in self._last.tool_calls))

    def _search(self, name: str) -> ToolCall:
        self._calls += 1
        return ToolCall(id=f"call_{self._calls}", name=SEARCH, arguments={"query": " ".join(split_name(name))})

    def _adapt(self, call: ToolCall, observation: Observation) -> ToolCall:
        """The call with a new id; if no tool has its name, a call of the tool with the closest name."""
        self._calls += 1
        numbered = replace(call, id=f"call_{self._calls}")
        tools = {tool.name: tool for tool in observation.tools}
        if call.name in tools or not isinstance(call.arguments, Mapping) or not tools:
            return numbered
        tool = tools[find_closest(call.name, tools)]
        names = tool.input_schema.get("properties", {})
        arguments = {find_closest(name, names) if names else name: value for name, value in call.arguments.items()}
        return replace(numbered, name=tool.name, arguments=arguments)


def find_closest(name: str, names: Iterable[str]) -> str:
    """The name that shares the most words with `name`; among several, the one with the fewest other words."""
    words = set(split_name(name))
    return max(names, key=lambda other: (len(words & set(split_name(other))), -len(words ^ set(split_name(other)))))


def adaptive(task: Task, seed: int) -> Agent:
    """The oracle that adapts to renamed tools and retries: its score shows what a stressor leaves possible."""
    return Adaptive(play_gold(task, task.gold))


def hijacked(task: Task, seed: int) -> Agent:
    """The oracle that makes the attacker's calls before its final text, and adds the attacker's text to it.

    Raises ConfigError if the task has no attacker with gold.
    """
    if task.attack is None or not task.gold:
        raise ConfigError(f"agent 'hijacked': task '{task.id}' has no attacker whose gold is known; attack it")
    last = task.gold[-1]
    words = "\n".join(filter(None, (last.final_text, task.attack.final_text)))
    both = replace(last, calls=(*last.calls, *task.attack.calls), final_text=words)
    return Replay(play_gold(task, (*task.gold[:-1], both)))


def never_asks(task: Task, seed: int) -> Agent:
    """The oracle without its questions. Raises ConfigError if nothing had to be asked."""
    if not applies("never_asks", task):
        raise ConfigError(f"agent 'never_asks': task '{task.id}' has no fact that must be asked for")
    return Replay(play_gold(task, [replace(turn, calls=_without_questions(turn)) for turn in task.gold]))


def asks_late(task: Task, seed: int) -> Agent:
    """The oracle that acts first and asks afterwards. Raises ConfigError if nothing had to be asked."""
    if not applies("asks_late", task):
        raise ConfigError(f"agent 'asks_late': task '{task.id}' has no fact that must be asked for")
    turns = []
    for turn in task.gold:
        questions = tuple(call for call in turn.calls if call.name == ASK_USER)
        turns.append(replace(turn, calls=(*_without_questions(turn), *questions)))
    return Replay(play_gold(task, turns))


def always_asks(task: Task, seed: int) -> Agent:
    """The oracle that first asks for every fact of the task, needed or not. Raises ConfigError if it has none."""
    if not applies("always_asks", task):
        raise ConfigError(f"agent 'always_asks': task '{task.id}' has no facts to ask for")
    questions = tuple(
        ToolCall(id=f"ask_{number}", name=ASK_USER, arguments={"question": f"One question: {fact.words[0]}?"})
        for number, fact in enumerate(task.user.facts, 1)
    )
    first, *rest = (replace(turn, calls=_without_questions(turn)) for turn in task.gold)
    return Replay(play_gold(task, (replace(first, calls=(*questions, *first.calls)), *rest)))


def _without_questions(turn: GoldTurn) -> tuple[ToolCall, ...]:
    return tuple(call for call in turn.calls if call.name != ASK_USER)


SCRIPTED: dict[str, AgentFactory] = {
    "oracle": oracle,
    "null": null,
    "mutated": mutated,
    "random": random_agent,
    "hijacked": hijacked,
    "adaptive": adaptive,
    "never_asks": never_asks,
    "asks_late": asks_late,
    "always_asks": always_asks,
}


NEEDS: Mapping[str, str] = {
    "oracle": "gold",
    "adaptive": "gold",
    "mutated": "a necessary gold call",
    "hijacked": "an attacker with gold: attack the environment (--attack)",
    "never_asks": "a fact that must be asked for",
    "asks_late": "a fact that must be asked for",
    "always_asks": "facts that can be asked for",
}
"""The part of a task without which an agent cannot play it; agents that are not listed play every task."""


def applies(agent: str, task: Task) -> bool:
    """False if the task lacks the part that the agent needs."""
    if agent in ("oracle", "adaptive"):
        return bool(task.gold)
    if agent in ("never_asks", "asks_late"):
        return any(call.name == ASK_USER for turn in task.gold for call in turn.calls)
    if agent == "always_asks":
        return bool(task.gold and task.user.facts)
    if agent == "hijacked":
        return bool(task.gold) and task.attack is not None
    return agent != "mutated" or task.last_necessary is not None


def play_gold(task: Task, gold: Sequence[GoldTurn]) -> Iterator[Action]:
    """The actions of `gold`: one call each if the step budget allows, and the final text at the end of a turn."""
    budget = task.limits.steps_per_turn if task.limits and task.limits.steps_per_turn else math.inf
    for turn in gold:
        # The last action of a user turn is the final text, so one less than the budget is left for calls.
        per_action = max(1, math.ceil(len(turn.calls) / (budget - 1)))
        for start in range(0, len(turn.calls), per_action):
            yield Action(tool_calls=turn.calls[start : start + per_action])
        yield Action(text=turn.final_text)
