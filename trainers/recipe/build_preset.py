"""The preset that a recipe trains with: the named one, with the recipe's loss, filters and penalties applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import BetaDensity
from gymcp.trainers.credit.filters import DropUninformative, KeepCleanest
from gymcp.trainers.credit.preset_functions import short_name
from gymcp.trainers.credit.presets import PRESETS, REWARD, Preset, Shaper, make_preset
from gymcp.trainers.credit.shapers import OverlongPenalty, WeightedSum
from gymcp.trainers.credit.transforms import ScaleNegative
from gymcp.trainers.credit.tree.presets import TREE_PRESETS, make_tree_preset
from gymcp.trainers.recipe.preset_check import check_trainable
from gymcp.trainers.recipe.recipe import LearnRecipe, Recipe
from gymcp.trainers.recipe.reward import charge_preset, component_columns, component_weights
from gymcp.trainers.settings.from_toml import record_of
from gymcp.trainers.settings.loss import BandWeight, Loss, TruncatedWeight, find_ignored
from gymcp.trainers.settings.validate import check_range, check_value
from gymcp.types import Json

NET = "net"
"""Name of the column that holds the score less the penalties of the recipe, with its further components."""
LOSS_WEIGHTS: Mapping[str, type[TruncatedWeight | BandWeight]] = {"truncated": TruncatedWeight, "band": BandWeight}
"""Corrections by the rule that ``loss.weight`` names."""


def build_preset(recipe: Recipe) -> Preset:
    """The recipe's preset. Raises ConfigError for an unknown preset or option, or a loss that cannot exist."""
    options = {key: value for key, value in recipe.credit.items() if key != "preset"}
    is_tree = recipe.preset_name in TREE_PRESETS
    preset = make_tree_preset(recipe.preset_name, **options) if is_tree else make_preset(recipe.preset_name, **options)
    if recipe.preset_name not in {*PRESETS, *TREE_PRESETS}:
        check_trainable(f"preset '{short_name(recipe.preset_name)}'", preset)
    preset = replace(preset, loss=_build_loss(preset.loss, recipe.loss))
    _refuse_two_prices(recipe)
    if recipe.learn.overlong_tokens or recipe.learn.cost_weight or component_weights(recipe.reward):
        preset = _change_score(preset, recipe)
    return charge_preset(_scale_negative(_add_filters(preset, recipe.learn), recipe.learn), recipe.reward)


def check_loss_settings(recipe: Recipe, loss: Loss) -> None:
    """Raise ConfigError, which names both settings, if one of the recipe's keeps the loss from reading another."""
    if found := find_ignored(loss, recipe.loss):
        name, reason = found
        raise ConfigError(
            f"recipe: loss.{name} = {recipe.loss[name]!r} would change nothing, because of {reason}: remove it, or"
            f" change {reason.partition(' = ')[0]}"
        )


def _add_filters(preset: Preset, learn: LearnRecipe) -> Preset:
    if learn.keep_cleanest:
        preset = replace(preset, filters=(*preset.filters, KeepCleanest(keep=learn.keep_cleanest)))
    if learn.drop_uninformative:
        preset = replace(preset, filters=(*preset.filters, DropUninformative()))
    return preset


def _scale_negative(preset: Preset, learn: LearnRecipe) -> Preset:
    if learn.negative_scale == 1.0:
        return preset
    scale = ScaleNegative(scale=learn.negative_scale)
    loss_terms = tuple(replace(term, transforms=(*term.transforms, scale)) for term in preset.loss_terms)
    return replace(preset, loss_terms=loss_terms)


def _refuse_two_prices(recipe: Recipe) -> None:
    for name in ("money", "asking"):
        if recipe.learn.cost_weight and getattr(recipe.reward, name):
            raise ConfigError(
                f"recipe: learn.cost_weight and reward.{name} both charge the price of calls, the one the episode's"
                " score and the other the step: take one of the two out"
            )


def _change_score(preset: Preset, recipe: Recipe) -> Preset:
    """The preset on scores lowered for long episodes and for calls with a price, and raised for components.

    The filters, and the score itself, see none of it.
    """
    learn, reward = recipe.learn, recipe.reward
    penalties = "learn.overlong_tokens" if learn.overlong_tokens else "learn.cost_weight" if learn.cost_weight else ""
    changed = preset.with_signal(REWARD, NET)
    shapers, weights = _list_penalties(learn)
    if reward.components:
        shapers, weights = [*shapers, component_columns(reward)], [*weights, *component_weights(reward)]
    if changed == preset:
        does = f"{penalties} lowers" if penalties else "reward.components changes"
        raise ConfigError(f"recipe: {does} the score, which this preset does not read by itself")
    if any(isinstance(term.scale, BetaDensity) for term in preset.advantage_terms):
        does = f"{penalties} docks scores below 0" if penalties else "reward.components raises scores above 1"
        raise ConfigError(f"recipe: {does}, and bnpo needs scores from 0 to 1")
    net = WeightedSum(name=NET, weights=((REWARD, 1.0), *weights))
    return replace(changed, shapers=(*shapers, net, *changed.shapers))


def _list_penalties(learn: LearnRecipe) -> tuple[list[Shaper], list[tuple[str, float]]]:
    """Shapers that the recipe's penalties need, and (column, weight) of each penalty."""
    weights = [("cost", -learn.cost_weight)] if learn.cost_weight else []
    if not learn.overlong_tokens:
        return [], weights
    if not 0 < learn.overlong_buffer <= learn.overlong_tokens:
        raise ConfigError(
            f"recipe: learn.overlong_buffer is {learn.overlong_buffer}; it must be from 1 to learn.overlong_tokens,"
            f" {learn.overlong_tokens}"
        )
    penalty = OverlongPenalty(max_tokens=learn.overlong_tokens, buffer=learn.overlong_buffer)
    return [penalty], [("overlong", 1.0), *weights]


def _build_loss(own: Loss, table: Mapping[str, Json]) -> Loss:
    """The preset's `own` loss with the recipe's keys applied; ``weight`` is a table with a ``rule``."""
    known = {each.name for each in fields(Loss)}
    for key in table:
        if key not in known:
            raise ConfigError(f"recipe: no key {f'loss.{key}'!r:.80}; have {', '.join(sorted(known))}")
    changes: dict[str, Any] = dict(table)
    if "weight" in changes:
        changes["weight"] = _build_weight(changes["weight"])
    hints = get_type_hints(Loss)
    for key, value in changes.items():
        if key != "weight":
            check_value(f"recipe: loss.{key}", value, hints[key])
            check_range(f"recipe: loss.{key}", value, 0)
    return replace(own, **changes)


def _build_weight(table: Json) -> TruncatedWeight | BandWeight:
    if not isinstance(table, Mapping) or str(table.get("rule")) not in LOSS_WEIGHTS:
        raise ConfigError(f"recipe: loss.weight must be a table with a rule: {' or '.join(map(repr, LOSS_WEIGHTS))}")
    settings = {key: value for key, value in table.items() if key != "rule"}
    weight: TruncatedWeight | BandWeight = record_of(LOSS_WEIGHTS[str(table["rule"])], settings, "loss.weight")
    return weight
