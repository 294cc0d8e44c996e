"""Curricula: which tasks they choose, that they are a function of seed and state, and what they refuse."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from coin_flip_bank import make_coin_flip_bank

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.choose import make_curriculum, tasks_so_far, turns_of
from gymcp.trainers.rollouts.curricula.explanation import explain_experience
from gymcp.trainers.rollouts.curricula.frontier import frontier_shares
from gymcp.trainers.rollouts.curricula.protocol import (
    Curriculum,
    CurriculumState,
    GroupResult,
    KindTally,
    PlannedGroup,
    count_result,
    restore_curriculum,
)
from gymcp.trainers.rollouts.curriculum import make_training_block, tasks_in_sequence, training_tasks
from gymcp.trainers.run.experience.collection import count_informative, group_results, is_informative
from gymcp.trainers.run.run_state import read_curriculum
from gymcp.types import Task, Trajectory

EASY, HARD = "round, level 1", "round, level 5"


@pytest.fixture(scope="module")
def rounds() -> LoadedEnv:
    return load_env(load_spec("rounds"))


def recipe_of(order: str = "sequence", tasks: dict[str, Any] | None = None, **rule: Any) -> Recipe:
    return make_recipe({"env": "rounds", "curriculum": {"order": order, **rule}, "tasks": tasks or {}})


def play(curriculum: Curriculum, state: CurriculumState, groups: int, solved: Sequence[str]) -> CurriculumState:
    """The state after groups of four episodes, all solved if the kind is in `solved`, else none."""
    planned, state = curriculum.plan(state, groups)
    scores = {True: (1.0,) * 4, False: (0.0,) * 4}
    return curriculum.observe(state, [GroupResult(kind=g.kind, scores=scores[g.kind in solved]) for g in planned])


def kinds_of(planned: Sequence[PlannedGroup]) -> Counter[str]:
    return Counter(group.kind for group in planned)


def test_the_plain_sequence_is_that_of_the_iterations(rounds: LoadedEnv) -> None:
    recipe = recipe_of()
    curriculum, state = make_curriculum(rounds, recipe), CurriculumState()
    for iteration in range(3):
        planned, state = curriculum.plan(state, recipe.rollout.groups)
        found = [(group.task.id, group.first_trial) for group in planned]
        assert found == [(task.id, first) for task, first in training_tasks(rounds, recipe, iteration)]
    assert state == CurriculumState(groups=3 * recipe.rollout.groups)


def count_blocks(env: LoadedEnv, made: list[int]) -> LoadedEnv:
    """The environment, which notes in `made` the number of each block of tasks that it makes."""
    more_tasks = env.spec.more_tasks
    assert more_tasks is not None

    def make_and_count(split: str, *, first: int, **kinds: Any) -> Iterable[Task]:
        made.append(first)
        return more_tasks(split, first=first, **kinds)

    return replace(env, spec=replace(env.spec, more_tasks=make_and_count))


@pytest.mark.parametrize("pool", [0, 10])
def test_the_sequence_shuffles_each_block_and_makes_it_once(rounds: LoadedEnv, pool: int) -> None:
    made: list[int] = []
    recipe, env = recipe_of(tasks={"pool": pool}), count_blocks(rounds, made)
    size = len(make_training_block(rounds, recipe.tasks, 0))
    blocks = [make_training_block(rounds, recipe.tasks, number) for number in range(4)]
    for number, block in enumerate(blocks):
        random.Random(f"{recipe.seed}-{number}").shuffle(block)
    expected = [task for block in blocks for task in block][: pool or 4 * size]
    found = [task for task, _ in tasks_in_sequence(env, recipe, 0, 4 * size)]
    assert found == [expected[place % len(expected)] for place in range(4 * size)]
    assert sorted(made) == list(range(math.ceil(len(expected) / size)))


def test_a_pool_repeats_its_tasks_with_further_trials(rounds: LoadedEnv) -> None:
    recipe = recipe_of(tasks={"pool": 6})
    planned, _ = make_curriculum(rounds, recipe).plan(CurriculumState(), 12)
    first, again = planned[:6], planned[6:]
    assert len({group.task.id for group in first}) == 6
    assert [group.task for group in again] == [group.task for group in first]
    assert {group.first_trial for group in first} == {0}
    assert {group.first_trial for group in again} == {recipe.rollout.episodes}


def test_a_pool_of_a_fixed_suite_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tasks.pool is 6, and 'rounds' has a fixed suite, which is repeated in any"):
        make_curriculum(make_coin_flip_bank(), recipe_of(tasks={"pool": 6}))


def test_the_share_of_a_kind_is_largest_at_the_target() -> None:
    # p(1 - p) of .5, .9 and 0 is .25, .09 and 0; a fifth of all is spread evenly
    assert frontier_shares([0.5, 0.9, 0.0], target=0.5, explore=0.2) == pytest.approx(
        [0.2 / 3 + 0.8 * 0.25 / 0.34, 0.2 / 3 + 0.8 * 0.09 / 0.34, 0.2 / 3]
    )
    at_three_quarters = frontier_shares([0.25, 0.5, 0.75], target=0.75, explore=0.0)
    assert at_three_quarters.index(max(at_three_quarters)) == 2
    assert frontier_shares([0.0, 1.0], target=0.5, explore=0.1) == [0.5, 0.5]


def test_the_frontier_leaves_what_is_always_or_never_solved(rounds: LoadedEnv) -> None:
    curriculum = make_curriculum(rounds, recipe_of("frontier"))
    middle = KindTally(made=9, solved=18.0, failed=18.0)
    extremes = dict.fromkeys(("round, level 1", "round, level 2"), KindTally(made=9, solved=36.0))
    never = dict.fromkeys(("round, level 4", "round, level 5"), KindTally(made=9, failed=36.0))
    state = CurriculumState(groups=45, kinds={**extremes, "round, level 3": middle, **never})
    planned, _ = curriculum.plan(state, 1000)
    shares = kinds_of(planned)
    assert shares["round, level 3"] > 600
    assert min(shares[kind] for kind in (*extremes, *never)) > 10  # it goes on looking at the others


def test_a_tally_forgets_what_the_policy_no_longer_does() -> None:
    tally = KindTally()
    for _ in range(30):
        tally = count_result(tally, (0.0, 0.5), 0.5)
    assert tally.rate < 0.25
    assert count_result(tally, (1.0, 1.0), 0.5).rate == pytest.approx((2 + 1) / (0.5 * tally.failed + 2 + 2))
    assert count_result(tally, (), 0.5) is tally


def test_failures_lead_to_new_tasks_of_their_kind(rounds: LoadedEnv) -> None:
    curriculum = make_curriculum(rounds, recipe_of("failures", tasks={"levels": [1, 5]}, explore=0.25))
    state = play(curriculum, CurriculumState(), 4, solved=[EASY])
    assert state.waiting == (HARD, HARD)
    planned, after = curriculum.plan(state, 4)
    assert [group.kind for group in planned[:2]] == [HARD, HARD]
    assert kinds_of(planned[2:]) == {EASY: 1, HARD: 1}
    assert after.waiting == ()
    assert len({group.task.id for group in planned}) == 4


def test_failures_of_kinds_out_of_reach_are_forgotten(rounds: LoadedEnv) -> None:
    curriculum = make_curriculum(rounds, recipe_of("failures", tasks={"levels": [1, 5]}, low=0.2))
    hopeless = CurriculumState(kinds={HARD: KindTally(failed=40.0)}, waiting=(HARD, HARD))
    planned, after = curriculum.plan(hopeless, 2)
    assert kinds_of(planned) == {EASY: 1, HARD: 1}  # one of each kind in turn
    assert after.waiting == ()


def test_failures_beyond_the_share_wait_for_the_next_iteration(rounds: LoadedEnv) -> None:
    curriculum = make_curriculum(rounds, recipe_of("failures", tasks={"levels": [1, 5]}, explore=0.5))
    state = CurriculumState(kinds={HARD: KindTally(solved=4, failed=4)}, waiting=(HARD,) * 5)
    _, after = curriculum.plan(state, 4)
    assert after.waiting == (HARD,) * 3


def test_few_groups_are_explored_as_often_as_many(rounds: LoadedEnv) -> None:
    curriculum = make_curriculum(rounds, recipe_of("failures", tasks={"levels": [1, 5]}, explore=0.1))
    state, easy = CurriculumState(), 0
    for _ in range(200):
        state = replace(state, waiting=(HARD, HARD), kinds={HARD: KindTally(solved=4, failed=4)})
        planned, state = curriculum.plan(state, 1)
        easy += planned[0].kind == EASY
    assert 2 <= easy <= 25  # half of 200 groups of which a tenth is explored


@pytest.mark.parametrize("order", ["frontier", "failures"])
def test_no_task_is_planned_twice_and_a_restored_state_plans_the_same(order: str, rounds: LoadedEnv) -> None:
    curriculum, state, seen = make_curriculum(rounds, recipe_of(order)), CurriculumState(), []
    for _ in range(6):
        restored = restore_curriculum(json.loads(json.dumps(state.to_json())))
        assert restored == state
        again = make_curriculum(rounds, recipe_of(order)).plan(restored, 8)
        assert again == curriculum.plan(state, 8)
        seen += [group.task.id for group in again[0]]
        state = play(curriculum, state, 8, solved=[EASY])
    assert len(set(seen)) == len(seen) == 48
    assert set(seen) <= {task.id for task in tasks_so_far(rounds, recipe_of(order), state)}


def test_the_tasks_so_far_are_made_once(rounds: LoadedEnv) -> None:
    """20 numbers of each kind, which are more than the generator's last blocks that are kept."""
    made: list[int] = []
    recipe, state = recipe_of("frontier"), CurriculumState()
    env = count_blocks(rounds, made)
    planned, state = make_curriculum(rounds, recipe).plan(state, 60)
    found = {task.id for task in tasks_so_far(env, recipe, state)}
    assert {group.task.id for group in planned} <= found
    most = max(tally.made for tally in state.kinds.values()) + recipe.rollout.groups
    assert most > 16
    assert Counter(made) == Counter([0, *range(most)])  # the first block tells the kinds, too


