"""The program of `make demo`, in three parts.

BFCL multi-turn, a third-party suite of 800 tasks, is benchmarked under bubblewrap with agents whose scores are known in
advance, and one whose score is not. Then `tiny`, the policy that the package ships, plays `backoffice`. Then a smaller
policy is trained there, from random weights, while you watch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

AGENTS = {
    "oracle": (1.0, "replays the gold"),
    "mutated": (0.0, "replays the gold less one necessary call"),
    "null": (0.0, "does nothing"),
    "random": (None, "makes valid calls, drawn at random"),
}
"""By name, the success that the agent must have, or None, and a description of what it does."""
GYMCP = Path(sys.executable).with_name("gymcp")
CONSOLE = Console()
TINY = ("--agent", "react", "--policy", "tiny", "--temperature", "0", "--max-tokens", "32")
RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"


def main() -> None:
    """Run the parts. Exits with 1 if an agent's success is not what it must be, or an episode was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the run folders")
    parser.add_argument("--only", choices=("bfcl", "tiny", "train"), help="run only this part")
    parser.add_argument("--limit", type=int, default=200, help="tasks per agent, evenly spread; 0: all 800")
    args = parser.parse_args()
    out = args.out / time.strftime("%Y%m%d-%H%M%S")
    wrong = bfcl(out, args.limit) if args.only in (None, "bfcl") else []
    if args.only in (None, "tiny"):
        wrong += tiny(out)
    if args.only in (None, "train"):
        train(out)
    if wrong:
        sys.exit(f"not as it must be: {', '.join(wrong)}")


def bfcl(out: Path, limit: int) -> list[str]:
    """Run the agents and print the table; the result is the agents whose success is not what it must be."""
    table = a_table("BFCL multi-turn · MCP servers under bubblewrap")
    wrong = []
    for agent, (expected, _) in AGENTS.items():
        summary = evaluate("bfcl", "--agent", agent, "--limit", limit, "--out", out / agent)
        if summary["scored"] < summary["episodes"] or expected not in (None, summary["success"]):
            wrong.append(agent)
        table.add_row(agent, percent(expected), *cells(summary))
    CONSOLE.print(table)
    for agent, (_, does) in AGENTS.items():
        CONSOLE.print(f"{agent:<8} {does:<42} {out / agent / 'report.html'}", soft_wrap=True, highlight=False)
    CONSOLE.print("\nAll 800 tasks: .venv/bin/gymcp eval bfcl --agent oracle\n", highlight=False)
    return wrong


def tiny(out: Path) -> list[str]:
    """Run `tiny` and the oracle on new companies; the result is the runs whose success is not what it must be."""
    table = a_table("backoffice, new companies · tiny: 0.9 million weights, recipes/tiny.toml")
    wrong = []
    for level in (1, 2):
        for name, options, expected in (("oracle", ("--agent", "oracle"), 1.0), ("tiny", TINY, None)):
            folder = out / f"{name}-level-{level}"
            summary = evaluate("backoffice", *options, "--tasks", f"seeds-*-{level}-*", "--out", folder)
            if summary["scored"] < summary["episodes"] or expected not in (None, summary["success"]):
                wrong.append(f"{name}, level {level}")
            table.add_row(f"{name}, level {level}", percent(expected), *cells(summary))
    CONSOLE.print(table)
    CONSOLE.print(f"every step of it: {out / 'tiny-level-2' / 'report.html'}\n", soft_wrap=True, highlight=False)
    return wrong


def train(out: Path) -> None:
    """Train from random weights, on some of the oracle's episodes first; end with the learning curve."""
    CONSOLE.print(
        "A smaller one, from random weights: it is shown some of level 1, then it practises, three minutes in all",
        style="bold",
        soft_wrap=True,
    )
    done = subprocess.run([GYMCP, "train", RECIPE, "--out", out / "train"], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    subprocess.run([GYMCP, "report", out / "train"], check=True, stdout=subprocess.DEVNULL)
    CONSOLE.print(
        f"its report, with the learning curve: {out / 'train' / 'report.html'}", soft_wrap=True, highlight=False
    )


def evaluate(*words: object) -> dict[str, Any]:
    """The summary of one `gymcp eval`."""
    command = [GYMCP, "eval", *words, "--json"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(done.returncode)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def a_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("agent", "must be", "success", "95 % interval", "scored", "calls", "s"):
        table.add_column(heading, justify="left" if heading == "agent" else "right", no_wrap=True)
    return table


def cells(summary: dict[str, Any]) -> tuple[str, ...]:
    return (
        percent(summary["success"]),
        " – ".join(f"{100 * bound:.1f}" for bound in summary["ci95"] or ()),
        f"{summary['scored']}/{summary['episodes']}",
        str(summary["tool_calls"]),
        f"{summary['wall_s']:.0f}",
    )


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
