"""Searches whose values come from a trained head: a scripted one on live worlds, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from test_search_worlds import noisy, read_paths
from tree_play import count_env, following

from gymcp.agents.runner.run import Plan, RunEnd, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.search.searches import Search
from gymcp.agents.runner.search.values import StepRater
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.types import Trajectory

SEARCHES = (
    "best_of_n,width=12,value=q",
    "beam,width=1,ways=2,depth=1,value=q",
    "mcts,width=3,rollouts=16,value=q",
    "lookahead,width=4,value=q",
)


@dataclass(slots=True)
class Scripted:
    """A head that knows the best way: one is to be added at each step."""

    tasks: frozenset[str] = frozenset()
    rated: list[Trajectory] = field(default_factory=list)

    def rate(self, record: Trajectory) -> float:
        self.rated.append(record)
        adds = [result for step in record.steps for result in step.results]
        return float(int(adds[-1].content) == len(adds))


def play_rated(folder: Path, text: str, rater: StepRater | None) -> RunEnd:
    folder.mkdir(exist_ok=True)
    search, tree = parse_search(text)
    schedule = Schedule(max_attempts=1, search=replace(search, rater=rater), tree=tree)
    with TrajectoryStore.open(folder, write=True) as store:
        settings = Plan(agent="mine", seed=7)
        return run_plan(count_env(), get_sandbox("bwrap"), settings, store, schedule, make_agent=following(noisy))


@pytest.mark.parametrize("text", SEARCHES, ids=lambda text: text.partition(",")[0])
def test_a_search_by_a_head_chooses_what_it_values_most(text: str, tmp_path: Path) -> None:
    """It is asked about each episode as it stands, and reads no verdict of the environment."""
    head = Scripted()
    assert play_rated(tmp_path, text, head) is RunEnd.FINISHED
    chosen, *others = read_paths(tmp_path)
    notes = [path.provenance["search"] for path in (chosen, *others)]
    assert {(note["value"], note["judged"] in (0.0, 1.0)) for note in notes} == {("q", True)}
    assert (chosen.score, notes[0]["judged"]) == (1.0, 1.0)
    assert len(head.rated) == len(notes)
    assert {(record.score, *(step.reward for step in record.steps)) for record in head.rated} <= {
        (None, *(0.0,) * length) for length in range(6)
    }


class Slow(Scripted):
    """A head that takes a while."""

    def rate(self, record: Trajectory) -> float:
        time.sleep(0.02)
        return super().rate(record)


def test_the_seconds_of_a_head_are_part_of_those_of_its_search(tmp_path: Path) -> None:
    head = Slow()
    play_rated(tmp_path, "beam,width=1,ways=2,depth=1,value=q", head)
    chosen, *others = read_paths(tmp_path)
    notes = [path.provenance["search"] for path in (chosen, *others)]
    assert all(note["wall_s"] > note["judged_s"] >= 0.02 for note in notes)
    assert chosen.usage.wall_s == pytest.approx(sum(note["wall_s"] for note in notes))
    assert chosen.usage.wall_s > chosen.usage.grading_s >= sum(note["judged_s"] for note in notes)


def test_a_beam_keeps_the_paths_that_a_head_values_before_they_have_ended(tmp_path: Path) -> None:
    """One way of two is kept at each step, by its value as it stands there."""
    head = Scripted()
    play_rated(tmp_path, "beam,width=1,ways=2,depth=1,value=q", head)
    assert sorted({len(record.steps) for record in head.rated}) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: parse_search("dfsdt,value=q"), "search dfsdt: no value 'q'; have clean, judge, verdict"),
        (lambda: parse_search("mcts,head=runs/q"), "search mcts: a trained head is for value=q, not value=agreement"),
        (lambda: Search(name="mcts", width=2, rater=Scripted()), "a trained head is for value=q, not value=agreement"),
    ],
    ids=["depth first", "other value", "head alone"],
)  # fmt: skip
def test_a_head_that_a_search_does_not_read_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_search_by_a_head_without_one_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="search mcts: value=q comes from a trained head, and none is given; name"):
        play_rated(tmp_path, "mcts,value=q", None)
    with TrajectoryStore.open(tmp_path) as store:
        assert store.summaries() == []


class Unable:
    """A head that finds no tokens in an episode."""

    tasks: frozenset[str] = frozenset()

    def rate(self, record: Trajectory) -> float:
        raise ConfigError("toy/3: no tokens are recorded")


def test_a_head_that_cannot_read_the_episodes_ends_the_run_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokens are recorded"):
        play_rated(tmp_path, "best_of_n,width=2,value=q", Unable())
