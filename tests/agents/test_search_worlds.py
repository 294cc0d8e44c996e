"""Searches on live worlds: what is recorded, what the search may see, and what becomes of failures."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from counting_server import Counter
from fragile_server import Fragile
from tree_play import add, call, count_env, following, read_trees

from gymcp.agents.runner.run import Plan, RunEnd, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.search.play import hide_verdict
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory, UserView
from gymcp.store import TrajectoryStore
from gymcp.types import Action, Trajectory

DONE = Action(text="Counted.")
SEARCHES = (
    "best_of_n,width=12,value=verdict",
    "beam,width=1,ways=8,depth=3,value=verdict",
    "dfsdt,width=4,value=verdict",
    "mcts,width=3,rollouts=16,value=verdict",
    "lookahead,width=4,value=verdict",
)


def noisy(seed: int, number: int, is_branch: bool) -> Action:
    """One or two are added, three times: 3 is the sum of one way in eight."""
    amount = random.Random(seed * 31 + number).choice((1, 2))
    return add(amount, number) if number <= 3 else DONE


def search_play(env: LoadedEnv, folder: Path, text: str, agents: AgentFactory, **plan: int) -> RunEnd:
    """Search the answers of the environment's tasks into the folder, with one attempt at each."""
    folder.mkdir(exist_ok=True)
    search, tree = parse_search(text)
    schedule = Schedule(concurrency=2, max_attempts=1, search=search, tree=tree)
    with TrajectoryStore.open(folder, write=True) as store:
        settings = Plan(agent="mine", **plan)  # type: ignore[arg-type]
        return run_plan(env, get_sandbox("bwrap"), settings, store, schedule, make_agent=agents)


def read_paths(folder: Path) -> list[Trajectory]:
    """The chosen episode of the only task, and then all others."""
    with TrajectoryStore.open(folder) as store:
        (first,) = store.summaries()
        return [store.load(id) for id in (first.id, *(row.episode.id for row in store.branches()))]


@pytest.mark.parametrize("text", SEARCHES, ids=lambda text: text.partition(",")[0])
def test_every_search_finds_the_one_way_in_eight(text: str, tmp_path: Path) -> None:
    assert search_play(count_env(), tmp_path, text, following(noisy), seed=7) is RunEnd.FINISHED
    chosen, *others = read_paths(tmp_path)
    notes = [path.provenance["search"] for path in (chosen, *others)]
    first = next(path for path in others if path.provenance["search"]["episode"] == 0)
    assert (chosen.score, chosen.parent, first.score) == (1.0, None, 0.0)
    assert [result.content for step in chosen.steps for result in step.results] == ["1", "2", "3"]
    assert {note["name"] for note in notes} == {text.partition(",")[0]}
    assert sorted(note["episode"] for note in notes) == list(range(len(notes)))
    with TrajectoryStore.open(tmp_path) as store:
        for row in store.branches():
            path, parent = store.load(row.episode.id), store.load(row.episode.parent or "")
            assert path.steps[: row.shared] == parent.steps[: row.shared]
    # the answer has cost what all have cost, and each call was paid for once
    assert chosen.usage.tool_calls == sum(note["tool_calls"] for note in notes) == count_calls(chosen, others, tmp_path)
    assert {path.usage.tool_calls for path in others} == {0}


def count_calls(chosen: Trajectory, others: list[Trajectory], folder: Path) -> int:
    """Calls of all steps that were played, each step once."""
    with TrajectoryStore.open(folder) as store:
        shared = {row.episode.id: row.shared for row in store.branches()}
    return sum(len(step.results) for path in (chosen, *others) for step in path.steps[shared.get(path.id, 0) :])


class Moody:
    """A user whose words depend on the seed of the world."""

    async def reply(self, view: UserView) -> Action | None:
        return None if view.messages else Action(text=f"Count, says {view.seed}.")


@pytest.mark.parametrize("text", SEARCHES, ids=lambda text: text.partition(",")[0])
def test_candidates_at_the_root_begin_in_the_same_world(text: str, tmp_path: Path) -> None:
    """Only their agents draw otherwise. Whole tries are independent, and each has a world of its own."""
    env = count_env()
    search_play(
        replace(env, spec=replace(env.spec, user=lambda task: Moody())), tmp_path, text, following(noisy), seed=7
    )
    paths = read_paths(tmp_path)
    said = {message.content for path in paths for message in path.steps[0].observation.messages}
    seeds = {path.seed for path in paths}
    assert len(seeds) == len(said) == (12 if text.startswith("best_of_n") else 1)
    assert {f"Count, says {seed}." for seed in seeds} == said
    assert len({path.final_key for path in paths}) > 1


