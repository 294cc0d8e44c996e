"""A tool by which the agent asks the user, at a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gymcp.envs.layers import GoOn, Scene, refusal
from gymcp.envs.spec import EnvSpec
from gymcp.envs.users import AskableUser
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER, with_asking
from gymcp.types import Json, Tool, ToolCall, ToolResult

MAX_QUESTION = 300
"""Characters: a question is no list of all that could be asked."""
QUESTION_COST = 0.05
TOOL = Tool(
    name=ASK_USER,
    description="Ask the user one short question and get their answer. Their time is not free.",
    input_schema={
        "type": "object",
        "properties": {"question": {"type": "string", "minLength": 1, "maxLength": MAX_QUESTION}},
        "required": ["question"],
        "additionalProperties": False,
    },
    annotations={"readOnlyHint": True},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Offers the tool; what the user says comes back as its result, and each answer costs."""

    price: float = QUESTION_COST

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return (*tools, TOOL)

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        if call.name != ASK_USER:
            return await go_on(call, arguments)
        question = arguments.get("question")
        if not isinstance(question, str) or not question.strip() or arguments.keys() != {"question"}:
            return refusal(call, f"tool '{ASK_USER}': takes one argument, question, which is a text")
        if len(question) > MAX_QUESTION:
            return refusal(call, f"tool '{ASK_USER}': at most {MAX_QUESTION} characters: ask one thing at a time")
        said = await scene.ask(question)
        return ToolResult(call_id=call.id, content=said, bytes=len(said.encode()), cost=self.price)

    def settings(self) -> Json:
        return {"layer": "asking", "price": self.price}


def asking(spec: EnvSpec, *, price: float = QUESTION_COST) -> EnvSpec:
    """The environment with a user who can be asked for the tasks' facts, and graded for it (`with_asking`).

    Raises ConfigError for a price below 0.
    """
    if not 0 <= price < float("inf"):
        raise ConfigError(f"environment '{spec.name}': the price of a question is {price}, not a number from 0 on")
    return replace(
        spec,
        layers=(*spec.layers, Asking(price=price)),
        user=lambda task: AskableUser(prompts=task.prompts, facts=task.facts),
        grade=with_asking(spec.grade),
    )
