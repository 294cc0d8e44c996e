"""Cost of trees: 8 leaves that share half of their steps, against 8 independent episodes of the same task.

Every episode has as many steps. In each, the model reads its context and draws tokens; the call that is then made is
the next one of the task's gold, from the start again after the last, so that trees and episodes make the same calls
whatever the model knows. All trees are played, as many at a time as episodes are: several rounds, interleaved, whose
medians count. Seconds depend on what else the machine does; the CPU time is that of this process, so of harness and
embedded engine, without servers. `--vllm` starts a vLLM on this machine's CPUs and measures it with the same model; its
own counters tell which prompt tokens it took from its prefix cache. `--policy` measures any other model.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import httpx
from report_table import Result, against, options, show

from gymcp.agents.policies.engine.engine import Engine
from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.policies.vllm.server import VllmServer, VllmServerOptions, run_vllm_server
from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory, Resumes
from gymcp.types import Action, Decision, GiveUp, Observation, Sampling, Step, Task, ToolCall, Trajectory

LEAVES, STEPS = 8, 8
TARGETS = {"tokens drawn": 0.6, "tool calls": 0.6, "seconds": 0.7}
"""Figure -> the largest share of what independent episodes take."""
ANSWER_TOKENS = 32
Count = Callable[[TokenModel], int]
"""Tokens of prompts that a model has computed so far."""
CONTEXT = 8192
"""Tokens of the random model's context: the tools of the back office do not fit into its default of 2,048."""
ENVIRONMENTS = ("backoffice", "textworld")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Figures of one round of trees, or of independent episodes."""

    values: dict[str, float]
    opened_ms: tuple[float, ...]
    """Time to a world for each branch; for each episode if there are no branches."""


class GoldCaller:
    """Lets the model read and draw in each step, and makes the next call of the task's gold in the place of its own."""

    def __init__(self, inner: Agent, task: Task) -> None:
        self._inner = inner
        self._calls: Iterator[ToolCall] = cycle(call for turn in task.gold for call in turn.calls)
        self._number = 0

    def resume(self, steps: Sequence[Step]) -> None:
        """Go on behind these steps."""
        assert isinstance(self._inner, Resumes)
        self._inner.resume(steps)
        for _ in steps:
            self._next_call()

    async def act(self, observation: Observation) -> Decision | GiveUp:
        decision = await self._inner.act(observation)
        if isinstance(decision, GiveUp):
            return decision
        assert isinstance(decision, Decision)
        return replace(decision, action=Action(tool_calls=(self._next_call(),)))

    def _next_call(self) -> ToolCall:
        self._number += 1
        return replace(next(self._calls), id=f"call_{self._number}")


