"""Generation beside training: the bound on the age of tokens, kills, replays of a recorded run, bad settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_command

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.run.asynchronous.producer import open_producer
from gymcp.trainers.run.asynchronous.staleness import is_too_stale
from gymcp.trainers.run.asynchronous.update_log import UPDATES_FILE, read_updates
from gymcp.trainers.run.checkpoints import CHECKPOINT
from gymcp.trainers.run.loop import iterate, train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.trainers.run.training_run import RunInputs, open_run
from gymcp.types import Step

TABLE: dict[str, Any] = {
    "env": "backoffice",
    "name": "small",
    "model": {"vocabulary": 600, "hidden": 32, "layers": 1, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
    "rollout": {
        "groups": 2, "episodes": 2, "max_tokens": 8, "max_turns": 2, "concurrency": 10, "slots": 10, "staleness": 1,
        "over_provision": 1,
    },
    "reward": {"length": 0.01},
    "learn": {"iterations": 4},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip
RECIPE = make_recipe(TABLE)
TIMEOUT_S = 600.0

pytestmark = pytest.mark.usefixtures("one_thread")  # replays compare sums, and the killed process has one


def load_weights(folder: Path, iteration: int) -> dict[str, Any]:
    saved = torch.load(folder / CHECKPOINT / str(iteration) / "learner.pt", weights_only=True)
    weights: dict[str, Any] = saved["weights"]
    return weights


def has_same_weights(a: Path, b: Path, iteration: int) -> bool:
    pairs = zip(load_weights(a, iteration).values(), load_weights(b, iteration).values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    return load_env(load_spec("backoffice"))


@pytest.fixture(scope="module")
def finished(env: LoadedEnv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asynchronous") / "run"
    ending = train(RECIPE, env, folder, resume=False)
    assert (ending.iterations, ending.reason) == (4, "finished")
    return folder


def test_no_token_is_learnt_from_that_is_staler_than_allowed(finished: Path) -> None:
    updates = read_updates(finished)
    assert [(line.iteration, line.version) for line in updates] == [(n, str(n - 1)) for n in range(1, 5)]
    ages: list[int] = []
    with TrajectoryStore.open(finished) as store:
        for line in updates:
            assert len(line.episodes) == 4
            assert not set(line.episodes) & set(line.dropped)
            rows = [row for each in line.episodes for row in rows_of(store.load(each))]
            ages += [int(line.version) - int(version) for row in rows for version, _, _ in row.versions]
    assert set(ages) == {0, 1}, "some rollouts have gone on beside an update"
    for row in read_metrics(finished)[1:]:
        assert row["staleness/0"] + row["staleness/1"] == row["tokens"]
        assert row["staleness/1"] == row["tokens/stale"]
        assert {"utilisation/policy", "utilisation/tools", "utilisation/learner"} <= row.keys()


def test_a_run_without_staleness_is_the_synchronous_loop_to_the_digit(env: LoadedEnv, tmp_path: Path) -> None:
    """The loop as it was, and the producer if it may be no version behind."""
    rollout = {**TABLE["rollout"], "staleness": 0, "over_provision": 0}
    recipe = make_recipe({**TABLE, "deterministic": True, "rollout": rollout, "learn": {"iterations": 2}})
    train(recipe, env, tmp_path / "loop", resume=False)
    assert not (tmp_path / "loop" / UPDATES_FILE).exists()

    async def train_with_producer(folder: Path) -> None:
        torch.manual_seed(recipe.seed)
        inputs = RunInputs(
            recipe=recipe, preset=build_preset(recipe), env=env, folder=folder, on_row=lambda row: None, processes=None
        )
        async with open_run(inputs, None, "") as (run, state), open_producer(run, state) as (watched, first, producer):
            await iterate(watched, first, producer)

    (tmp_path / "producer").mkdir()
    asyncio.run(train_with_producer(tmp_path / "producer"))
    assert has_same_weights(tmp_path / "loop", tmp_path / "producer", 2)
    for row, other in zip(read_metrics(tmp_path / "loop"), read_metrics(tmp_path / "producer"), strict=True):
        assert row.items() <= other.items()
        assert not any(name.startswith(("staleness", "utilisation")) for name in row)


def test_a_killed_run_loses_no_finished_episode_and_a_replay_of_its_log_gives_its_weights(
    env: LoadedEnv, tmp_path: Path
) -> None:
    """Killed with SIGKILL after its second iteration, while further episodes are under way."""
    recipe, folder = tmp_path / "small.toml", tmp_path / "killed"
    recipe.write_text(as_toml(TABLE))
    ours, theirs = os.pipe()
    with os.fdopen(ours, encoding="utf-8") as said:
        words = ["alone", "train", str(recipe), "--out", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = warm_command.start(words, theirs, 2, cwd=None, env=environment, program="launch")
        os.close(theirs)
        for line in said:
            if line.split()[:1] == ["2/4"]:
                break
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait(TIMEOUT_S) == -signal.SIGKILL
    done = read_updates(folder)
    with TrajectoryStore.open(folder) as store:
        finished = {row.id for row in store.summaries() if row.outcome.has_score}
    assert train(RECIPE, env, folder, resume=True).iterations == 4
    updates = read_updates(folder)
    assert updates[: len(done)] == done, "what was logged is learnt from again, not chosen again"
    with TrajectoryStore.open(folder) as store:
        rows = [row for row in store.summaries(latest=False) if row.outcome.has_score]
    assert finished <= {row.id for row in rows}
    assert max(Counter((row.task, row.trial) for row in rows).values()) == 1, "no finished episode was played again"
    learnt = [each for line in updates for each in line.episodes]
    assert len(learnt) == len(set(learnt)) == 16

    replayed = tmp_path / "replayed"
    train(RECIPE, env, replayed, resume=False, replay=folder)
    assert has_same_weights(folder, replayed, 4)
    with TrajectoryStore.open(replayed) as store:
        assert sorted(row.id for row in store.summaries()) == sorted(learnt)
    with pytest.raises(ConfigError, match=r"its log has 4 updates, and learn.iterations is 6; replay it with --set"):
        train(make_recipe({**TABLE, "learn": {"iterations": 6}}), env, tmp_path / "x", resume=False, replay=folder)
    with pytest.raises(ConfigError, match=r"was trained by another recipe: reward, seed; only name"):
        train(make_recipe({**TABLE, "seed": 1, "reward": {}}), env, tmp_path / "x", resume=False, replay=folder)
    record = json.loads((folder / "training.json").read_text())
    record["settings"]["credit.gamma"] = 0.95
    (folder / "training.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"has other defaults than when the run began: credit.gamma was 0.95 and is"):
        train(RECIPE, env, tmp_path / "x", resume=False, replay=folder)


def test_a_group_with_a_token_that_is_too_old_is_never_given_to_the_learner(finished: Path, env: LoadedEnv) -> None:
    with TrajectoryStore.open(finished) as store:
        records = [store.load(each) for each in read_updates(finished)[0].episodes][:2]
    assert not is_too_stale(records, 1, 1)
    assert is_too_stale(records, 2, 1), "all of it was drawn by version 0"
    fresh = replace(records[0], steps=tuple(_drawn_by(step, ("3",)) for step in records[0].steps))
    mixed = replace(records[1], steps=tuple(_drawn_by(step, ("1", "3")) for step in records[1].steps))
    assert not is_too_stale([fresh], 3, 1)
    assert is_too_stale([fresh, mixed], 3, 1), "one token is enough"
    assert not is_too_stale([fresh, mixed], 3, 2)
    foreign = replace(records[0], steps=tuple(_drawn_by(step, ("other",)) for step in records[0].steps))
    with pytest.raises(ConfigError, match="drawn by weights 'other', which are no version of this run"):
        is_too_stale([foreign], 3, 1)


def _drawn_by(step: Step, versions: tuple[str, ...]) -> Step:
    """The step with its first tokens drawn one by each of the earlier weights, and the rest by the last."""
    assert step.sampled is not None
    count = len(step.sampled.ids)
    ends = [*range(1, len(versions)), count]
    spans = tuple((version, start, end) for version, start, end in zip(versions, [0, *ends], ends, strict=False))
    return replace(step, sampled=replace(step.sampled, versions=spans))


def as_toml(table: dict[str, Any]) -> str:
    """The recipe's table as TOML; its values read alike in JSON."""
    sections = {name: value for name, value in table.items() if isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items() if name not in sections]
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"rollout": {"staleness": -1}}, "rollout.staleness is -1; it must not be negative"),
        ({"rollout": {"over_provision": 2}}, "rollout.over_provision is 2, and rollout.staleness is 0: what is left"),
        ({"rollout": {"staleness": 1, "over_provision": 17}}, "17, more than the 16 groups of a batch"),
        ({"rollout": {"staleness": 1, "concurrency": 4}}, "concurrency is 4, and a group has 8 episodes"),
        (
            {"rollout": {"staleness": 1}, "deterministic": True},
            "deterministic needs rollout.staleness = 0, and it is 1",
        ),
        ({"rollout": {"staleness": 2}, "replay": {"keep": 1}}, "replay.keep needs rollout.staleness = 0, and it is 2"),
        (
            {"rollout": {"staleness": 1}, "credit": {"preset": "grpo"}, "loss": {"kind": "likelihood"}},
            "loss.kind = 'likelihood' has no ratios, and with rollout.staleness = 1 tokens are learnt from",
        ),
        ({"rollout": {"staleness": 1}, "curriculum": {"start_turns": 2}}, "curriculum.start_turns needs rollout.stale"),
    ],
)
def test_settings_that_make_no_sense_are_one_clear_error(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "backoffice", **table})


def test_only_a_run_with_a_log_can_be_replayed(env: LoadedEnv, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no updates.jsonl: only runs with rollout.staleness above 0"):
        train(RECIPE, env, tmp_path / "new", resume=False, replay=tmp_path)
    assert not (tmp_path / "new").exists()
