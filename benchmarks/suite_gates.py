"""The gates of every suite, as `gymcp suites --check --full` plays them, and the gold of all of tau2's full set.

The result of a suite that passes is stored under --out, so that a run that was killed can be started again at the same
revision without playing it again. When all suites have passed, the stored results are removed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from report_table import Result, options, show

from gymcp.agents.runner.run import Plan
from gymcp.atomic import write_atomically
from gymcp.cli.evaluation.gates import play, play_gates
from gymcp.envs import catalog
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store.run_folder import git_revision
from gymcp.types import Json

ROOT = Path(__file__).parents[1]
TAU2_FULL = ROOT / "examples" / "tau2_full.py"
CONCURRENCY = 8
"""Episodes at the same time: beyond two per core the rate grows little (`env_throughput`); nothing else should run."""


def main() -> None:
    parser = options(__doc__, "4 tasks of each instead of all")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "runs" / "suite_gates",
        help="folder for the results of suites that have passed",
    )
    args = parser.parse_args()
    limit = 4 if args.quick else 0
    work: dict[str, Callable[[], dict[str, Json]]] = {name: partial(_gates, name, limit) for name in catalog.names()}
    work["tau2, full set"] = partial(_tau2_full, limit)
    mark = f"{git_revision(ROOT)} {limit}"
    results: list[Result] = []
    faults: list[str] = []
    began = time.perf_counter()
    for number, (name, run) in enumerate(work.items(), 1):
        row = _load_or_run(args.out / f"{name}.json", mark, run)
        for agent, (passed, episodes) in row["passed"].items():
            results.append(Result(metric=f"{name}: {agent} passed", value=passed, unit=f"of {episodes}"))
        if "digests" in row:
            same, tasks = row["digests"]
            results.append(Result(metric=f"{name}: digests the same every time", value=same, unit=f"of {tasks}"))
        results.append(Result(metric=f"{name}: time", value=row["seconds"], unit="s"))
        faults += [f"{name}: {fault}" for fault in row["wrong"]]
        line = f"{number}/{len(work)} after {time.perf_counter() - began:.0f} s: {name}: {row}"
        print(line, file=sys.stderr, flush=True)
    if args.json:
        show("suite_gates", results, as_json=True)
    if faults:
        sys.exit("\n".join(faults))
    shutil.rmtree(args.out)


def _load_or_run(path: Path, mark: str, run: Callable[[], dict[str, Json]]) -> dict[str, Json]:
    """The row that is stored with this mark; else that of a new run, which is stored if nothing is wrong."""
    if path.is_file():
        stored: dict[str, Json] = json.loads(path.read_text())
        if stored["mark"] == mark:
            return dict(stored["row"])
    row = run()
    if not row["wrong"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"mark": mark, "row": row}).encode())
    return row


def _gates(name: str, limit: int) -> dict[str, Json]:
    return play_gates(
        load_env(catalog.load_spec(name)), get_sandbox("bwrap"), limit=limit, concurrency=CONCURRENCY
    ).to_json()


def _tau2_full(limit: int) -> dict[str, Json]:
    started = time.perf_counter()
    full = load_env(catalog.load_spec(str(TAU2_FULL)))
    played = play(full, get_sandbox("bwrap"), Plan(agent="oracle", limit=limit), CONCURRENCY)
    return {
        "passed": {"oracle": [sum(t.score == 1.0 for t in played), len(played)]},
        "seconds": round(time.perf_counter() - started, 1),
        "wrong": [f"{t.task}: {t.outcome}: {t.reason}" for t in played if t.score != 1.0],
    }


if __name__ == "__main__":
    main()
