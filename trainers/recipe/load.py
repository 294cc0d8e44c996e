"""A recipe from a TOML file, checked before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.trainers.credit.filters import LEAST_OF_EACH
from gymcp.trainers.credit.presets import WITHOUT_GROUPS
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.settings.from_toml import record_of
from gymcp.types import Json
from gymcp.visible_text import visible


def load_recipe(path: Path, settings: Sequence[tuple[str, Json]] = ()) -> Recipe:
    """The recipe of a file, with ``section.key`` settings laid over it. Raises ConfigError, naming what is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe '{path}': not found") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ConfigError(f"recipe '{path}': {error}") from error
    for key, value in settings:
        *sections, last = key.split(".")
        into = table
        for section in sections:
            into = into.setdefault(section, {})
            if not isinstance(into, dict):
                raise ConfigError(f"recipe '{path}': '{section}' is no section")
        into[last] = value
    return make_recipe({"name": path.stem, **table})


MAX_NAME = 100
"""Characters of a recipe's name."""
_AT_LEAST_ONE: Mapping[str, Sequence[str]] = {
    "model": ("vocabulary", "hidden", "layers", "context"),
    "warm_start": ("batch",),
    "rollout": ("groups", "episodes", "max_tokens", "turns", "concurrency", "slots"),
    "learn": ("updates", "passes", "patience", "micro_batch_tokens", "critic_epochs"),
}


def make_recipe(table: Mapping[str, Json]) -> Recipe:
    """Raises ConfigError for an unknown key, a value of another type, or one that is out of range."""
    if not isinstance(table.get("env"), str):
        raise ConfigError('recipe: it must name its environment: env = "backoffice"')
    recipe = record_of(Recipe, table, "")
    seen = recipe.name.isprintable() and visible(recipe.name) == recipe.name
    if not seen or "/" in recipe.name or not 0 < len(recipe.name) <= MAX_NAME:
        raise ConfigError(
            f"recipe: name is {recipe.name!a:.80}: it becomes the name of a folder: "
            f"at most {MAX_NAME} characters, no /, and nothing unseen"
        )
    model = recipe.model
    if not model.path and (model.heads < 2 or model.heads % 2 or model.hidden % model.heads):
        raise ConfigError(
            f"recipe '{recipe.name}': model.heads is {model.heads}: it must be even, and divide model.hidden,"
            f" {model.hidden}"
        )
    for section, names in _AT_LEAST_ONE.items():
        for name in names:
            if getattr(getattr(recipe, section), name) < 1:
                raise ConfigError(f"recipe '{recipe.name}': {section}.{name} must be 1 or more")
    for name, rate in (
        ("learn.learning_rate", recipe.learn.learning_rate),
        ("learn.critic_learning_rate", recipe.learn.critic_learning_rate),
        ("warm_start.learning_rate", recipe.warm_start.learning_rate),
    ):
        if rate > 1:
            raise ConfigError(f"recipe '{recipe.name}': {name} is {rate:g}: it must be at most 1")
    if 0 < recipe.learn.cleanest < 2 * LEAST_OF_EACH:
        raise ConfigError(
            f"recipe '{recipe.name}': learn.cleanest is {recipe.learn.cleanest}: of each task at least"
            f" {LEAST_OF_EACH} solved ones and as many others are kept; take {2 * LEAST_OF_EACH} or more, or 0 for all"
        )
    if recipe.learn.max_grad_norm == 0:
        raise ConfigError(f"recipe '{recipe.name}': learn.max_grad_norm must be above 0: no gradient would be left")
    if recipe.rollout.temperature <= 0:
        raise ConfigError(f"recipe '{recipe.name}': rollout.temperature must be above 0: greedy episodes are all alike")
    preset = recipe.preset  # says what is wrong with it before anything starts
    if recipe.rollout.episodes < 2 and any(
        "group" in channel.key for term in preset.terms for channel in term.channels
    ):
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.episodes is 1: a group of one has nothing to be compared with; take 2 or"
            f" more, or a preset without groups ({', '.join(WITHOUT_GROUPS)})"
        )
    if recipe.warm_start.run and not recipe.warm_start.tasks:
        raise ConfigError(
            f"recipe '{recipe.name}': warm_start.run is '{recipe.warm_start.run}', and warm_start.tasks is 0: set it to"
            " how many of its episodes are shown at most"
        )
    if recipe.learn.demonstrations and not recipe.warm_start.tasks:
        raise ConfigError(
            f"recipe '{recipe.name}': learn.demonstrations is {recipe.learn.demonstrations}, and warm_start.tasks is 0:"
            " nothing is shown that could be repeated; set warm_start.tasks (warm_start.epochs = 0: for this alone)"
        )
    _check_engine(recipe)
    return recipe


def _check_engine(recipe: Recipe) -> None:
    rollout, who = recipe.rollout, f"recipe '{recipe.name}'"
    if rollout.server and not rollout.server.startswith("vllm:"):
        raise ConfigError(
            f"{who}: rollout.server is {rollout.server!r}: training needs the tokens that were drawn, which chat"
            " endpoints do not give, and takes new weights to the server: vllm:URL#MODEL"
        )
    if rollout.engine == "vllm":
        if not recipe.model.path:
            raise ConfigError(f"{who}: rollout.engine is 'vllm', which serves a model's folder: name it in model.path")
        if recipe.deterministic:
            raise ConfigError(
                f"{who}: deterministic needs rollout.engine = 'embedded': what vLLM adds up first, varies"
            )
    elif rollout.server or rollout.vllm:
        raise ConfigError(f"{who}: rollout.server and rollout.vllm are for rollout.engine = 'vllm'")
