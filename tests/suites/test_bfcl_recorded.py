"""Episodes recorded through the real environment, judged by upstream's own checker in its own virtualenv.

40 here; `benchmarks/full_tests.py` records 200.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

from bfcl_replay import ToolsByClass, random_call, tools_of
from length import IS_FULL
from upstream import upstream_verdicts

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.random_arguments import find_words
from gymcp.agents.strategies.scripted import RandomAgent, Replay, play_gold
from gymcp.envs import load_env, load_spec
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.paths import gymcp_home
from gymcp.protocols import Agent
from gymcp.types import GoldTurn, Suite, Task, ToolCall

IMPERFECT = 200 if IS_FULL else 40
HALF = IMPERFECT // 2


def test_imperfect_recorded_episodes_are_judged_as_upstream_judges_them(
    suite: Suite, files: SuiteFiles, tools: ToolsByClass, record_property: Callable[[str, object], None]
) -> None:
    chosen = random.Random(5).sample(suite.tasks, IMPERFECT)
    at_random = {task.id for task in chosen[:HALF]}

    def agent(task: Task, seed: int) -> Agent:
        if task.id in at_random:
            return RandomAgent(seed)
        return Replay(play_gold(task, _alter_one_call(task, tools, random.Random(seed))))

    rollouts: list[Rollout] = []
    jobs = [Job(task=task, trial=0, seed=number) for number, task in enumerate(chosen)]
    env = load_env(load_spec("bfcl"))
    asyncio.run(
        run_jobs(env, get_sandbox("bwrap"), agent, jobs, Schedule(), lambda rollout, last: rollouts.append(rollout))
    )
    trajectories = [rollout.trajectory for rollout in rollouts]
    verdicts = upstream_verdicts(gymcp_home(), files, trajectories)
    differ = [
        (trajectory.task, trajectory.reason, verdict)
        for trajectory, verdict in zip(trajectories, verdicts, strict=True)
        if (trajectory.score == 1.0) != verdict["valid"]
    ]
    valid = sum(verdict["valid"] for verdict in verdicts)
    agreement = f"{IMPERFECT - len(differ)}/{IMPERFECT} verdicts agree; upstream passes {valid} of the episodes"
    record_property("BFCL, imperfect recorded episodes against upstream's checker", agreement)
    assert differ == []
    assert len(trajectories) == IMPERFECT
    assert {trajectory.outcome for trajectory in trajectories} <= {Outcome.SCORED, Outcome.BUDGET_EXHAUSTED}
    assert 0 < valid < IMPERFECT


def _alter_one_call(task: Task, tools: ToolsByClass, rng: random.Random) -> list[GoldTurn]:
    """The gold with one call dropped, doubled, replaced by a random call, or with a random call before it."""
    words = find_words(" ".join(task.prompts))
    with_calls = [index for index, turn in enumerate(task.gold) if turn.calls]
    turn = rng.choice(with_calls)
    place = rng.randrange(len(task.gold[turn].calls))
    return [
        GoldTurn(
            calls=tuple(_alter(gold.calls, place, rng, random_call(rng.choice(tools_of(task, tools)), words, rng)))
        )
        if index == turn
        else gold
        for index, gold in enumerate(task.gold)
    ]


def _alter(calls: tuple[ToolCall, ...], place: int, rng: random.Random, stray: ToolCall) -> Iterator[ToolCall]:
    what = rng.choice(["drop", "double", "replace", "insert"])
    for index, call in enumerate(calls):
        if index != place:
            yield call
        elif what == "double":
            yield from (call, call)
        elif what == "replace":
            yield stray
        elif what == "insert":
            yield from (stray, call)
