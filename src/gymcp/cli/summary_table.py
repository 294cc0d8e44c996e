"""The summary of a run as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rich.table import Table

from gymcp.cli.output import console, in_one_line
from gymcp.evaluators.names import LOSS_NOTE, NET_OF_PRICE, WITHOUT_NETWORK, label_of_part
from gymcp.evaluators.percent import format_bounds, format_percent
from gymcp.types import Json


def print_suites(report: Mapping[str, Json]) -> None:
    """Print a table for each suite of a report on several runs: every run's success with its interval and coverage.

    `report` is the object of `Report.object`. Training runs have a table of their own, with success on held-out tasks.
    """
    if trained := [run for run in report["runs"] if "held_out" in run]:
        _print_trainings(trained)
    runs = {run["name"]: run for run in report["runs"]}
    for suite in report["suites"]:
        table = _figures_table(suite["name"])
        nets = {name: runs[name].get("components", {}).get(NET_OF_PRICE) for name in suite["runs"]}
        has_prices = any(net is not None for net in nets.values())
        if has_prices:
            table.add_column("net of price", justify="right")
        for name in suite["runs"]:
            summary = runs[name]
            figures = _bounds(summary) if summary.get("refused") else _figures(summary)
            net = None if summary.get("refused") else nets[name]
            table.add_row(name, *figures, *([_percent(net)] if has_prices else []))
        console.print(table)


def _print_trainings(runs: Sequence[Mapping[str, Json]]) -> None:
    """Print a row for each training run: its last held-out success on the split that it evaluated most often."""
    table = Table(title="training runs, on held-out tasks", title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column("split")
    for heading in ("iteration", "success", "95 % interval", "scored", "change, points"):
        table.add_column(heading, justify="right")
    for run in runs:
        if not run["held_out"]:
            table.add_row(run["name"], "none yet", *"-----")
            continue
        held = run["held_out"][0]
        moved = "-" if held["first"] is None or held["refused"] else _points_since_first(held)
        table.add_row(run["name"], held["split"], str(held["iteration"]), *_held_out_figures(held), moved)
    console.print(table)


def _figures_table(title: str) -> Table:
    """Table without rows: a name, then the columns of `_figures`."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    for heading in ("success", "95 % interval", "scored"):
        table.add_column(heading, justify="right")
    return table


def print_summary(summary: Mapping[str, Json]) -> None:
    """Print the success with its interval and coverage, the breakdown, and the path of the run."""
    table = _figures_table(f"{summary['env']} · {summary['agent']}")
    _add_rows(table, summary)
    console.print(table)
    for line in training_lines(summary.get("held_out")):
        console.print(in_one_line(line), highlight=False, markup=False, soft_wrap=True)
    for line in caveat_lines(summary):
        console.print(in_one_line(line), highlight=False, markup=False, soft_wrap=True, style="yellow")
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items())
    took = f"{summary['wall_s']:.0f} s"
    if summary["attempts"] > summary["episodes"]:
        took += f" in {summary['attempts']} attempts at {summary['episodes']} episodes"
    console.print(f"{outcomes or 'nothing was run'} · {summary['tool_calls']} tool calls · {took}")
    for line in trial_lines(summary):
        console.print(line, highlight=False)
    if trees := summary.get("trees"):
        console.print(in_one_line(trees_line(trees)), highlight=False, markup=False, soft_wrap=True)
    if summary.get("models"):
        tokens = f"{summary['prompt_tokens']:,} tokens read, {summary['completion_tokens']:,} written"
        console.print(f"{tokens} · cost {summary['cost']:.4f}" if summary["cost"] else tokens, highlight=False)
    if any(summary.get("seconds", {}).values()):
        console.print(time_line(summary), highlight=False)
    if judge := summary.get("judge", {}).get("grader"):
        tokens = f"{judge['prompt_tokens']:,} tokens read, {judge['completion_tokens']:,} written by the judge"
        cost = f" · cost {judge['cost']:.4f}" if judge["cost"] else ""
        console.print(f"judge: {judge['words']} · {tokens}{cost}", highlight=False, markup=False)
    for name, reason in (*summary.get("lost", {}).items(), *summary.get("agent_errors", {}).items()):
        console.print(in_one_line(f"first {name}: {reason}"), highlight=False, markup=False, soft_wrap=True)
    if line := network_line(summary.get("tools", {})):
        console.print(in_one_line(line), highlight=False, markup=False, soft_wrap=True, style="yellow")
    for name, value in summary.get("components", {}).items():
        console.print(f"{_practice(summary)}{name}: {value:.3f}")
    console.print(f"run: {summary['run']}   report: {summary['run']}/report.html", soft_wrap=True)


