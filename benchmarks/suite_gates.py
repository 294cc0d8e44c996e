"""The gates of every suite, as `gymcp suites --check --full` plays them, and the gold of all of tau2's full set."""

from __future__ import annotations

import sys
from pathlib import Path

from report_table import Result, options, show

from gymcp.agents.runs import Plan
from gymcp.cli.gates import gates_of, play
from gymcp.envs import catalog
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.sandbox import get_sandbox

TAU2_FULL = Path(__file__).parents[1] / "examples" / "tau2_full.py"


def main() -> None:
    args = options(__doc__, "4 tasks of each instead of all").parse_args()
    results: list[Result] = []
    faults: list[str] = []
    for name in catalog.names():
        env = load_env(catalog.load_spec(name))
        gates = gates_of(env, get_sandbox("bwrap"), limit=4 if args.quick else 0, concurrency=8)
        for agent, (passed, episodes) in gates.passed.items():
            results.append(Result(metric=f"{name}: {agent} passed", value=passed, unit=f"of {episodes}"))
        same, tasks = gates.digests
        results.append(Result(metric=f"{name}: digests the same every time", value=same, unit=f"of {tasks}"))
        results.append(Result(metric=f"{name}: time", value=gates.seconds, unit="s"))
        print(f"{name}: {gates.row()}", file=sys.stderr, flush=True)
        faults += [f"{name}: {fault}" for fault in gates.wrong]
    full = load_env(catalog.load_spec(str(TAU2_FULL)))
    played = play(full, get_sandbox("bwrap"), Plan(agent="oracle", limit=4 if args.quick else 0), concurrency=8)
    passed = sum(trajectory.score == 1.0 for trajectory in played)
    results.append(Result(metric="tau2, full set: oracle passed", value=passed, unit=f"of {len(played)}"))
    faults += [f"tau2, full set: {t.task}: {t.outcome}: {t.reason}" for t in played if t.score != 1.0]
    if args.json:
        show("suite_gates", results, as_json=True)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
