"""`gymcp train --check` and `--explain`: what training would refuse is refused, and nothing is trained."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from coin_flip_bank import BANK
from safetensors.torch import load_file

from gymcp.cli.training.train_forecast import check_forecast, describe_size, forecast_training, run
from gymcp.cli.training.train_run import run as train
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.trainers.recipe.load import load_recipe, make_recipe
from gymcp.trainers.run.checkpoints import find_saved_state, recipe_as_json
from gymcp.trainers.run.forecasts.disk import LEAST_EPISODE_BYTES
from gymcp.trainers.run.forecasts.model_speed import time_model
from gymcp.trainers.run.forecasts.size import ModelShape, count_episodes, count_updates
from gymcp.types import Json

SMALL: dict[str, Any] = {
    "env": "bank.py",
    "rollout": {"groups": 2, "episodes": 4, "max_tokens": 4, "max_turns": 1},
    "learn": {"iterations": 5},
    "evaluation": {"every": 2, "tasks": 3},
}


def write_recipe(folder: Path, model: Path | None = None, more: str = "", /, **sections: Any) -> Path:
    """A recipe beside its environment's file, which ends with `more`."""
    folder.mkdir(exist_ok=True)
    (folder / "bank.py").write_text(BANK.read_text() + more)
    own: dict[str, Any] = {} if model is None else {"model": {"path": str(model)}}
    path = folder / "mine.toml"
    path.write_text(tomli_w.dumps({**SMALL, **own, **sections}))
    return path


# ------------------------------------------------------------------------------------------------------------ paths


def test_paths_are_relative_to_the_recipe_and_typed_ones_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"env": "bank.py", "model": {"path": "../models/m"}, "warm_start": {"run": "/runs/a", "tasks": 1}}
    path = write_recipe(tmp_path / "recipes", **table)
    monkeypatch.chdir(tmp_path)
    for given in (path, path.relative_to(tmp_path)):
        recipe = load_recipe(given)
        assert recipe.env == str(tmp_path / "recipes" / "bank.py")
        assert recipe.model.path == str(tmp_path / "models" / "m")
        assert recipe.warm_start.run == "/runs/a"
    typed = load_recipe(path, [("model.path", "m"), ("env", "sub/env.py"), ("warm_start.run", "runs/b")])
    assert (typed.env, typed.model.path, typed.warm_start.run) == (
        str(tmp_path / "sub" / "env.py"),
        str(tmp_path / "m"),
        str(tmp_path / "runs" / "b"),
    )
    assert load_recipe(path, [("env", "backoffice")]).env == "backoffice"
    draft = {"method": "draft_model", "model": "../models/small"}
    drafting = write_recipe(tmp_path / "drafts", **table, rollout={"engine": "vllm", "draft": draft})
    assert load_recipe(drafting).rollout.draft.model == str(tmp_path / "models" / "small")


