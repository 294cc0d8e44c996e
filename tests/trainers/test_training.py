"""The training loop on a real environment with a tiny model: warm start, rollouts, credit, update, resume."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from interruption import train_until
from transformers import AutoModelForCausalLM

from gymcp.agents.policies.specs import TRAINED
from gymcp.cli.training.credit_run import advantages_of
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.suites.backoffice.families import HELD_OUT_FAMILIES
from gymcp.envs.tool_costs import step_costs
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.report import read_report
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import StateReader
from gymcp.store import TrajectoryStore, create_run, open_run
from gymcp.store.heldout import read_heldout
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.learner.token_rows import Row, rows_of
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.model import load_trainable
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import demonstration_tasks, heldout_tasks, training_tasks
from gymcp.trainers.rollouts.heldout_evaluation import evaluate_heldout
from gymcp.trainers.rollouts.rollouts import TrainingEpisodes
from gymcp.trainers.run.checkpoints import CHECKPOINT, find_saved_state, recipe_as_json
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import CURVES, read_metrics
from gymcp.trainers.run.model_files import FINAL
from gymcp.types import Sampled, Sampling, Score, Task, Trajectory

TABLE: dict[str, Any] = {
    "env": "backoffice",
    "name": "small",
    "model": {"vocabulary": 600, "hidden": 32, "layers": 2, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
    "warm_start": {"tasks": 6, "epochs": 1, "batch_size": 3},
    "rollout": {"groups": 2, "episodes": 2, "max_tokens": 8, "max_turns": 2, "concurrency": 4, "slots": 4},
    "reward": {"risk": 0.5, "length": 0.01},
    "learn": {"iterations": 2},
    "evaluation": {"every": 1, "tasks": 4},
}
RECIPE = make_recipe(TABLE)
SHORT = {**TABLE, "learn": {"iterations": 1}, "evaluation": {"every": 0, "tasks": 1}}


@pytest.fixture(scope="module")
def env() -> LoadedEnv:
    return load_env(load_spec("backoffice"))


@pytest.fixture(scope="module")
def finished(env: LoadedEnv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "run"
    ending = train(RECIPE, env, folder, resume=False)
    assert (ending.iterations, ending.reason) == (2, "finished")
    return folder


def test_a_run_leaves_metrics_curves_checkpoint_and_a_model(finished: Path) -> None:
    rows = read_metrics(finished)
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert {"success", "entropy", "kl", "clipped", "calls", "anchor/singletons", "seconds/rollout"} <= rows[1].keys()
    assert rows[2]["test/seeds/tasks"] == rows[2]["test/seeds/scored"] == 4
    assert {"test/seeds/success", "test/seeds/low", "test/seeds/high", "test/seeds/level 1"} <= rows[2].keys()
    assert {"cost/calls", "cost/bytes", "cost/risk", "cost/seconds", "test/seeds/cost/risk"} <= rows[2].keys()
    results = read_heldout(finished)
    assert [(each.iteration, each.split, len(each.success)) for each in results] == [(n, "seeds", 4) for n in range(3)]
    assert [sum(each.success.values()) / 4 for each in results] == [row["test/seeds/success"] for row in rows]
    assert (finished / CURVES).read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in (finished / CHECKPOINT).iterdir()] == ["2"]
    assert AutoModelForCausalLM.from_pretrained(finished / FINAL).num_parameters() > 10_000
    with TrajectoryStore.open(finished) as store:
        episodes = list(store.iter_trajectories())
    assert len(episodes) == 8
    assert all(step.sampled is not None for episode in episodes for step in episode.steps)


def test_a_run_records_when_it_was_started_with_what(finished: Path, env: LoadedEnv, tmp_path: Path) -> None:
    start = open_run(finished)
    assert datetime.fromisoformat(start.created) <= datetime.now(UTC)
    assert (start.config["suite"], start.config["recipe"]["name"], start.seeds) == ("backoffice", "small", (0,))
    assert start.versions.keys() >= {"gymcp", "python", "torch", "transformers"}
    report = read_report([finished], lambda run: {}).object()["runs"][0]
    assert (report["provenance"]["created"], report["problems"]) == (start.created, [])
    with (
        create_run(tmp_path / "eval", {"env": "backoffice", "agent": "oracle"}),
        pytest.raises(StoreError, match=f"in use by another gymcp .process {os.getpid()}"),
    ):
        train(RECIPE, env, tmp_path / "eval", resume=False)
    with pytest.raises(ConfigError, match="holds a run that is no training"):
        train(RECIPE, env, tmp_path / "eval", resume=False)


def test_the_reward_of_the_recipe_charges_each_step_that_is_learnt_from(finished: Path) -> None:
    free = advantages_of(finished, "gigpo", {})
    with TrajectoryStore.open(finished) as store:
        for row in store.summaries():
            (credit,) = store.credits(row.id)
            steps = store.load(row.id).steps
            risk = step_costs(steps, load_spec("backoffice").costs)["risk"]
            drawn = [len(step.sampled.ids) for step in steps if step.sampled is not None]
            charged = [own - 0.5 * r - 0.01 * n for own, r, n in zip(free[row.id], risk, drawn, strict=True)]
            assert credit.advantages == pytest.approx(charged)


def test_a_dry_run_assigns_credit_to_training_rollouts_with_their_gold(finished: Path) -> None:
    with TrajectoryStore.open(finished) as store:
        ids = {row.id for row in store.summaries()}
    advantages = advantages_of(finished, "matchtir", {"anchor": ["group", "state"]})
    assert advantages.keys() == ids


def test_a_finished_run_is_not_started_again(finished: Path, env: LoadedEnv) -> None:
    with pytest.raises(ConfigError, match="holds a run; continue it with --resume"):
        train(RECIPE, env, finished, resume=False)
    with pytest.raises(ConfigError, match="was started with another recipe"):
        train(replace(RECIPE, seed=9), env, finished, resume=True)


def test_a_run_can_be_continued_when_recipes_have_got_more_keys(tmp_path: Path) -> None:
    recipe = recipe_as_json(RECIPE)
    del recipe["learn"]["keep_cleanest"]
    state = {"iteration": 1, "trackers": {"fewest_calls": {}}, "recipe": recipe}
    (tmp_path / "training.json").write_text(json.dumps(state))
    saved = find_saved_state(tmp_path, RECIPE, resume=True)
    assert saved is not None
    assert saved.iteration == 1


def test_a_run_whose_recipe_this_version_cannot_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    recipe = recipe_as_json(RECIPE)
    recipe["learn"]["forgotten"] = 1
    state = {"iteration": 1, "trackers": {"fewest_calls": {}}, "recipe": recipe}
    (tmp_path / "training.json").write_text(json.dumps(state))
    says = r"not one of this version of gymcp \(.*no key 'learn.forgotten'.*\); continue the run with the version that"
    with pytest.raises(ConfigError, match=says):
        find_saved_state(tmp_path, RECIPE, resume=True)


def test_an_interrupted_run_continues_after_its_last_complete_iteration(env: LoadedEnv, tmp_path: Path) -> None:
    recipe = make_recipe({**SHORT, "learn": {"iterations": 2}})
    train_until(1, recipe, env, tmp_path / "run")
    with (tmp_path / "run" / METRICS_FILE).open("a") as file:
        file.write('{"iteration": 7')  # a kill may leave this
    assert train(recipe, env, tmp_path / "run", resume=True).iterations == 2
    assert [row["iteration"] for row in read_metrics(tmp_path / "run")] == [0, 1, 2]
    assert json.loads((tmp_path / "run" / "training.json").read_text())["iteration"] == 2


def test_training_tasks_are_used_once_and_neither_demonstrated_nor_tested(env: LoadedEnv) -> None:
    many: Recipe = make_recipe({**TABLE, "rollout": {**TABLE["rollout"], "groups": 16}})
    seen = [task.id for iteration in range(3) for task, _ in training_tasks(env, many, iteration)]
    demonstrated = {task.id for task in demonstration_tasks(env, many)}
    tested = {task.id for task in heldout_tasks(env, many, "seeds")}
    assert len(set(seen)) == len(seen) == 48
    assert not set(seen) & demonstrated
    assert not (set(seen) | demonstrated) & tested


def test_demonstrations_may_have_levels_of_their_own(env: LoadedEnv) -> None:
    recipe: Recipe = make_recipe({**TABLE, "warm_start": {"tasks": 4, "levels": [2]}})
    assert all("level 2" in task.tags for task in demonstration_tasks(env, recipe))
    assert not any("level 2" in task.tags for task, _ in training_tasks(env, recipe, 0))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_held_out_tasks_are_sampled_at_the_temperature_of_the_recipe(
    temperature: float, env: LoadedEnv, finished: Path, tmp_path: Path
) -> None:
    class Listener:
        """A policy that ends every answer at once and records its sampling settings."""

        def __init__(self) -> None:
            self.settings: list[Sampling] = []

        async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
            self.settings.append(sampling)
            return Sampled(prompt_ids=tuple(prompt_ids), ids=(0,), logprobs=(0.0,), versions=(("0", 0, 1),))

    async def evaluate() -> list[Sampling]:
        listener = Listener()
        recipe = make_recipe({**TABLE, "evaluation": {"tasks": 4, "temperature": temperature}})
        async with open_warm_sandbox(get_sandbox("bwrap")) as sandbox:
            with TrajectoryStore.open(tmp_path, write=True) as store:
                episodes = TrainingEpisodes(env=env, recipe=recipe, sandbox=sandbox, store=store)
                trainable = load_trainable(recipe.model, finished / FINAL)
                await evaluate_heldout(episodes, trainable, listener, final=False)
        return listener.settings

    settings = asyncio.run(evaluate())
    assert {sampling.temperature for sampling in settings} == {temperature}
    assert len({sampling.seed for sampling in settings}) == len(settings)  # no seed is shared between tasks


def test_held_out_tasks_are_of_the_training_families_unless_the_split_has_others(env: LoadedEnv) -> None:
    def families(split: str, **evaluation: Any) -> set[str]:
        recipe = make_recipe({**TABLE, "evaluation": {"tasks": 16, **evaluation}})
        return {task.tags[0] for task in heldout_tasks(env, recipe, split)}

    assert families("seeds") == families("wordings") == families("values") == {"cancel", "ticket"}
    assert families("families") == set(HELD_OUT_FAMILIES)
    assert families("seeds", families=["refund"]) == {"refund"}
    assert families("families", families=["refund"]) == set(HELD_OUT_FAMILIES)


def test_a_fixed_suite_is_tested_on_the_tasks_it_does_not_train_on(env: LoadedEnv) -> None:
    tasks = [replace(task, split="train" if n % 2 else "test") for n, task in enumerate(env.suite.tasks)]
    fixed = replace(env, spec=replace(env.spec, more_tasks=None), suite=replace(env.suite, tasks=tuple(tasks)))
    tested = {task.id for task in heldout_tasks(fixed, RECIPE, "seeds", len(tasks))}
    assert tested == {task.id for task in tasks if task.split == "test"}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"tasks": {"families": ["gossip"]}}, "no family 'gossip'; have "),
        ({"tasks": {"levels": [9]}}, "no level 9; have 1, 2, 3, 4, 5"),
        ({"tasks": {"families": ["stock"]}}, "family 'stock' is for the split 'families'"),
        ({"warm_start": {"tasks": 1, "families": ["gossip"]}}, "no family 'gossip'; have "),
        ({"evaluation": {"splits": ["sedes"]}}, "no split 'sedes'; have "),
        ({"evaluation": {"final_splits": ["sedes"]}}, "no split 'sedes'; have "),
        ({"evaluation": {"levels": [0]}}, "no level 0; have "),
    ],
)
def test_unknown_families_levels_and_splits_are_refused_before_anything_starts(
    table: dict[str, Any], says: str, env: LoadedEnv, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        train(make_recipe({**TABLE, **table}), env, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


AGENT = '''
from gymcp.agents import react
from gymcp.types import Action


class Talkative:
    """React."""

    def __init__(self, inner):
        self.inner = inner

    async def act(self, observation):
        return await self.inner.act(observation)


def talkative(model, settings):
    make = react(model, settings)
    return lambda task, seed: Talkative(make(task, seed))


def alone(task, seed):
    return Talkative(None)
'''


def test_an_agent_of_the_user_is_trained_on_its_tokens(env: LoadedEnv, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    rollout = {**TABLE["rollout"], "agent": f"{tmp_path}/mine.py:talkative", "max_seconds": 600}
    recipe = make_recipe({**SHORT, "rollout": rollout})
    train(recipe, env, tmp_path / "run", resume=False)
    with TrajectoryStore.open(tmp_path / "run") as store:
        episodes = list(store.iter_trajectories())
    assert len(episodes) == 4
    for episode in episodes:
        context: tuple[int, ...] = ()
        for step in episode.steps:
            assert step.sampled is not None
            assert step.sampled.prompt_ids[: len(context)] == context, "each prompt begins with the tokens before it"
            context = step.sampled.prompt_ids + step.sampled.ids
    config = open_run(tmp_path / "run").config
    assert (config["agent_source"], len(str(config["agent_digest"]))) == (f"{tmp_path}/mine.py:talkative", 64)
    (tmp_path / "mine.py").write_text(f"{AGENT}\n")
    more = replace(recipe, learn=replace(recipe.learn, iterations=2))
    with pytest.raises(ConfigError, match=r"the file of agent 'mine.py:talkative' has changed since the run began"):
        train(more, env, tmp_path / "run", resume=True)


PLAYER = Path(__file__).parents[1] / "agents" / "players" / "chat.py"


def grade_by_tokens(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Half of the episodes succeed, told by what was drawn: a policy with random weights solves no task."""
    return Score(value=float(sum(sum(step.sampled.ids) for step in trajectory.steps if step.sampled) % 2))


