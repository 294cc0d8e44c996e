"""Trees in which something is wrong: settings, agents, controllers, servers. The other episodes of the tree go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting_server import Counter
from fragile_server import Fragile
from remote_counter import elsewhere
from tree_play import ByHand, add, call, count_env, following, play, read_trees

from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.trees.branch_steps import BranchSteps, parse_branches
from gymcp.agents.runner.trees.controller import (
    GO_ON,
    Branch,
    Choice,
    Played,
    Replace,
    Retry,
    Start,
    Stop,
    TreeBudget,
)
from gymcp.agents.strategies.react import ReactSettings
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.agents.strategies.user_agents import load_agent, make_user_agents
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError
from gymcp.evaluators.judge import Point, Rubric, judge_by_rubric
from gymcp.evaluators.judge.answers import JudgeAnswers
from gymcp.evaluators.judge.asking import JudgeSeat
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory, StateReader
from gymcp.store import TrajectoryStore
from gymcp.types import Action, Message, ModelUsage, Sampling, Score, Task, ToolCall, Trajectory

DONE = Action(text="Counted.")
ONE_STEP = following(lambda seed, number, is_branch: add(3, number) if number == 1 else DONE)
AFTER_FIRST = BranchSteps(ways=3, steps=frozenset({1}))
UNCOPYABLE = replace(native_server("plain", Counter), state="opaque")
COPYABLE = native_server("counter", Counter, start="fork")
AnyBranch: Any = Branch
AnyStop: Any = Stop
AnyReplace: Any = Replace


def accept(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Grade any end as a success: an opaque server has no state to compare."""
    return Score(value=1.0)


def outcomes(folder: Path) -> dict[str, Outcome]:
    """Place in the tree -> outcome, for a run with one tree."""
    return {branch: Outcome(value[0]) for (_, _, branch), value in read_trees(folder).items()}  # type: ignore[arg-type]


def read_scores(folder: Path) -> dict[str, float | None]:
    """Place in the tree -> score by the newest grade, for a run with one tree."""
    with TrajectoryStore.open(folder) as store:
        (first,) = store.summaries()
        return {"": first.score, **{row.branch: row.episode.score for row in store.branches()}}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BranchSteps(ways=1), "ways=1 is no branch"),
        (lambda: BranchSteps(ways=0), "ways=0 is no branch"),
        (lambda: BranchSteps(depth=0), "with depth=0 nothing branches"),
        (lambda: BranchSteps(steps=frozenset({0, 2})), "steps are counted from 1"),
        (lambda: BranchSteps(steps=frozenset()), "steps are counted from 1"),
        (lambda: parse_branches("ways=2,episodes=1"), "with episodes=1 nothing branches; give 2 or more"),
        (lambda: BranchSteps().plan([], TreeBudget(episodes=1)), "with episodes=1 nothing branches"),
        (lambda: TreeBudget(episodes=0), "tree budget of episodes: must be 1 or more, not 0"),
        (lambda: TreeBudget(tokens=0), "tree budget of tokens: must be 1 or more, not 0"),
        (lambda: TreeBudget(cost=0.0), "tree budget of cost: must be more than 0, not 0.0"),
        (lambda: parse_branches("cost=nan"), "tree budget of cost: must be more than 0, not nan"),
        (lambda: parse_branches("cost=much"), "'much' is no number"),
        (lambda: parse_search("beam,cost=much"), "cost='much' is no number; give such as cost=0.5"),
        (lambda: parse_branches("ways=2,width=3"), "cannot read 'width=3'"),
        (lambda: parse_branches("ways=two"), "'two' is no number"),
        (lambda: parse_branches("ways=2+3"), "only steps can be several"),
        (lambda: parse_branches("ways=2,ways=3"), "cannot read 'ways=3'"),
        (lambda: parse_branches(""), "cannot read ''"),
    ],
)
def test_settings_with_which_nothing_branches_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_branches_without_a_verdict_are_judged_on_resume_as_first_episodes_are(tmp_path: Path) -> None:
    """They were played without a judge, as on the nodes of a cluster. Without one again, nothing new is recorded."""

    class Friendly:
        async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
            found = re.search(r"RECORD ([0-9a-f]{16})", messages[1].content)
            assert found is not None
            return json.dumps({"mark": found[1], "reason": "r", "points": {"polite": True}}), None

    manners = Rubric(name="manners", version="1", points=(Point(id="polite", text="It was polite."),))
    env = count_env(grade=judge_by_rubric(manners))
    play(env, tmp_path, AFTER_FIRST, ONE_STEP)
    assert set(outcomes(tmp_path).values()) == {Outcome.GRADER_ERROR}
    play(env, tmp_path, AFTER_FIRST, ONE_STEP)
    with TrajectoryStore.open(tmp_path) as store:
        assert store.change_counter() == (1, 0)
    judge = JudgeSeat(name="m", judge=Friendly(), answers=JudgeAnswers({}, None))
    play(replace(env, judge=judge), tmp_path, AFTER_FIRST, ONE_STEP)
    assert read_scores(tmp_path) == {"": 1.0, "1.1": 1.0, "1.2": 1.0}


