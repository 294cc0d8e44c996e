"""The summary of a run as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from gymcp.cli.output import console, in_one_line
from gymcp.evaluators.names import label_of_part
from gymcp.types import Json


def print_summary(summary: Mapping[str, Json]) -> None:
    """Print the success with its interval and coverage, the breakdown, and the path of the run."""
    table = Table(title=f"{summary['env']} · {summary['agent']}", title_justify="left", header_style="bold")
    table.add_column("")
    for heading in ("success", "95 % interval", "scored"):
        table.add_column(heading, justify="right")
    table.add_row("all", *_figures(summary), style="bold")
    for part in summary.get("breakdown", ()):
        table.add_row(label_of_part(part["axis"], part["tag"]), *_figures(part))
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
    """Line with the shares of the episodes' time, and with the average load of policy and tools."""
    used = summary["utilisation"]
    shares = ", ".join(f"{name} {100 * used[f'{name}_share']:.0f} %" for name in summary["seconds"])
    line = f"time: {shares}"
    if used["policy_requests"] is not None:
        decisions, calls = used["policy_requests"], used["tool_calls"]
        line += f" · at the same time, on average: {decisions:g} answers of the model, {calls:g} tool calls"
    return line


def _figures(part: Mapping[str, Json]) -> tuple[str, str, str]:
    success, interval = part["success"], part["ci95"]
    return (
        "-" if success is None else f"{100 * success:.1f} %",
        "-" if interval is None else f"{100 * interval[0]:.1f} – {100 * interval[1]:.1f}",
        f"{part['scored']}/{part['episodes']}",
    )
