"""Trees for tests: agents and controllers made of one function, trees that can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from counting_server import Counter

from gymcp.agents.runner.run import Plan, RunEnd, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.trees.controller import Choice, Controller, Played, Start, TreeBudget
from gymcp.envs.episodes.episode import open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.protocols import Agent, AgentFactory, Grader
from gymcp.store import TrajectoryStore
from gymcp.types import Action, Observation, Step, Suite, Task, ToolCall, Trajectory


def count_env(server: ServerSpec | None = None, grade: Grader | None = None) -> LoadedEnv:
    """An environment with one task, solved by a count of 3 unless there is another grader."""
    task = Task(id="count", prompts=("Count.",), initial_state={"count": 0}, target={"count": 3})
    suite = Suite(name="trees", version="1", tasks=(task,))
    servers = (server or native_server("counter", Counter, start="fork"),)
    return load_env(EnvSpec(name="trees", servers=servers, suite=suite, grade=grade or final_state_equals()))


def call(name: str, number: int, **arguments: int) -> Action:
    return Action(tool_calls=(ToolCall(id=f"call_{number}", name=name, arguments=arguments),))


def add(amount: int, number: int) -> Action:
    return call("add", number, amount=amount)


class Following:
    """An agent that is a function of its seed and of the number of the step; it can go on from any record."""

    def __init__(self, decide: Callable[[int, int, bool], Action], seed: int) -> None:
        self._decide = decide
        self._seed = seed
        self._number = 0
        self._is_branch = False

    def resume(self, steps: Sequence[Step]) -> None:
        self._number = len(steps)
        self._is_branch = True

    async def act(self, observation: Observation) -> Action:
        self._number += 1
        return self._decide(self._seed, self._number, self._is_branch)


def following(decide: Callable[[int, int, bool], Action]) -> AgentFactory:
    """Agents that act by (seed, number of the step from 1, True after a resume)."""

    def make(task: Task, seed: int) -> Agent:
        return Following(decide, seed)

    return make


class ByHand:
    """A controller whose decisions are a function of what was played."""

    def __init__(self, decide: Callable[[Played], Choice]) -> None:
        self._decide = decide

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> list[Start]:
        return [Start(task=task.id, trees=budget.trials) for task in tasks]

    def after(self, played: Played) -> Choice:
        return self._decide(played)


def play(
    env: LoadedEnv,
    folder: Path,
    controller: Controller,
    make_agent: AgentFactory | None = None,
    budget: TreeBudget | None = None,
    **plan: int | tuple[str, ...],
) -> RunEnd:
    """Play the plan into the folder, with one attempt at each tree."""
    folder.mkdir(exist_ok=True)
    schedule = Schedule(concurrency=2, max_attempts=1, controller=controller, tree=budget or TreeBudget())
    agent = "random" if make_agent is None else "mine"
    with TrajectoryStore.open(folder, write=True) as store:
        settings = Plan(agent=agent, **plan)  # type: ignore[arg-type]
        return run_plan(env, get_sandbox("bwrap"), settings, store, schedule, make_agent=make_agent)


Tree = dict[tuple[str, int, str], tuple[object, ...]]
"""(task, trial, branch) -> what an episode did, and what came of it."""


def read_trees(folder: Path) -> Tree:
    """All episodes of the run that count, without what differs whenever they are played: ids and times."""
    with TrajectoryStore.open(folder) as store:
        firsts = {(row.task, row.trial, ""): store.load(row.id) for row in store.summaries()}
        others = {
            (row.episode.task, row.episode.trial, row.branch): store.load(row.episode.id) for row in store.branches()
        }
    return {place: describe(path) for place, path in sorted((firsts | others).items())}


def describe(path: Trajectory) -> tuple[object, ...]:
    steps = [(step.action, step.world_key, step.state_key, [r.content for r in step.results]) for step in path.steps]
    return path.outcome, path.score, path.reason, path.final_key, steps


async def replay(env: LoadedEnv, paths: Sequence[Trajectory], concurrency: int = 1) -> list[tuple[Step, ...]]:
    """Steps of the paths, each played again from the start in a world of its own."""
    tasks, gate = {task.id: task for task in env.suite.tasks}, asyncio.Semaphore(concurrency)

    async def play_again(path: Trajectory) -> tuple[Step, ...]:
        async with gate, open_episode(env, warm, tasks[path.task], seed=path.seed) as episode:
            for step in path.steps:
                await episode.step(step.action)
            return episode.state.steps

    async with open_warm_sandbox(get_sandbox("bwrap")) as warm:
        return await asyncio.gather(*(play_again(path) for path in paths))
