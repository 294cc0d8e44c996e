"""Agents of one's own. Try: gymcp eval examples/bank.py --agent examples/agents.py:Payer"""

from __future__ import annotations

import re
from dataclasses import replace

from gymcp import Action, Agent, AgentFactory, Decision, GiveUp, Message, Observation, Task, ToolCall
from gymcp.agents import Model, ReactSettings, react

NOTE = Message(role="user", content="That failed. Read the error, and try something else.")


class Payer:
    """An agent without a model: it pays the sum that the first message names."""

    def __init__(self, task: Task, seed: int) -> None:
        self.paid = False

    async def act(self, observation: Observation) -> Action:
        """Pay, and then say so."""
        if self.paid:
            return Action(text="Bob has his money.")
        self.paid = True
        amount = int(re.findall(r"\d+", observation.messages[-1].content)[0])
        arguments = {"source": "ann", "target": "bob", "amount": amount}
        return Action(tool_calls=(ToolCall(id="call_1", name="transfer", arguments=arguments),))


class Careful:
    """An agent that asks another one, and reminds it of every error."""

    def __init__(self, inner: Agent) -> None:
        self.inner = inner

    async def act(self, observation: Observation) -> Action | Decision | GiveUp:
        """The other agent's decision, with its tokens as they were drawn."""
        if any(message.is_error for message in observation.messages):
            observation = replace(observation, messages=(*observation.messages, NOTE))
        return await self.inner.act(observation)


def careful(model: Model, settings: ReactSettings) -> AgentFactory:
    """React over the model of ``--policy``, reminded of every error."""
    make = react(model, settings)
    return lambda task, seed: Careful(make(task, seed))
