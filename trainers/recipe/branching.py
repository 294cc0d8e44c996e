"""The controller that a recipe names, and whether the recipe's preset reads what it plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gymcp.agents.programs.settings import is_program
from gymcp.agents.runner.trees.allocation import FEWEST_EPISODES, MOST_EPISODES, AllocateEpisodes
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import Controller, TreeBudget
from gymcp.agents.runner.trees.patch_mismatches import PatchMismatches
from gymcp.agents.runner.trees.retry_errors import RetryErrors
from gymcp.errors import ConfigError
from gymcp.trainers.credit.preset import Preset
from gymcp.trainers.credit.tree.presets import TREE_PRESETS
from gymcp.trainers.credit.tree.shapers import AncestorComparison, SegmentGain, TreeValues
from gymcp.trainers.credit.tree.tree_batch import MISMATCH
from gymcp.trainers.recipe.entropy_branching import ENTROPY_TOKENS, BranchByEntropy
from gymcp.trainers.recipe.recipe import REPEATING, BranchingRecipe, Recipe
from gymcp.trainers.settings.validate import check_range
from gymcp.types import Action

MIN_LEAVES = 3
"""Fewest episodes of a task that `aepo` shares out: one is measured, one begins anew, and one may branch off it."""
EVERY_STEP = 2**31
"""Branchings on a path that no episode has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerTraits:
    """Traits of a controller that a recipe can name, with its defaults."""

    reads: tuple[str, ...]
    """Numbers of `BranchingRecipe` that it reads, beside the limits of a tree."""
    episodes: int = 8
    """Most episodes of a tree."""
    depth: int = 1
    """Branchings on one path."""
    branches: bool = True
    """False: it makes paths, not trees, so any preset reads them."""
    steers: bool = True
    """False: it plans episodes and decides nothing within them."""


ALLOCATING = "knapsack"
"""Controller that gives tasks different numbers of episodes before the iteration."""
PHASED = "xrpo"
"""Controller that gives tasks different numbers of episodes during the iteration."""
MONITORED = "aepo"
"""Controller that decides from the entropy of one episode how many others of its task begin anew, and how many
branch."""
PATCHING = "ui_s1"
"""Controller that replaces actions which differ from a demonstration's."""
_STEPS = ("ways", "depth", "steps")
RULES: Mapping[str, ControllerTraits] = {
    "steps": ControllerTraits(reads=_STEPS),
    "treepo": ControllerTraits(reads=_STEPS, depth=EVERY_STEP),
    "treeps": ControllerTraits(reads=_STEPS, depth=EVERY_STEP),
    "segment_spo": ControllerTraits(reads=("ways", "steps")),
    "arpo": ControllerTraits(reads=("ways", "depth", "base", "weight", "tokens"), episodes=2, depth=16),
    MONITORED: ControllerTraits(
        reads=("ways", "depth", "base", "weight", "tokens", "penalty", "sensitivity"), episodes=2, depth=16
    ),
    "cleaner": ControllerTraits(reads=("retries",), episodes=1, branches=False),
    PATCHING: ControllerTraits(reads=("patches", "texts"), episodes=1, branches=False),
    ALLOCATING: ControllerTraits(
        reads=("min_episodes_per_task", "max_episodes_per_task"), episodes=1, branches=False, steers=False
    ),
    PHASED: ControllerTraits(reads=("min_episodes_per_task", "weight"), episodes=1, branches=False, steers=False),
}
"""Controllers by the names that ``rollout.controller`` takes."""
_LIMITS = ("max_episodes", "max_tokens", "max_calls")


def make_controller(
    recipe: Recipe, *, vocabulary: int, demonstrations: Mapping[str, Sequence[Action]] | None = None
) -> tuple[Controller, TreeBudget]:
    """The recipe's controller and the budget of each tree; the recipe must name one.

    `vocabulary`: of its model. `demonstrations`: id of a task -> the actions of a recorded episode.
    """
    name, given = recipe.rollout.controller, recipe.rollout.branching
    rule = RULES[name]
    ways, depth = given.ways or 2, given.depth or rule.depth
    budget = TreeBudget(episodes=given.max_episodes or rule.episodes, tokens=given.max_tokens, calls=given.max_calls)
    if name in ("arpo", MONITORED):
        return BranchByEntropy(
            vocabulary=vocabulary,
            ways=ways,
            depth=depth,
            base=given.base,
            weight=given.weight,
            tokens=given.tokens or ENTROPY_TOKENS,
            penalty=given.penalty if name == MONITORED else 0.0,
        ), budget
    if name == PATCHING:
        patches = given.patches or 2
        controller = PatchMismatches(demonstrations=demonstrations or {}, patches=patches, texts=given.texts)
        return controller, replace(budget, undone=patches + 1)
    if name == "cleaner":
        return RetryErrors(retries=given.retries or 3), budget
    return BranchSteps(ways=ways, depth=depth, steps=frozenset(given.steps) or None), budget


