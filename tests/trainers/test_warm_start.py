"""What a warm start is made of: episodes shown again with other names, and which tokens are to be learnt."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gymcp.agents.rendering import Renderer
from gymcp.agents.tiny_model import make_tiny_tokenizer
from gymcp.trainers.demonstrations import demonstrations
from gymcp.trainers.respelling import respelt
from gymcp.types import Action, Message, Observation, Step, ToolCall, Trajectory

ASKED = "Today is day 200. Change the city of customer C044, Ann Chan, to Rome; at most 20 euros."
TOLD = '{"id":"C044","name":"Ann Chan","email":"ann42@mail.com","credit":20}'


def episode() -> Trajectory:
    call = ToolCall(id="1", name="set_city", arguments={"customer": "C044", "city": "Rome", "amount": 20})
    return Trajectory(
        id="e",
        env="office",
        task="t",
        steps=(
            Step(
                turn=0,
                observation=Observation(messages=(Message(role="user", content=ASKED),), tools=()),
                action=Action(tool_calls=(call,)),
            ),
            Step(
                turn=0,
                observation=Observation(messages=(Message(role="tool", content=TOLD, tool_call_id="1"),), tools=()),
                action=Action(text="refused: ann42@mail.com"),
            ),
        ),
    )


def test_what_an_episode_copies_is_spelt_otherwise_everywhere_in_it() -> None:
    first, second = respelt(episode(), random.Random(0)).steps
    (call,) = first.action.tool_calls
    assert isinstance(call.arguments, dict)
    who, city = call.arguments["customer"], call.arguments["city"]
    address = second.action.text.removeprefix("refused: ")
    assert (who[0], len(who), len(city), address[-9:]) == ("C", 4, 4, "@mail.com")
    assert (who, city, address) != ("C044", "Rome", "ann42@mail.com")
    asked, told = first.observation.messages[0].content, second.observation.messages[0].content
    assert asked == ASKED.replace("C044", who).replace("Rome", city)
    assert told == TOLD.replace("C044", who).replace("ann42@mail.com", address)


def test_bare_numbers_and_what_is_not_copied_stay() -> None:
    first, second = respelt(episode(), random.Random(0)).steps
    assert first.action.tool_calls[0].arguments["amount"] == 20  # type: ignore[index,call-overload]
    assert "Ann Chan" in first.observation.messages[0].content
    assert '"credit":20' in second.observation.messages[0].content
    nothing = Trajectory(id="e", env="office", task="t", steps=(episode().steps[0],))
    silent = Step(turn=0, observation=nothing.steps[0].observation, action=Action(text="done"))
    assert respelt(Trajectory(id="e", env="office", task="t", steps=(silent,)), random.Random(0)).steps == (silent,)


@pytest.mark.parametrize("context", [0.0, 0.25])
def test_the_context_counts_as_much_as_the_recipe_says(context: float) -> None:
    renderer = Renderer(make_tiny_tokenizer("terse", vocabulary=400), "model")
    (found,) = demonstrations([episode()], renderer, context=context)
    (plain,) = demonstrations([episode()], renderer)
    actions = np.array(plain.row.loss_mask)
    assert found.row.token_ids == plain.row.token_ids
    worth = np.where(actions, 1.0, context)
    worth[0] = 0.0  # nothing comes before it
    assert found.advantages[0].tolist() == worth.tolist()
    assert found.counted[0].sum() == (len(worth) - 1 if context else actions.sum())
