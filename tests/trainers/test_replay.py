"""The replay buffer: what it keeps, when a group recalls it, and which buffers of other runs are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coin_flip_bank import BANK, make_coin_flip_bank
from interruption import train_until

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore, create_run
from gymcp.trainers.learner.token_rows import count_stale_tokens, rows_of
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe, ReplayRecipe
from gymcp.trainers.run.checkpoints import recipe_as_json
from gymcp.trainers.run.experience.recorded_buffer import check_replay, load_recorded_buffer, mark_foreign
from gymcp.trainers.run.experience.replay_buffer import (
    KeptEpisode,
    ReplayBuffer,
    choose_recalled,
    group_records,
    remember,
    replace_in_groups,
    restore_buffer,
)
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Action, Observation, Sampled, SideAnswer, Step, Trajectory

KEEP_TWO = ReplayRecipe(keep=2)
ALIKE = ReplayRecipe(keep=2, recall="alike")


def record(id: str, score: float, *, task: str = "a", group: str = "now", logprob: float = -1.0) -> Trajectory:
    sampled = Sampled(prompt_ids=(1, 2), ids=(3, 4), logprobs=(logprob, logprob), versions=(("0", 0, 2),))
    step = Step(
        turn=0, observation=Observation(messages=(), tools=()), action=Action(text="x"), sampled=sampled, state_key="s"
    )
    return Trajectory(id=id, env="bank", task=task, group=group, steps=(step,), score=score)


def ids(kept: Sequence[KeptEpisode]) -> list[str]:
    return [each.id for each in kept]


def test_the_newest_solved_episodes_of_each_task_are_kept() -> None:
    records = [record("1", 1.0), record("2", 0.0), record("3", 1.0, task="b"), record("4", 1.0), record("5", 1.0)]
    buffer = remember(ReplayBuffer(), records, KEEP_TWO, 3)
    assert {task: ids(kept) for task, kept in buffer.tasks.items()} == {"a": ["4", "5"], "b": ["3"]}
    assert buffer.size == 3
    assert remember(buffer, [record("5", 1.0)], KEEP_TWO, 4) == buffer  # an episode that was learnt again
    assert remember(buffer, [record("6", 1.0)], ReplayRecipe(), 4) is buffer
    assert restore_buffer(json.loads(json.dumps(buffer.to_json()))) == buffer


def test_other_episodes_are_kept_if_they_may_be_recalled() -> None:
    records = [record(str(n), score) for n, score in enumerate([0.0, 1.0, 0.5, 0.0, 1.0])]
    assert ids(remember(ReplayBuffer(), records, ALIKE, 0).tasks["a"]) == ["1", "2", "3", "4"]


def test_an_episode_without_tokens_is_not_kept() -> None:
    steps = tuple(replace(step, sampled=None) for step in record("1", 1.0).steps)
    assert remember(ReplayBuffer(), [replace(record("1", 1.0), steps=steps)], KEEP_TWO, 0) == ReplayBuffer()


def test_a_group_without_a_success_recalls_one() -> None:
    buffer = remember(ReplayBuffer(), [record("1", 1.0), record("2", 1.0)], KEEP_TWO, 0)
    failed = [record("3", 0.0), record("4", 0.5), record("5", 0.0)]
    assert len(choose_recalled(buffer, failed, KEEP_TWO, 1, seed=0)) == 1
    two = replace(KEEP_TWO, per_group=2)
    assert sorted(ids(choose_recalled(buffer, failed, two, 1, seed=0))) == ["1", "2"]
    assert len(choose_recalled(buffer, failed[:2], two, 1, seed=0)) == 1  # a new episode is left
    assert choose_recalled(buffer, [*failed, record("6", 1.0)], KEEP_TWO, 1, seed=0) == []
    assert choose_recalled(buffer, [record("7", 0.0, task="b")] * 2, KEEP_TWO, 1, seed=0) == []


def test_a_group_that_scored_alike_recalls_what_scored_otherwise() -> None:
    buffer = remember(ReplayBuffer(), [record("1", 1.0), record("2", 0.0)], ALIKE, 0)
    assert ids(choose_recalled(buffer, [record("3", 1.0)] * 2, ALIKE, 1, seed=0)) == ["2"]
    assert ids(choose_recalled(buffer, [record("3", 0.0)] * 2, ALIKE, 1, seed=0)) == ["1"]
    assert choose_recalled(buffer, [record("3", 0.0), record("4", 0.5)], ALIKE, 1, seed=0) == []


def test_episodes_of_weights_that_are_too_old_are_not_recalled() -> None:
    buffer = remember(ReplayBuffer(), [record("1", 1.0)], KEEP_TWO, 4)
    rule, failed = replace(KEEP_TWO, max_age=2), [record("2", 0.0), record("3", 0.0)]
    assert [ids(choose_recalled(buffer, failed, rule, now, seed=0)) for now in (5, 6, 7)] == [["1"], ["1"], []]


def test_recalled_episodes_take_the_places_of_new_ones_and_join_their_group() -> None:
    new = [record("1", 0.0, group="x"), record("2", 0.0, group="x"), record("3", 0.0, group="y")]
    found = replace_in_groups(new, {"x": [record("9", 1.0, group="long ago")]})
    assert [(each.id, each.group) for each in found] == [("1", "x"), ("9", "x"), ("3", "y")]
    assert list(group_records(found)) == ["x", "y"]


def test_tokens_of_another_run_are_never_taken_for_this_runs() -> None:
    answer = SideAnswer(step=0, context=0, action=Action(text="y"), sampled=record("1", 1.0).steps[0].sampled)
    foreign = mark_foreign(replace(record("1", 1.0), side_answers=(answer,)), "other")
    (row,) = rows_of(foreign)
    assert [count_stale_tokens(row, version) for version in ("0", "other/0")] == [2, 0]
    assert foreign.side_answers[0].sampled is not None
    assert foreign.side_answers[0].sampled.versions == (("other/0", 0, 2),)


# --- Buffers of other runs.


@pytest.fixture(scope="module")
def bank() -> LoadedEnv:
    return make_coin_flip_bank()


def recipe_of(run: Path | str, model: Path | str = "", preset: str = "asymre", **sections: Any) -> Recipe:
    table = {
        "env": str(BANK),
        "name": "again",
        "model": {"path": str(model)},
        "credit": {"preset": preset},
        "replay": {"keep": 2, "run": str(run)},
    }
    return make_recipe({**table, **sections})


def record_run(folder: Path, here: LoadedEnv, model: Path, records: Sequence[Trajectory], **config: str) -> Path:
    """A training run of one iteration, with these records."""
    recorded = {"env": here.spec.name, "env_version": here.spec.version, **config}
    with create_run(folder, recorded):
        pass
    state = {"iteration": 1, "trackers": {}, "recipe": recipe_as_json(recipe_of("", model, replay={}))}
    (folder / "training.json").write_text(json.dumps(state))
    with TrajectoryStore.open(folder, write=True) as store:
        for each in records:
            store.append(each, {})
    return folder


def episodes_of(env: LoadedEnv, **changes: Any) -> list[Trajectory]:
    task = env.suite.tasks[0].id
    return [replace(record(f"{n}", 1.0, task=task, **changes), trial=n) for n in range(2)]


def test_a_run_of_the_same_environment_and_vocabulary_fills_the_buffer(
    bank: LoadedEnv, model: Path, tmp_path: Path
) -> None:
    run = record_run(tmp_path / "run", bank, model, episodes_of(bank))
    for preset in ("asymre", "opmd", "expert_iteration", "decoupled_ppo"):
        recipe = recipe_of(run, model, preset)
        check_replay(bank, recipe, Loss(kind="likelihood") if preset != "decoupled_ppo" else Loss(decoupled=True))
    assert [each.steps[0].sampled.versions for each in load_recorded_buffer(bank, recipe) if each.steps[0].sampled] == [
        (("run/0", 0, 2),)
    ] * 2


def test_a_buffer_has_the_newest_grades(bank: LoadedEnv, model: Path, tmp_path: Path) -> None:
    episodes = episodes_of(bank)
    run = record_run(tmp_path / "run", bank, model, episodes)
    with TrajectoryStore.open(run, write=True) as store:
        store.add_grade(replace(episodes[1], score=0.25), grader="another")
    assert [each.score for each in load_recorded_buffer(bank, recipe_of(run, model))] == [1.0, 0.25]


@pytest.mark.parametrize(
    ("config", "loss", "message"),
    [
        ({}, Loss(), r"of other weights, and loss.kind = 'ppo' compares .*set loss.decoupled = true, or take a preset"),
        ({}, Loss(kind="gspo"), "loss.kind = 'gspo' compares"),
        ({"env": "rounds"}, Loss(decoupled=True), r"is of environment 'rounds' .*trains on 'bank'"),
        ({"env_version": "other"}, Loss(decoupled=True), r"\(version other\), and the recipe trains on 'bank'"),
    ],
)
def test_a_buffer_of_other_weights_or_of_another_environment_is_refused(
    config: dict[str, str], loss: Loss, message: str, bank: LoadedEnv, model: Path, tmp_path: Path
) -> None:
    run = record_run(tmp_path / "run", bank, model, episodes_of(bank), **config)
    with pytest.raises(ConfigError, match=message):
        check_replay(bank, recipe_of(run, model), loss)


def test_a_buffer_of_another_vocabulary_is_refused(bank: LoadedEnv, model: Path, tmp_path: Path) -> None:
    size = TinySize(vocabulary=400, hidden=32, layers=1, heads=2)
    other = make_tiny_model(tmp_path / "model", "compact", size=size)
    run = record_run(tmp_path / "run", bank, model, episodes_of(bank))
    with pytest.raises(ConfigError, match=r"has tokens of the vocabulary of .* has another one"):
        check_replay(bank, recipe_of(run, other), Loss(kind="likelihood"))
    with pytest.raises(ConfigError, match=r"this recipe makes a new model: set model.path, such as to '.*final'"):
        check_replay(bank, recipe_of(run), Loss(kind="likelihood"))


def test_a_buffer_without_what_the_loss_needs_is_refused(bank: LoadedEnv, model: Path, tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", bank, model, episodes_of(bank, logprob=0.0))
    check_replay(bank, recipe_of(run, model), Loss(kind="likelihood"))
    with pytest.raises(ConfigError, match=r"episode 0 has no recorded log-probabilities, which loss\.decoupled needs"):
        check_replay(bank, recipe_of(run, model), Loss(decoupled=True))
    empty = record_run(tmp_path / "empty", bank, model, [])
    with pytest.raises(ConfigError, match="has nothing to learn from: of 0 scored episodes 0 are"):
        check_replay(bank, recipe_of(empty, model), Loss(kind="likelihood"))
    (run / "training.json").unlink()
    with pytest.raises(ConfigError, match="is no training run, so the vocabulary of its tokens is unknown"):
        check_replay(bank, recipe_of(run, model), Loss(kind="likelihood"))
    with pytest.raises(ConfigError, match=r"replay.run is 'x', and replay.keep is 0"):
        check_replay(bank, replace(recipe_of("x"), replay=ReplayRecipe(run="x")), Loss())


# --- Whole runs.

TABLE: dict[str, Any] = {
    "env": str(BANK),
    "name": "again",
    "deterministic": True,
    "rollout": {"groups": 4, "episodes": 2, "max_tokens": 2, "max_turns": 1, "concurrency": 4, "slots": 4},
    "learn": {"iterations": 4},
    "evaluation": {"every": 0, "tasks": 1},
}


@pytest.mark.parametrize("preset", ["grpo", "asymre", "decoupled_ppo"])
def test_a_run_recalls_its_own_episodes_and_a_resumed_one_recalls_the_same(
    preset: str, bank: LoadedEnv, model: Path, tmp_path: Path
) -> None:
    tasks = tuple(bank.suite.tasks[:4])
    env = replace(bank, suite=replace(bank.suite, tasks=tasks))
    table = {**TABLE, "model": {"path": str(model)}, "credit": {"preset": preset}}
    recipe = make_recipe({**table, "replay": {"keep": 2, "recall": "alike"}})
    train(recipe, env, tmp_path / "whole", resume=False)
    rows = read_metrics(tmp_path / "whole")[1:]
    assert sum(row["replay/recalled"] for row in rows) > 0
    for row in rows:
        assert (row["tokens/stale"] > 0) == (row["replay/recalled"] > 0)

    train_until(3, recipe, env, tmp_path / "cut")
    train(recipe, env, tmp_path / "cut", resume=True)
    assert read_metrics(tmp_path / "cut") == read_metrics(tmp_path / "whole")


def test_a_run_learns_from_the_episodes_of_another(bank: LoadedEnv, model: Path, tmp_path: Path) -> None:
    tasks = tuple(bank.suite.tasks[:4])
    env = replace(bank, suite=replace(bank.suite, tasks=tasks))
    table = {**TABLE, "model": {"path": str(model)}, "learn": {"iterations": 2}}
    train(make_recipe(table), env, tmp_path / "first", resume=False)
    rule = {"keep": 4, "recall": "alike", "run": str(tmp_path / "first")}
    again = make_recipe({**table, "seed": 1, "credit": {"preset": "decoupled_ppo"}, "replay": rule})
    train(again, env, tmp_path / "second", resume=False)
    first, *_ = read_metrics(tmp_path / "second")[1:]
    assert first["replay/kept"] > 0
    on_policy = make_recipe({**table, "replay": rule})
    with pytest.raises(ConfigError, match="holds episodes of other weights"):
        train(on_policy, env, tmp_path / "third", resume=False)
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"replay": {"keep": 4}, "credit": {"preset": "spo"}}, "preset 'spo' remembers"),
        ({"replay": {"keep": 4}, "credit": {"preset": "tigpo"}}, "preset 'tigpo' remembers"),
        ({"replay": {"keep": 4}, "credit": {"preset": "epo"}}, "preset 'epo' remembers"),
        ({"replay": {"keep": 4}, "credit": {"preset": "ppo"}, "rollout": {"episodes": 1}}, "rollout.episodes is 1"),
        ({"replay": {"max_age": 4}}, "replay.max_age is set, and replay.keep is 0"),
        ({"replay": {"reflect": 4}}, "replay.reflect is set, and replay.keep is 0"),
        ({"replay": {"keep": 4, "reflect": 4}}, r"keeps no failed episode to reflect on: set replay\.recall"),
    ],
)
def test_a_replay_that_would_mislead_or_do_nothing_is_refused(table: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_recipe({"env": "rounds", **table})


def test_a_replay_of_tasks_that_never_come_again_is_refused() -> None:
    rounds = load_env(load_spec("rounds"))
    recipe = make_recipe({"env": "rounds", "replay": {"keep": 4}})
    with pytest.raises(ConfigError, match=r"set tasks\.pool"):
        check_replay(rounds, recipe, Loss())
    check_replay(rounds, make_recipe({"env": "rounds", "replay": {"keep": 4}, "tasks": {"pool": 8}}), Loss())


def test_hgpo_needs_groups() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.episodes is 1"):
        make_recipe({"env": "rounds", "credit": {"preset": "hgpo"}, "rollout": {"episodes": 1}})
