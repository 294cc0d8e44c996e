"""Kinds of tasks that an environment generates without end: one for each family and level of the recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gymcp.envs.generated_tasks import GeneratedTask, generate_task
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import make_training_block
from gymcp.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKinds:
    """The kinds of a recipe's training tasks, by name, in the order in which the environment makes them."""

    env: LoadedEnv
    families: tuple[str, ...]
    levels: tuple[int, ...]
    places: Mapping[str, int]
    """Name -> place of the kind in a block of one task of each."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.places)

    def make_task(self, kind: str, number: int) -> Task:
        """The task of that kind and number, counted from 0. Raises ConfigError as the environment's generator does."""
        at = number * len(self.places) + self.places[kind]
        wanted = GeneratedTask(split="train", number=at, families=self.families, levels=self.levels)
        return generate_task(self.env.spec, wanted)


def find_kinds(env: LoadedEnv, recipe: Recipe) -> TaskKinds:
    """The kinds of the recipe's training tasks.

    Raises ConfigError if there are fewer than two, because then nothing can be chosen.
    """
    who = f"recipe '{recipe.name}': curriculum.order = '{recipe.curriculum.order}' chooses among families and levels"
    if env.spec.more_tasks is None:
        raise ConfigError(
            f"{who}, and environment '{env.spec.name}' generates no tasks, so it has neither; set curriculum.order to"
            " 'sequence'"
        )
    names = _name_kinds([task.tags for task in make_training_block(env, recipe.tasks, 0)])
    if len(names) < 2:
        raise ConfigError(
            f"{who}, and the recipe's tasks are of one kind ({names[0]}); name more in tasks.families and tasks.levels,"
            " or set curriculum.order to 'sequence'"
        )
    places = {name: place for place, name in enumerate(names)}
    return TaskKinds(env=env, families=recipe.tasks.families, levels=recipe.tasks.levels, places=places)


def _name_kinds(tags: list[tuple[str, ...]]) -> list[str]:
    """[K] tags of one task of each kind -> [K] different names, made of the tags that say more than the split."""
    names = [", ".join(tag for tag in own if not tag.startswith("split ")) or "task" for own in tags]
    count = Counter(names)
    return [name if count[name] == 1 else f"{name} ({place})" for place, name in enumerate(names)]
