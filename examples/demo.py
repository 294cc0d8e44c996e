"""`make demo`: BFCL multi-turn, a third-party suite of 800 tasks, benchmarked under bubblewrap with agents whose scores
are known in advance, and one whose score is not."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

AGENTS = {
    "oracle": (1.0, "replays the gold"),
    "mutated": (0.0, "replays the gold less one necessary call"),
    "null": (0.0, "does nothing"),
    "random": (None, "makes valid calls, drawn at random"),
}
"""Name -> (the success it must have, or None; what it does)."""


def main() -> None:
    """Exits with 1 where an agent's success is not what it must be, or an episode was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the run folders")
    parser.add_argument("--limit", type=int, default=200, help="tasks per agent, evenly spread; 0: all 800")
    args = parser.parse_args()
    gymcp = Path(sys.executable).with_name("gymcp")
    out = args.out / time.strftime("%Y%m%d-%H%M%S")
    table = Table(title="BFCL multi-turn · MCP servers under bubblewrap", title_justify="left", header_style="bold")
    for heading in ("agent", "must be", "success", "95 % interval", "scored", "calls", "seconds"):
        table.add_column(heading, justify="left" if heading == "agent" else "right", no_wrap=True)
    wrong = []
    for agent, (expected, _) in AGENTS.items():
        command = [gymcp, "eval", "bfcl", "--agent", agent, "--limit", str(args.limit), "--out", out / agent, "--json"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 3):
            sys.exit(done.returncode)
        summary = json.loads(done.stdout)
        if summary["scored"] < summary["episodes"] or expected not in (None, summary["success"]):
            wrong.append(agent)
        table.add_row(
            agent,
            percent(expected),
            percent(summary["success"]),
            " – ".join(f"{100 * bound:.1f}" for bound in summary["ci95"] or ()),
            f"{summary['scored']}/{summary['episodes']}",
            str(summary["tool_calls"]),
            f"{summary['wall_s']:.0f}",
        )
    console = Console()
    console.print(table)
    for agent, (_, does) in AGENTS.items():
        console.print(f"{agent:<8} {does:<42} {out / agent / 'report.html'}", soft_wrap=True, highlight=False)
    console.print("\nAll 800 tasks: .venv/bin/gymcp eval bfcl --agent oracle", highlight=False)
    if wrong:
        sys.exit(f"not as it must be: {', '.join(wrong)}")


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