def test_a_program_is_trained_as_react_is(env: LoadedEnv, tmp_path: Path) -> None:
    """The same episodes of several answers, rows and gradient, if the program has one plain context.

    It starts from a file that its command does not name, and reads its messages as lines.
    """
    found = []
    env = replace(env, spec=replace(env.spec, grade=grade_by_tokens))
    table = {
        "env": "backoffice",
        "model": {"path": str(TRAINED)},  # it makes calls
        "tasks": {"levels": [2], "families": ["credit", "ticket"]},
        "learn": {"iterations": 2},
        "evaluation": {"every": 2, "tasks": 2},
    }
    rollout = {"groups": 2, "episodes": 3, "max_tokens": 32, "max_turns": 4, "slots": 4}
    program: dict[str, Any] = {
        "agent": f"""cmd:python3 -c 'exec(open("{PLAYER}").read())' lines""",
        "agent_stdin": True,
        "agent_mounts": [str(PLAYER)],
    }
    for number, agent in enumerate(({"agent": "react"}, program)):
        folder = tmp_path / str(number)
        train(make_recipe({**table, "rollout": {**rollout, **agent}}), env, folder, resume=False)
        metrics = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
        with TrajectoryStore.open(folder) as store:
            rows = {(episode.task, episode.trial): rows_of(episode) for episode in store.iter_trajectories()}
        found.append(([(row.get("reward"), row.get("grad_norm"), row.get("steps")) for row in metrics], rows))
    config = open_run(tmp_path / "1").config
    assert (config["agent_turns"], config["agent_mounts"]) == ("stdin", [str(PLAYER)])
    (react_metrics, react_rows), (metrics, rows) = found
    assert max(len(row.steps) for (row,) in rows.values()) > 1, "an episode has several answers"
    played, by_react = ({key: drop_logprobs(row) for key, (row,) in each.items()} for each in (rows, react_rows))
    assert played == by_react
    assert [row for row in metrics if row[1]], "something was learnt"
    for row, react_row in zip(metrics, react_metrics, strict=True):
        assert row == pytest.approx(react_row, rel=1e-3)


def drop_logprobs(row: Row) -> Row:
    """The row without log-probabilities: engines give them up to rounding."""
    return replace(row, logprobs=())


def test_an_agent_without_a_model_cannot_be_trained(env: LoadedEnv, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    for name, says in (("alone", "which takes task and seed"), ("gone", "defines no 'gone'; have")):
        rollout = {**TABLE["rollout"], "agent": f"{tmp_path}/mine.py:{name}"}
        with pytest.raises(ConfigError, match=says):
            train(make_recipe({**TABLE, "rollout": rollout}), env, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
