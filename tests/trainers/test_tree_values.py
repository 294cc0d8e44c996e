"""Monte-Carlo values of steps against the truth, on a corridor whose values are known by enumeration.

`measure_values` is the mean score of the leaves below a step. All bounds are Chernoff's over exactly enumerated
distributions: with other seeds, each would fail once in two million times.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gymcp.agents.runner.run import Plan, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.agents.strategies.react import ReactSettings
from gymcp.agents.strategies.user_agents import load_agent, make_user_agents
from gymcp.envs import load_env, load_spec
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.tree.step_tree import make_tree, measure_values
from gymcp.trainers.credit.tree.tree_batch import find_tree, join_episodes
from gymcp.types import Trajectory
from gymcp.user_code import load_user_module

CORRIDOR = Path(__file__).parents[2] / "examples" / "corridor.py"
EXAMPLE = load_user_module(CORRIDOR, what="corridor", name="corridor_of_values")
DOORS, STEPS, KNOWN = EXAMPLE.DOORS, EXAMPLE.STEPS, EXAMPLE.KNOWN
FAILS = 5e-7
"""Probability with which each bound is missed."""

Place = tuple[int, bool, int]
"""Door, true if the exit is locked, steps left."""
Law = dict[float, float]
"""Value of a random number -> its probability."""


def next_places(place: Place) -> list[tuple[float, Place]]:
    """Places after one pull of the walker, with their probabilities."""
    at, locked, left = place
    wrong = (1 - KNOWN) / 3
    return [
        (KNOWN, (at + 1, locked, left - 1)),
        (wrong, (max(0, at - 1), locked, left - 1)),
        (wrong, (at, locked, left - 1)),
        (wrong, (at, True, left - 1)),
    ]


def has_ended(place: Place) -> bool:
    """True if no pull comes after it: the walker says that it is out, or has no step left."""
    return place[0] == DOORS or place[2] == 0


@cache
def value(place: Place) -> float:
    """Probability that the walker gets out from here."""
    if has_ended(place):
        return float(place[0] == DOORS and not place[1])
    return math.fsum(chance * value(after) for chance, after in next_places(place))


def mean_of(law: Law) -> float:
    return math.fsum(number * chance for number, chance in law.items())


def variance_of(law: Law) -> float:
    mean = mean_of(law)
    return math.fsum(chance * (number - mean) ** 2 for number, chance in law.items())


def change(law: Law, function: Callable[[float], float]) -> Law:
    """The law of a function of the number."""
    changed: Law = {}
    for number, chance in law.items():
        changed[function(number)] = changed.get(function(number), 0.0) + chance
    return changed


def binomial(count: int, chance: float) -> list[float]:
    """[count + 1]: probability of each number of successes."""
    return [math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(count + 1)]


def law_of_mean(count: int, chance: float) -> Law:
    """Mean score of so many leaves that do not depend on each other."""
    return {successes / count: each for successes, each in enumerate(binomial(count, chance))}


def farthest(laws: Sequence[Law]) -> tuple[float, float]:
    """The interval that the sum of these independent numbers leaves with a probability below `FAILS`, by Chernoff."""
    tilts = [2.0**power for power in np.arange(-6, 9, 0.25)]
    low = max(-_bound(laws, -tilt) / tilt for tilt in tilts)
    high = min(_bound(laws, tilt) / tilt for tilt in tilts)
    return low, high


def _bound(laws: Sequence[Law], tilt: float) -> float:
    moments = (math.fsum(chance * math.exp(tilt * number) for number, chance in law.items()) for law in laws)
    return math.fsum(map(math.log, moments)) - math.log(FAILS / 2)


def assert_follows(found: Sequence[float], laws: Sequence[Law]) -> None:
    """The sums of the numbers and of their squared distances from the mean are what their laws allow."""
    low, high = farthest(laws)
    assert low <= math.fsum(found) <= high
    means = [mean_of(law) for law in laws]
    squares = [
        change(law, lambda number, mean=mean: (number - mean) ** 2)  # type: ignore[misc]
        for law, mean in zip(laws, means, strict=True)
    ]
    low, high = farthest(squares)
    assert low <= math.fsum((number - mean) ** 2 for number, mean in zip(found, means, strict=True)) <= high
    assert high < 2 * math.fsum(mean_of(law) for law in squares)  # the bound says something


class Walk:
    """Trees of steps of a walker that is thrown by dice, without a server."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.parents: list[int] = []
        self.scores: list[float | None] = []
        self.groups: list[int] = []

    def pull(self, place: Place, parent: int, group: int) -> tuple[Place, int]:
        """One step; the place after it, and the number of the step."""
        chances, places = zip(*next_places(place), strict=True)
        after: Place = self._dice.choices(places, chances)[0]
        self.parents.append(parent)
        self.groups.append(group)
        self.scores.append(value(after) if has_ended(after) else None)
        return after, len(self.parents) - 1

    def finish(self, place: Place, parent: int, group: int) -> None:
        """Steps to the end of the episode."""
        while not has_ended(place):
            place, parent = self.pull(place, parent, group)

    def values(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return measure_values(make_tree(self.parents, self.scores, self.groups))


@pytest.mark.parametrize("ways", [1, 2, 8])
def test_the_value_of_a_step_from_k_leaves_has_no_bias_and_a_variance_of_v_times_1_minus_v_by_k(ways: int) -> None:
    walk, places = Walk(seed=ways), {}
    for group in range(400):
        place, step = walk.pull((0, False, STEPS), -1, group)
        places[step] = place
        for _ in range(ways):
            walk.finish(place, step, group)
    values = walk.values()
    laws = [law_of_mean(ways, value(place)) for place in places.values()]
    for law, place in zip(laws, places.values(), strict=True):
        assert mean_of(law) == pytest.approx(value(place))
        assert variance_of(law) == pytest.approx(value(place) * (1 - value(place)) / ways)
    assert_follows([float(values[step]) for step in places], laws)


FORK, AGAIN = 3, 3
"""Ways in which a tree below branches at its root and, `APART` steps later, each of these again."""
APART = 7


def leaves_of_a_way(place: Place) -> dict[tuple[int, int], float]:
    """(leaves, those that got out) -> probability, for one way from the root of such a tree."""
    reached = {place: 1.0}
    for _ in range(APART):
        after: dict[Place, float] = {}
        for where, chance in reached.items():
            for each, there in [(1.0, where)] if has_ended(where) else next_places(where):
                after[there] = after.get(there, 0.0) + chance * each
        reached = after
    law: dict[tuple[int, int], float] = {}
    for where, chance in reached.items():
        count = 1 if has_ended(where) else AGAIN
        for successes, each in enumerate(binomial(count, value(where))):
            law[count, successes] = law.get((count, successes), 0.0) + chance * each
    return law


def law_of_nested(one: Mapping[tuple[int, int], float]) -> Law:
    """Mean score over the leaves of a tree with `FORK` such ways."""
    law: Law = {}
    for ways in itertools.product(one.items(), repeat=FORK):
        leaves, successes = (sum(counts[place] for counts, _ in ways) for place in (0, 1))
        law[successes / leaves] = law.get(successes / leaves, 0.0) + math.prod(chance for _, chance in ways)
    return law


def test_an_episode_that_ends_before_it_branches_weighs_less_and_the_mean_over_leaves_is_too_low_by_that() -> None:
    """A way that is out after six pulls has one leaf; one that still walks after seven has three."""
    start = (0, False, STEPS)
    law = law_of_nested(leaves_of_a_way(start))
    independent = value(start) * (1 - value(start)) / (FORK * AGAIN)
    assert math.fsum(law.values()) == pytest.approx(1.0)
    assert (round(value(start), 4), round(mean_of(law), 4)) == (0.3255, 0.2793)
    assert variance_of(law) > 2 * independent  # leaves that share steps share luck
    walk, trees = Walk(seed=5), 400
    for group in range(trees):
        for _ in range(FORK):
            place, step = start, -1
            for _ in range(APART):
                if not has_ended(place):
                    place, step = walk.pull(place, step, group)
            for _ in range(AGAIN):
                walk.finish(place, step, group)
    assert_follows([float(each) for each in walk.values()[-trees:]], [law] * trees)


def place_after(record: Trajectory, steps: int, store: TrajectoryStore) -> Place:
    """The place in which the walker stood after so many steps of a recorded episode."""
    state = store.state(record.steps[steps - 1].state_ref or "")
    assert isinstance(state, dict)
    return int(str(state["at"])), bool(state["locked"]), STEPS - steps


def test_values_of_a_recorded_run_are_those_of_its_leaves_and_follow_the_truth(tmp_path: Path) -> None:
    ways, after = 5, 2
    agent = load_agent(f"{CORRIDOR}:Walker")
    assert agent is not None
    controller = BranchSteps(ways=ways, steps=frozenset({after}))
    schedule = Schedule(concurrency=4, max_attempts=1, controller=controller, tree=TreeBudget(episodes=ways))
    env = load_env(load_spec(str(CORRIDOR)))
    with TrajectoryStore.open(tmp_path, write=True) as store:
        agents = make_user_agents(agent, None, ReactSettings())
        run_plan(env, get_sandbox("bwrap"), Plan(agent="walker", limit=8, seed=3), store, schedule, make_agent=agents)
        firsts = [store.load(row.id) for row in store.summaries()]
        branches = {row.episode.id: (row.episode.parent or "", row.shared) for row in store.branches()}
        records = [*firsts, *(store.load(id) for id in branches)]
        places = [place_after(first, after, store) for first in firsts]
    assert {record.outcome for record in records} <= {Outcome.SCORED, Outcome.BUDGET_EXHAUSTED}
    batch = join_episodes(records, branches)
    values = measure_values(find_tree(batch))
    found, laws = [], []
    for number, first in enumerate(firsts):
        leaves = [first, *(record for record in records if branches.get(record.id) == (first.id, after))]
        measured = values[batch.starts[number] + after - 1]
        assert (len(leaves), measured) == (ways, pytest.approx(np.mean([leaf.score for leaf in leaves])))
        found.append(float(measured))
        laws.append(law_of_mean(ways, value(places[number])))
    low, high = farthest(laws)
    assert low <= math.fsum(found) <= high
