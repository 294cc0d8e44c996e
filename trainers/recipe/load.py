"""Recipes from TOML files, checked before anything starts."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from gymcp.agents.programs.settings import is_program
from gymcp.errors import ConfigError
from gymcp.trainers.credit.filters import MIN_OF_EACH, DropUninformative, KeepCleanest
from gymcp.trainers.credit.graph.memory import EarlierScores
from gymcp.trainers.credit.graph.shapers import HistoryKeys
from gymcp.trainers.credit.presets import WITHOUT_GROUPS, Preset
from gymcp.trainers.credit.signals.smoothing import EntropySmoothing
from gymcp.trainers.credit.signals.success_tracker import SuccessBaseline
from gymcp.trainers.recipe.branching import ALLOCATING, PATCHING, PHASED, check_branching
from gymcp.trainers.recipe.build_preset import build_preset, check_loss_settings
from gymcp.trainers.recipe.drafts import check_draft_keys
from gymcp.trainers.recipe.paths import place_paths, place_typed_path
from gymcp.trainers.recipe.recipe import REPEATING, CurriculumRecipe, Recipe, ReplayRecipe
from gymcp.trainers.recipe.staleness_check import check_stale_loss, check_staleness
from gymcp.trainers.settings.from_toml import record_of
from gymcp.trainers.settings.validate import check_range
from gymcp.types import Json
from gymcp.visible_text import visible

MAX_NAME = 100
"""Most characters in a recipe's name."""
RENAMED_KEYS: Mapping[str, str] = {
    "warm_start.least_score": "warm_start.min_score",
    "warm_start.context": "warm_start.prompt_loss_weight",
    "warm_start.batch": "warm_start.batch_size",
    "rollout.branching.fewest": "rollout.branching.min_episodes_per_task",
    "rollout.branching.most": "rollout.branching.max_episodes_per_task",
    "rollout.turns": "rollout.max_turns",
    "rollout.vllm": "rollout.vllm_args",
    "learn.updates": "learn.minibatches",
    "learn.passes": "learn.epochs",
    "learn.informative": "learn.drop_uninformative",
    "learn.cleanest": "learn.keep_cleanest",
    "learn.negative": "learn.negative_scale",
    "learn.least_entropy": "learn.min_entropy",
    "evaluation.whole_splits": "evaluation.final_splits",
    "evaluation.whole_tasks": "evaluation.final_tasks",
}
"""Former keys of a recipe, each with the key that replaced it."""
FORMERLY_ZERO = ("ways", "depth", "max_episodes", "max_tokens", "max_calls")
"""Keys of ``rollout.branching`` that stored recipes may have as 0, which was their default."""
_AT_LEAST_ONE: Mapping[str, Sequence[str]] = {
    "model": ("vocabulary", "hidden", "layers", "context"),
    "warm_start": ("batch_size",),
    "rollout": ("groups", "episodes", "max_tokens", "max_turns", "slots"),
    "learn": ("minibatches", "epochs", "patience", "micro_batch_tokens", "critic_epochs"),
    "curriculum": ("horizon_every",),
    "replay": ("per_group",),
}

_ORDERS_THAT_READ: Mapping[str, Sequence[str]] = {
    "target": ("frontier",),
    "explore": ("frontier", "failures"),
    "memory": ("frontier", "failures", "vade"),
    "low": ("failures",),
    "high": ("failures",),
}
"""Setting of ``[curriculum]`` -> the orders of tasks that read it."""


