from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_records import json_values, texts, trajectories
from records import SEARCH, episode, step

from gymcp.errors import StoreError
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, TrajectoryStore, with_grade
from gymcp.store.codec import STEPS_PER_ROW
from gymcp.store.database import FILE_NAME
from gymcp.types import Sampled, Trajectory, Usage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore.open(tmp_path, write=True) as opened:
        yield opened


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trajectory=trajectories, tags=st.lists(texts, max_size=2).map(tuple))
def test_a_loaded_episode_equals_the_appended_one(
    tmp_path_factory: pytest.TempPathFactory, trajectory: Trajectory, tags: tuple[str, ...]
) -> None:
    with TrajectoryStore.open(tmp_path_factory.mktemp("run"), write=True) as store:
        store.append(trajectory, {}, tags=tags)
        loaded = store.load(trajectory.id)
        (row,) = store.summaries()
        assert loaded == trajectory
        assert repr(loaded) == repr(trajectory)  # equality takes 1, 1.0 and True for one another, and -0.0 for 0.0
        assert (row.id, row.task, row.seed, row.tags) == (trajectory.id, trajectory.task, trajectory.seed, tags)
        assert list(store.attempts()) == [(trajectory.task, trajectory.trial)]


@settings(max_examples=60, deadline=None)
@given(ref=texts, state=json_values)
def test_states_come_back_under_their_address(
    tmp_path_factory: pytest.TempPathFactory, ref: str, state: object
) -> None:
    with TrajectoryStore.open(tmp_path_factory.mktemp("run"), write=True) as store:
        store.append(episode("a"), {ref: state})
        assert repr(store.state(ref)) == repr(state)


def test_a_state_that_was_not_recorded_is_a_key_error(store: TrajectoryStore) -> None:
    with pytest.raises(KeyError, match="nowhere"):
        store.state("nowhere")


def test_equal_states_and_tool_lists_are_stored_once(store: TrajectoryStore, tmp_path: Path) -> None:
    for task in "abc":
        store.append(episode(task, steps=5), {"state-0": {"rows": []}, "state-1": {"rows": [1]}})
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    refs = [ref for (ref,) in connection.execute("SELECT ref FROM blobs ORDER BY ref")]
    connection.close()
    assert [ref.split(":")[0] for ref in refs] == ["state-0", "state-1", "tools"]


def test_steps_of_a_loaded_episode_share_their_tools(store: TrajectoryStore) -> None:
    store.append(episode("a", steps=3), {})
    first, second, third = store.load("a-0-0").steps
    assert first.observation.tools == (SEARCH,)
    assert first.observation.tools is second.observation.tools is third.observation.tools


def test_a_prompt_is_stored_without_the_tokens_of_the_previous_step(store: TrajectoryStore, tmp_path: Path) -> None:
    first = Sampled(prompt_ids=(1, 2, 3), ids=(4, 5), logprobs=(-0.1, -1 / 3), versions=(("v0", 0, 2),))
    grown = replace(first, prompt_ids=(1, 2, 3, 4, 5, 6, 7))
    edited = replace(first, prompt_ids=(1, 9))
    trajectory = replace(episode("a"), steps=tuple(replace(step(0), sampled=s) for s in (first, None, grown, edited)))
    store.append(trajectory, {})
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    ((prompts,),) = connection.execute("SELECT prompt_ids FROM steps")
    connection.close()
    assert list(np.frombuffer(prompts, "<u2")) == [1, 2, 3, 6, 7, 9]
    assert store.load("a-0-0") == trajectory


def test_an_infra_attempt_is_kept_beside_the_one_that_counts(store: TrajectoryStore) -> None:
    lost = episode("a", outcome=Outcome.ENV_INFRA, score=None, reason="server died")
    assert store.append(lost, {}) == 0
    assert store.append(episode("a", attempt=1), {}) == 1
    assert store.append(episode("b"), {}) == 0
    assert [(row.id, row.attempt) for row in store.summaries()] == [("a-0-1", 1), ("b-0-0", 0)]
    assert [(row.id, row.latest) for row in store.summaries(latest=False)] == [
        ("a-0-0", False),
        ("a-0-1", True),
        ("b-0-0", True),
    ]
    assert [t.id for t in store.iter_trajectories()] == ["a-0-0", "a-0-1", "b-0-0"]
    assert [t.id for t in store.iter_trajectories(latest=True)] == ["a-0-1", "b-0-0"]
    assert store.attempts() == {("a", 0): [Outcome.ENV_INFRA, Outcome.SCORED], ("b", 0): [Outcome.SCORED]}