def plays_trees(recipe: Recipe) -> bool:
    """True if the recipe's controller is asked after each step of an episode."""
    return bool(recipe.rollout.controller) and RULES[recipe.rollout.controller].steers


def find_bounds(recipe: Recipe) -> AllocateEpisodes:
    """The controller that allocates the recipe's episodes, before it knows success rates.

    Raises ConfigError if no allocation has as many episodes of a group on average as the recipe says.
    """
    given, episodes = recipe.rollout.branching, recipe.rollout.episodes
    bounds = AllocateEpisodes(
        fewest=given.min_episodes_per_task or FEWEST_EPISODES, most=given.max_episodes_per_task or MOST_EPISODES
    )
    if not 1 <= bounds.fewest <= episodes <= bounds.most:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.episodes is {episodes}, the mean of what rollout.controller ="
            f" '{ALLOCATING}' gives a task: it must be from {bounds.fewest}"
            f" (rollout.branching.min_episodes_per_task) to {bounds.most} (rollout.branching.max_episodes_per_task)"
        )
    return bounds


def find_first_episodes(recipe: Recipe) -> int:
    """Episodes of each task in the first phase of an iteration, by the recipe's controller; half of the mean if it does
    not say.

    Raises ConfigError if so few have no deviation, or if they leave nothing for later phases.
    """
    episodes = recipe.rollout.episodes
    first = recipe.rollout.branching.min_episodes_per_task or max(FEWEST_EPISODES, episodes // 2)
    if not FEWEST_EPISODES <= first < episodes:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.controller = '{PHASED}' plays {first} episodes of each task first"
            f" (rollout.branching.min_episodes_per_task): it must be {FEWEST_EPISODES} or more, for a deviation, and"
            f" less than rollout.episodes, {episodes}, for later phases"
        )
    return first


def check_branching(recipe: Recipe, preset: Preset) -> None:
    """Raise ConfigError if the recipe's controller and preset do not fit, or if a number is set that nothing reads."""
    rollout, who = recipe.rollout, f"recipe '{recipe.name}'"
    name = rollout.controller
    _check_patching(recipe, preset)
    if not plays_trees(recipe):
        if name == ALLOCATING:
            find_bounds(recipe)
        if name == PHASED:
            find_first_episodes(recipe)
        _refuse_unread(recipe, RULES[name].reads if name else ())
        if reads_trees(preset):
            controller = f"'{name}'" if name else "empty"
            fitting = recipe.preset_name if recipe.preset_name in RULES else "treepo"
            raise ConfigError(
                f"{who}: preset '{recipe.preset_name}' gives credit to trees, and rollout.controller is {controller},"
                f" so no episode branches; set it to '{fitting}', or choose a preset of independent episodes"
            )
        return
    rule = RULES[name]
    _refuse_unread(recipe, (*rule.reads, *_LIMITS))
    _check_monitored(recipe)
    _check_numbers(recipe, rule)
    make_controller(recipe, vocabulary=2)
    if rule.branches and not reads_trees(preset):
        raise ConfigError(
            f"{who}: rollout.controller is '{name}', and preset '{recipe.preset_name}' reads no trees: steps that"
            f" episodes share would be learnt again and again; choose one of {', '.join(TREE_PRESETS)}, or take"
            " rollout.controller out"
        )
    if is_program(rollout.agent):
        raise ConfigError(
            f"{who}: rollout.agent is '{rollout.agent}', and a program cannot go on from a record, as"
            f" rollout.controller = '{name}' asks; take one of the two out"
        )
    if preset.preference is not None:
        _check_pairs(recipe)
    for key, value in (
        ("replay.keep", recipe.replay.keep),
        ("learn.keep_cleanest", recipe.learn.keep_cleanest),
        ("curriculum.refill", recipe.curriculum.refill),
    ):
        if value:
            raise ConfigError(
                f"{who}: {key} is {value}: it chooses among whole episodes, and those of a tree share steps; take it or"
                " rollout.controller out"
            )


