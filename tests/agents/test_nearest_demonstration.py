"""The baseline without a model: actions in a new task that follow from demonstrations."""

from __future__ import annotations

import asyncio

import pytest

from gymcp.agents.strategies.nearest_demonstration import nearest
from gymcp.errors import ConfigError
from gymcp.types import Action, Json, Message, Observation, Step, Task, ToolCall, Trajectory

Turn = tuple[str, str, dict[str, Json]]
"""A text that is read, and the tool and arguments that follow; without a tool, the answer is under ``text``."""


def observe(text: str, *, first: bool) -> Observation:
    return Observation(messages=(Message(role="user" if first else "tool", content=text),), tools=())


def demonstration(*turns: Turn) -> Trajectory:
    steps = []
    for number, (read, tool, arguments) in enumerate(turns):
        calls = (ToolCall(id=f"call_{number}", name=tool, arguments=arguments),) if tool else ()
        action = Action(tool_calls=calls, text="" if tool else str(arguments["text"]))
        steps.append(Step(turn=0, observation=observe(read, first=number == 0), action=action))
    return Trajectory(id="d", env="e", task="d", steps=tuple(steps), score=1.0)


DEMONSTRATIONS = (
    demonstration(
        ("Tell me the city of customer C012.", "get_customer", {"customer": "C012"}),
        ('{"id":"C012","name":"Ada Byron","city":"Rome"}', "", {"text": "Rome"}),
    ),
    demonstration(
        ("Give customer C007 credit of 25 euros.", "add_credit", {"customer": "C007", "amount": 25}),
        ("done", "", {"text": "done"}),
    ),
    demonstration(
        ("Cancel order O100 if it is open.", "get_order", {"order": "O100"}),
        ('{"id":"O100","status":"open"}', "cancel_order", {"order": "O100"}),
        ("done", "", {"text": "done"}),
    ),
    demonstration(
        ("Cancel order O200 if it is open.", "get_order", {"order": "O200"}),
        ('{"id":"O200","status":"shipped"}', "", {"text": "refused: shipped"}),
    ),
)


def answers(*read: str) -> list[Action]:
    agent = nearest(DEMONSTRATIONS)(Task(id="t", prompts=(read[0],)), 0)

    async def play() -> list[Action]:
        acted = [await agent.act(observe(text, first=number == 0)) for number, text in enumerate(read)]
        return [action for action in acted if isinstance(action, Action)]

    return asyncio.run(play())


def test_arguments_and_answers_come_from_the_places_where_the_demonstration_had_them() -> None:
    look, answer = answers("Tell me the city of customer C440.", '{"id":"C440","name":"Bo Hill","city":"Lima"}')
    assert [(call.name, call.arguments) for call in look.tool_calls] == [("get_customer", {"customer": "C440"})]
    assert (answer.tool_calls, answer.text) == ((), "Lima")


def test_numbers_stay_numbers() -> None:
    (give,) = answers("Give customer C001 credit of 40 euros.")
    assert [(call.name, call.arguments) for call in give.tool_calls] == [
        ("add_credit", {"customer": "C001", "amount": 40})
    ]


def test_the_last_result_decides_between_demonstrations_of_the_same_request() -> None:
    request = "Cancel order O555 if it is open."
    assert [call.name for call in answers(request, '{"id":"O555","status":"open"}')[1].tool_calls] == ["cancel_order"]
    assert answers(request, '{"id":"O555","status":"shipped"}')[1].text == "refused: shipped"


def test_the_answer_is_empty_if_no_demonstration_continues() -> None:
    request = "Cancel order O555 if it is open."
    *_, beyond = answers(request, '{"id":"O555","status":"open"}', '{"id":"O555","status":"open"}', "more")
    assert beyond.tool_calls == ()


def test_an_agent_without_demonstrations_is_refused() -> None:
    with pytest.raises(ConfigError, match="no demonstrations to look among"):
        nearest([])
