"""``gymcp train``, ``gymcp credit`` and ``gymcp learn``: training by a recipe, and two uses of a recorded run.

The first gives credit to its steps, the second trains a head that values such steps.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gymcp.cli.completion import offer
from gymcp.cli.option_types import (
    AsJson,
    PresetOption,
    PresetSettings,
    RunEnvironment,
    RunFolder,
    replaced_option,
    require_ray,
)
from gymcp.errors import ConfigError
from gymcp.types import Json

ReplayOption = Annotated[
    Path | None,
    typer.Option(
        help="Learn from the episodes of this run in the order of its log, if it had rollout.staleness; play none;"
        " default: none."
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        help="Play episodes on all nodes of a Ray cluster: auto or its address; rollout.concurrency counts per node;"
        " default: here.",
        callback=require_ray,
        autocompletion=offer(("auto",)),
    ),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        help="TOML file: which nodes play, and how many episodes at a time, with --ray; default: all play alike."
    ),
]


def command(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            help="Recipe, such as recipes/tiny.toml. It is code: it names an environment and arguments; required."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Key of the recipe as KEY=VALUE (learn.iterations=5); repeatable; default: none."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the training run; default: runs/train-NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last complete iteration.")] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Make all metrics reproducible to the last digit; slower.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the recipe, play one episode, and train nothing.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print the formula of the advantages and the size of the run; train nothing."),
    ] = False,
    replay: ReplayOption = None,
    ray: RayOption = None,
    plan: PlanOption = None,
    as_json: AsJson = False,
    dry_run: Annotated[Path | None, replaced_option("--dry-run", "gymcp credit RUN")] = None,
    preset: Annotated[
        str | None, replaced_option("--preset", "--set credit.preset=NAME, or gymcp credit RUN --preset NAME")
    ] = None,
    env: Annotated[str | None, replaced_option("--env", "--set env=FILE, or gymcp credit RUN --env FILE")] = None,
    save: Annotated[bool, replaced_option("--save", "gymcp credit RUN --save; training saves by itself")] = False,
) -> None:
    """Train a policy by a recipe.

    A recipe from another source is code from that source: it names the environment, which may be a Python file, and
    arguments for vLLM. Read it before you train by it. Paths in it are relative to its folder.
    """
    options = parse_settings(settings or [])
    if recipe is None:
        raise ConfigError("train: name a recipe, such as recipes/tiny.toml")
    if deterministic:
        options["deterministic"] = True
    if replay is not None and (check or explain):
        raise ConfigError("train: --replay learns from a recorded run; leave --check and --explain out")
    if ray is not None and (check or explain):
        raise ConfigError("train: --check and --explain play one episode, on this machine; leave --ray out")
    if plan is not None and ray is None:
        raise ConfigError("train: --plan is for the nodes of a Ray cluster; name it: --ray auto or --ray HOST:PORT")
    loaded = _load_recipe(recipe, tuple(options.items()))
    if check or explain:
        _load_part("train", "train_forecast").run(loaded, out, resume=resume, explain=explain, as_json=as_json)
        return
    _load_part("train", "train_run").run(loaded, out, resume=resume, as_json=as_json, replay=replay, ray=ray, plan=plan)


def credit_command(
    run: RunFolder,
    preset: PresetOption = "gigpo",
    settings: PresetSettings = None,
    env: RunEnvironment = None,
    save: Annotated[bool, typer.Option("--save", help="Store the advantages in the run, for gymcp view.")] = False,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose", help="Print where credit comes from and advice for training, instead of the advantages."
        ),
    ] = False,
    grpo: Annotated[
        str | None,
        typer.Option(
            help="Predict GiGPO's success, with --diagnose, from GRPO's before and after, in per cent (20,50);"
            " default: the run's own."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the advantages that a preset gives to a run's steps.

    The run is a recorded one; nothing is trained."""
    options = parse_settings(settings or [])
    if diagnose:
        if save:
            raise ConfigError("credit: --diagnose computes no advantages to --save; leave one of them out")
        part = _load_part("credit", "credit_diagnosis")
        part.run(run, preset, options, env=env, as_json=as_json, grpo=grpo)
        return
    if grpo is not None:
        raise ConfigError("credit: --grpo is for a prediction: add --diagnose")
    _load_part("credit", "credit_run").run(run, preset, options, env=env, save=save, as_json=as_json)


def learn_command(
    run: RunFolder,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help="Model whose hidden states the head reads: tiny, smollm2 or local:PATH; default: the run's own.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the head; default: head/ in the run folder.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the head's first weights, and of the choice of the tasks that are held out.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a head that values the steps of a search on a run.

    It predicts the final score of an episode from its steps so far, and learns from the scored episodes of the run and
    their branches. `gymcp eval --search NAME,value=q,head=FOLDER` uses it (docs/search.md).
    """
    _load_part("learn", "learn_run").run(run, policy, out, seed=seed, as_json=as_json)


def _load_recipe(path: Path, settings: tuple[tuple[str, Json], ...]) -> Any:
    """The recipe, checked by itself: a wrong one is refused before torch is imported, which takes seconds."""
    return importlib.import_module("gymcp.trainers.recipe.load").load_recipe(path, settings)


def _load_part(verb: str, name: str) -> Any:
    """A module that needs the extra `train`, imported on demand because the import takes seconds."""
    try:
        return importlib.import_module(f"gymcp.cli.training.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{verb}: needs '{error.name}', which is not installed: pip install 'gymcp[train]'"
        ) from error


def parse_settings(settings: list[str]) -> dict[str, Json]:
    """``["gamma=0.9"]`` -> ``{"gamma": 0.9}``; a value that is not JSON is text. Raises ConfigError."""
    values: dict[str, Json] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: must be key=value")
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            values[key] = value
        except (ValueError, RecursionError) as error:  # more digits, or deeper, than Python reads
            raise ConfigError(f"--set {key}: its value is too long, or nested too deeply: {value[:60]}") from error
    return values
