"""Iterations of as many sampled tokens as the recipe says, however many groups, and trees, these are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gymcp.cli.training.credit_run import load_tasks
from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curricula.explanation import explain_experience
from gymcp.trainers.rollouts.curriculum import tasks_in_sequence
from gymcp.trainers.run.experience.collection import SAMPLED_TOKENS, count_groups_to_fill, find_wanted_tokens
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Json

ENV = Path(__file__).with_name("prompted_bank.py")
TABLE: dict[str, Any] = {
    "env": str(ENV),
    "deterministic": True,
    "rollout": {
        "groups": 2, "episodes": 1, "batch_tokens": 150, "controller": "treepo", "branching": {"max_episodes": 3},
        "max_tokens": 3, "max_turns": 4, "concurrency": 4, "slots": 4,
    },
    "credit": {"preset": "treepo"},
    "learn": {"iterations": 3},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip


class Interruption(Exception):
    pass


@pytest.mark.parametrize(
    ("wanted", "tokens", "groups", "further"),
    [(5500, 2400, 8, 10), (5500, 5320, 16, 1), (5500, 5350, 16, 0), (5500, 6000, 16, 0), (5500, 0, 8, 0)],
)
def test_further_groups_are_those_that_come_nearest_to_the_wanted_tokens(
    wanted: int, tokens: int, groups: int, further: int
) -> None:
    """Groups of 300 and 332 tokens on average; more than half of one is missing, less, or none. Lost groups sample
    none."""
    assert count_groups_to_fill(wanted, tokens, groups) == further


def test_an_iteration_makes_up_for_what_the_ones_before_sampled_too_much_or_too_little() -> None:
    rows = [{"iteration": 0}, {"iteration": 1, SAMPLED_TOKENS: 160}, {"iteration": 2, SAMPLED_TOKENS: 120}]
    recipe = make_recipe(TABLE)
    assert [find_wanted_tokens(recipe, rows[:count]) for count in (0, 1, 2, 3)] == [150, 150, 140, 170]
    assert find_wanted_tokens(make_recipe({"env": "rounds"}), rows) is None


def test_a_run_of_trees_samples_its_tokens_and_so_does_one_that_is_interrupted(model: Path, tmp_path: Path) -> None:
    """The number of groups in each iteration follows from the tokens of each tree, read from the record."""
    recipe, env = make_recipe({**TABLE, "model": {"path": str(model)}}), load_env(load_spec(str(ENV)))

    def interrupt(row: Mapping[str, Json]) -> None:
        if row.get("iteration") == 2:
            raise Interruption

    train(recipe, env, tmp_path / "whole", resume=False)
    with pytest.raises(Interruption):
        train(recipe, env, tmp_path / "cut", resume=False, on_row=interrupt)
    train(recipe, env, tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / METRICS_FILE).read_bytes() == (tmp_path / "whole" / METRICS_FILE).read_bytes()

    spent = count_tokens(tmp_path / "whole")
    order = [(task.id, trial) for task, trial in tasks_in_sequence(env, recipe, 0, len(spent))]
    assert set(order) == set(spent)
    assert {id for id, _ in order} <= {task.id for task in load_tasks(tmp_path / "whole", env.spec)}
    for row in read_metrics(tmp_path / "whole")[1:]:
        groups = row["curriculum/groups"]
        tokens = sum(spent[tree] for tree in order[:groups])
        assert (row[SAMPLED_TOKENS], row["branches"]) == (tokens, 2 * groups)
        assert abs(tokens - 150) <= tokens / groups
        order = order[groups:]
    assert order == []
    assert abs(sum(spent.values()) - 450) <= max(spent.values()) / 2


def count_tokens(folder: Path) -> Counter[tuple[str, int]]:
    """(task, trial) -> tokens that the episodes of the tree sampled."""
    found: Counter[tuple[str, int]] = Counter()
    with TrajectoryStore.open(folder) as store:
        for row in [*store.summaries(), *(row.episode for row in store.branches())]:
            found[row.task, row.trial] += row.usage.completion_tokens
    return found


def test_the_batch_is_explained() -> None:
    (said,) = explain_experience(make_recipe(TABLE), load_env(load_spec(str(ENV))))
    assert (
        said == "batch: 2 groups, then further ones, to the number of groups that comes nearest to 150 sampled tokens"
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"rollout": {"batch_tokens": 9, "staleness": 1}}, "rollout.batch_tokens needs rollout.staleness = 0"),
        (
            {
                "rollout": {"batch_tokens": 9},
                "curriculum": {"refill": 1},
                "learn": {"drop_uninformative": True},
            },
            "curriculum.refill is 1, and rollout.batch_tokens lets the tokens decide how many groups an iteration has",
        ),
        ({"rollout": {"batch_tokens": 9}, "curriculum": {"order": "vade"}}, "curriculum.order is 'vade'"),
        ({"rollout": {"batch_tokens": 9, "controller": "xrpo"}}, "rollout.controller is 'xrpo', and .* before they"),
        ({"rollout": {"batch_tokens": -9}}, "rollout.batch_tokens is -9; it must not be negative"),
    ],
)
def test_settings_that_need_a_number_of_groups_are_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "rounds", **table})
