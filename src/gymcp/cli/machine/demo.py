"""``gymcp demo``: what gymcp does, in three parts.

BFCL multi-turn, a third-party suite of 800 tasks, is benchmarked under bubblewrap with agents whose scores are known in
advance, and one whose score is not. Then `tiny`, the policy that the package ships, plays `backoffice`. Then a smaller
policy is trained there, from random weights, while you watch.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from gymcp.cli.machine.commands import Part
from gymcp.cli.output import console
from gymcp.errors import ConfigError
from gymcp.trainers import recipe as recipes

AGENTS = {
    "oracle": (1.0, "replays the gold"),
    "mutated": (0.0, "replays the gold less one necessary call"),
    "null": (0.0, "does nothing"),
    "random": (None, "makes valid calls, drawn at random"),
}
"""By name, the success that the agent must have, or None, and a description of what it does."""
GYMCP = (sys.executable, "-m", "gymcp.cli")
TINY = ("--agent", "react", "--policy", "tiny", "--temperature", "0", "--max-tokens", "32")
RECIPE = Path(str(recipes.__file__)).with_name("demo.toml")
TRAIN_PACKAGE = "torch"
"""Package of the extra `train` without which no policy of this process works."""


def execute(*, out: Path, only: Part | None, limit: int) -> None:
    """Play the parts of the demo. Exit code 1 if a success is not what it must be, or an episode was lost."""
    folder = out / time.strftime("%Y%m%d-%H%M%S")
    parts = list(Part) if only is None else [only]
    if importlib.util.find_spec(TRAIN_PACKAGE) is None:
        parts = _leave_out_policies(parts, only)
    wrong = []
    if Part.BFCL in parts:
        wrong += play_bfcl(folder, limit)
    if Part.TINY in parts:
        wrong += play_tiny(folder)
    if Part.TRAIN in parts:
        train(folder)
    if wrong:
        print(f"gymcp: demo: not as it must be: {', '.join(wrong)}", file=sys.stderr)
        raise typer.Exit(1)


def _leave_out_policies(parts: list[Part], only: Part | None) -> list[Part]:
    """The parts that run without the extra `train`. Raises ConfigError if the one that was asked for does not."""
    reason = "need the extra `train`: pip install 'gymcp[train]'"
    if only in (Part.TINY, Part.TRAIN):
        raise ConfigError(f"demo: the parts tiny and train {reason}")
    console.print(f"The parts tiny and train are left out: they {reason}\n", soft_wrap=True, highlight=False)
    return [Part.BFCL]


def play_bfcl(out: Path, limit: int) -> list[str]:
    """Run the agents and print the table; the result is the agents whose success is not what it must be."""
    table = make_table("BFCL multi-turn · MCP servers under bubblewrap")
    wrong = []
    for agent, (expected, _) in AGENTS.items():
        summary = evaluate("bfcl", "--agent", agent, "--limit", limit, "--out", out / agent)
        if summary["scored"] < summary["episodes"] or expected not in (None, summary["success"]):
            wrong.append(agent)
        table.add_row(agent, format_percent(expected), *format_cells(summary))
    console.print(table)
    for agent, (_, does) in AGENTS.items():
        console.print(f"{agent:<8} {does:<42} {out / agent / 'report.html'}", soft_wrap=True, highlight=False)
    console.print("\nAll 800 tasks: gymcp eval bfcl --agent oracle\n", highlight=False)
    return wrong


def play_tiny(out: Path) -> list[str]:
    """Run `tiny` and the oracle on new companies; the result is the runs whose success is not what it must be."""
    table = make_table("backoffice, new companies · tiny: 0.9 million weights, recipes/tiny.toml")
    wrong = []
    for level in (1, 2):
        for name, options, expected in (("oracle", ("--agent", "oracle"), 1.0), ("tiny", TINY, None)):
            folder = out / f"{name}-level-{level}"
            summary = evaluate("backoffice", *options, "--tasks", f"seeds-*-{level}-*", "--out", folder)
            if summary["scored"] < summary["episodes"] or expected not in (None, summary["success"]):
                wrong.append(f"{name}, level {level}")
            table.add_row(f"{name}, level {level}", format_percent(expected), *format_cells(summary))
    console.print(table)
    console.print(f"every step of it: {out / 'tiny-level-2' / 'report.html'}\n", soft_wrap=True, highlight=False)
    return wrong


def train(out: Path) -> None:
    """Train from random weights, on some of the oracle's episodes first; end with the learning curve."""
    console.print(
        "A smaller one, from random weights: it is shown some of level 1, then it practises, three minutes in all",
        style="bold",
        soft_wrap=True,
    )
    done = subprocess.run([*GYMCP, "train", str(RECIPE), "--out", str(out / "train")], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
    subprocess.run([*GYMCP, "report", str(out / "train")], check=True, stdout=subprocess.DEVNULL)
    console.print(
        f"its report, with the learning curve: {out / 'train' / 'report.html'}", soft_wrap=True, highlight=False
    )


def evaluate(*words: object) -> dict[str, Any]:
    """The summary of one `gymcp eval`. Ends the demo with its exit code if it fails."""
    command = [*GYMCP, "eval", *words, "--json"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise typer.Exit(done.returncode)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def make_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("agent", "must be", "success", "95 % interval", "scored", "calls", "s"):
        table.add_column(heading, justify="left" if heading == "agent" else "right", no_wrap=True)
    return table


def format_cells(summary: dict[str, Any]) -> tuple[str, ...]:
    return (
        format_percent(summary["success"]),
        " – ".join(f"{100 * bound:.1f}" for bound in summary["ci95"] or ()),
        f"{summary['scored']}/{summary['episodes']}",
        str(summary["tool_calls"]),
        f"{summary['wall_s']:.0f}",
    )


def format_percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