def main() -> None:
    parser = options(__doc__, "one round of 2 trees instead of 3 rounds of 8")
    policies = parser.add_mutually_exclusive_group()
    policies.add_argument("--policy", help="model; default: a random one of 1.3 M parameters, in the embedded engine")
    policies.add_argument("--vllm", action="store_true", help="the same random model, in a vLLM that is started")
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=ENVIRONMENTS, help="environments")
    args = parser.parse_args()
    trees, rounds = (2, 1) if args.quick else (8, 3)
    results: list[Result] = []
    title = args.policy or f"a random model in {'vLLM' if args.vllm else 'the embedded engine'}"
    count: Count = computed_tokens
    with ExitStack() as stack:
        policy = args.policy
        if policy is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = make_tiny_model(folder / "model", size=TinySize(context=CONTEXT))
            policy = f"local:{model}"
            if args.vllm:
                server = stack.enter_context(run_vllm_server(VllmServerOptions(model=model), say))
                policy, count = server.spec, lambda _: count_uncached(server)
        for name in args.only:
            results += asyncio.run(measure(name, policy, count, trees, rounds))
    show("tree_cost", results, as_json=args.json, title=f"trees of {LEAVES} leaves, {title}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def measure(name: str, policy: str, count: Count, trees: int, rounds: int) -> list[Result]:
    """Rows of one environment: each figure of trees against that of independent episodes."""
    env = shorten_episodes(load_env(load_spec(name)))
    sampling = Sampling(max_tokens=ANSWER_TOKENS)
    async with open_model(parse_policy(policy), ModelOptions(slots=LEAVES)) as model:
        assert isinstance(model, TokenModel)
        make = react(model, ReactSettings(sampling=sampling))

        def make_agent(task: Task, seed: int) -> Agent:
            return GoldCaller(make(task, seed), task)

        def play_round(trees: int, number: int, branching: bool) -> Awaitable[Played]:
            return play(env, make_agent, lambda: count(model), trees=trees, seed=number, branching=branching)

        await play_round(1, rounds, True)  # makes what is made once
        alone, branching = [], []
        for number in range(rounds):
            alone.append(await play_round(trees, number, False))
            branching.append(await play_round(trees, number, True))
    return describe(name, alone, branching)


def shorten_episodes(env: LoadedEnv) -> LoadedEnv:
    """The environment with the tasks that have enough gold for the tree to branch within it, and so many steps each."""
    tasks = [task for task in env.suite.tasks if sum(len(turn.calls) for turn in task.gold[:1]) >= STEPS // 2]
    short = tuple(
        replace(task, limits=replace(task.limits or env.spec.limits, steps=STEPS, steps_per_turn=None))
        for task in tasks
    )
    return replace(env, suite=replace(env.suite, tasks=short))


async def play(
    env: LoadedEnv, make_agent: AgentFactory, count: Callable[[], int], *, trees: int, seed: int, branching: bool
) -> Played:
    """Play that many trees of `LEAVES` leaves, or as many independent episodes of the same tasks."""
    tasks = env.suite.tasks[:: max(1, len(env.suite.tasks) // trees)][:trees]
    plan = Plan(agent="gold calls", seed=seed, trials=1 if branching else LEAVES)
    if branching:
        controller, budget = BranchSteps(ways=LEAVES, steps=frozenset({STEPS // 2})), TreeBudget(episodes=LEAVES)
        schedule = Schedule(concurrency=LEAVES, max_attempts=1, controller=controller, tree=budget)
    else:
        schedule = Schedule(concurrency=LEAVES, max_attempts=1)
    ended: list[Rollout] = []
    computed, wall, cpu = count(), time.perf_counter(), time.process_time()
    await run_jobs(
        env,
        get_sandbox("bwrap"),
        make_agent,
        list(make_jobs(plan, tasks, schedule)),
        schedule,
        lambda rollout, last: ended.append(rollout),
        RunBudget(),
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    episodes = [each for rollout in ended for each in list_episodes(rollout)]
    check(episodes, trees * LEAVES)
    branches = [branch.trajectory for rollout in ended for branch in rollout.branches]
    return Played(
        values={
            "tokens drawn": sum(each.usage.completion_tokens for each in episodes),
            "prompt tokens computed": count() - computed,
            "tool calls": sum(each.usage.tool_calls for each in episodes),
            "seconds": wall,
            "CPU seconds of the harness": cpu,
        },
        opened_ms=tuple(1e3 * each.usage.reset_s for each in (branches or episodes)),
    )


def list_episodes(rollout: Rollout) -> list[Trajectory]:
    return [rollout.trajectory, *(branch.trajectory for branch in rollout.branches)]


def check(episodes: Sequence[Trajectory], expected: int) -> None:
    """Raises SystemExit unless there are so many episodes, each with all its steps."""
    wrong = [each for each in episodes if each.outcome is not Outcome.BUDGET_EXHAUSTED or len(each.steps) != STEPS]
    if len(episodes) != expected or wrong:
        reasons = {f"{each.outcome} after {len(each.steps)} steps: {each.reason}" for each in wrong}
        raise SystemExit(f"tree_cost: {len(episodes)} of {expected} episodes; {'; '.join(sorted(reasons)[:3])}")


def computed_tokens(model: TokenModel) -> int:
    """Tokens of prompts that went through the embedded engine so far; 0 for another one, which does not tell."""
    return model.policy.stats.computed_tokens if isinstance(model.policy, Engine) else 0


def count_uncached(server: VllmServer) -> int:
    """Tokens of prompts that this vLLM has not found in its prefix cache so far."""
    answer = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {server.key}"}, trust_env=False)
    asked, found = (
        sum(float(value) for value in re.findall(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", answer.text, re.M))
        for name in ("queries", "hits")
    )
    return round(asked - found)


def describe(name: str, alone: Sequence[Played], branching: Sequence[Played]) -> list[Result]:
    """Medians of the rounds, and a target's name beside each figure that has one."""
    results = []
    for key in alone[0].values:
        one, other = (statistics.median(played.values[key] for played in rounds) for rounds in (alone, branching))
        if not one:
            continue
        target = f", target {TARGETS[key]:.0%}" if key in TARGETS else ""
        base = Result(metric=f"{name}: {key}, independent", value=one, unit="")
        results += [base, against(f"{name}: {key}, trees{target}", other, "", base)]
    resets, forks = (
        statistics.median(ms for played in rounds for ms in played.opened_ms) for rounds in (alone, branching)
    )
    base = Result(metric=f"{name}: fresh world p50", value=resets, unit="ms")
    return [*results, base, against(f"{name}: fork p50", forks, "ms", base)]


if __name__ == "__main__":
    main()