def test_branches_are_read_from_a_text() -> None:
    assert parse_branches("ways=3, steps=1+4,depth=2,episodes=8,tokens=500,calls=20,cost=.5") == (
        BranchSteps(ways=3, steps=frozenset({1, 4}), depth=2),
        TreeBudget(episodes=8, tokens=500, calls=20, cost=0.5),
    )
    assert parse_search("beam,cost=2")[1].cost == 2.0
    assert parse_branches("ways=2") == (BranchSteps(), TreeBudget())


@pytest.mark.parametrize("name", ["adaptive", "of mine"])
def test_an_agent_that_cannot_resume_is_refused_before_the_run(name: str, tmp_path: Path) -> None:
    class Plain:
        async def act(self, observation: object) -> Action:
            return DONE

    agents: AgentFactory = SCRIPTED[name] if name in SCRIPTED else lambda task, seed: Plain()
    with pytest.raises(ConfigError, match=r"cannot take a branch, because it has no method resume\(steps\)"):
        play(count_env(), tmp_path, AFTER_FIRST, agents)


MINE = """
from gymcp.types import Action, ToolCall


class Plain:
    def __init__(self, task, seed):
        self.number = 0

    async def act(self, observation):
        self.number += 1
        if self.number > 1:
            return Action(text="Counted.")
        return Action(tool_calls=(ToolCall(id="call_1", name="add", arguments={"amount": 3}),))


class Resuming(Plain):
    def resume(self, steps):
        self.number = len(steps)


class Stumbling(Plain):
    def resume(self, steps):
        raise ValueError("lost the thread")
"""


