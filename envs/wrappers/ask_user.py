"""A tool with which the agent asks the user a question, at a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gymcp.envs.layers import CallContext, CallNext, refusal
from gymcp.envs.spec import EnvSpec
from gymcp.envs.tool_costs import CallCost
from gymcp.envs.users import AskableUser
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER, QUESTION_COMPONENTS, with_asking
from gymcp.types import Json, Tool, ToolCall, ToolResult

MAX_QUESTION_CHARS = 300
"""Most characters of a question, so that one question cannot list everything that could be asked."""
QUESTION_COST = 0.05
"""Price of one question, if none is given."""
QUESTION_S = 30.0
"""Seconds that a question takes of the user's time, and that the agent waits: the scripted user answers at once."""
TOOL = Tool(
    name=ASK_USER,
    description="Ask the user one short question and get their answer. Their time is not free.",
    input_schema={
        "type": "object",
        "properties": {"question": {"type": "string", "minLength": 1, "maxLength": MAX_QUESTION_CHARS}},
        "required": ["question"],
        "additionalProperties": False,
    },
    annotations={"readOnlyHint": True},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskUser:
    """The layer that offers the tool. The result is the user's answer, and each answer costs `price`."""

    price: float = QUESTION_COST

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return (*tools, TOOL)

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        if call.name != ASK_USER:
            return await call_next(call, arguments)
        question = arguments.get("question")
        if not isinstance(question, str) or not question.strip() or arguments.keys() != {"question"}:
            return refusal(call, f"tool '{ASK_USER}': takes one argument, question, which is a text")
        if len(question) > MAX_QUESTION_CHARS:
            return refusal(call, f"tool '{ASK_USER}': at most {MAX_QUESTION_CHARS} characters: ask one thing at a time")
        answer = await context.ask(question)
        return ToolResult(call_id=call.id, content=answer, content_bytes=len(answer.encode()), cost=self.price)

    def settings(self) -> Json:
        return {"layer": "asking", "price": self.price}


def add_ask_user(spec: EnvSpec, *, price: float = QUESTION_COST) -> EnvSpec:
    """The environment with a tool that asks the user for the tasks' facts, and with a grade for asking (`with_asking`).

    Raises ConfigError for a price below 0.
    """
    if not 0 <= price < float("inf"):
        raise ConfigError(f"environment '{spec.name}': the price of a question is {price}, not a number from 0 on")
    return replace(
        spec,
        layers=(*spec.layers, AskUser(price=price)),
        costs=replace(
            spec.costs,
            tools={**spec.costs.tools, ASK_USER: CallCost(money=price, seconds=QUESTION_S)},
            asking=spec.costs.asking | {ASK_USER},
        ),
        components=(*spec.components, *QUESTION_COMPONENTS),
        user=lambda task: AskableUser(prompts=task.prompts, facts=task.user.facts),
        grade=with_asking(spec.grade),
    )
