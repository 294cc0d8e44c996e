from __future__ import annotations

import math
import re
import shutil
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from gymcp.agents.programs.settings import ProgramSettings
from gymcp.cli.demo.parts import RECIPE
from gymcp.cli.training.train_run import run, teller
from gymcp.errors import ConfigError
from gymcp.trainers.credit.presets import PRESETS, WITHOUT_GROUPS, make_preset
from gymcp.trainers.recipe.agent import load_rollout_agent
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import FORMERLY_ZERO, RENAMED_KEYS, load_recipe, make_recipe, restore_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.settings.loss import Loss, TruncatedWeight, find_ignored
from gymcp.types import Json

ROOT = Path(__file__).parents[2]


SHIPPED = sorted([*(ROOT / "recipes").glob("*.toml"), *(ROOT / "benchmarks" / "curves").glob("*.toml")])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_load(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_the_demos_recipe_is_in_a_copy_of_the_folder_and_in_the_package(tmp_path: Path) -> None:
    """`cp -r` copies links as links."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes", symlinks=True)
    assert (tmp_path / "recipes" / "demo.toml").read_bytes() == RECIPE.read_bytes()


def test_settings_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('env = "backoffice"\n[learn]\niterations = 3\n')
    recipe = load_recipe(path, (("learn.iterations", 5), ("credit.preset", "grpo"), ("loss.clip_high", 0.4)))
    assert (recipe.name, recipe.learn.iterations, build_preset(recipe).loss.clip_high) == ("mine", 5, 0.4)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "must name its environment"),
        ({"learning": 1}, "no key 'learning'; have credit"),
        ({"name": "/../../tmp/x"}, "it becomes the name of a folder"),
        ({"name": "x\u202e"}, "it becomes the name of a folder"),
        ({"learn": {"iteration": 5}}, "no key 'learn.iteration'; have"),
        ({"learn": {"iterations": "many"}}, "learn.iterations is 'many'; it must be a whole number"),
        ({"learn": {"iterations": True}}, "it must be a whole number"),
        ({"learn": {"learning_rate": -1}}, "must not be negative"),
        ({"learn": {"schedule": "zigzag"}}, "have 'constant', 'linear', 'cosine'"),
        ({"tasks": {"levels": 1}}, "tasks.levels is 1; it must be a list"),
        ({"credit": {"preset": "gigo"}}, "no preset 'gigo'"),
        ({"credit": {"preset": "gigpo", "omega": 1}}, "no option 'omega'"),
        ({"rollout": {"episodes": 1}}, "a group of one has nothing to be compared with"),
        ({"rollout": {"temperature": 0}}, "must be above 0"),
        ({"evaluation": {"temperature": -1.0}}, "evaluation.temperature is -1.0; it must not be negative"),
        ({"rollout": {"groups": 0}}, "rollout.groups must be 1 or more"),
        ({"learn": {"minibatches": 0}}, "learn.minibatches must be 1 or more"),
        ({"learn": {"patience": 0}}, "learn.patience must be 1 or more"),
        ({"warm_start": {"batch_size": 0}}, "warm_start.batch_size must be 1 or more"),
        ({"model": {"layers": 0}}, "model.layers must be 1 or more"),
        ({"learn": {"max_grad_norm": 0}}, "learn.max_grad_norm must be above 0"),
        ({"model": {"heads": 5}}, "model.heads is 5: it must be even"),
        ({"loss": {"kl": "much"}}, "loss.kl is 'much'; it must be a number"),
        ({"loss": {"weight": 2.0}}, "loss.weight must be a table with a rule: 'truncated' or 'band'"),
        ({"loss": {"weight": {"rule": "band", "cap": 2.0}}}, "no key 'loss.weight.cap'; have high, low"),
        ({"loss": {"aggregation": "mean"}}, "loss.aggregation is 'mean'; have 'token-mean'"),
        ({"rollout": {"engine": "vllm"}}, "serves a model's folder: name it in model.path"),
        ({"rollout": {"engine": "vllm", "server": "openai:http://h:1/v1#m"}}, "needs the tokens that were drawn"),
        ({"rollout": {"server": "vllm:http://h:1#m"}}, "are for rollout.engine = 'vllm'"),
        ({"rollout": {"engine": "vllm"}, "model": {"path": "m"}, "deterministic": True}, "deterministic needs"),
        ({"rollout": {"draft": {"method": "ngram"}}}, "rollout.draft is for rollout.engine = 'vllm'"),
        (
            {
                "rollout": {"engine": "vllm", "draft": {"method": "ngram"}, "server": "vllm:http://h:1#m"},
                "model": {"path": "m"},
            },
            "rollout.draft is for a server that the run starts, and rollout.server is 'vllm:http://h:1#m'",
        ),
        (
            {"rollout": {"engine": "vllm", "draft": {"method": "ngram", "tokens": 0}}, "model": {"path": "m"}},
            "rollout.draft.tokens must be from 1 to 128, which is vLLM's limit",
        ),
        (
            {"rollout": {"engine": "vllm", "draft": {"method": "draft_model"}}, "model": {"path": "m"}},
            "name its folder in rollout.draft.model",
        ),
        (
            {"rollout": {"engine": "vllm", "draft": {"method": "ngram", "model": "n"}}, "model": {"path": "m"}},
            "method 'ngram' drafts from earlier text, without a model",
        ),
        ({"rollout": {"draft": {"tokens": 2}}}, "rollout.draft has no method"),
        ({"rollout": {"draft": {"tokens": 4}}}, "rollout.draft has no method"),
        ({"rollout": {"draft": {"method": "eagle"}}}, "have '', 'ngram', 'draft_model'"),
        ({"rollout": {"draft": "ngram"}}, "rollout.draft is 'ngram'; it must be a section"),
        ({"loss": {"clip": 0.2}}, "no key 'loss.clip'"),
        ({"loss": {"dual_clip": "high"}}, "loss.dual_clip is 'high'; it must be a number"),
        ({"loss": {"weight": {"rule": "truncated", "cap": "x"}}}, "loss.weight.cap is 'x'; it must be a number"),
        ({"learn": 3}, "learn is 3; it must be a section"),
        ({"model": "runs/mine/final"}, "model is 'runs/mine/final'; it must be a section"),
        ({"learn": {"learning_rate": math.nan}}, "learn.learning_rate is nan; it must be finite"),
        ({"learn": {"max_grad_norm": math.inf}}, "learn.max_grad_norm is inf; it must be finite"),
        ({"tasks": {"levels": ["one"]}}, "tasks.levels: one is 'one'; it must be a whole number"),
        ({"credit": {"gamma": "high"}}, "preset 'gigpo': gamma is 'high'; it must be a number"),
        ({"credit": {"gamma": 2}}, "preset 'gigpo': gamma is 2; it must be from 0 to 1"),
        ({"credit": {"step_weight": -1}}, "preset 'gigpo': step_weight is -1; it must not be negative"),
        ({"credit": {"norm": "std"}}, "preset 'gigpo': norm is 'std'; have 'mean', 'mean_std'"),
        ({"credit": {"anchor": ["group", "room"]}}, "anchor: one is 'room'; have 'group', 'state'"),
        ({"credit": {"preset": "matchtir", "assignment": "best"}}, "assignment is 'best'; have 'optimal', 'greedy'"),
        ({"credit": {"preset": 3}}, "no preset '3'"),
        (
            {"learn": {"overlong_tokens": 9}},
            "it must be from 1 to learn.overlong_tokens, 9",
        ),
        (
            {"learn": {"overlong_tokens": 9, "overlong_buffer": 4}, "credit": {"preset": "otc"}},
            "lowers the score, which this preset does not read",
        ),
        (
            {"learn": {"cost_weight": 1.0}, "credit": {"preset": "otc"}},
            "learn.cost_weight lowers the score, which this preset does not read",
        ),
        ({"learn": {"cost_weight": -1.0}}, "learn.cost_weight is -1.0; it must not be negative"),
        ({"warm_start": {"run": "runs/mine"}}, "warm_start.run is 'runs/mine', and warm_start.tasks is 0"),
        (
            {"learn": {"overlong_tokens": 9, "overlong_buffer": 4}, "credit": {"preset": "bnpo"}},
            "docks scores below 0, and bnpo needs scores from 0 to 1",
        ),
        (
            {"learn": {"keep_cleanest": 3}},
            "learn.keep_cleanest is 3: of each task at least 2 solved ones and as many others",
        ),
        ({"learn": {"learning_rate": 1e30}}, "learn.learning_rate is 1e[+]30: it must be at most 1"),
        ({"warm_start": {"learning_rate": 2}}, "warm_start.learning_rate is 2: it must be at most 1"),
        ({"warm_start": {"agent": "oracle"}}, "warm_start.agent is 'oracle', and warm_start.tasks is 0"),
        (
            {"warm_start": {"agent": "oracle", "run": "runs/mine", "tasks": 1}},
            "are recorded or played; take one of the two",
        ),
        ({"learn": {"demonstrations": 8}}, "nothing is shown that could be repeated; set warm_start.tasks"),
    ],
)
def test_an_invalid_recipe_is_refused(table: dict[str, Any], says: str) -> None:
    given = table if not table else {"env": "backoffice", **table}
    with pytest.raises(ConfigError, match=says):
        make_recipe(given)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ({"kind": "gspo", "aggregation": "token-mean"}, "loss.aggregation = 'token-mean' .* loss.kind = 'gspo'"),
        ({"kind": "gspo", "dual_clip": 3.0}, "loss.dual_clip = 3.0 .* loss.kind = 'gspo'"),
        ({"kind": "gspo", "constant_length": 9}, "loss.constant_length = 9 .* loss.kind = 'gspo'"),
        ({"kind": "gspo", "keep_clipped_gradient": True}, "loss.keep_clipped_gradient = .* loss.kind = 'gspo'"),
        ({"kind": "cispo", "dual_clip": 3.0}, "loss.dual_clip = 3.0 .* loss.kind = 'cispo'"),
        ({"kind": "sapo", "clip_high": 0.3}, "loss.clip_high = 0.3 .* loss.kind = 'sapo'"),
        ({"sharpness_up": 2.0}, "loss.sharpness_up = 2.0 .* loss.kind = 'ppo'"),
        ({"kind": "likelihood", "clip_high": 0.3}, "loss.clip_high = 0.3 .* loss.kind = 'likelihood'"),
        ({"kind": "likelihood", "weight": {"rule": "band"}}, "loss.weight = .* loss.kind = 'likelihood'"),
        ({"decoupled": True, "weight": {"rule": "band"}}, "loss.weight = .* loss.decoupled = true: remove"),
        ({"behaviour_cap": 2.0}, "loss.behaviour_cap = 2.0 .* loss.decoupled = false"),
        ({"constant_length": 9}, "loss.constant_length = 9 .* loss.aggregation = 'token-mean'"),
        ({"sequence": "step"}, "loss.sequence = 'step' .* loss.aggregation = 'token-mean'"),
    ],
)
def test_a_setting_that_another_makes_void_is_refused_with_both(loss: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "backoffice", "credit": {"preset": "loop"}, "loss": loss})
    assert restore_recipe({"env": "backoffice", "loss": loss}).loss == loss, "a recorded run is read as it is"


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_has_a_loss_with_void_settings(name: str) -> None:
    loss = make_preset(name, **({"components": ["a"]} if name == "gdpo" else {})).loss
    plain = Loss()
    changed = [each.name for each in fields(Loss) if getattr(loss, each.name) not in (getattr(plain, each.name), None)]
    assert find_ignored(loss, changed) is None


@pytest.mark.parametrize("old", RENAMED_KEYS)
def test_a_renamed_key_is_refused_with_its_new_name(old: str, tmp_path: Path) -> None:
    says = re.escape(f"recipe: no key '{old}'; it is now '{RENAMED_KEYS[old]}'")
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "backoffice", **_nest(old, 1)})
    path = tmp_path / "mine.toml"
    path.write_text('env = "backoffice"\n')
    with pytest.raises(ConfigError, match=says):
        load_recipe(path, ((old, 1),))


@pytest.mark.parametrize("old", RENAMED_KEYS)
def test_a_stored_recipe_may_have_a_former_key(old: str) -> None:
    assert old.rpartition(".")[0] == RENAMED_KEYS[old].rpartition(".")[0]
    value = attrgetter(RENAMED_KEYS[old])(Recipe(env="backoffice"))
    stored = list(value) if isinstance(value, tuple) else value
    assert restore_recipe({"env": "backoffice", **_nest(old, stored)}) == make_recipe({"env": "backoffice"})


@pytest.mark.parametrize("name", FORMERLY_ZERO)
def test_a_stored_recipe_may_have_a_former_default(name: str) -> None:
    stored = {"env": "backoffice", **_nest(f"rollout.branching.{name}", 0)}
    assert restore_recipe(stored) == make_recipe({"env": "backoffice"})


def _nest(place: str, value: Json) -> dict[str, Json]:
    """The table of a recipe that has only this key."""
    table = value
    for name in reversed(place.split(".")):
        table = {name: table}
    return dict(table)


@pytest.mark.parametrize("credit", [*({"preset": name} for name in WITHOUT_GROUPS), {"preset": "otc", "form": "ppo"}])
def test_a_preset_without_groups_takes_one_episode_per_task(credit: dict[str, Any]) -> None:
    assert make_recipe({"env": "backoffice", "credit": credit, "rollout": {"episodes": 1}})


def test_the_error_about_single_episodes_names_what_takes_them() -> None:
    others = ", ".join(WITHOUT_GROUPS)
    with pytest.raises(ConfigError, match=rf"a preset without groups \({others}, or otc with form = 'ppo'\)"):
        make_recipe({"env": "backoffice", "credit": {"preset": "otc"}, "rollout": {"episodes": 1}})


def test_loss_settings_replace_single_keys_of_the_presets_loss() -> None:
    weight = {"rule": "truncated", "cap": 3.0}
    recipe = make_recipe({"env": "e", "credit": {"preset": "grpo"}, "loss": {"kl": 0.1, "weight": weight}})
    loss = build_preset(recipe).loss
    assert (loss.kl, loss.weight, loss.aggregation) == (0.1, TruncatedWeight(cap=3.0), "seq-mean-token-mean")


def test_an_unknown_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lost.toml").write_text('env = "backofice"\n')
    with pytest.raises(ConfigError, match="backofice"):
        run(load_recipe(tmp_path / "lost.toml"), tmp_path / "out", resume=False, as_json=True)
    assert not (tmp_path / "out").exists()


def test_a_missing_or_malformed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("env = [")
    with pytest.raises(ConfigError, match=r"recipe '.*bad\.toml'"):
        load_recipe(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="not found"):
        load_recipe(tmp_path / "absent.toml")


def test_an_iteration_prints_its_progress_and_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    tell = teller(make_recipe({"env": "backoffice", "learn": {"iterations": 15}}))
    tell({"iteration": 0, "test/seeds/success": 0.427})
    tell({"iteration": 3, "test/seeds/success": 0.5, "test/seeds/scored": 4, "test/seeds/tasks": 8})
    tell({"iteration": 6, "success": 0.3125, "calls": 1.44, "entropy": 0.457, "kl": 0.001, "seconds": 19.3})
    assert capsys.readouterr().out.splitlines() == [
        " 0/15  seeds 42.7 %",
        " 3/15  seeds 25.0 .. 75.0 %",
        " 6/15  practice  31.2 %  calls 1.4  entropy 0.46  kl 0.001  19 s, 3 min left",
    ]


PROGRAM: dict[str, Any] = {"agent": "cmd:sh -c true"}


def test_a_program_has_the_settings_of_the_recipe_and_does_not_see_the_environment(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    rollout = {**PROGRAM, "agent_sandbox": "none", "agent_stdin": True, "agent_mounts": ["notes"]}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps({"env": "bank.py", "rollout": rollout}))
    assert load_rollout_agent(load_recipe(tmp_path / "mine.toml")) == ProgramSettings(
        argv=("sh", "-c", "true"),
        sandbox="none",
        turns="stdin",
        mounts=(tmp_path / "notes",),
        env=str(tmp_path / "bank.py"),
    )


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        ({"agent": "cmd:"}, "recipe 'run': rollout.agent: agent 'cmd:': no program; write cmd:PROGRAM ARGS"),
        ({"agent": "cmd:no-such-program"}, "rollout.agent: agent 'cmd:no-such-program': no such program"),
        ({**PROGRAM, "agent_mounts": ["/no/such"]}, "agent 'cmd:sh': it cannot be shown /no/such: no such file"),
        ({**PROGRAM, "agent_mounts": "/tmp/x"}, "rollout.agent_mounts is '/tmp/x'; it must be a list"),
        ({**PROGRAM, "agent_sandbox": "docker"}, "rollout.agent_sandbox is 'docker'; have 'bwrap', 'none'"),
        ({"agent": "cmd:sh {prompt_file}", "agent_stdin": True}, "on standard input; leave {prompt_file} out"),
        ({"agent_stdin": True}, "are for a program, and rollout.agent is 'react': write rollout.agent = 'cmd:"),
    ],
)
def test_wrong_settings_of_a_program_are_one_error(rollout: dict[str, Any], says: str) -> None:
    sandbox = {"agent_sandbox": "none"} if "agent_sandbox" not in rollout and "agent" in rollout else {}
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_rollout_agent(make_recipe({"env": "backoffice", "rollout": {**sandbox, **rollout}}))
