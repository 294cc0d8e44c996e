"""The gates of every suite of the catalog, as `gymcp suites --check --full` plays them."""

from __future__ import annotations

import sys

from report_table import Result, options, show

from gymcp.cli.gates import gates_of
from gymcp.envs import catalog
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.sandbox import get_sandbox


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
    if args.json:
        show("suite_gates", results, as_json=True)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
