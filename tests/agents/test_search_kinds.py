"""The recorded tree of each search is of its own kind: where each episode went on, and from which one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from test_search_worlds import DONE, search_play
from tree_play import add, count_env, following

from gymcp.store import TrajectoryStore
from gymcp.types import Action


@dataclass(frozen=True)
class Played:
    """An episode of a recorded search."""

    at: int
    """Steps that it shares with those that were played before it."""
    start: int | None
    """Number of the first of them that it shares so many with; None if it shares none."""
    steps: int


def read_tree(folder: Path) -> list[Played]:
    """The episodes of the run's only search in the order of playing, from the parents and shared counts alone."""
    with TrajectoryStore.open(folder) as store:
        (chosen,) = store.summaries()
        rows = store.branches()
        parents = {row.episode.id: (row.episode.parent or "", row.shared) for row in rows}
        paths = [store.load(id) for id in (chosen.id, *parents)]
    paths.sort(key=lambda path: path.provenance["search"]["episode"])

    def climb(id: str) -> dict[str, int]:
        """Each episode above this one, itself included -> the steps that both share."""
        above, shared = {id: len(next(path for path in paths if path.id == id).steps)}, 1_000
        while id in parents:
            id, shared = parents[id][0], min(shared, parents[id][1])
            above[id] = shared
        return above

    above = [climb(path.id) for path in paths]
    played = []
    for number, path in enumerate(paths):
        common = [max(min(above[number][id], one[id]) for id in one if id in above[number]) for one in above[:number]]
        at = max(common, default=0)
        played.append(Played(at=at, start=common.index(at) if at else None, steps=len(path.steps)))
    return played


def list_starts(played: list[Played]) -> list[int]:
    return [each.at for each in played]


def count_wrongly(seed: int, number: int, is_branch: bool) -> Action:
    """Five is added three times, so that no episode solves the task, and all are worth the same."""
    return add(5, number) if number <= 3 else DONE


def test_best_of_n_has_roots_alone(tmp_path: Path) -> None:
    search_play(count_env(), tmp_path, "best_of_n,width=4,value=verdict", following(count_wrongly))
    assert read_tree(tmp_path) == [Played(0, None, 4)] * 4
    with TrajectoryStore.open(tmp_path) as store:
        assert [(row.branch, row.shared) for row in store.branches()] == [("0.1", 0), ("0.2", 0), ("0.3", 0)]


def test_beam_has_levels_of_its_width_each_path_of_which_goes_on_in_several_ways(tmp_path: Path) -> None:
    search_play(count_env(), tmp_path, "beam,width=2,ways=2,value=verdict", following(count_wrongly))
    assert read_tree(tmp_path) == [
        *[Played(0, None, 1)] * 2,
        *[Played(1, start, 2) for start in (0, 0, 1, 1)],
        # the first two of four that are worth the same are kept
        *[Played(2, start, 3) for start in (2, 2, 3, 3)],
        *[Played(3, start, 4) for start in (6, 6, 7, 7)],
    ]


def test_depth_first_search_goes_back_to_the_deepest_step_that_has_a_way_left(tmp_path: Path) -> None:
    search_play(count_env(), tmp_path, "dfsdt,width=2,value=verdict", following(count_wrongly))
    played = read_tree(tmp_path)
    assert list_starts(played) == [0, 3, 2, 3, 1, 3, 2, 3] * 2
    assert {each.steps for each in played} == {4}


def test_depth_first_search_leaves_a_path_at_the_call_that_failed(tmp_path: Path) -> None:
    """The second call of the first path fails: it is tried again from the step before, which the first path keeps."""
    calls = iter((1, "no number", 1, 1))

    def stumble(seed: int, number: int, is_branch: bool) -> Action:
        return DONE if number > 3 else add(next(calls), number)  # type: ignore[arg-type]

    search_play(count_env(), tmp_path, "dfsdt,width=2", following(stumble))
    assert read_tree(tmp_path) == [Played(0, None, 2), Played(1, 0, 4)]


def test_mcts_visits_what_is_worth_more_as_often_as_its_bound_says(tmp_path: Path) -> None:
    """The root has two children: below the first one each episode is solved, below the second one none.

    By hand, with 1 + sqrt(2 ln N / n) against sqrt(2 ln N / m): the first is visited until n = 5, where N = 6 and
    sqrt(2 ln 6) = 1.89 > 1 + sqrt(2 ln 6 / 5) = 1.85; then once the second, and twice again the first.
    """
    firsts = iter((3, 5))

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        return DONE if number > 4 else add(next(firsts) if number == 1 else 0, number)

    search_play(count_env(), tmp_path, "mcts,width=2,rollouts=9,value=verdict", following(decide))
    played = read_tree(tmp_path)
    below = [0, 1]
    for each in played[2:]:
        assert each.start is not None
        below.append(below[each.start])
    assert below == [0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert list_starts(played)[:2] == [0, 0]
    assert all(each.at > 0 for each in played[2:])


def test_lookahead_has_short_tries_behind_each_step_of_its_path(tmp_path: Path) -> None:
    """Three tries of two steps at each step; of the last ones that was taken has ended, and so is one of the next."""
    search_play(count_env(), tmp_path, "lookahead,width=3,depth=2,value=verdict", following(count_wrongly))
    assert read_tree(tmp_path) == [
        *[Played(0, None, 2)] * 3,
        *[Played(1, 0, 3)] * 3,
        *[Played(2, 3, 4)] * 3,
        *[Played(3, 6, 4)] * 2,
    ]
