"""Updates that begin with the first weights in every iteration (STaR)."""

from __future__ import annotations

from typing import Any

import pytest
import small_models as tiny
import torch

from gymcp.errors import ConfigError
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.settings.loss import Loss

LIKELIHOOD = Loss(kind="likelihood")


def test_a_restarted_learner_learns_what_a_new_one_would() -> None:
    model = tiny.model()
    learner = Learner(model, LearnerSettings(learning_rate=1e-3))
    learner.set_reference()
    examples = [tiny.example(row, (1.0, 1.0)) for row in tiny.group(1)]

    def learn() -> list[torch.Tensor]:
        learner.update(examples, LIKELIHOOD, groups=[0] * 4)
        return [weight.detach().clone() for weight in model.parameters()]

    first, second = learn(), learn()
    learner.restart()
    again = learn()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(second, again, strict=True))
    assert learner.steps == 3


def test_a_learner_without_a_reference_cannot_restart() -> None:
    with pytest.raises(ConfigError, match="the weights of a reference are asked for, and none was kept"):
        Learner(tiny.model(), LearnerSettings()).restart()


@pytest.mark.parametrize("preset", ["expert_iteration", "opmd", "asymre"])
def test_losses_without_ratios_may_restart(preset: str) -> None:
    assert make_recipe({"env": "rounds", "credit": {"preset": preset}, "learn": {"restart": True}}).learn.restart


@pytest.mark.parametrize(("credit", "kind"), [({"preset": "grpo"}, "ppo"), ({"preset": "gspo"}, "gspo")])
def test_losses_with_ratios_may_not(credit: dict[str, Any], kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"learn\.restart begins .* loss\.kind = '{kind}' compares with those"):
        make_recipe({"env": "rounds", "credit": credit, "learn": {"restart": True}})
