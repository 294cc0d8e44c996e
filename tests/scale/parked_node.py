"""Driver of a run whose node is stopped in mid-run, as a program: ``parked_node.py ADDRESS PID ENV TRIALS``.

PID is Ray's process of the node. Prints the attempts as JSON: outcome, reason and whether it was the job's last one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from ray_nodes import descendants

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import make_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.cluster.node import open_play
from gymcp.cli.evaluation.eval_run import prepare_run
from gymcp.scale.distribution import DistributionSettings, distribute
from gymcp.scale.ray_cluster import RayPool, RunToOpen, connect_ray

PARKED_S = 2.0
STOP_AFTER = 10
"""Attempts after which the worker is stopped."""


def main() -> None:
    address, pid, env, trials = sys.argv[1:]
    prepared = prepare_run(EvalConfig(env=env, trials=int(trials), concurrency=2))
    run = RunToOpen(open_play=partial(open_play, prepared.config, Path.cwd()), config=prepared.recorded)
    attempts: list[tuple[str, str, bool]] = []

    def record(rollout: Rollout, last: bool) -> None:
        attempts.append((rollout.trajectory.outcome, rollout.trajectory.reason, last))
        if len(attempts) == STOP_AFTER:
            for child in descendants(int(pid)):
                os.kill(child, signal.SIGSTOP)

    with connect_ray(address):
        pool = RayPool(run, parked_s=PARKED_S)
        asyncio.run(pool.open_first())
        settings = DistributionSettings(env=prepared.env.spec.name, concurrency=2)
        jobs = make_jobs(prepared.plan, prepared.tasks)
        asyncio.run(distribute(pool, jobs, record, RunBudget(), settings))
    print(json.dumps(attempts))


if __name__ == "__main__":
    main()