def test_a_search_sees_no_verdict_unless_it_is_told_to(tmp_path: Path) -> None:
    seen = [hide_verdict(path) for path in _play_and_read(tmp_path, "best_of_n,width=4,value=agreement")]
    assert {(path.score, path.reason, *path.components, *path.provenance) for path in seen} == {(None, "")}
    assert {step.reward for path in seen for step in path.steps} == {0.0}
    # two of four count to 4 and so agree, and the one that counts to 3 is alone
    assert _play_and_read(tmp_path / "agreed", "best_of_n,width=4")[0].score == 0.0
    assert _play_and_read(tmp_path / "told", "best_of_n,width=4,value=verdict")[0].score == 1.0


def _play_and_read(folder: Path, text: str) -> list[Trajectory]:
    ends = iter((4, 3, 4, 5))

    def make(task: object, seed: int) -> object:
        end = next(ends)
        return following(lambda seed, number, is_branch: add(end, 1) if number == 1 else DONE)(task, seed)  # type: ignore[arg-type]

    search_play(count_env(), folder, text, make)  # type: ignore[arg-type]
    return read_paths(folder)


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_search_worlds import noisy, search_play
from tree_play import count_env, following

asked = 0
def dying(seed, number, is_branch):
    global asked
    asked += 1
    if asked == 27:
        print("dying", flush=True)
        os.kill(os.getpid(), 9)
    return noisy(seed, number, is_branch)

search_play(count_env(), Path({folder!r}), "mcts,width=2,rollouts=3", following(dying), trials=3)
"""


def test_a_killed_and_resumed_search_has_the_same_tree(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = KILLED.format(paths=paths, folder=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "dying\n"), done.stderr
    before = read_trees(tmp_path / "run")
    for name in ("run", "whole"):
        search_play(count_env(), tmp_path / name, "mcts,width=2,rollouts=3", following(noisy), trials=3)
    whole = read_trees(tmp_path / "whole")
    assert read_trees(tmp_path / "run") == whole
    assert 0 < len(before) < len(whole)
    assert before.items() < whole.items()
    assert len(whole) == 9


def test_an_interrupted_search_is_played_again_as_a_whole(tmp_path: Path) -> None:
    def interrupted(seed: int, number: int, is_branch: bool) -> Action:
        if is_branch:
            os.kill(os.getpid(), signal.SIGINT)
        return noisy(seed, number, is_branch)

    text = "beam,width=1,ways=2"
    assert search_play(count_env(), tmp_path, text, following(interrupted)) is RunEnd.INTERRUPTED
    (cut,) = read_paths(tmp_path)
    assert (cut.outcome, cut.score) == (Outcome.CANCELLED, None)
    assert search_play(count_env(), tmp_path, text, following(noisy)) is RunEnd.FINISHED
    assert len(read_paths(tmp_path)) == 8


@pytest.mark.parametrize(("limit", "episodes"), [("calls=6", 2), ("episodes=3", 3)])
def test_a_search_ends_with_its_budget_and_takes_the_best_so_far(limit: str, episodes: int, tmp_path: Path) -> None:
    search_play(count_env(), tmp_path, f"lookahead,width=4,value=verdict,{limit}", following(noisy))
    paths = read_paths(tmp_path)
    assert len(paths) == episodes
    assert paths[0].score == max(path.score or 0.0 for path in paths)


@pytest.mark.parametrize("value", ["clean", "agreement"])
def test_a_beam_that_its_budget_cuts_takes_the_deepest_path_and_not_the_first_step(value: str, tmp_path: Path) -> None:
    """No call fails and none changes the state, so that all paths are worth the same however far they have come."""
    text = f"beam,width=2,ways=2,episodes=12,value={value}"
    search_play(count_env(), tmp_path, text, following(lambda seed, number, is_branch: add(0, number)))
    paths = read_paths(tmp_path)
    assert sorted(len(path.steps) for path in paths) == [1] * 2 + [2] * 4 + [3] * 4 + [4] * 2
    assert (len(paths[0].steps), paths[0].provenance["search"]["end"]) == (4, "paused")


@pytest.mark.parametrize("value", ["clean", "agreement"])
def test_a_beam_that_its_budget_cuts_takes_a_path_that_has_ended_before_any_that_is_paused(
    value: str, tmp_path: Path
) -> None:
    """One of the four second steps is the agent's last word; the three others are still alike, and go on."""
    turns = iter((False, False, False, True))

    def speak(seed: int, number: int, is_branch: bool) -> Action:
        return DONE if number == 2 and next(turns, False) else add(0, number)

    search_play(count_env(), tmp_path, f"beam,width=2,ways=2,episodes=12,value={value}", following(speak))
    chosen, *others = read_paths(tmp_path)
    assert (chosen.outcome, len(chosen.steps)) == (Outcome.SCORED, 2)
    assert {path.provenance["search"]["end"] for path in others} == {"paused"}


