"""Steps that a controller undoes: their calls are paid for, and a step that cannot be undone stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from counting_server import Counter
from test_tree_failures import COPYABLE, UNCOPYABLE, accept
from tree_play import ByHand, add, call, count_env, following, play, read_trees

from gymcp.agents.runner.run import Plan, RunEnd, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import GO_ON, Branch, Choice, Played, Replace, Retry, TreeBudget
from gymcp.agents.runner.trees.patch_mismatches import PatchMismatches
from gymcp.agents.runner.trees.retry_errors import RetryErrors
from gymcp.agents.runner.trees.tree import LIVE_COPIES, NOT_REPLACED
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.tree.tree_batch import MISMATCH, join_episodes
from gymcp.types import Action, Trajectory

DONE = Action(text="Counted.")


def priced_env(price: float = 0.25, **env: object) -> LoadedEnv:
    """The counting environment; every call has this price."""
    made = count_env(**env)  # type: ignore[arg-type]
    return load_env(replace(made.spec, costs=ToolCosts(default=CallCost(money=price))))


def load_first(folder: Path) -> Trajectory:
    with TrajectoryStore.open(folder) as store:
        (row,) = store.summaries()
        return store.load(row.id)


def fail_twice() -> Callable[[int, int, bool], Action]:
    """Decide: an add of 1, a second step that fails twice and then adds 2, and the end."""
    tries: list[int] = []

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        if number != 2:
            return add(1, number) if number == 1 else DONE
        tries.append(number)
        return add(2, 2) if len(tries) > 2 else call("add", 2, wrong=1)

    return decide


def test_calls_of_undone_steps_count(tmp_path: Path) -> None:
    play(count_env(), tmp_path, RetryErrors(retries=3), following(fail_twice()))
    record = load_first(tmp_path)
    assert [len(step.results) for step in record.steps] == [1, 1, 0]
    usage = record.usage
    assert (record.score, usage.tool_calls, usage.tool_errors) == (1.0, 4, 2)
    assert {name: (entry["calls"], entry["errors"]) for name, entry in usage.tools.items()} == {"add": (4, 2)}


class RetriesSecond(ByHand):
    """Has the second step drawn three times."""

    undoes = True

    def __init__(self) -> None:
        super().__init__(lambda played: Retry() if played.number == 2 and played.tries < 3 else GO_ON)


THREE_STEPS = following(lambda seed, number, is_branch: add(number, number) if number < 3 else DONE)


def test_calls_of_undone_steps_cost(tmp_path: Path) -> None:
    play(priced_env(), tmp_path, RetriesSecond(), THREE_STEPS)
    usage = load_first(tmp_path).usage
    assert (usage.cost, usage.tool_calls, usage.tools["add"]["cost"]) == (1.0, 4, 1.0)


def test_calls_that_are_replayed_cost_and_are_none_of_the_agent_s(tmp_path: Path) -> None:
    """Two branches before step 2 run the first call again; each then makes one of its own."""
    env = priced_env(server=UNCOPYABLE, grade=accept)
    agents = following(lambda seed, number, is_branch: add(1, number) if number < 3 else DONE)
    play(env, tmp_path, BranchSteps(ways=3, steps=frozenset({1})), agents)
    with TrajectoryStore.open(tmp_path) as store:
        branches = [row.episode.usage for row in store.branches()]
    assert [usage.tool_calls for usage in branches] == [1, 1]
    assert [usage.cost for usage in branches] == pytest.approx([0.5, 0.5])
    assert [usage.tools["add"]["calls"] for usage in branches] == [1, 1]


def test_a_budget_of_calls_counts_those_that_were_undone(tmp_path: Path) -> None:
    undone: list[int] = []

    def decide(played: Played) -> Choice:
        if len(undone) < 2:
            undone.append(played.spent.calls)
            return Retry()
        return Branch(2)

    agents = following(lambda seed, number, is_branch: add(1, number) if number < 3 else DONE)
    play(count_env(), tmp_path, ByHand(decide), agents, TreeBudget(calls=3))
    assert undone == [1, 2]
    assert len(read_trees(tmp_path)) == 1


def test_a_resumed_run_remembers_the_money_of_undone_steps(tmp_path: Path) -> None:
    """An episode costs 4, of which 2 are for steps that were undone. With 4.5 the second one ends after its first step,
    and nothing is played on resume."""
    asked: list[int] = []

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        asked.append(number)
        return add(number, number) if number < 3 else DONE

    ends, counts = list[RunEnd](), list[int]()
    for limit in (4.5, 4.5, 9.5):
        schedule = Schedule(concurrency=1, max_attempts=1, controller=RetriesSecond(), max_cost=limit)
        plan, agents = Plan(agent="mine", trials=2), following(decide)
        with TrajectoryStore.open(tmp_path, write=True) as store:
            ends.append(run_plan(priced_env(1.0), get_sandbox("bwrap"), plan, store, schedule, make_agent=agents))
            counts.append(len(asked))
    assert (ends, counts) == ([RunEnd.OUT_OF_MONEY, RunEnd.OUT_OF_MONEY, RunEnd.FINISHED], [6, 6, 11])


def test_the_money_of_a_replacement_counts_at_once(tmp_path: Path) -> None:
    """Each step is replaced, so it costs 2; the run has 3, and no third step is asked for."""
    asked: list[int] = []

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        asked.append(number)
        return add(1, number)

    (tmp_path / "run").mkdir()
    schedule = Schedule(concurrency=1, controller=ByHand(lambda played: Replace(add(2, played.number))), max_cost=3.0)
    with TrajectoryStore.open(tmp_path / "run", write=True) as store:
        env, sandbox = priced_env(1.0), get_sandbox("bwrap")
        end = run_plan(env, sandbox, Plan(agent="mine"), store, schedule, make_agent=following(decide))
    assert (end, asked) == (RunEnd.OUT_OF_MONEY, [1, 2])


def retry_second(played: Played) -> Choice:
    return Retry() if played.number == 2 and played.tries == 1 else GO_ON


def drift_first(seed: int, number: int, is_branch: bool) -> Action:
    return call("drift", 1) if number == 1 else add(1, number) if number == 2 else DONE


@pytest.mark.parametrize("server", [COPYABLE, UNCOPYABLE], ids=["copied", "opaque"])
@pytest.mark.parametrize("choice", [Retry(), Replace(add(5, 2))], ids=["retry", "replace"])
def test_an_episode_keeps_a_step_if_its_replay_differs(choice: Choice, server: object, tmp_path: Path) -> None:
    """A replay of the first call gives another number; nothing was copied before."""
    env = count_env(server, accept)  # type: ignore[arg-type]
    play(env, tmp_path, ByHand(lambda played: choice if played.number == 2 else GO_ON), following(drift_first))
    record = load_first(tmp_path)
    assert (record.outcome, record.score, len(record.steps)) == (Outcome.SCORED, 1.0, 3)
    assert "step 2 was not undone, because it cannot be: task 'count': a replay parts" in record.reason
    assert record.provenance.get(NOT_REPLACED) == ([1] if isinstance(choice, Replace) else None)
    assert join_episodes([record], {}).column(MISMATCH).tolist() == [0, float(isinstance(choice, Replace)), 0]


def test_a_replacement_that_was_to_end_its_episode_ends_it_without_being_played(tmp_path: Path) -> None:
    last = Replace(add(5, 2), stop="enough")
    controller = ByHand(lambda played: last if played.number == 2 else GO_ON)
    play(count_env(UNCOPYABLE, accept), tmp_path, controller, following(drift_first))
    record = load_first(tmp_path)
    assert (record.outcome, record.score, len(record.steps)) == (Outcome.BUDGET_EXHAUSTED, 1.0, 2)
    assert "stopped by the controller: enough" in record.reason


@dataclass(frozen=True)
class UndoesSecond:
    """Has the second step drawn again, on a copy of the servers."""

    undoes: ClassVar[bool] = True
    plan = BranchSteps.plan

    def after(self, played: Played) -> Choice:
        return retry_second(played)


def test_a_copy_undoes_a_step_that_no_replay_would(tmp_path: Path) -> None:
    play(count_env(COPYABLE, accept), tmp_path, UndoesSecond(), following(drift_first))
    record = load_first(tmp_path)
    assert (record.outcome, record.score, record.usage.tool_calls) == (Outcome.SCORED, 1.0, 3)
    first, second = (int(step.results[0].content) for step in record.steps[:2])
    assert second == first + 1
    assert "not undone" not in record.reason


def test_failed_calls_are_drawn_again_after_a_state_that_no_replay_reaches(tmp_path: Path) -> None:
    """As the controllers `cleaner` and `ui_s1` undo steps: on a copy."""
    tries: list[int] = []

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        tries.append(number)
        failing = call("add", number, wrong=1)
        return drift_first(seed, number, is_branch) if number != 2 or tries.count(2) > 2 else failing

    play(count_env(COPYABLE, accept), tmp_path, RetryErrors(), following(decide))
    record = load_first(tmp_path)
    assert (record.score, tries.count(2), record.usage.tool_errors) == (1.0, 3, 2)
    assert not any(result.is_error for step in record.steps for result in step.results)
    assert PatchMismatches.undoes


class ReplacesLast(ByHand):
    """Replaces the step that ended the episode."""

    def __init__(self, other: Action) -> None:
        super().__init__(lambda played: GO_ON)
        self._other = other

    def at_end(self, played: Played) -> Choice:
        return Replace(self._other)


@pytest.mark.parametrize(
    ("server", "decide", "other", "says"),
    [
        (UNCOPYABLE, drift_first, add(1, 3), "step 3 was not undone, because it cannot be"),
        (
            native_server("counter", Counter, start="fork"),
            lambda seed, number, is_branch: add(3, 1) if number == 1 else DONE,
            call("crash", 2),
            "step 2 stays, because the other one lost a server",
        ),
    ],
    ids=["not undone", "server lost"],
)
def test_an_episode_with_a_score_is_not_lost(
    server: object, decide: Callable[[int, int, bool], Action], other: Action, says: str, tmp_path: Path
) -> None:
    play(count_env(server, accept), tmp_path, ReplacesLast(other), following(decide))  # type: ignore[arg-type]
    record = load_first(tmp_path)
    assert (record.outcome, record.score) == (Outcome.SCORED, 1.0)
    assert says in record.reason
    assert record.steps[-1].action == DONE
    assert record.provenance[NOT_REPLACED] == [len(record.steps) - 1]


def test_a_tree_copies_no_more_servers_than_its_cap_and_replays_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymcp.agents.runner.trees.tree.LIVE_COPIES", 3)
    assert LIVE_COPIES == 24
    agents = following(lambda seed, number, is_branch: call("drift", 1) if number == 1 else DONE)
    controller = ByHand(lambda played: Branch(6) if played.number == 1 and not played.branch else GO_ON)
    play(count_env(), tmp_path, controller, agents)
    outcomes = {branch: value[0] for (_, _, branch), value in read_trees(tmp_path).items()}
    copied, replayed = Outcome.SCORED, Outcome.ENV_INFRA  # a replay of drift gives another state
    assert outcomes == {"": copied, "1.1": copied, "1.2": copied, "1.3": copied, "1.4": replayed, "1.5": replayed}


def test_no_branch_begins_after_the_money_of_a_tree(tmp_path: Path) -> None:
    """Every call costs 1/4: after the third none branches. The first two steps have one branch each."""
    agents = following(lambda seed, number, is_branch: add(1, number) if number < 6 else DONE)
    play(priced_env(), tmp_path, BranchSteps(), agents, TreeBudget(cost=0.75))
    assert [branch for _, _, branch in read_trees(tmp_path)] == ["", "1.1", "2.1"]


def test_a_search_ends_with_its_money(tmp_path: Path) -> None:
    """Each episode costs 1/2, so the third is the last."""
    search, budget = parse_search("best_of_n,width=6,cost=1.2,value=clean")
    agents = following(lambda seed, number, is_branch: add(1, number) if number < 3 else DONE)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        schedule = Schedule(concurrency=1, search=search, tree=budget)
        run_plan(priced_env(), get_sandbox("bwrap"), Plan(agent="mine"), store, schedule, make_agent=agents)
    assert (len(read_trees(tmp_path)), load_first(tmp_path).usage.cost) == (3, 1.5)