def test_a_run_of_an_earlier_version_goes_on_where_its_sequence_was() -> None:
    recipe = recipe_of()
    assert read_curriculum({"iteration": 3}, recipe) == CurriculumState(groups=3 * recipe.rollout.groups)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, [12, 12, 12, 12, 12, 12]),
        ({"start_turns": 3}, [3, 6, 9, 12, 12, 12]),
        ({"start_turns": 9, "horizon": "add"}, [9, 10, 11, 12, 12, 12]),
        ({"start_turns": 5, "horizon_every": 2}, [5, 5, 10, 10, 12, 12]),
    ],
)
def test_the_horizon_grows_to_the_recipes(rule: dict[str, Any], expected: list[int]) -> None:
    recipe = make_recipe({"env": "rounds", "curriculum": rule, "rollout": {"max_turns": 12}})
    assert [turns_of(recipe, iteration) for iteration in range(6)] == expected


def test_results_of_groups_leave_out_lost_episodes() -> None:
    task = Task(id="a", prompts=("?",))
    played = Trajectory(id="1", env="e", task="a", trial=4, score=1.0)
    lost = replace(played, id="2", trial=5, outcome=Outcome.ENV_INFRA, score=None)
    other = replace(played, id="3", trial=6, score=0.0)
    results = group_results([PlannedGroup(task=task, first_trial=4, kind="k")], [other, played, lost], 3)
    assert results == [GroupResult(kind="k", scores=(1.0, 0.0))]