@pytest.mark.parametrize("outcome", [o for o in Outcome if not o.is_infra and o is not Outcome.CANCELLED])
def test_a_finished_trial_is_not_doubled(store: TrajectoryStore, outcome: Outcome) -> None:
    store.append(episode("a", outcome=outcome), {})
    with pytest.raises(StoreError, match=rf"task 'a' trial 0 is already recorded as {outcome}"):
        store.append(episode("a", attempt=1), {"late": 1})
    assert len(store.summaries(latest=False)) == 1
    with pytest.raises(KeyError):
        store.state("late")


def test_an_id_is_taken_once(store: TrajectoryStore) -> None:
    store.append(episode("a"), {})
    with pytest.raises(StoreError, match="trajectory 'a-0-0' is already recorded"):
        store.append(replace(episode("b"), id="a-0-0"), {})


@pytest.mark.parametrize(
    ("trajectory", "why"),
    [
        (episode("a", score=float("nan")), "has the score nan"),
        (episode("a", provenance={"x": object()}), "cannot be stored: object is not JSON"),
        (episode("a", usage=Usage(), components={"x": {1, 2}}), "cannot be stored: set is not JSON"),
    ],
)
def test_an_unstorable_record_leaves_nothing_behind(store: TrajectoryStore, trajectory: Trajectory, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        store.append(trajectory, {})
    assert store.summaries() == []


def test_summaries_hold_the_fields_that_reports_need(store: TrajectoryStore) -> None:
    usage = Usage(tool_calls=3, tool_errors=1, wall_s=2.5)
    store.append(
        episode("a", trial=2, seed=7, group="g", score=0.25, components={"did": 1.0}, reason="half", usage=usage),
        {},
        tags=("refunds", "long"),
    )
    assert store.summaries() == [
        EpisodeRow(
            id="a-2-0",
            env="shop",
            task="a",
            trial=2,
            seed=7,
            group="g",
            score=0.25,
            components={"did": 1.0},
            reason="half",
            steps=2,
            usage=usage,
            tags=("refunds", "long"),
        )
    ]


def test_summaries_of_some_tasks_are_those_among_all(store: TrajectoryStore) -> None:
    names = ["a", "b\udc80", "a", "c", "it's"]
    for trial, name in enumerate(names):
        store.append(episode(name, trial=trial, id=str(trial)), {})
    store.append(episode("d", outcome=Outcome.TIMEOUT, score=None, id="lost"), {})
    store.append(episode("d", id="again"), {})
    every = store.summaries(latest=False)
    for tasks in ({"a"}, {"b\udc80", "it's"}, {"d", "c"}, {"none"}, set[str]()):
        assert store.summaries(latest=False, tasks=tasks) == [row for row in every if row.task in tasks]
        assert store.summaries(tasks=tasks) == [row for row in store.summaries() if row.task in tasks]
    assert [row.id for row in store.summaries(tasks={"d"})] == ["again"]


def test_the_newest_grade_counts_and_the_record_stays(store: TrajectoryStore) -> None:
    recorded = episode("a", outcome=Outcome.GRADER_ERROR, score=None, reason="KeyError")
    store.append(recorded, {})
    for score in (0.0, 1.0):
        graded = replace(recorded, outcome=Outcome.SCORED, score=score, components={"n": score}, reason=f"is {score}")
        newest = store.add_grade(graded, grader="state v2")
    (row,) = store.summaries()
    assert (row.outcome, row.score, row.components, row.reason, row.grader) == (
        Outcome.SCORED,
        1.0,
        {"n": 1.0},
        "is 1.0",
        "state v2",
    )
    assert store.load("a-0-0") == recorded
    assert [grade.score for grade in store.grades("a-0-0")] == [0.0, 1.0]
    assert store.grades("a-0-0")[-1] == newest
    assert with_grade(recorded, newest) == graded
    assert store.attempts() == {("a", 0): [Outcome.SCORED]}


def test_a_grade_may_take_a_score_away(store: TrajectoryStore) -> None:
    store.append(episode("a"), {})
    store.add_grade(replace(episode("a"), outcome=Outcome.GRADER_ERROR, score=None), grader="broken")
    (row,) = store.summaries()
    assert (row.outcome, row.score) == (Outcome.GRADER_ERROR, None)


def test_infrastructure_is_not_graded(store: TrajectoryStore) -> None:
    store.append(episode("a", outcome=Outcome.TIMEOUT, score=None), {})
    with pytest.raises(StoreError, match="ended in timeout: nothing to grade, run it again"):
        store.add_grade(episode("a"), grader="g")
    with pytest.raises(StoreError, match="no trajectory 'b-0-0' to grade"):
        store.add_grade(episode("b"), grader="g")


def test_an_unknown_trajectory_is_a_store_error(store: TrajectoryStore) -> None:
    with pytest.raises(StoreError, match="no trajectory 'zzz'"):
        store.load("zzz")


def test_appending_while_iterating_neither_blocks_nor_skips(store: TrajectoryStore) -> None:
    for n in range(150):
        store.append(episode(f"t{n}", steps=1), {})
    seen = []
    for trajectory in store.iter_trajectories():
        seen.append(trajectory.task)
        if len(seen) == 120:
            store.append(episode("late"), {})
    assert seen == [*(f"t{n}" for n in range(150)), "late"]


def test_threads_share_a_store(store: TrajectoryStore) -> None:
    def work(name: str) -> None:
        for n in range(30):
            store.append(episode(f"{name}{n}"), {"s": n})
            store.load(f"{name}{n}-0-0")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.summaries()) == 120