def _add_rows(table: Table, summary: Mapping[str, Json]) -> None:
    """Add the headline and the breakdown; of a training run, success on held-out tasks and then practice."""
    held_out, practice = summary.get("held_out"), ""
    if held_out is None:
        table.add_row("all", *(_bounds(summary) if summary.get("refused") else _figures(summary)), style="bold")
    else:
        practice = "practice, "
        for held in held_out:
            name = f"held out: {held['split']}, iteration {held['iteration']}"
            table.add_row(name, *_held_out_figures(held), style="bold")
        table.add_row("practice", *_figures(summary))
    for part in summary.get("breakdown", ()):
        table.add_row(practice + label_of_part(part["axis"], part["tag"]), *_figures(part))


def training_lines(held_out: Sequence[Mapping[str, Json]] | None) -> list[str]:
    """Lines with the change of held-out success since the first evaluation, one for each split that has two.

    `held_out`: of a summary; None if it is not that of a training run.
    """
    if held_out is None:
        return []
    if not held_out:
        return ["no held-out task has been evaluated yet; practice is what the policy was trained on"]
    lines = []
    for held in held_out:
        first, change = held["first"], held["change"]
        if first is None or held["refused"]:
            continue
        since = f"since iteration {first['iteration']} ({_percent(first['success'])})"
        moved = f"{held['split']}: {_points_since_first(held)} points {since}"
        if change is None:
            lines.append(f"{moved}, not paired by task")
            continue
        bounds = ""
        if change["ci95"] is not None:
            low, high = change["ci95"]
            bounds = f"; 95 % interval {100 * low:+.1f} to {100 * high:+.1f} points"
        chance = "" if change["p"] is None else f", p = {change['p']:.2g}"
        lines.append(
            f"{moved}{bounds}; paired over {change['tasks']} tasks: {change['better']} better, {change['worse']} worse"
            f"{chance}"
        )
    return lines


def _points_since_first(held: Mapping[str, Json]) -> str:
    """Change of success since the first evaluation, of the tasks of both if they were recorded: "+50.0"."""
    pair = held["change"]
    return f"{100 * (held['success'] - held['first']['success'] if pair is None else pair['difference']):+.1f}"


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


def caveat_lines(summary: Mapping[str, Json]) -> list[str]:
    """Lines that say what the success rests on and what it cost; empty if all were scored at once and cost nothing."""
    lines = []
    practice = _practice(summary)
    if summary.get("upper_bound"):
        lines.append(f"success is an upper bound: {summary['upper_bound']}")
    if summary.get("refused"):
        lines.append(f"no headline figure: {summary['refused']}")
    elif summary["scored"] < summary["episodes"] and summary.get("success_bounds"):
        low, high = summary["success_bounds"]
        lines.append(
            f"{practice}over all episodes, success is {100 * low:.1f} % if the lost ones failed, else up to"
            f" {100 * high:.1f} %"
        )
    if (net := summary.get("components", {}).get(NET_OF_PRICE)) is not None and not summary.get("refused"):
        lines.append(f"{practice}less the price of questions and calls, the score is {100 * net:.1f} %")
    if lost := summary.get("tasks_without_score"):
        of = f"{practice}{lost} of {summary['tasks']} tasks"
        lines.append(f"{of} have no scored episode: no figure says anything about them")
    if lost := summary.get("lost_in_all_attempts"):
        lines.append(f"{practice}{lost} graded though a server was lost in every attempt, {LOSS_NOTE}")
    retries = summary.get("retries")
    if retries and retries["difference"] is not None:
        first, again = (f"{100 * retries[group]['success']:.1f} %" for group in ("first", "retried"))
        lines.append(
            f"{practice}played again after a loss: {retries['retried']['scored']} episodes with success {again},"
            f" against {first} at the first attempt (p = {retries['p']:.2g})"
        )
    if (faulty := summary.get("faulty")) and faulty["tasks"]:
        both = ", ".join(f"{_percent(faulty[key]['success'])} {key} them" for key in ("with", "without"))
        names = ", ".join(each["task"] for each in faulty["tasks"])
        lines.append(f"tasks known to be faulty upstream: {len(faulty['tasks'])} ({names}); success {both}")
    if (audit := summary.get("user_audit")) and audit["turns"]:
        lines.append(
            f"the user that a model played: {audit['flagged_turns']} of {audit['turns']} turns gave the answer away or"
            " left the scenario; the report lists them"
        )
    return lines


