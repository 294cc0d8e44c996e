"""Driver of a run whose workers are stopped in mid-run, as a program: ``parked_node.py ADDRESS PIDS ENV TRIALS``.

PIDS are Ray's processes of the nodes, joined by commas. Prints the attempts as JSON: outcome, reason and whether it was
the job's last one.
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
from gymcp.scale.ray_calls import connect_ray
from gymcp.scale.ray_cluster import RayPool, RunToOpen

PARKED_S = 2.0
REOPEN_S = 1.0
STOP_AFTER = 10
"""Attempts after which the workers are stopped."""


def main() -> None:
    address, pids, env, trials = sys.argv[1:]
    prepared = prepare_run(EvalConfig(env=env, trials=int(trials), concurrency=2))
    run = RunToOpen(open_play=partial(open_play, prepared.config, None), config=prepared.recorded)
    attempts: list[tuple[str, str, bool]] = []

    def record(rollout: Rollout, last: bool) -> None:
        attempts.append((rollout.trajectory.outcome, rollout.trajectory.reason, last))
        if len(attempts) == STOP_AFTER:
            for child in (child for pid in pids.split(",") for child in descendants(int(pid))):
                if b"_Actor" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(child, signal.SIGSTOP)

    with connect_ray(address):
        pool = RayPool(run, parked_s=PARKED_S, reopen_s=REOPEN_S)
        asyncio.run(pool.open_first())
        settings = DistributionSettings(env=prepared.env.spec.name, concurrency=2)
        jobs = make_jobs(prepared.plan, prepared.tasks)
        asyncio.run(distribute(pool, jobs, record, RunBudget(), settings))
    print(json.dumps(attempts))


if __name__ == "__main__":
    main()