def test_many_are_appended_together_or_not_at_all(store: TrajectoryStore) -> None:
    store.append_many([(episode("a"), {"s": 1}, ("tag",)), (episode("b"), {"s": 1, "t": 2}, ())])
    assert [(row.id, row.tags) for row in store.summaries()] == [("a-0-0", ("tag",)), ("b-0-0", ())]
    assert (store.load("b-0-0"), store.state("t")) == (episode("b"), 2)
    with pytest.raises(StoreError, match="task 'a' trial 0 is already recorded"):
        store.append_many([(episode("c"), {"u": 3}, ()), (episode("a", attempt=1), {}, ())])
    assert [row.id for row in store.summaries(latest=False)] == ["a-0-0", "b-0-0"]
    with pytest.raises(KeyError):
        store.state("u")


def test_an_episode_of_more_steps_than_a_row_holds_is_whole(store: TrajectoryStore) -> None:
    tokens = tuple(range(70_000, 70_003))
    steps = []
    for n in range(2 * STEPS_PER_ROW + 1):
        sampled = Sampled(prompt_ids=tokens[: 3 * n], ids=(n, n + 1, n + 2), logprobs=(-0.5,), versions=())
        tokens += sampled.ids
        steps.append(replace(step(n), sampled=None if n % 5 == 4 else sampled))
    long = replace(episode("a"), steps=tuple(steps))
    store.append(long, {})
    assert store.load("a-0-0") == long


def test_reading_without_tokens_reads_no_token_columns(tmp_path: Path) -> None:
    bare = episode("a", steps=3)
    drawn = Sampled(prompt_ids=(1, 2), ids=(3,), logprobs=(-0.5,), versions=(("v0", 0, 1),))
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(bare, steps=tuple(replace(each, sampled=drawn) for each in bare.steps)), {})
        assert store.load("a-0-0", tokens=False) == bare
        assert list(store.iter_trajectories(tokens=False)) == [bare]
        assert (store.change_counter(), [row.seq for row in store.summaries(after=0)]) == ((1, 0), [1])
        assert store.summaries(after=1) == []
