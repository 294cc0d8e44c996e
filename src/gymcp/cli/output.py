"""How results are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from gymcp.evaluators.report.html import visible
from gymcp.types import Json

console = Console()

MAX_LINE = 400
"""Characters of one line that others have written."""


def print_json(value: Json) -> None:
    """One JSON object on one line of standard output, and nothing else there."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_summary(summary: Mapping[str, Json]) -> None:
    """The headline with its interval and coverage, the breakdown, and where the run lies."""
    table = Table(title=f"{summary['env']} · {summary['agent']}", title_justify="left", header_style="bold")
    table.add_column("")
    for heading in ("success", "95 % interval", "scored"):
        table.add_column(heading, justify="right")
    table.add_row("all", *_figures(summary), style="bold")
    for part in summary.get("breakdown", ()):
        table.add_row(part["tag"], *_figures(part))
    console.print(table)
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items())
    took = f"{summary['wall_s']:.0f} s"
    if summary["attempts"] > summary["episodes"]:
        took += f" in {summary['attempts']} attempts at {summary['episodes']} episodes"
    console.print(f"{outcomes or 'nothing was run'} · {summary['tool_calls']} tool calls · {took}")
    if summary.get("models"):
        tokens = f"{summary['prompt_tokens']:,} tokens read, {summary['completion_tokens']:,} written"
        console.print(f"{tokens} · cost {summary['cost']:.4f}" if summary["cost"] else tokens, highlight=False)
    if any(summary.get("seconds", {}).values()):
        console.print(time_line(summary), highlight=False)
    for name, reason in summary.get("lost", {}).items():
        console.print(in_one_line(f"first {name}: {reason}"), highlight=False, markup=False, soft_wrap=True)
    for name, value in summary.get("components", {}).items():
        console.print(f"{name}: {value:.3f}")
    console.print(f"run: {summary['run']}   report: {summary['run']}/report.html", soft_wrap=True)


def time_line(summary: Mapping[str, Json]) -> str:
    """Where the episodes' time went, and how busy policy and tools were."""
    used = summary["utilisation"]
    shares = ", ".join(f"{name} {100 * used[f'{name}_share']:.0f} %" for name in summary["seconds"])
    line = f"time: {shares}"
    if used["policy_requests"] is not None:
        line += f" · under way on average: {used['policy_requests']:g} decisions, {used['tool_calls']:g} tool calls"
    return line


def in_one_line(text: str) -> str:
    """What a server or an agent may have written, as one line that acts on no terminal."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} [...]"


def _figures(part: Mapping[str, Json]) -> tuple[str, str, str]:
    success, interval = part["success"], part["ci95"]
    return (
        "-" if success is None else f"{100 * success:.1f} %",
        "-" if interval is None else f"{100 * interval[0]:.1f} – {100 * interval[1]:.1f}",
        f"{part['scored']}/{part['episodes']}",
    )
