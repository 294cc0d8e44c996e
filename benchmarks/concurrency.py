"""Episodes per second with the number of episodes at a time that is chosen, beside fixed ones, in one run.

Two kinds of episodes: BFCL by the oracle, in which servers do the work, and ten turns with a policy behind an address
that takes one second for an answer (`stub_policy.py`). Rounds of all numbers take turns; the median counts. The ratio
is that to 8 episodes at a time, which was the fixed default.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

from report_table import Result, all_against, options, show
from rollouts import FORKED, play_rollouts, run_policy

from gymcp.agents.policies.specs import ModelOptions, parse_policy
from gymcp.agents.runner.concurrency import (
    ConcurrencyChoice,
    choose_concurrency,
    describe_load,
    limit_by_policy,
)
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import DEFAULT_CONCURRENCY, Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.machine_limits import read_machine_limits
from gymcp.mcp_servers.sandbox import get_sandbox

ANSWER_S = 1.0
FIXED = (1, 2, 4, DEFAULT_CONCURRENCY, 16, 32)


def main() -> None:
    args = options(__doc__, "one round of 48 episodes and of 16").parse_args()
    rounds, scripted, remote = (1, 48, 16) if args.quick else (3, 400, 64)
    results = measure("oracle", choose_scripted(), FIXED, lambda n: play_oracle(n, scripted), rounds)
    by_policy = (DEFAULT_CONCURRENCY, 16, 64)
    results += measure("policy of 1 s", choose_remote(), by_policy, lambda n: play_remote(n, remote), rounds)
    show("concurrency", results, as_json=args.json)


def choose_scripted() -> ConcurrencyChoice:
    load = describe_load(load_env(load_spec("bfcl")), forks=True, waits_for_model=False)
    return choose_concurrency(read_machine_limits(), load)


def choose_remote() -> ConcurrencyChoice:
    limits = limit_by_policy(parse_policy("openai:http://127.0.0.1:1/v1#stub"), ModelOptions())
    load = describe_load(load_env(FORKED), forks=True, waits_for_model=True, limits=limits)
    return choose_concurrency(read_machine_limits(), load)


def play_oracle(concurrency: int, count: int) -> float:
    """Episodes per second."""
    env, plan = load_env(load_spec("bfcl")), Plan(agent="oracle", limit=count)
    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    started = time.perf_counter()
    schedule = Schedule(concurrency=concurrency)
    asyncio.run(run_jobs(env, get_sandbox("bwrap"), SCRIPTED["oracle"], jobs, schedule, lambda done, last: None))
    return len(jobs) / (time.perf_counter() - started)


def play_remote(concurrency: int, count: int) -> float:
    """Episodes per second."""
    with run_policy(ANSWER_S) as server:
        started = time.perf_counter()
        play_rollouts(server.url, count, concurrency)
        return count / (time.perf_counter() - started)


def measure(
    what: str, choice: ConcurrencyChoice, fixed: Sequence[int], play: Callable[[int], float], rounds: int
) -> list[Result]:
    """Rates at the chosen number and at the fixed ones."""
    numbers = dict.fromkeys((*fixed, choice.episodes))
    play(DEFAULT_CONCURRENCY)  # makes what is made once
    rates: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(rounds):
        for number in numbers:
            rates[number].append(play(number))
    names = {n: f"{what}: {n} at a time{f' (chosen: {choice.limit.name})' * (n == choice.episodes)}" for n in numbers}
    medians = {names[number]: statistics.median(values) for number, values in rates.items()}
    return all_against(medians, "episodes/s", names[DEFAULT_CONCURRENCY])


if __name__ == "__main__":
    main()