def _check_monitored(recipe: Recipe) -> None:
    """Raise ConfigError if so few episodes are shared out that none could branch, or if the penalty is no share."""
    rollout = recipe.rollout
    if rollout.controller != MONITORED:
        return
    check_range(f"recipe '{recipe.name}': rollout.branching.penalty", rollout.branching.penalty, 0, 1)
    leaves = rollout.episodes * (rollout.branching.max_episodes or RULES[MONITORED].episodes)
    if leaves < MIN_LEAVES:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.controller = '{MONITORED}' shares out {leaves} episodes of a task"
            f" (rollout.episodes times rollout.branching.max_episodes): give {MIN_LEAVES} or more, of which one can"
            " branch off"
        )


def _check_numbers(recipe: Recipe, rule: ControllerTraits) -> None:
    """Raise ConfigError for a number with which nothing would branch."""
    # `_check_monitored` has the fewest episodes of a controller that shares them out
    episodes = 2 if rule.branches and recipe.rollout.controller != MONITORED else 1
    fewest = {"ways": 2, "depth": 1, "max_episodes": episodes, "max_tokens": 1, "max_calls": 1}
    for key, least in fewest.items():
        value = getattr(recipe.rollout.branching, key)
        if value is not None and value < least:
            raise ConfigError(
                f"recipe '{recipe.name}': rollout.branching.{key} is {value}: it must be {least} or more, or nothing"
                " branches; take it out for the controller's default"
            )


def _check_patching(recipe: Recipe, preset: Preset) -> None:
    """Raise ConfigError if actions are replaced and nothing reads where, or the other way round."""
    rollout, who = recipe.rollout, f"recipe '{recipe.name}'"
    patches = rollout.controller == PATCHING
    if patches and MISMATCH not in preset.needs:
        raise ConfigError(
            f"{who}: rollout.controller = '{PATCHING}' replaces actions, and preset '{recipe.preset_name}' does not"
            f" read where: it would give the replaced ones the credit of the others; set credit.preset to '{PATCHING}'"
        )
    if not patches and MISMATCH in preset.needs:
        raise ConfigError(
            f"{who}: preset '{recipe.preset_name}' reads at which steps an action was replaced; set rollout.controller"
            f" to '{PATCHING}', which replaces them"
        )
    if patches and not rollout.demonstrations:
        raise ConfigError(
            f"{who}: rollout.controller = '{PATCHING}' compares with recorded episodes; set rollout.demonstrations to"
            " the folder of a run that solved the tasks"
        )
    if not patches and rollout.demonstrations:
        raise ConfigError(
            f"{who}: rollout.demonstrations is set, and only rollout.controller = '{PATCHING}' reads it; take it out,"
            " or name the run in warm_start.run"
        )
    if patches and recipe.curriculum.order not in REPEATING:
        raise ConfigError(
            f"{who}: curriculum.order is '{recipe.curriculum.order}', which makes tasks that no recorded episode is of;"
            " make it 'sequence'"
        )


def reads_trees(preset: Preset) -> bool:
    """True if the preset gives each step of a tree its credit once."""
    return any(isinstance(shaper, TreeValues | AncestorComparison | SegmentGain) for shaper in preset.shapers)


def _check_pairs(recipe: Recipe) -> None:
    """Raise ConfigError for a setting of advantages, or of their loss, beside a preset that learns from pairs."""
    for key, is_set in (
        ("loss", bool(recipe.loss)),
        ("learn.negative_scale", recipe.learn.negative_scale != 1.0),
        ("reward", bool(recipe.reward.step_weights())),
    ):
        if is_set:
            raise ConfigError(
                f"recipe '{recipe.name}': preset '{recipe.preset_name}' learns from pairs of steps, and {key} changes"
                " advantages or their loss, which it does not read; take it out (credit.beta is the weight of pairs)"
            )


def _limits_of(rule: ControllerTraits) -> tuple[str, ...]:
    return _LIMITS if rule.steers else ()


def _refuse_unread(recipe: Recipe, reads: tuple[str, ...]) -> None:
    given, plain = recipe.rollout.branching, BranchingRecipe()
    for each in fields(BranchingRecipe):
        if getattr(given, each.name) != getattr(plain, each.name) and each.name not in reads:
            readers = [name for name, rule in RULES.items() if each.name in (*rule.reads, *_limits_of(rule))]
            raise ConfigError(
                f"recipe '{recipe.name}': rollout.branching.{each.name} is set, and rollout.controller ="
                f" '{recipe.rollout.controller}' does not read it; {', '.join(readers)} would"
            )
