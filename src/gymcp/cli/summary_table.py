"""The summary of a run as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from gymcp.cli.output import console, in_one_line
from gymcp.envs.episodes.usage import WITHOUT_NETWORK
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
    if judge := summary.get("judge", {}).get("grader"):
        tokens = f"{judge['prompt_tokens']:,} tokens read, {judge['completion_tokens']:,} written by the judge"
        cost = f" · cost {judge['cost']:.4f}" if judge["cost"] else ""
        console.print(f"judge: {judge['words']} · {tokens}{cost}", highlight=False, markup=False)
    for name, reason in summary.get("lost", {}).items():
        console.print(in_one_line(f"first {name}: {reason}"), highlight=False, markup=False, soft_wrap=True)
    if line := network_line(summary.get("tools", {})):
        console.print(in_one_line(line), highlight=False, markup=False, soft_wrap=True, style="yellow")
    for name, value in summary.get("components", {}).items():
        console.print(f"{name}: {value:.3f}")
    console.print(f"run: {summary['run']}   report: {summary['run']}/report.html", soft_wrap=True)


def network_line(tools: Mapping[str, Mapping[str, float]]) -> str:
    """Line on the calls that failed for want of network; empty if none did."""
    failed = {name: int(figures.get(WITHOUT_NETWORK, 0)) for name, figures in tools.items()}
    names = ", ".join(f"{name} {count}" for name, count in failed.items() if count)
    if not names:
        return ""
    return (
        f"{sum(failed.values())} calls failed for want of network, which a server has only with network=True in its"
        f" ServerSpec: {names}"
    )


def time_line(summary: Mapping[str, Json]) -> str:
    """Line with the shares of the episodes' time, and with the average load of policy and tools."""
    used = summary["utilisation"]
    shares = ", ".join(f"{name} {100 * used[f'{name}_share']:.0f} %" for name in summary["seconds"])
    line = f"time: {shares}"
    if used["policy_requests"] is not None:
        line += f" · under way on average: {used['policy_requests']:g} decisions, {used['tool_calls']:g} tool calls"
    return line


def _figures(part: Mapping[str, Json]) -> tuple[str, str, str]:
    success, interval = part["success"], part["ci95"]
    return (
        "-" if success is None else f"{100 * success:.1f} %",
        "-" if interval is None else f"{100 * interval[0]:.1f} – {100 * interval[1]:.1f}",
        f"{part['scored']}/{part['episodes']}",
    )
