"""The time of a training run before it starts: counts of the recipe times what was measured on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.forecasts.model_speed import ModelSpeed
from gymcp.trainers.run.forecasts.rehearsal import TokenCounts
from gymcp.trainers.run.forecasts.size import EpisodeCounts, count_updates, count_warm_updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Seconds of a training run, by the work that takes them."""

    environment: float
    """All episodes one after the other, as long as the one that was played."""
    drawing: float
    """Answers of the model in rollouts and evaluations, as long as those of the played episode."""
    warm_start: float
    updates: float

    @property
    def all(self) -> float:
        return self.environment + self.drawing + self.warm_start + self.updates


def forecast_duration(
    recipe: Recipe, episodes: EpisodeCounts, tokens: TokenCounts, episode_s: float, speed: ModelSpeed
) -> Duration:
    """The parts are added up, as on a machine whose cores are busy with each of them in turn."""
    drawn = tokens.drawn * (episodes.rollouts + episodes.heldout)
    return Duration(
        environment=episodes.all * episode_s,
        drawing=drawn / speed.tokens_per_second,
        warm_start=count_warm_updates(recipe, episodes) * speed.warm_update.seconds,
        updates=count_updates(recipe) * speed.update.seconds,
    )