def test_the_file_of_an_agent_is_a_path_and_its_name_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_recipe(tmp_path / "recipes", env="backoffice", rollout={"agent": "sub/mine.py:Mine"})
    monkeypatch.chdir(tmp_path)
    assert load_recipe(path).rollout.agent == f"{tmp_path}/recipes/sub/mine.py:Mine"
    assert load_recipe(path, [("rollout.agent", "mine.py:Mine")]).rollout.agent == f"{tmp_path}/mine.py:Mine"
    assert load_recipe(path, [("rollout.agent", "my.agents:Mine")]).rollout.agent == "my.agents:Mine"
    shown = load_recipe(path, [("warm_start.agent", "mine.py:Mine"), ("warm_start.tasks", 1)]).warm_start
    assert shown.agent == f"{tmp_path}/mine.py:Mine"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").touch()
    with pytest.raises(ConfigError, match=r"recipe: rollout.agent is 'sub/mine.py:Mine': not found at .*, but at "):
        load_recipe(path)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"env": "elsewhere.py"}, "env"),
        ({"model": {"path": "elsewhere.py"}}, "model.path"),
        ({"warm_start": {"run": "elsewhere.py", "tasks": 1}}, "warm_start.run"),
    ],
)
def test_a_path_that_exists_only_in_the_working_folder_names_both_places(
    table: dict[str, Json], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(tmp_path / "recipes", **table)
    (tmp_path / "elsewhere.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    there, here = tmp_path / "recipes" / "elsewhere.py", tmp_path / "elsewhere.py"
    assert str(caught.value).startswith(f"recipe: {key} is 'elsewhere.py': not found at {there}, but at {here}; ")
    assert "\n" not in str(caught.value)


def test_a_run_that_stored_relative_paths_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions stored paths as they stood in the recipe, which were those of the working folder."""
    monkeypatch.chdir(tmp_path)
    path = write_recipe(tmp_path)
    stored = {**recipe_as_json(load_recipe(path)), "env": "bank.py"}
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "training.json").write_text(
        json.dumps({"iteration": 2, "trackers": {"fewest_calls": {}}, "recipe": stored})
    )
    state = find_saved_state(run_folder, load_recipe(path), resume=True)
    assert state is not None
    assert state.iteration == 2


# ------------------------------------------------------------------------------------------------------- the forecast


def test_episodes_are_counted_as_training_plays_them() -> None:
    env = load_env(load_spec(str(BANK)))
    recipe = make_recipe({**SMALL, "env": str(BANK), "warm_start": {"tasks": 8}})
    counts = count_episodes(recipe, env)
    assert (counts.demonstrations, counts.rollouts) == (3, 5 * 2 * 4)
    assert (counts.evaluations, counts.heldout) == (4, 4 * 3)  # before, after 2 and 4, and at the end
    assert count_updates(recipe) == 5
    turn_by_turn = make_recipe({**SMALL, "env": str(BANK), "credit": {"preset": "seeupo"}})
    assert count_updates(turn_by_turn) == 5 * turn_by_turn.rollout.max_turns


def test_a_forecast_says_what_the_run_takes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_recipe(tmp_path / "recipes", model)
    monkeypatch.chdir(tmp_path)
    forecast = forecast_training(load_recipe(path), None, resume=False)
    assert [finding.check for finding in check_forecast(forecast) if finding.passed] == [
        "recipe", "env", "episode", "tokens", "memory", "disk",
    ]  # fmt: skip
    assert forecast.played.first.score == 1.0
    assert forecast.tokens.exact
    assert 0 < forecast.tokens.first_prompt < forecast.tokens.longest <= forecast.tokens.context
    parameters = sum(weight.numel() for weight in load_file(model / "model.safetensors").values())
    assert forecast.memory.weights == 16 * parameters  # weights, gradients and two moments in float32
    assert forecast.disk.episodes == 5 * 2 * 4
    assert forecast.disk.weights == 2 * 12 * parameters  # two checkpoints: weights and two moments in float32
    assert forecast.tokens.record > LEAST_EPISODE_BYTES
    assert forecast.disk.count_bytes(forecast.tokens.record) == 24 * parameters + 40 * forecast.tokens.record
    assert not (tmp_path / "runs").exists()


def test_explain_prints_the_formula_and_the_size_and_trains_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path, model, learn={"iterations": 3, "negative_scale": 0.5, "drop_uninformative": True})
    monkeypatch.chdir(tmp_path)
    run(load_recipe(path, [("credit.preset", "grpo")]), None, resume=False, explain=True, as_json=False)
    out = " ".join(capsys.readouterr().out.split())
    assert "A1(i,t) = (R(i) - mean R) / (std R + 1e-06)" in out
    assert "then: ScaleNegative(scale=0.5): Factor on advantages below zero" in out
    assert "filter: DropUninformative(): Filter that drops groups" in out
    assert "24 to learn from (3 iterations x 2 tasks x 4)" in out
    program = (("rollout.agent", "cmd:sh"), ("rollout.agent_stdin", True), ("rollout.agent_mounts", ["mine.toml"]))
    run(load_recipe(path, program), None, resume=False, explain=False, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["episodes"]["rollouts"]) == (True, 24)
    plays = f"cmd:sh plays over the model in bwrap, one process for an episode; it may read {tmp_path}/mine.toml"
    assert found["checks"]["agent"] == {"passed": True, "detail": plays}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bank.py", "mine.toml"]


TEACHER = "gymcp.envs.suites.rounds.demonstrators:teacher"


def test_the_size_of_a_run_names_the_agent_that_demonstrates_and_includes_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table: dict[str, Any] = {
        "env": "rounds",
        "model": {"style": "terse", "hidden": 16, "layers": 1, "heads": 2},
        "warm_start": {"tasks": 6, "agent": TEACHER, "min_score": 0.0, "epochs": 3, "batch_size": 4},
    }
    recipe = load_recipe(write_recipe(tmp_path, None, **table))
    run(recipe, tmp_path / "run", resume=False, explain=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    parts = dict(found["run_s"])
    assert min(parts.values()) > 0
    assert parts.pop("all") == pytest.approx(sum(parts.values()))
    said = "\n".join(found["explanation"])
    assert f"episodes: 6 of {TEACHER} for the warm start; 40 to learn from" in said
    assert "oracle" not in said
    assert re.search(r"time: about .*, an estimate: .* measured", said)
    assert re.search(r"for drawing: [\d,]+ tokens at [\d,]+ a second in \d+ episodes at a time", said)
    assert re.search(r"for the warm start: 6 updates of 4 episodes in", said)  # 3 epochs of 6 episodes
    assert re.search(r"for updates after it: 5 of 8 episodes in", said)


def test_a_check_times_no_model_and_a_large_one_is_not_timed(model: Path, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, model))
    forecast = forecast_training(recipe, None, resume=False)
    assert (forecast.speed, forecast.duration) == ("it was not timed", None)
    shape = ModelShape(
        parameters=8_000_000_000, trained=1, vocabulary=1, hidden=1, layers=1, cache_width=1
    )  # fmt: skip
    why = asyncio.run(time_model(recipe, forecast.played, forecast.tokens, shape, model, together=4))
    assert why == "a model of 8,000 million weights takes longer than the few seconds of this test"
    last = describe_size(replace(forecast, speed=str(why)))[-1]
    assert last.endswith(f"the time of the model comes on top and is not estimated: {why}")


# ---------------------------------------------------------------------------------------------------------- bad input

BROKEN_GRADER = "\nENV = replace(ENV, grade=lambda task, trajectory, states: 1 / 0)\n"
DEAD_SERVER = "\nENV = replace(ENV, servers=(replace(ENV.servers[0], argv=('/bin/false',), fork=None),))\n"
IMPORT = "\nfrom dataclasses import replace\n"

REFUSED: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "gdpo without components": ({"credit": {"preset": "gdpo"}}, "", "gdpo: needs components="),
    "gdpo with too few weights": (
        {"credit": {"preset": "gdpo", "components": ["a", "b"], "weights": [1.0]}},
        "",
        "as many weights or none",
    ),
    "gamma above 1": ({"credit": {"preset": "gigpo", "gamma": 1.5}}, "", "gamma is 1.5; it must be from 0 to 1"),
    "an anchor that is no key": (
        {"credit": {"preset": "gigpo", "anchor": ["room"]}},
        "",
        "anchor: one is 'room'; have",
    ),
    "overlong on a preset without the score": (
        {"credit": {"preset": "otc"}, "learn": {"overlong_tokens": 9, "overlong_buffer": 3}},
        "",
        "lowers the score, which this preset does not read",
    ),
    "overlong below 0 for bnpo": (
        {"credit": {"preset": "bnpo"}, "learn": {"overlong_tokens": 9, "overlong_buffer": 3}},
        "",
        "bnpo needs scores from 0 to 1",
    ),
    "a divisor that is missing": (
        {"loss": {"aggregation": "seq-mean-token-sum-norm"}},
        "",
        "seq-mean-token-sum-norm needs constant_length",
    ),
    "a dual clip of 1": ({"loss": {"dual_clip": 1.0}}, "", "dual_clip above 1"),
    "a model that is not there": ({"model": {"path": "nowhere"}}, "", "nowhere is no model's folder"),
    "an environment that raises": ({}, "\nraise RuntimeError('boom')\n", "RuntimeError: boom"),
    "a grader that raises": ({}, IMPORT + BROKEN_GRADER, "ZeroDivisionError: division by zero"),
    "a server that ends": ({}, IMPORT + DEAD_SERVER, "that was tried was lost (env_infra): server 'bank': "),
    "a program that is not there": ({"rollout": {"agent": "cmd:nowhere"}}, "", "'cmd:nowhere': no such program"),
    "a script that is not there": ({"rollout": {"agent": "cmd:python3 gone.py"}}, "", "no such file: gone.py"),
    "no split of that name": ({"env": "backoffice", "evaluation": {"splits": ["moon"]}}, "", "'moon'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_training_would_refuse_is_one_line(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections, env, says = REFUSED[name]
    path = write_recipe(tmp_path / "recipes", model, env, **sections)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, EnvInfraError)) as caught:
        run(load_recipe(path), None, resume=False, explain=True, as_json=False)
    assert says in str(caught.value)
    assert capsys.readouterr().out == ""
    assert [each.name for each in tmp_path.iterdir()] == ["recipes"]


def test_prompts_that_fill_the_context_fail_the_check(model: Path, tmp_path: Path) -> None:
    forecast = forecast_training(
        load_recipe(write_recipe(tmp_path, model), [("model.context", 20)]), None, resume=False
    )
    failed = [finding for finding in check_forecast(forecast) if not finding.passed]
    assert [finding.check for finding in failed] == ["tokens"]
    assert "no space for an answer; raise model.context" in failed[0].detail


def test_training_that_is_refused_does_not_say_that_it_starts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path, model, credit={"preset": "matchtir"}, rollout={**SMALL["rollout"], "sandbox": "moon"})
    with pytest.raises(ConfigError, match="moon"):
        train(load_recipe(path), tmp_path / "run", resume=False, as_json=False)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run").exists()