@pytest.mark.parametrize(
    ("name", "branches"), [("Resuming", Outcome.SCORED), ("Stumbling", Outcome.AGENT_ERROR), ("Plain", None)]
)
def test_an_agent_in_a_file_takes_a_branch_if_it_can_resume(
    name: str, branches: Outcome | None, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    agent = load_agent(f"{tmp_path / 'mine.py'}:{name}")
    assert agent is not None
    agents = make_user_agents(agent, None, ReactSettings())
    if branches is None:
        with pytest.raises(ConfigError, match="cannot take a branch"):
            play(count_env(), tmp_path / "run", AFTER_FIRST, agents)
    else:
        play(count_env(), tmp_path / "run", AFTER_FIRST, agents)
        assert outcomes(tmp_path / "run") == {"": Outcome.SCORED, "1.1": branches, "1.2": branches}


@pytest.mark.parametrize(
    ("starts", "says"),
    [
        ([Start(task="other", trees=1)], "plans task 'other', which the run lacks"),
        ([Start(task="count", trees=0)], "plans no episode of the run's 1 tasks"),
        ([], "plans no episode of the run's 1 tasks"),
    ],
)
def test_a_plan_of_other_tasks_or_of_nothing_is_refused(starts: list[Start], says: str, tmp_path: Path) -> None:
    class Planning(ByHand):
        def plan(self, tasks: object, budget: TreeBudget) -> list[Start]:
            return starts

    with pytest.raises(ConfigError, match=says):
        play(count_env(), tmp_path, Planning(lambda played: GO_ON), ONE_STEP)


def test_a_controller_plans_how_many_trees_of_which_task() -> None:
    tasks = [Task(id=id, prompts=("Do it.",)) for id in "abc"]

    class Planning(ByHand):
        def plan(self, tasks: object, budget: TreeBudget) -> list[Start]:
            return [Start(task="a", trees=2 * budget.trials), Start(task="c", trees=1)]

    schedule = Schedule(controller=Planning(lambda played: GO_ON))
    jobs = [(job.task.id, job.trial) for job in make_jobs(Plan(agent="null", trials=1), tasks, schedule)]
    assert jobs == [("a", 0), ("c", 0), ("a", 1)]


def test_a_controller_that_never_stops_branching_ends_with_its_budget(tmp_path: Path) -> None:
    agents = following(lambda seed, number, is_branch: add(1, number) if number < 4 else DONE)
    play(count_env(), tmp_path, ByHand(lambda played: Branch(1_000_000)), agents, TreeBudget(episodes=5))
    assert len(read_trees(tmp_path)) == 5


def test_a_controller_that_undoes_every_step_ends_its_episode(tmp_path: Path) -> None:
    play(count_env(), tmp_path, ByHand(lambda played: Retry()), ONE_STEP, TreeBudget(undone=3))
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
    assert (row.outcome, row.score) == (Outcome.BUDGET_EXHAUSTED, 1.0)
    assert "3 steps of the tree undone by the controller" in row.reason


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (lambda played: 7, "controller ByHand: gave an int after step 1, not a choice"),
        (lambda played: Branch(0), "controller ByHand: gave Branch after step 1 with ways = 0; 1 is to go on"),
        (lambda played: AnyBranch(2.5), "gave Branch after step 1 with ways = a float; it must be a whole number"),
        (lambda played: AnyBranch(True), "gave Branch after step 1 with ways = a bool; it must be a whole number"),
        (
            lambda played: AnyBranch(2, before="no"),
            "gave Branch after step 1 with before = a str; it must be True or False",
        ),
        (
            lambda played: AnyStop(7),
            "gave Stop after step 1 with reason = an int; it must be a text",
        ),
        (lambda played: AnyReplace("add"), "with decision = a str; it must be a gymcp.types.Action or Decision"),
        (lambda played: AnyReplace(DONE, stop=True), "gave Replace after step 1 with stop = a bool; it must be a text"),
        (lambda played: int("x"), "ValueError: invalid literal for int() with base 10: 'x' after step 1"),
    ],
)
def test_a_controller_that_fails_is_named_in_the_reason(
    choice: Callable[[Played], Choice], says: str, tmp_path: Path
) -> None:
    play(count_env(), tmp_path, ByHand(choice), ONE_STEP)
    with TrajectoryStore.open(tmp_path) as store:
        (row,) = store.summaries()
    assert (row.outcome, row.score) == (Outcome.ENV_INFRA, None)
    assert says in row.reason


def test_a_wrong_choice_in_a_branch_is_its_own_loss(tmp_path: Path) -> None:
    bad: Branch = AnyBranch(2.5)

    def choose(played: Played) -> Choice:
        if played.branch == "1.1":
            return bad
        return Branch(3) if played.number == 1 else GO_ON

    agents = following(lambda seed, number, is_branch: add(1, number) if number < 3 else DONE)
    play(count_env(), tmp_path, ByHand(choose), agents)
    assert outcomes(tmp_path) == {"": Outcome.SCORED, "1.1": Outcome.ENV_INFRA, "1.2": Outcome.SCORED}


def test_a_server_without_copies_is_replayed_if_its_answers_are_the_same(tmp_path: Path) -> None:
    play(count_env(UNCOPYABLE, accept), tmp_path, AFTER_FIRST, ONE_STEP)
    assert outcomes(tmp_path) == {"": Outcome.SCORED, "1.1": Outcome.SCORED, "1.2": Outcome.SCORED}


def test_a_server_whose_replay_differs_takes_no_branch_and_its_episode_goes_on(tmp_path: Path) -> None:
    agents = following(lambda seed, number, is_branch: call("drift", number) if number == 1 else DONE)
    play(count_env(UNCOPYABLE, accept), tmp_path, AFTER_FIRST, agents)
    assert outcomes(tmp_path) == {"": Outcome.SCORED, "1.1": Outcome.ENV_INFRA, "1.2": Outcome.ENV_INFRA}
    with TrajectoryStore.open(tmp_path) as store:
        rows = store.branches()
        assert [len(store.load(row.episode.id).steps) for row in rows] == [1, 1]
    assert {"a replay parts from the record at step 1 (drift)" in row.episode.reason for row in rows} == {True}


