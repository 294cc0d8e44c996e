"""The gates of BFCL over all 800 tasks: oracle 800, null 0, mutated 0; twice in one process, then 16 interleaved.

Exit code 1 if a score is not as it must be, or a reset is not clean.
"""

from __future__ import annotations

import sys
import time

from report_table import Result, options, show

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, run_until_signalled, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.mcp_servers.sandbox import get_sandbox

EXPECTED = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}
ROUNDS = (("first", 8), ("again", 8), ("interleaved", 16))


def main() -> None:
    args = options(__doc__, "80 tasks instead of 800").parse_args()
    env = load_env(load_spec("bfcl"))
    results, wrong, first_keys = [], 0, dict[str, str]()
    for name, concurrency in ROUNDS:
        for agent, score in EXPECTED.items():
            started = time.perf_counter()
            ended = _play(env, agent, concurrency, 80 if args.quick else 0)
            seconds = time.perf_counter() - started
            right = sum(rollout.trajectory.score == score for rollout in ended)
            dirty = sum(
                first_keys.setdefault(r.trajectory.task, r.trajectory.initial_key) != r.trajectory.initial_key
                for r in ended
            )
            wrong += len(ended) - right + dirty
            passed = sum(rollout.trajectory.score == 1.0 for rollout in ended)
            line = f"{agent} {name} (concurrency {concurrency})"
            results += [
                Result(metric=f"{line}: passed", value=passed, unit=f"of {len(ended)}"),
                Result(metric=f"{line}: unclean resets", value=dirty, unit=f"of {len(ended)}"),
                Result(metric=f"{line}: time", value=seconds, unit="s"),
            ]
            print(f"{line}: {passed}/{len(ended)}, {dirty} unclean, {seconds:.0f} s", file=sys.stderr, flush=True)
    if args.json:
        show("bfcl_gates", results, as_json=True)
    sys.exit(1 if wrong else 0)


def _play(env: LoadedEnv, agent: str, concurrency: int, limit: int) -> list[Rollout]:
    plan = Plan(agent=agent, limit=limit)
    ended: list[Rollout] = []

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended.append(rollout)

    jobs = make_jobs(plan, select_tasks(env.suite, plan))
    work = run_jobs(env, get_sandbox("bwrap"), SCRIPTED[agent], jobs, Schedule(concurrency=concurrency), note)
    if not run_until_signalled(work):
        sys.exit(130)
    return ended


if __name__ == "__main__":
    main()
