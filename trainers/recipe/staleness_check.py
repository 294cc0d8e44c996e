"""Checks of the settings of generation beside training."""

from __future__ import annotations

from gymcp.errors import ConfigError
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.settings.loss import Loss


def check_staleness(recipe: Recipe) -> None:
    """Raise ConfigError if rollouts beside training would make another setting void or impossible."""
    rollout, who = recipe.rollout, f"recipe '{recipe.name}'"
    if not rollout.staleness:
        if rollout.over_provision:
            raise ConfigError(
                f"{who}: rollout.over_provision is {rollout.over_provision}, and rollout.staleness is 0: what is left"
                " over after an update would be too stale for the next one; set rollout.staleness to 1 or more"
            )
        return
    if rollout.over_provision > rollout.groups:
        raise ConfigError(
            f"{who}: rollout.over_provision is {rollout.over_provision}, more than the {rollout.groups} groups of a"
            " batch (rollout.groups): a whole batch would always be waiting and go stale; raise rollout.staleness"
            " instead"
        )
    if 0 < rollout.concurrency < rollout.episodes:
        raise ConfigError(
            f"{who}: rollout.concurrency is {rollout.concurrency}, and a group has {rollout.episodes} episodes"
            " (rollout.episodes): with rollout.staleness its first ones go stale while the last wait; raise"
            " rollout.concurrency"
        )
    for key, is_set, reason in (
        ("deterministic", recipe.deterministic, "which episodes end first varies; gymcp train --replay repeats a run"),
        ("rollout.controller", rollout.controller, "its groups have one size, and no trees"),
        ("replay.keep", recipe.replay.keep, "it learns again from older episodes than rollout.staleness allows"),
        ("curriculum.refill", recipe.curriculum.refill, "its waves of groups wait for each other"),
        ("rollout.batch_tokens", rollout.batch_tokens, "a batch has rollout.groups groups, whatever they sample"),
        ("curriculum.start_turns", recipe.curriculum.start_turns, "episodes go on from one iteration into the next"),
        ("learn.restart", recipe.learn.restart, "each version begins with the first weights, so its number is no age"),
    ):
        if is_set:
            raise ConfigError(
                f"{who}: {key} needs rollout.staleness = 0, and it is {rollout.staleness}: {reason}; take one of the"
                " two out"
            )


def check_stale_loss(recipe: Recipe, loss: Loss) -> None:
    """Raise ConfigError if tokens of earlier weights would be learnt from as if the current ones had drawn them.

    Losses with ratios compare such tokens with the log-probabilities that the engine recorded, with
    ``loss.decoupled`` and ``loss.weight`` as part of a correction. A preset whose own loss has no ratios is made for
    episodes of any weights.
    """
    if recipe.rollout.staleness and loss.kind == "likelihood" and recipe.loss.get("kind") == "likelihood":
        raise ConfigError(
            f"recipe '{recipe.name}': loss.kind = 'likelihood' has no ratios, and with rollout.staleness ="
            f" {recipe.rollout.staleness} tokens are learnt from that earlier weights drew: they would count as if the"
            " current ones had; take loss.kind 'ppo' with loss.decoupled = true, or a preset without ratios (opmd,"
            " asymre, expert_iteration)"
        )