def test_groups_that_differ_are_informative() -> None:
    assert is_informative((0.0, 1.0))
    assert is_informative((1.0,))  # compared with nothing, and not dropped
    assert not is_informative((1.0, 1.0))
    assert not is_informative(())


@pytest.mark.parametrize("order", ["frontier", "failures"])
def test_a_curriculum_without_kinds_is_refused(order: str, rounds: LoadedEnv) -> None:
    with pytest.raises(ConfigError, match=r"environment 'bank' generates no tasks, so it has neither; set"):
        make_curriculum(make_coin_flip_bank(), recipe_of(order))
    with pytest.raises(ConfigError, match=r"are of one kind \(round, level 3\); name more in tasks.families"):
        make_curriculum(rounds, recipe_of(order, tasks={"levels": [3]}))


def test_groups_of_one_task_count_as_the_group_that_they_are_to_credit() -> None:
    a, b = (PlannedGroup(task=Task(id=id, prompts=("?",))) for id in "ab")
    solved, failed = (GroupResult(kind="", scores=(score, score)) for score in (1.0, 0.0))
    assert count_informative([a, b], [solved, failed]) == 0
    assert count_informative([a, b, a], [solved, failed, failed]) == 2


def test_the_differences_from_a_plain_sequence_are_explained(rounds: LoadedEnv) -> None:
    assert explain_experience(recipe_of(), rounds) == []
    frontier = recipe_of("frontier", target=0.25, start_turns=4)
    assert explain_experience(frontier, rounds) == [
        "tasks: each group's kind is one of 5, drawn with weight p^0.5 (1 - p)^1.5; 0.1 of them evenly",
        "  p = (solved + 1) / (solved + failed + 2) of the kind; with each group earlier ones count 0.9 times",
        "turns: at most 4 in the first iteration, 4 more every 1, up to 12",
    ]
    table = {
        "env": "rounds",
        "tasks": {"pool": 8},
        "curriculum": {"refill": 2},
        "learn": {"drop_uninformative": True},
        "replay": {"keep": 4, "max_age": 3},
    }
    assert explain_experience(make_recipe(table), rounds) == [
        "tasks: 8 different ones, which are repeated",
        "refill: groups that all scored alike are replaced, in at most 2 further waves an iteration",
        "replay: 4 episodes kept of each task; a group without a success recalls solved ones, at most 1 in place of new"
        " ones, at most 3 iterations old",
    ]
    (tasks, _) = explain_experience(recipe_of("failures"), rounds)
    assert tasks.startswith("tasks: a new one of the kind of each group that was not solved by all, if p is from 0.05")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"curriculum": {"target": 1.5}}, r"curriculum.target is 1.5; it must be from 0 to 1"),
        (
            {"curriculum": {"order": "failures", "low": 0.9, "high": 0.5}},
            r"curriculum.low is 0.9, above curriculum.high, 0.5",
        ),
        ({"curriculum": {"start_turns": 99}}, r"start_turns is 99, and the turns grow to rollout.max_turns, 12"),
        ({"curriculum": {"horizon_every": 0}}, r"curriculum.horizon_every must be 1 or more"),
        ({"curriculum": {"order": "random"}}, r"curriculum.order is 'random'; have 'sequence', 'frontier', 'failures'"),
        ({"curriculum": {"refill": 2}}, r"refill is 2: it replaces groups that are dropped .*drop_uninformative"),
        (
            {"curriculum": {"order": "frontier"}, "tasks": {"pool": 4}},
            r"tasks.pool is 4, and curriculum.order = 'frontier' always makes new tasks",
        ),
        ({"curriculum": {"target": 0.3}}, r"target is 0.3, which is read with curriculum.order = 'frontier' only"),
        (
            {"curriculum": {"memory": 0.5}},
            r"memory is 0.5, which is read with curriculum.order = 'frontier' or .* or curriculum.order = 'vade' only",
        ),
        ({"curriculum": {"order": "frontier", "low": 0.2}}, r"low is 0.2, which is read with .*'failures' only"),
        ({"curriculum": {"horizon": "add"}}, r"horizon is 'add', which is read with curriculum.start_turns only"),
    ],
)
def test_impossible_curricula_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_recipe({"env": "rounds", **table})


def test_a_learner_that_a_solvable_group_teaches_gets_further_at_the_frontier(rounds: LoadedEnv) -> None:
    """Mechanism only: a made-up learner, whose skill grows by every group that is neither all solved nor all failed.

    It solves level n with a chance that falls from 1 to 0 around its skill, so at any time one level or two teach.
    """

    def learn(order: str) -> float:
        recipe = recipe_of(order)
        curriculum, state, skill, draw = make_curriculum(rounds, recipe), CurriculumState(), 0.5, random.Random(7)
        for _ in range(60):
            planned, state = curriculum.plan(state, 8)
            results = []
            for group in planned:
                level = int(next(tag for tag in group.task.tags if tag.startswith("level"))[6:])
                chance = 1 / (1 + math.exp(6 * (level - skill)))
                scores = tuple(float(draw.random() < chance) for _ in range(8))
                skill += 0.02 * is_informative(scores)
                results.append(GroupResult(kind=group.kind, scores=scores))
            state = curriculum.observe(state, results)
        return skill

    assert learn("frontier") > learn("sequence") + 0.5
