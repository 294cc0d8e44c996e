"""Settings that a recipe's preset and loss are made with, including the defaults of this version of gymcp."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, fields

from gymcp.trainers.credit.preset import Preset
from gymcp.trainers.credit.preset_functions import find_user_preset
from gymcp.trainers.credit.presets import PRESETS
from gymcp.trainers.credit.tree.presets import TREE_PRESETS
from gymcp.trainers.recipe.build_preset import LOSS_WEIGHTS
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Json


def list_settings(recipe: Recipe, preset: Preset) -> dict[str, Json]:
    """Recipe key -> value, for all options of the recipe's preset and of its loss.

    `preset`: the one that `build_preset` makes of the recipe.
    """
    name = recipe.preset_name
    function = PRESETS.get(name) or TREE_PRESETS.get(name) or find_user_preset(name, PRESETS).value
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]  # was called before
    options = {each.name: each.default for each in parameters if each.default is not each.empty}
    options |= {key: value for key, value in recipe.credit.items() if key != "preset"}
    loss = {each.name: getattr(preset.loss, each.name) for each in fields(preset.loss)}
    settings = {f"credit.{key}": value for key, value in options.items()}
    settings |= {f"loss.{key}": value for key, value in loss.items()}
    listed: dict[str, Json] = json.loads(json.dumps(settings, default=_to_json))
    return listed


def describe_changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> str:
    """The settings that both have, with different values; empty if there are none."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    return ", ".join(f"{key} was {before[key]!r:.60} and is {now[key]!r:.60}" for key in changed)


def _to_json(value: object) -> Json:
    """A correction of ``loss.weight`` as a recipe writes it; for any other object the name of its type."""
    for rule, kind in LOSS_WEIGHTS.items():
        if isinstance(value, kind):
            return {"rule": rule, **asdict(value)}
    return type(value).__name__
