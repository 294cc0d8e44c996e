"""Tasks chosen by VADE: by hand, in a simulation with a known best choice, in interrupted runs, and what is refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from coin_flip_bank import BANK, make_coin_flip_bank
from interrupted_training import assert_interruption_changes_nothing

from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curricula.choose import make_curriculum, tasks_so_far
from gymcp.trainers.rollouts.curricula.explanation import explain_experience
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState, GroupResult, KindTally, restore_curriculum
from gymcp.trainers.rollouts.curricula.vade import VadeCurriculum, information_gain
from gymcp.types import Task

GROUP = 8
ROLLOUT = {"groups": 4, "episodes": 3}


def make_vade(ids: Sequence[str], memory: float = 0.2) -> VadeCurriculum:
    tasks = [Task(id=id, prompts=("?",)) for id in ids]
    return VadeCurriculum(tasks=tasks, seed=0, trials=GROUP, memory=memory)


def practise(
    curriculum: VadeCurriculum, state: CurriculumState, iterations: range, chance: Callable[[str, int], float]
) -> tuple[Counter[str], CurriculumState]:
    """Times that each task was chosen, with two groups in an iteration, and the state after that."""
    draw, chosen = random.Random(1), Counter[str]()
    for iteration in iterations:
        planned, state = curriculum.plan(state, 2)
        results = [
            GroupResult(
                kind=group.kind,
                scores=tuple(float(draw.random() < chance(group.kind, iteration)) for _ in range(GROUP)),
            )
            for group in planned
        ]
        chosen.update(group.kind for group in planned)
        state = curriculum.observe(state, results)
    return chosen, state


def test_the_tallies_are_those_of_the_papers_figure() -> None:
    """One success in 8, four in 8, and no group. The figure prints 0.999 x 0.2, the last number, as 1.998."""
    before = {"hard": (0.1, 8.4), "middle": (2.7, 5.3), "easy": (9.0, 0.2)}
    state = CurriculumState(kinds={name: KindTally(solved=a, failed=b) for name, (a, b) in before.items()})
    results = [
        GroupResult(kind="hard", scores=(1.0, *[0.0] * 7)),
        GroupResult(kind="middle", scores=(*[1.0] * 4, *[0.5] * 4)),
    ]
    after = make_vade(list(before)).observe(state, results)
    found = [(after.tally(name).solved, after.tally(name).failed) for name in before]
    assert found == [pytest.approx(row, abs=1e-9) for row in ((1.02, 8.68), (4.54, 5.06), (8.991, 0.1998))]


def test_a_group_that_was_lost_counts_as_none() -> None:
    state = CurriculumState(kinds={"a": KindTally(made=8, solved=1.0, failed=2.0)})
    after = make_vade("a").observe(state, [GroupResult(kind="a", scores=())])
    assert after.tally("a") == KindTally(made=8, solved=0.999, failed=1.998)


def test_the_gain_is_largest_at_a_third() -> None:
    assert [information_gain(rate) for rate in (0.0, 0.5, 0.9, 1.0)] == pytest.approx([0.0, 0.125, 0.009, 0.0])
    rates = [place / 300 for place in range(301)]
    assert max(rates, key=information_gain) == pytest.approx(1 / 3)


def test_tasks_of_a_known_rate_are_chosen_by_their_gain() -> None:
    """With a million episodes each, a draw is the rate itself: gains .128, .144, .048 and .009."""
    rates = {"a": 0.2, "b": 0.4, "c": 0.74, "d": 0.9}
    kinds = {name: KindTally(solved=1e6 * rate, failed=1e6 * (1 - rate)) for name, rate in rates.items()}
    planned, after = make_vade("abcd").plan(CurriculumState(kinds=kinds), 3)
    assert [(group.task.id, group.kind, group.first_trial) for group in planned] == [
        ("b", "b", 0), ("a", "a", 0), ("c", "c", 0),
    ]  # fmt: skip
    assert (after.groups, after.tally("a").made, after.tally("d").made) == (3, GROUP, 0)
    assert [group.first_trial for group in make_vade("abcd").plan(after, 2)[0]] == [GROUP, GROUP]


def test_practice_goes_to_the_tasks_that_teach_and_follows_the_policy() -> None:
    """Ten tasks: two that teach, four that are never and four that are always solved. Later the two are always solved,
    and two that never were teach."""
    names = ["teaches", "teaches too", *(f"never {n}" for n in range(4)), *(f"always {n}" for n in range(4))]

    def chance(name: str, iteration: int) -> float:
        if name.startswith("teaches"):
            return 0.4 if iteration < 200 else 1.0
        if name in ("never 0", "never 1") and iteration >= 200:
            return 0.4
        return float(name.startswith("always"))

    curriculum, even = make_vade(names), 200 * 2 / len(names)
    chosen, state = practise(curriculum, CurriculumState(), range(200), chance)
    assert min(chosen["teaches"], chosen["teaches too"]) > 2 * even
    assert max(chosen[name] for name in names if name.startswith("always")) < even
    later, _ = practise(curriculum, state, range(200, 400), chance)
    assert min(later["never 0"], later["never 1"]) > 2 * even
    assert max(later["teaches"], later["teaches too"]) < even
    assert sum(later[name] for name in names if name.startswith("always")) > 0  # nothing is given up
    remembers = make_vade(names, memory=1.0)
    _, state = practise(remembers, CurriculumState(), range(200), chance)
    slow, _ = practise(remembers, state, range(200, 400), chance)
    assert min(slow["teaches"], slow["teaches too"]) > 10 * max(later["teaches"], later["teaches too"])


def test_a_restored_state_plans_the_same() -> None:
    recipe = make_recipe({"env": "rounds", "tasks": {"pool": 12}, "curriculum": {"order": "vade"}, "rollout": ROLLOUT})
    env = load_env(load_spec("rounds"))
    state, played = CurriculumState(), Counter[tuple[str, int]]()
    for iteration in range(8):
        restored = restore_curriculum(json.loads(json.dumps(state.to_json())))
        planned, after = make_curriculum(env, recipe).plan(restored, 4)
        assert (planned, after) == make_curriculum(env, recipe).plan(state, 4)
        played.update((group.task.id, group.first_trial) for group in planned)
        scores = [(1.0, 0.0, float(iteration % 2)) for _ in planned]
        results = [GroupResult(kind=group.kind, scores=own) for group, own in zip(planned, scores, strict=True)]
        state = make_curriculum(env, recipe).observe(after, results)
    assert set(played.values()) == {1}
    known = {task.id for task in tasks_so_far(env, recipe, state)}
    assert len(known) == 12
    assert {id for id, _ in played} <= known


TABLE: dict[str, Any] = {
    "env": str(BANK),
    "name": "chosen-by-gain",
    "deterministic": True,
    "rollout": {"groups": 2, "episodes": 3, "max_tokens": 2, "max_turns": 1, "concurrency": 4, "slots": 4},
    "curriculum": {"order": "vade", "memory": 0.2},
    "credit": {"preset": "grpo"},
    "learn": {"iterations": 4},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip


@pytest.mark.parametrize("controller", ["", "knapsack"])
def test_an_interrupted_run_plays_the_tasks_of_an_uninterrupted_one(
    controller: str, model: Path, tmp_path: Path
) -> None:
    rollout = {**TABLE["rollout"], "controller": controller}
    recipe = make_recipe({**TABLE, "rollout": rollout, "model": {"path": str(model)}})
    played = assert_interruption_changes_nothing(recipe, make_coin_flip_bank(), tmp_path)
    assert sum(played.values()) == 4 * 2 * 3


def test_the_dry_run_says_what_is_chosen() -> None:
    table = {"env": "rounds", "tasks": {"pool": 12}, "curriculum": {"order": "vade"}, "rollout": ROLLOUT}
    assert explain_experience(make_recipe(table), load_env(load_spec("rounds"))) == [
        "tasks: 12 different ones, which are repeated",
        "tasks: the 4 of 12 with the largest p (1 - p)^2, p drawn from Beta(solved + 1, failed + 1) of the task",
        "  earlier episodes count 0.9 times with each group of the task, 0.999 times in an iteration without one",
    ]


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        (0, "order = 'vade' goes by each task's success so far, and every task is a new one; set tasks.pool"),
        (4, r"'vade' chooses 4 tasks for an iteration \(rollout.groups\) of 4: there must be more tasks"),
    ],
)
def test_tasks_of_which_none_can_be_chosen_are_refused(pool: int, says: str) -> None:
    table = {"env": "rounds", "tasks": {"pool": pool}, "curriculum": {"order": "vade"}, "rollout": ROLLOUT}
    with pytest.raises(ConfigError, match=says):
        make_curriculum(load_env(load_spec("rounds")), make_recipe(table))


def test_a_setting_that_vade_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"curriculum.explore is 0.3, which is read with .*'frontier'"):
        make_recipe({"env": "rounds", "curriculum": {"order": "vade", "explore": 0.3}, "tasks": {"pool": 64}})
