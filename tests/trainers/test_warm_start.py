"""What a warm start is made of: which tokens of an episode are to be learnt."""

from __future__ import annotations

import numpy as np
import pytest

from gymcp.agents.rendering import Renderer
from gymcp.agents.tiny_model import make_tiny_tokenizer
from gymcp.trainers.demonstrations import demonstrations
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
