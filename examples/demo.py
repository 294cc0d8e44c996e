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
    "oracle": ("100 %", "replays the gold"),
    "mutated": ("0 %", "replays the gold less one necessary call"),
    "null": ("0 %", "does nothing"),
    "random": ("", "makes valid calls, drawn at random"),
}
"""Name -> (the score it must have, what it does)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the run folders")
    parser.add_argument("--limit", type=int, default=200, help="tasks per agent, evenly spread; 0: all 800")
    args = parser.parse_args()
    gymcp = Path(sys.executable).with_name("gymcp")
    out = args.out / time.strftime("%Y%m%d-%H%M%S")
    table = Table(title="BFCL multi-turn · MCP servers under bubblewrap", title_justify="left", header_style="bold")
    for heading in ("agent", "must be", "success", "95 % interval", "scored", "calls", "seconds"):
        table.add_column(heading, justify="left" if heading == "agent" else "right", no_wrap=True)
    for agent, (expected, _) in AGENTS.items():
        command = [gymcp, "eval", "bfcl", "--agent", agent, "--limit", str(args.limit), "--out", out / agent, "--json"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 3):
            sys.exit(done.returncode)
        summary = json.loads(done.stdout)
        low, high = summary["ci95"]
        table.add_row(
            agent,
            expected,
            f"{100 * summary['success']:.1f} %",
            f"{100 * low:.1f} – {100 * high:.1f}",
            f"{summary['scored']}/{summary['episodes']}",
            str(summary["tool_calls"]),
            f"{summary['wall_s']:.0f}",
        )
    console = Console()
    console.print(table)
    for agent, (_, does) in AGENTS.items():
        console.print(f"{agent:<8} {does:<42} {out / agent / 'report.html'}", soft_wrap=True, highlight=False)
    console.print("\nAll 800 tasks: .venv/bin/gymcp eval bfcl --agent oracle", highlight=False)


if __name__ == "__main__":
    main()
