"""BFCL's recorded runs graded again: episodes a second, and the number of verdicts that differ from the recorded ones.

Verdicts are compared to the last bit. Exit code 1 if one differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from report_table import Result, against, options, show

from gymcp.agents.runner.regrading import regrade
from gymcp.agents.runner.run import Plan, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.metrics import examine, measure
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.types import Json, Trajectory

T = TypeVar("T")

AGENTS = ("oracle", "null", "mutated", "random")
TASKS = 400
ROUNDS = 3
SCHEDULE = Schedule(concurrency=8)


def main() -> None:
    args = options(__doc__, "40 tasks instead of 400").parse_args()
    env = load_env(load_spec("bfcl"))
    results, changed = [], 0
    with tempfile.TemporaryDirectory(prefix="gymcp-grading-") as folder:
        for agent in AGENTS:
            print(f"playing {agent}", file=sys.stderr, flush=True)
            with TrajectoryStore.open(Path(folder), write=True) as store:
                plan = Plan(agent=agent, limit=40 if args.quick else TASKS)
                run_plan(env, get_sandbox("bwrap"), plan, store, SCHEDULE)
                of_agent, differ = _grade_again(env, agent, store)
            results += of_agent
            changed += differ
            for file in Path(folder).iterdir():
                file.unlink()
    results.append(Result(metric="verdicts that differ", value=changed, unit="episodes"))
    show("grading", results, as_json=args.json, title="BFCL's recorded runs, graded again")
    sys.exit(1 if changed else 0)


def _grade_again(env: LoadedEnv, agent: str, store: TrajectoryStore) -> tuple[list[Result], int]:
    tasks = {task.id: task for task in env.suite.tasks}
    rows = store.summaries()
    episodes, read_s = _fastest(lambda: [store.load(row.id) for row in rows])
    states = {ref: store.state(ref) for episode in episodes for ref in _refs(episode)}

    def state(ref: str) -> Json:
        return states[ref]

    graded, grade_s = _fastest(
        lambda: [apply_grader(env.spec.grade, tasks[episode.task], episode, state) for episode in episodes]
    )
    examined, examine_s = _fastest(lambda: {episode.id: examine(episode, tasks[episode.task]) for episode in episodes})
    _, measure_s = _fastest(lambda: measure(rows, examined))
    _, again_s = _fastest(lambda: list(regrade(env, store, rows)), rounds=1)
    changed = sum(one != other for one, other in zip(graded, episodes, strict=True))
    changed += sum(
        (old.score, old.components, old.reason) != (new.score, new.components, new.reason)
        for old, new in zip(rows, store.summaries(), strict=True)
    )
    read = Result(metric=f"{agent}: read from the store", value=len(rows) / read_s, unit="episodes/s")
    return [
        read,
        against(f"{agent}: graded", len(rows) / grade_s, "episodes/s", read),
        against(f"{agent}: calls examined", len(rows) / examine_s, "episodes/s", read),
        against(f"{agent}: measured", len(rows) / measure_s, "episodes/s", read),
        against(f"{agent}: read, graded, written", len(rows) / again_s, "episodes/s", read),
    ], changed


def _refs(episode: Trajectory) -> set[str]:
    return {step.state_ref for step in episode.steps if step.state_ref is not None}


def _fastest(work: Callable[[], T], rounds: int = ROUNDS) -> tuple[T, float]:
    """The result of the work, and the CPU seconds of its fastest round."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        result = work()
        best = min(best, time.process_time() - started)
    return result, best


if __name__ == "__main__":
    main()