def load_recipe(path: Path, settings: Sequence[tuple[str, Json]] = ()) -> Recipe:
    """The recipe of a file, overridden by `settings` of ``section.key``. Raises ConfigError, naming what is wrong.

    Paths in the file are relative to its folder, those in `settings` to the working folder.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe '{path}': not found") from None
    except OSError as error:
        raise ConfigError(f"recipe '{path}': cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"recipe '{path}': is not TOML: {error}") from error
    place_paths(table, path.absolute().parent)
    for key, value in settings:
        *sections, last = key.split(".")
        into = table
        for section in sections:
            into = into.setdefault(section, {})
            if not isinstance(into, dict):
                raise ConfigError(f"recipe '{path}': '{section}' is no section")
        into[last] = place_typed_path(key, value)
    return make_recipe({"name": path.stem, **table})


def restore_recipe(stored: Mapping[str, Json]) -> Recipe:
    """The recipe that a training run has stored, possibly under former keys.

    Its preset is not made, so no code of a user is run. Raises ConfigError as `make_recipe`, but for the preset.
    """
    table: dict[str, Json] = copy.deepcopy(dict(stored))
    for old, new in RENAMED_KEYS.items():
        section, key = _find_section(table, old)
        if key in section:
            section[new.rpartition(".")[2]] = section.pop(key)
    for name in FORMERLY_ZERO:
        section, key = _find_section(table, f"rollout.branching.{name}")
        if section.get(key) == 0:
            section[key] = None
    if "seed" in table and isinstance(evaluation := table.setdefault("evaluation", {}), dict):
        evaluation.setdefault("seed", table["seed"])  # earlier versions chose the held-out tasks by the run's seed
    return _read_recipe(table)


def make_recipe(table: Mapping[str, Json]) -> Recipe:
    """The recipe of a table.

    Raises ConfigError for an unknown or renamed key, a value that is of another type or out of range, a preset that
    cannot be made or lacks what training needs, or a setting of the loss that another one makes void.
    """
    recipe = _read_recipe(table)
    preset = build_preset(recipe)
    check_branching(recipe, preset)
    _check_groups(recipe, preset)
    _check_schedule(recipe, preset)
    _check_refill(recipe, preset)
    _check_restart(recipe, preset)
    _check_replay(recipe, preset)
    check_loss_settings(recipe, preset.loss)
    check_stale_loss(recipe, preset.loss)
    return recipe


def _read_recipe(table: Mapping[str, Json]) -> Recipe:
    if not isinstance(table.get("env"), str):
        raise ConfigError('recipe: it must name its environment: env = "backoffice"')
    _refuse_renamed_keys(table)
    recipe = record_of(Recipe, table, "")
    _check_name(recipe)
    _check_model(recipe)
    _check_numbers(recipe)
    _check_curriculum(recipe)
    _check_demonstrations(recipe)
    _check_engine(recipe)
    check_draft_keys(recipe, _find_section(table, "rollout.draft.method")[0])
    check_staleness(recipe)
    _check_batch_tokens(recipe)
    _check_program(recipe)
    return recipe


def _refuse_renamed_keys(table: Mapping[str, Json]) -> None:
    for old, new in RENAMED_KEYS.items():
        section, key = _find_section(table, old)
        if key in section:
            raise ConfigError(f"recipe: no key '{old}'; it is now '{new}'")


def _find_section(table: Mapping[str, Json], place: str) -> tuple[dict[str, Json], str]:
    """The section of the table in which the key ``SECTION.KEY`` stands, empty if there is none, and the key."""
    *sections, key = place.split(".")
    part: Json = table
    for name in sections:
        part = part.get(name) if isinstance(part, Mapping) else None
    return (part if isinstance(part, dict) else {}), key


def _check_name(recipe: Recipe) -> None:
    is_visible = recipe.name.isprintable() and visible(recipe.name) == recipe.name
    if not is_visible or "/" in recipe.name or not 0 < len(recipe.name) <= MAX_NAME:
        raise ConfigError(
            f"recipe: name is {recipe.name!a:.80}: it becomes the name of a folder: "
            f"at most {MAX_NAME} characters, no /, and nothing unseen"
        )


def _check_model(recipe: Recipe) -> None:
    model = recipe.model
    if not model.path and (model.heads < 2 or model.heads % 2 or model.hidden % model.heads):
        raise ConfigError(
            f"recipe '{recipe.name}': model.heads is {model.heads}: it must be even, and divide model.hidden,"
            f" {model.hidden}"
        )


def _check_numbers(recipe: Recipe) -> None:
    who, learn = f"recipe '{recipe.name}'", recipe.learn
    for section, names in _AT_LEAST_ONE.items():
        for name in names:
            if getattr(getattr(recipe, section), name) < 1:
                raise ConfigError(f"{who}: {section}.{name} must be 1 or more")
    for name, rate in (
        ("learn.learning_rate", learn.learning_rate),
        ("learn.critic_learning_rate", learn.critic_learning_rate),
        ("warm_start.learning_rate", recipe.warm_start.learning_rate),
    ):
        if rate > 1:
            raise ConfigError(f"{who}: {name} is {rate:g}: it must be at most 1")
    if 0 < learn.keep_cleanest < 2 * MIN_OF_EACH:
        raise ConfigError(
            f"{who}: learn.keep_cleanest is {learn.keep_cleanest}: of each task at least {MIN_OF_EACH} solved ones and"
            f" as many others are kept; take {2 * MIN_OF_EACH} or more, or 0 for all"
        )
    if learn.max_grad_norm == 0:
        raise ConfigError(f"{who}: learn.max_grad_norm must be above 0: no gradient would be left")
    if recipe.rollout.temperature <= 0:
        raise ConfigError(f"{who}: rollout.temperature must be above 0: greedy episodes are all alike")


def _check_groups(recipe: Recipe, preset: Preset) -> None:
    compares = any("group" in advantage.key for advantage in preset.advantage_terms)
    compares = compares or any(isinstance(shaper, HistoryKeys) for shaper in preset.shapers)
    if recipe.rollout.episodes < 2 and compares and not recipe.rollout.controller:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.episodes is 1: a group of one has nothing to be compared with; take 2 or"
            f" more, or a preset without groups ({', '.join(WITHOUT_GROUPS)}, or otc with form = 'ppo')"
        )


def _check_schedule(recipe: Recipe, preset: Preset) -> None:
    if preset.turns is not None and recipe.learn.schedule != "constant":
        raise ConfigError(
            f"recipe '{recipe.name}': learn.schedule is '{recipe.learn.schedule}', and preset '{recipe.preset_name}'"
            " takes one update for each step of the longest episode, so the schedule's end is not known: make it"
            " 'constant'"
        )


def _check_curriculum(recipe: Recipe) -> None:
    rule, who = recipe.curriculum, f"recipe '{recipe.name}'"
    for name in ("target", "explore", "memory", "low", "high"):
        check_range(f"{who}: curriculum.{name}", getattr(rule, name), 0, 1)
    if rule.low > rule.high:
        raise ConfigError(f"{who}: curriculum.low is {rule.low:g}, above curriculum.high, {rule.high:g}")
    if rule.start_turns > recipe.rollout.max_turns:
        raise ConfigError(
            f"{who}: curriculum.start_turns is {rule.start_turns}, and the turns grow to rollout.max_turns,"
            f" {recipe.rollout.max_turns}"
        )
    for name, reader in _find_unread(rule, allocates=recipe.rollout.controller == ALLOCATING):
        raise ConfigError(
            f"{who}: curriculum.{name} is {getattr(rule, name)!r}, which is read with {reader} only; take it out"
        )
    if rule.order not in REPEATING and recipe.tasks.pool:
        raise ConfigError(
            f"{who}: tasks.pool is {recipe.tasks.pool}, and curriculum.order = '{rule.order}' always makes new tasks;"
            " take one of the two out"
        )


def _find_unread(rule: CurriculumRecipe, *, allocates: bool) -> Iterator[tuple[str, str]]:
    """Settings that were changed and that nothing reads, each with what would read it.

    `allocates`: a controller goes by the success of tasks, and reads the memory.
    """
    default = CurriculumRecipe()
    changed = {each.name for each in fields(rule) if getattr(rule, each.name) != getattr(default, each.name)}
    for name, orders in _ORDERS_THAT_READ.items():
        if name == "memory" and allocates:
            continue
        if name in changed and rule.order not in orders:
            yield name, " or ".join(f"curriculum.order = '{order}'" for order in orders)
    if not rule.start_turns:
        yield from ((name, "curriculum.start_turns") for name in ("horizon", "horizon_every") if name in changed)


def _check_refill(recipe: Recipe, preset: Preset) -> None:
    drops = any(isinstance(each, DropUninformative | KeepCleanest) for each in preset.filters)
    if recipe.curriculum.refill and not drops:
        raise ConfigError(
            f"recipe '{recipe.name}': curriculum.refill is {recipe.curriculum.refill}: it replaces groups that are"
            " dropped because they all scored alike; set learn.drop_uninformative = true, or credit.preset = 'dapo'"
        )


def _check_batch_tokens(recipe: Recipe) -> None:
    """Raise ConfigError if another setting needs to know how many groups an iteration has."""
    rollout, rule, who = recipe.rollout, recipe.curriculum, f"recipe '{recipe.name}'"
    if not rollout.batch_tokens:
        return
    for key, value, reason in (
        ("curriculum.refill", rule.refill, "it replaces groups until there are rollout.groups"),
        ("curriculum.order", rule.order if rule.order == "vade" else "", "it chooses among all tasks at once"),
        (
            "rollout.controller",
            rollout.controller if rollout.controller in (PHASED, PATCHING) else "",
            "it must know the number of groups before they are played",
        ),
    ):
        if value:
            raise ConfigError(
                f"{who}: {key} is {value!r}, and rollout.batch_tokens lets the tokens decide how many groups an"
                f" iteration has: {reason}; take one of the two out"
            )


def _check_restart(recipe: Recipe, preset: Preset) -> None:
    if recipe.learn.restart and preset.loss.kind != "likelihood":
        raise ConfigError(
            f"recipe '{recipe.name}': learn.restart begins each iteration with the first weights, and loss.kind ="
            f" '{preset.loss.kind}' compares with those that drew the episodes; set credit.preset = 'expert_iteration'"
        )


def _check_replay(recipe: Recipe, preset: Preset) -> None:
    rule, who = recipe.replay, f"recipe '{recipe.name}'"
    if not rule.keep:
        default = ReplayRecipe()
        for key in ("recall", "per_group", "max_age", "reflect"):
            if getattr(rule, key) != getattr(default, key):
                raise ConfigError(f"{who}: replay.{key} is set, and replay.keep is 0: set it to the episodes of a task")
        return
    if rule.reflect and rule.recall != "alike":
        raise ConfigError(
            f"{who}: replay.reflect is {rule.reflect}, and with replay.recall = '{rule.recall}' the buffer keeps no"
            " failed episode to reflect on: set replay.recall = 'alike'"
        )
    if recipe.rollout.episodes < 2:
        raise ConfigError(f"{who}: rollout.episodes is 1: replay leaves a group one new episode; take 2 or more")
    if any(isinstance(shaper, SuccessBaseline | EarlierScores | EntropySmoothing) for shaper in preset.shapers):
        raise ConfigError(
            f"{who}: preset '{recipe.preset_name}' remembers what the policy did in earlier iterations, and recalled"
            " episodes would be counted again; take [replay] out, or another preset"
        )


def _check_demonstrations(recipe: Recipe) -> None:
    warm, who = recipe.warm_start, f"recipe '{recipe.name}'"
    for key, value, number in (
        ("run", warm.run, "how many of its episodes are shown at most"),
        ("agent", warm.agent, "how many episodes it shows"),
    ):
        if value and not warm.tasks:
            raise ConfigError(f"{who}: warm_start.{key} is '{value}', and warm_start.tasks is 0: set it to {number}")
    if warm.run and warm.agent:
        raise ConfigError(
            f"{who}: warm_start.run is '{warm.run}', and warm_start.agent is '{warm.agent}': demonstrations are"
            " recorded or played; take one of the two out"
        )
    if recipe.learn.demonstrations and not warm.tasks:
        raise ConfigError(
            f"{who}: learn.demonstrations is {recipe.learn.demonstrations}, and warm_start.tasks is 0:"
            " nothing is shown that could be repeated; set warm_start.tasks (warm_start.epochs = 0: for this alone)"
        )


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
    elif rollout.server or rollout.vllm_args:
        raise ConfigError(f"{who}: rollout.server and rollout.vllm_args are for rollout.engine = 'vllm'")


def _check_program(recipe: Recipe) -> None:
    rollout = recipe.rollout
    is_set = rollout.agent_sandbox != "bwrap" or rollout.agent_stdin or rollout.agent_mounts
    if is_set and not is_program(rollout.agent):
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.agent_sandbox, rollout.agent_stdin and rollout.agent_mounts are for a"
            f" program, and rollout.agent is '{rollout.agent or 'react'}': write rollout.agent = 'cmd:PROGRAM ARGS'"
        )