def test_a_remote_server_that_answers_otherwise_when_it_is_replayed_takes_no_branch(tmp_path: Path) -> None:
    """Beside a server that can be copied nothing is replayed, and the remote one is only reached anew."""
    agents = following(
        lambda seed, number, is_branch: (
            Action(tool_calls=(ToolCall(id="1", name="count", arguments={"word": "w"}),)) if number == 1 else DONE
        )
    )
    with elsewhere() as url:
        for server in (UNCOPYABLE, COPYABLE):
            env, folder = count_env(server, accept), tmp_path / server.name
            far = ServerSpec(name="far", url=url, state="stateless")
            play(load_env(replace(env.spec, servers=(server, far))), folder, AFTER_FIRST, agents)
    infra, scored = ({"": Outcome.SCORED, "1.1": each, "1.2": each} for each in (Outcome.ENV_INFRA, Outcome.SCORED))
    assert (outcomes(tmp_path / "plain"), outcomes(tmp_path / "counter")) == (infra, scored)
    with TrajectoryStore.open(tmp_path / "plain") as store:
        reasons = {row.episode.reason.partition(": a ")[2] for row in store.branches()}
    assert reasons == {
        "replay parts from the record at step 1 (count): expected the answers of the record, found others"
    }


def test_a_branch_goes_on_from_a_state_that_no_replay_reaches(tmp_path: Path) -> None:
    agents = following(lambda seed, number, is_branch: call("drift", number) if number == 1 else DONE)
    play(count_env(), tmp_path, AFTER_FIRST, agents)
    assert outcomes(tmp_path) == {"": Outcome.SCORED, "1.1": Outcome.SCORED, "1.2": Outcome.SCORED}
    keys = {value[3] for value in read_trees(tmp_path).values()}
    assert len(keys) == 1


def test_a_lost_server_takes_one_episode_of_the_tree(tmp_path: Path) -> None:
    lost_at: list[int] = []

    def decide(seed: int, number: int, is_branch: bool) -> Action:
        if number == 1:
            return call("drift", number)
        if is_branch and not lost_at:
            lost_at.append(seed)
            return call("crash", number)
        return DONE

    play(count_env(), tmp_path, AFTER_FIRST, following(decide))
    assert outcomes(tmp_path) == {"": Outcome.SCORED, "1.1": Outcome.ENV_INFRA, "1.2": Outcome.SCORED}


def test_branches_go_on_when_the_first_episode_is_lost_for_good(tmp_path: Path) -> None:
    def decide(seed: int, number: int, is_branch: bool) -> Action:
        if number == 1:
            return add(3, number)
        return DONE if is_branch else call("crash", number)

    play(count_env(), tmp_path, AFTER_FIRST, following(decide))
    assert outcomes(tmp_path) == {"": Outcome.ENV_INFRA, "1.1": Outcome.SCORED, "1.2": Outcome.SCORED}


def test_a_server_that_is_lost_while_it_is_copied_takes_its_episode_and_no_branch(tmp_path: Path) -> None:
    """The branches are replayed on fresh worlds; the episode that branched meets the loss at its next step."""
    agents = following(
        lambda seed, number, is_branch: call("arm", 1) if number == 1 else add(3, number) if number == 2 else DONE
    )
    env = count_env(native_server("fragile", Fragile, start="fork"))
    play(env, tmp_path, AFTER_FIRST, agents)
    assert outcomes(tmp_path) == {"": Outcome.ENV_INFRA, "1.1": Outcome.SCORED, "1.2": Outcome.SCORED}
    assert [value[1] for value in read_trees(tmp_path).values()] == [None, 1.0, 1.0]


def test_a_tree_deeper_than_the_kernel_nests_is_played(tmp_path: Path) -> None:
    """Each copy lives inside the copy that it was made from, and some 14 of them can be nested."""
    depth = 16
    agents = following(lambda seed, number, is_branch: add(1, number))

    def choose(played: Played) -> Choice:
        return Branch(2) if played.number == played.depth + 1 else GO_ON

    env = count_env()
    limits = replace(env.spec.limits, steps=depth + 2)
    deep = replace(env, spec=replace(env.spec, limits=limits))
    play(deep, tmp_path, ByHand(choose), agents, TreeBudget(episodes=depth + 1))
    found = read_trees(tmp_path)
    assert max(branch.count("/") + 1 for _, _, branch in found if branch) == depth
    assert {value[0] for value in found.values()} == {Outcome.BUDGET_EXHAUSTED}
