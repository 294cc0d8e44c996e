"""Warm starts: the episodes that are demonstrated, and the tokens of them that are learnt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coin_flip_bank import BANK
from inner_command import gymcp

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model, make_tiny_tokenizer
from gymcp.agents.prompts.rendering import Renderer
from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError, StoreError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.demonstration_rows import demonstration_examples
from gymcp.trainers.rollouts.recorded_demonstrations import select_demonstrations
from gymcp.trainers.rollouts.rollouts import TrainingEpisodes
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


@pytest.mark.parametrize("prompt_loss_weight", [0.0, 0.25])
def test_prompt_tokens_weigh_as_much_as_the_recipe_says(prompt_loss_weight: float) -> None:
    renderer = Renderer(make_tiny_tokenizer("terse", vocabulary=400), "model")
    (weighted,) = demonstration_examples([episode()], renderer, prompt_loss_weight=prompt_loss_weight)
    (plain,) = demonstration_examples([episode()], renderer)
    actions = np.array(plain.row.loss_mask)
    assert weighted.row.token_ids == plain.row.token_ids
    weights = np.where(actions, 1.0, prompt_loss_weight)
    weights[0] = 0.0  # the first token is predicted from nothing
    assert weighted.advantages[0].tolist() == weights.tolist()
    assert weighted.counted[0].sum() == (len(weights) - 1 if prompt_loss_weight else actions.sum())


def recipe_from_run(run: Path, env: str = "backoffice", **rule: Any) -> Recipe:
    """A recipe whose demonstrations come from a recorded run."""
    return make_recipe({"env": env, "warm_start": {"tasks": 9, "run": str(run), **rule}, "evaluation": {"tasks": 4}})


def test_good_episodes_of_a_run_are_demonstrations_unless_their_task_is_for_tests(tmp_path: Path) -> None:
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
    (shown,) = select_demonstrations(env, recipe_from_run(tmp_path))
    assert (shown.task, [step.sampled for step in shown.steps]) == ("train-refund-1-7", [None, None])
    assert len(select_demonstrations(env, recipe_from_run(tmp_path, min_score=0.5))) == 2
    assert len(select_demonstrations(env, recipe_from_run(tmp_path, min_score=0.5, tasks=1))) == 1
    with pytest.raises(ConfigError, match=r"of 5 episodes 0 are of 'bank', 0 of these scored 1 or more"):
        select_demonstrations(replace(env, spec=replace(env.spec, name="bank")), recipe_from_run(tmp_path))
    with pytest.raises(StoreError, match="nowhere"):
        select_demonstrations(env, recipe_from_run(tmp_path / "nowhere"))


TEACHER = "gymcp.envs.suites.rounds.demonstrators:teacher"


def demonstrate(recipe: Recipe, folder: Path) -> list[Trajectory]:
    """The demonstrations that an agent plays for the recipe."""
    with TrajectoryStore.open(folder, write=True) as store:
        env = load_env(load_spec(recipe.env))
        episodes = TrainingEpisodes(env=env, recipe=recipe, sandbox=get_sandbox("bwrap"), store=store)
        return asyncio.run(episodes.demonstrations())


def test_an_agent_of_the_recipe_demonstrates_and_its_failures_are_shown_if_asked_for(tmp_path: Path) -> None:
    rule = {"tasks": 12, "agent": TEACHER, "min_score": 0.0}
    table = {"env": "rounds", "tasks": {"levels": [1]}, "warm_start": rule, "evaluation": {"tasks": 4}}
    everything = demonstrate(make_recipe(table), tmp_path)
    scores = {record.task: record.score for record in everything}
    assert (len(scores), set(scores.values())) == (12, {0.0, 1.0})
    good = demonstrate(make_recipe({**table, "warm_start": {**rule, "min_score": 1.0}}), tmp_path)
    assert [record.task for record in good] == [task for task, score in scores.items() if score == 1.0]
    with pytest.raises(ConfigError, match=r"agent 'null' has nothing to show: none of its 2 episodes scored 1 or more"):
        demonstrate(make_recipe({**table, "warm_start": {"tasks": 2, "agent": "null"}}), tmp_path)


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("tutor", r"warm_start.agent is 'tutor': no such agent; have oracle, null"),
        ("gymcp.agents.strategies.react:react", "which takes a model: record a run of it with gymcp eval"),
        ("gymcp.envs.suites.rounds:nobody", "defines no 'nobody'"),
    ],
)
def test_an_agent_that_cannot_demonstrate_is_refused_before_training(agent: str, says: str, tmp_path: Path) -> None:
    recipe = make_recipe({"env": "rounds", "warm_start": {"tasks": 2, "agent": agent}, "evaluation": {"tasks": 4}})
    with pytest.raises(ConfigError, match=says):
        train(recipe, load_env(load_spec("rounds")), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_demonstrations_without_tokens_are_written_in_the_form_of_the_model(tmp_path: Path) -> None:
    run = tmp_path / "oracle"
    done = gymcp("eval", BANK, "--agent", "oracle", "--out", run)
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
    train(make_recipe(table), load_env(load_spec(str(BANK))), tmp_path / "run", resume=False, on_row=rows.append)
    assert (rows[0]["phase"], rows[0]["examples"]) == ("warm start", 2)
    assert rows[0]["loss"] > 1.0, "a random model does not predict the demonstrations"
