"""Servers that break in every way we know: the episode ends as it must, says why, and takes no other with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import pytest
from chaos import TOKEN, with_token
from faults import AT_START, FINE, NO_FAULT, SANDBOX, StartPath, difference, ends, environment
from leftovers import find_marked

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.docker.pool import Pool
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.outcome import Outcome
from gymcp.process_owner import owner
from gymcp.types import Trajectory

HANGS_AT_START = tuple(name for name, end in AT_START.items() if end.outcome is Outcome.TIMEOUT)
IN_DOCKER = (
    "dies in a call",
    "hangs",
    "answers garbage",
    "answers 100 MB",
    "leaves a child behind",
    "dies and leaves a child",
)
"""A container costs a third of a second; `benchmarks/chaos.py --start-path docker` tries every fault."""
FAULTS_PER_HEALTHY = 4
"""Number of faults beside each healthy episode; in `benchmarks/chaos.py` there are nine healthy ones for each fault."""


def play_faults(start_path: StartPath, faults: Sequence[str], token: str) -> dict[str, Trajectory]:
    """Each fault, with a healthy episode after every fourth, at the same time, by task."""
    in_calls = [fault for fault in faults if fault not in HANGS_AT_START]
    played = {*faults, *(f"{NO_FAULT}-{fault}-0" for fault in in_calls[::FAULTS_PER_HEALTHY])}
    envs = [environment(start_path, in_calls, healthy=1)]
    if start_path == "files":
        envs.append(environment(start_path, HANGS_AT_START, start_timeout_s=12.0))
    schedule = Schedule(concurrency=16, max_attempts=1, harness_timeout_s=120.0)
    ended: dict[str, Trajectory] = {}
    pool = Pool()  # its own: the process's keeps spares for a minute
    sandbox = Docker(pool=pool) if start_path == "docker" else get_sandbox(SANDBOX[start_path])

    def note(done: Rollout, last: bool) -> None:
        ended[done.job.task.id] = done.trajectory

    async def main() -> None:
        await asyncio.gather(
            *(
                run_jobs(
                    with_token(env, token),
                    sandbox,
                    SCRIPTED["oracle"],
                    [Job(task=task, trial=0, seed=1) for task in env.suite.tasks if task.id in played],
                    schedule,
                    note,
                )
                for env in envs
            )
        )

    try:
        asyncio.run(main())
    finally:
        pool.close()
    return ended


def find_cgroups(start_path: StartPath) -> set[str]:
    """The cgroups of this process: those of its servers, and of a suite's grader that other tests have started."""
    return {thing for thing in find_marked(owner(), SANDBOX[start_path]) if thing.startswith("cgroup")}


@pytest.mark.parametrize("start_path", get_args(StartPath))
def test_an_episode_with_a_broken_server_has_its_expected_end_and_takes_no_other_with_it(
    start_path: StartPath,
    require: Callable[[str], None],
    subtests: pytest.Subtests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outcome and score of an episode, and a reason that names server, stage and the server's last words."""
    require(SANDBOX[start_path])
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))  # holds baselines and seeds
    must = {fault: end for fault, end in ends(start_path).items() if start_path != "docker" or fault in IN_DOCKER}
    token = f"test-{start_path}-{os.getpid()}"
    before = find_cgroups(start_path)
    ended = play_faults(start_path, list(must), token)
    for fault, end in must.items():
        with subtests.test(f"a server that {fault}: {end.outcome} with {end.score}"):
            assert difference(ended.pop(fault), end, fault) is None
    with subtests.test("other episodes go on"):
        others = [wrong for task, end in ended.items() if (wrong := difference(end, FINE, task))]
        in_calls = len([fault for fault in must if fault not in HANGS_AT_START])
        assert (len(ended), others) == (-(-in_calls // FAULTS_PER_HEALTHY), [])
    with subtests.test("nothing is left"):
        assert find_by_environment(TOKEN, token) == ()
        assert find_cgroups(start_path) <= before