def _practice(summary: Mapping[str, Json]) -> str:
    """Words before figures on the episodes of a training run; empty for any other run."""
    return "practice: " if "held_out" in summary else ""


_percent = partial(format_percent, missing="-")


def trial_lines(summary: Mapping[str, Json]) -> list[str]:
    """pass@k and pass^k for the largest k, with the tasks that they are about; empty if no task was repeated."""
    if not summary.get("trials"):
        return []
    last, counts = summary["pass_k"][-1], summary["trials"]["denominators"][-1]
    k, tasks = last["k"], counts["tasks"] + counts["tasks_short"]
    return [
        f"{_practice(summary)}pass@{k} {100 * last['at']:.1f} %, pass^{k} {100 * last['hat']:.1f} %"
        f" (unbiased estimates, of the {counts['tasks']} of {tasks} tasks that have {k} scored trials)"
    ]


def trees_line(trees: Mapping[str, Json]) -> str:
    """Line on the episodes that branched, with pass@k over leaves for the largest k that all tasks have."""
    leaves, per_tree = trees["success_of_leaves"], trees["leaves"]
    line = (
        f"trees: {trees['trees']}, {trees['branches']} branches, depth {trees['depth']}, {per_tree['mean']:.1f} leaves"
        f" each; {leaves['scored']} of {leaves['episodes']} leaves scored, success {_percent(leaves['success'])}"
    )
    if stopped := trees["stopped_leaves"]:
        line += f", without {stopped} that the search stopped"
    if over := trees["pass_k_over_leaves"]:
        last = [each for each in over if each["tasks"] == over[0]["tasks"]][-1]  # the largest k that no task lacks
        line += f", pass@{last['k']} over leaves {_percent(last['at'])}"
    return f"{line}; the figures above count roots alone, success {_percent(trees['success_of_roots']['success'])}"


def _bounds(summary: Mapping[str, Json]) -> tuple[str, str, str]:
    """The figures of a run that too few episodes of have a score."""
    low, high = summary["success_bounds"]
    return format_bounds(low, high), "-", f"{summary['scored']}/{summary['episodes']}"


def _held_out_figures(held: Mapping[str, Json]) -> tuple[str, str, str]:
    """Success, interval and coverage of an evaluation; bounds without an interval if too few tasks have a score."""
    scored, tasks = held["scored"], held["tasks"]
    coverage = "-" if scored is None else str(scored) if tasks is None else f"{scored}/{tasks}"
    if held["refused"] and held["success_bounds"]:
        low, high = held["success_bounds"]
        return format_bounds(low, high), "-", coverage
    ci95 = held["ci95"]
    interval = "-" if ci95 is None else f"{100 * ci95[0]:.1f} – {100 * ci95[1]:.1f}"
    return _percent(held["success"]), interval, coverage


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
        _percent(success),
        "-" if interval is None else f"{100 * interval[0]:.1f} – {100 * interval[1]:.1f}",
        f"{part['scored']}/{part['episodes']}",
    )
