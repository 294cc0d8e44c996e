"""What a warm start is made of: which tokens of an episode are to be learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity import BANK
from typer.testing import CliRunner

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model, make_tiny_tokenizer
from gymcp.agents.prompts.rendering import Renderer
from gymcp.cli.app import app
from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError, StoreError
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.demonstration_rows import demonstrations
from gymcp.trainers.rollouts.recorded_demonstrations import recorded_episodes
from gymcp.trainers.run.loop import train
from gymcp.types import Action, Message, Observation, Sampled, Step, ToolCall, Trajectory

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


def shows(run: Path, env: str = "backoffice", **rule: Any) -> Recipe:
    return make_recipe({"env": env, "warm_start": {"tasks": 9, "run": str(run), **rule}, "evaluation": {"tasks": 4}})


def test_of_a_run_the_good_episodes_are_shown_but_none_of_a_test_task(tmp_path: Path) -> None:
    env = load_env(load_spec("backoffice"))
    first, *rest = episode().steps
    drawn = replace(first, sampled=Sampled(prompt_ids=(9_000,), ids=(9_001,), logprobs=(-1.0,), versions=()))
    good = replace(episode(), env="backoffice", steps=(drawn, *rest), score=1.0)
    records = [
        replace(good, id="good", task="train-refund-1-7"),
        replace(good, id="half", task="train-refund-1-8", score=0.5),
        replace(good, id="tested", task=env.suite.tasks[0].id),
        replace(good, id="other", task="train-refund-1-9", env="office"),
        replace(good, id="unusable", task="train-refund-1-6", steps=(replace(first, valid=False), *rest)),
    ]
    with TrajectoryStore.open(tmp_path, write=True) as store:
        for record in records:
            store.append(record, {})
    (shown,) = recorded_episodes(env, shows(tmp_path))
    assert (shown.task, [step.sampled for step in shown.steps]) == ("train-refund-1-7", [None, None])
    assert len(recorded_episodes(env, shows(tmp_path, min_score=0.5))) == 2
    assert len(recorded_episodes(env, shows(tmp_path, min_score=0.5, tasks=1))) == 1
    with pytest.raises(ConfigError, match=r"of 5 episodes 0 are of 'bank', 0 of these scored 1 or more"):
        recorded_episodes(replace(env, spec=replace(env.spec, name="bank")), shows(tmp_path))
    with pytest.raises(StoreError, match="nowhere"):
        recorded_episodes(env, shows(tmp_path / "nowhere"))


def test_a_run_without_tokens_is_shown_in_the_words_of_the_model(tmp_path: Path) -> None:
    run = tmp_path / "oracle"
    done = CliRunner().invoke(app, ["eval", str(BANK), "--agent", "oracle", "--out", str(run)])
    assert done.exit_code == 0, done.output
    model = make_tiny_model(tmp_path / "model", "compact", size=TinySize(vocabulary=600, hidden=32, layers=1, heads=2))
    table: dict[str, Any] = {
        "env": str(BANK),
        "model": {"path": str(model)},
        "warm_start": {"run": str(run), "tasks": 2, "epochs": 1},
        "rollout": {"groups": 1, "episodes": 2, "max_tokens": 4, "max_turns": 1, "slots": 2},
        "learn": {"iterations": 1},
        "evaluation": {"every": 0, "tasks": 1},
    }
    rows: list[Any] = []
    train(make_recipe(table), load_env(load_spec(str(BANK))), tmp_path / "run", resume=False, tell=rows.append)
    assert (rows[0]["phase"], rows[0]["examples"]) == ("warm start", 2)
    assert rows[0]["loss"] > 1.0, "of words that a random model did not write"