@pytest.mark.parametrize(
    ("text", "pauses"), [("beam,width=2,ways=2", True), ("dfsdt,width=3", False), ("lookahead,width=2,depth=1", True)]
)
def test_the_store_tells_which_episodes_a_search_paused(text: str, pauses: bool, tmp_path: Path) -> None:
    """No budget is spent, so that the search stopped every episode without an end of its own: `dfsdt` for a failure."""
    calls = iter(("no number",))

    def stumble(seed: int, number: int, is_branch: bool) -> Action:
        return DONE if number > 3 else add(next(calls, 1), number)  # type: ignore[arg-type]

    search_play(count_env(), tmp_path, text, following(stumble))
    stopped = {path.id for path in read_paths(tmp_path) if path.outcome is not Outcome.SCORED}
    with TrajectoryStore.open(tmp_path) as store:
        assert store.stopped_leaves() == (stopped if pauses else set())
    assert 0 < len(stopped) < len(read_paths(tmp_path))


def test_a_world_that_no_copy_and_no_replay_reaches_costs_its_episodes_alone(tmp_path: Path) -> None:
    """The server cannot be forked, and adds a number nobody can foresee: what goes on from there is lost."""

    def drifting(seed: int, number: int, is_branch: bool) -> Action:
        return call("drift", number) if number == 1 else DONE

    env = count_env(native_server("counter", Counter, start="exec"))
    search_play(env, tmp_path, "mcts,width=2,rollouts=4", following(drifting))
    chosen, *others = read_paths(tmp_path)
    assert chosen.outcome is Outcome.SCORED
    lost = [path for path in others if path.outcome is Outcome.ENV_INFRA]
    assert {path.provenance["search"]["end"] for path in lost} == {"lost"}
    assert len(lost) == 2
    assert all("step 1" in path.reason for path in lost)


@pytest.mark.parametrize("text", ["lookahead,width=2,depth=1", "beam,width=2,ways=2"])
def test_a_paused_episode_is_the_answer_if_all_that_went_on_are_lost(text: str, tmp_path: Path) -> None:
    def drifting(seed: int, number: int, is_branch: bool) -> Action:
        return call("drift", number)

    search_play(count_env(native_server("counter", Counter, start="exec")), tmp_path, text, following(drifting))
    paths = read_paths(tmp_path)
    assert [path.provenance["search"]["end"] for path in paths][:3] == ["paused", "paused", "lost"]
    assert {path.outcome for path in paths[2:]} == {Outcome.ENV_INFRA}


def test_a_lost_server_costs_its_episode_alone(tmp_path: Path) -> None:
    def crashing(seed: int, number: int, is_branch: bool) -> Action:
        if number == 2 and seed % 3 == 0:
            return call("crash", number)
        return noisy(seed, number, is_branch)

    search_play(count_env(), tmp_path, "best_of_n,width=6,value=verdict", following(crashing), seed=3)
    chosen, *others = read_paths(tmp_path)
    assert chosen.outcome is Outcome.SCORED
    assert Outcome.ENV_INFRA in {path.outcome for path in others}


class NoResume:
    async def act(self, observation: object) -> Action:
        return DONE


def test_an_agent_that_cannot_resume_is_refused_by_searches_that_fork(tmp_path: Path) -> None:
    make: Callable[..., NoResume] = lambda task, seed: NoResume()  # noqa: E731
    with pytest.raises(ConfigError, match="cannot take a branch, because it has no method resume"):
        search_play(count_env(), tmp_path, "dfsdt", make)
    assert search_play(count_env(), tmp_path, "best_of_n", make) is RunEnd.FINISHED


def test_a_copy_that_fails_costs_its_episode_alone(tmp_path: Path) -> None:
    """The first episode's server ends when the point after its second step is kept; the others never arm it."""
    armed = iter((True,))

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        if number == 2 and next(armed, False):
            return call("arm", number)
        return add(1, number) if number <= 3 else DONE

    env = count_env(native_server("fragile", Fragile, start="fork"))
    search_play(env, tmp_path, "mcts,width=2,rollouts=5,value=verdict", following(decide))
    chosen, *others = read_paths(tmp_path)
    assert (chosen.outcome, chosen.score) == (Outcome.SCORED, 1.0)
    (lost,) = [path for path in others if path.provenance["search"]["end"] == "lost"]
    assert (lost.provenance["search"]["episode"], lost.outcome) == (0, Outcome.ENV_INFRA)
    assert {path.outcome for path in others if path is not lost} == {Outcome.SCORED}
    assert len(others) == 4


def test_a_search_deeper_than_the_kernel_nests_copies_goes_on(tmp_path: Path) -> None:
    """Each level of the beam is a copy of a copy, of which some 14 can be nested."""
    depth = 18

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        return DONE if number == depth else add(3 if number == 1 else 0, number)

    env = count_env()
    deep = replace(env, spec=replace(env.spec, limits=replace(env.spec.limits, steps=depth + 1)))
    search_play(deep, tmp_path, "beam,width=1,ways=1", following(decide))
    chosen, *others = read_paths(tmp_path)
    assert (chosen.outcome, chosen.score, len(chosen.steps)) == (Outcome.SCORED, 1.0, depth)
    assert sorted(len(path.steps) for path in others) == list(range(1, depth))
    assert {path.provenance["search"]["end"] for path in others} == {"paused"}
