"""Curves over the iterations of training runs, in SVG: success on one axis, and a small chart of every other column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.report.charts import join_points, share_axis
from gymcp.evaluators.report.html import Html, element, fold_if_narrow, join
from gymcp.visible_text import shorten

Points = Sequence[tuple[float, float]]
MAX_PANELS = 240
"""Most small charts on a page."""
MAX_POINTS = 2000
"""Most points of one curve; of more, evenly spaced ones are drawn."""

_HELD_OUT = "test/"
_UNITS: Sequence[tuple[str, str]] = (
    (r"success|unusable|.*/(success|low|high|singletons|self_repeats|step_share|follows_turn|explained)", "share"),
    (r"seconds(/.*)?", "s"),
    (r"entropy|kl|kl_reference", "nats"),
    (r"clipped", "share of tokens"),
    (r"demonstrations/loss", "nats per token"),
    (r"(test/.*/)?calls(_of_solved)?(_beyond_gold)?", "calls per episode"),
    (r"steps", "steps per episode"),
    (r"(test/.*/)?cost/calls", "calls per episode"),
    (r"(test/.*/)?cost/bytes", "bytes per episode"),
    (r"(test/.*/)?cost/seconds", "s per episode"),
    (r"reward|(test/.*/)?(cost|component|component_of_solved)/.*", "mean per episode"),
    (r"dropped|outcome/.*", "episodes"),
    (r"tokens(/stale)?", "tokens"),
    (r"updates", "in all"),
    (r"updates/skipped", "per iteration"),
    (r"grad_norm", "L2 norm"),
    (r"learning_rate", "per step"),
    (r"advantage/size", "mean of |advantage|"),
    (r"advantage/active", "share of steps"),
    (r"anchor/states", "states"),
    (r"anchor/mean_group", "steps per state"),
    (r"anchor/largest_group", "steps"),
    (r"test/.*/(scored|tasks)", "tasks"),
    (r"test/[^/]+/[^/]+", "share"),
)
"""Unit of each column of ``metrics.jsonl``: the first pattern that matches its whole name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart of success."""

    name: str
    points: Points
    """(iteration, success) each."""
    band: Sequence[tuple[float, float, float]] = ()
    """(iteration, low, high) each; empty: no band."""
    colour: int
    thin: bool = False
    """Draw it thinly and leave it out of the legend."""


def success_chart(curves: Sequence[Curve]) -> Html:
    """Success by iteration, one line per curve, bands behind them; empty without a point."""
    with_points = [curve for curve in curves if curve.points]
    if not with_points:
        return join()
    width, height, left, bottom = 620.0, 240.0, 44.0, 36.0
    last = max(at for curve in with_points for at, _ in curve.points) or 1.0

    def x(iteration: float) -> float:
        return left + (width - left - 12) * iteration / last

    def y(share: float) -> float:
        return 10 + (height - bottom - 10) * (1 - share)

    parts = share_axis(width, left, y)
    for iteration in sorted({0, int(last) // 2, int(last)}):
        parts.append(
            element("text", str(iteration), x=f"{x(iteration):.1f}", y=f"{height - 20:.1f}", text_anchor="middle")
        )
    parts.append(
        element("text", "iteration", x=f"{(left + width) / 2:.1f}", y=f"{height - 3:.1f}", text_anchor="middle")
    )
    for curve in with_points:
        if curve.band:
            edge = [(x(at), y(high)) for at, _, high in curve.band]
            edge += [(x(at), y(low)) for at, low, _ in reversed(curve.band)]
            parts.append(element("polygon", class_=f"band s{curve.colour % 6}", points=join_points(edge)))
    parts += [_line(curve, [(x(at), y(value)) for at, value in _thin_out(curve.points)]) for curve in with_points]
    names = [
        element("span", element("i", class_=f"s{curve.colour % 6}"), curve.name)
        for curve in with_points
        if not curve.thin
    ]
    drawing = element(
        "svg", *parts, class_="chart", viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label="learning curve"
    )
    return join(drawing, element("p", *names, class_="key"))


def _line(curve: Curve, points: Points) -> Html:
    shape = f"curve s{curve.colour % 6}{' thin' if curve.thin else ''}"
    return element("polyline", element("title", curve.name), class_=shape, points=join_points(_visible(points)))


def _visible(points: Points) -> Points:
    """The points; a single one twice, since a line of no length still has round ends."""
    return points if len(points) != 1 else [points[0], points[0]]


def _thin_out(points: Points) -> Points:
    if len(points) <= MAX_POINTS:
        return points
    return [points[n * (len(points) - 1) // (MAX_POINTS - 1)] for n in range(MAX_POINTS)]


def unit_of(column: str) -> str:
    """Unit of a column of ``metrics.jsonl``; empty for a loss, a ratio, or a column that gymcp does not know."""
    return next((unit for pattern, unit in _UNITS if re.fullmatch(pattern, column)), "")


def panels(runs: Sequence[Mapping[str, Points]], colours: Sequence[int] = (0,)) -> Html:
    """A small chart of every column, with a line for each run; by the first part of the columns' names.

    Columns without such a part come first.
    """
    names = sorted({name for columns in runs for name in columns})[:MAX_PANELS]
    last = max((at for columns in runs for points in columns.values() for at, _ in points), default=0.0) or 1.0
    groups: list[tuple[int, Html]] = []
    for group, of_group in sorted(
        _group_columns(names).items(), key=lambda each: (each[0].startswith(_HELD_OUT), each)
    ):
        title = f"held out: {group.removeprefix(_HELD_OUT)}" if group.startswith(_HELD_OUT) else group
        drawn = [
            _panel(
                name.removeprefix(f"{group}/"),
                unit_of(name),
                [(colour, columns[name]) for colour, columns in zip(colours, runs, strict=True) if name in columns],
                last,
            )
            for name in of_group
        ]
        head = element("h3", shorten(title or "policy and update", 80))
        groups.append((len(drawn), join(head, element("div", *drawn, class_="panels"))))
    (count, first), *others = groups or [(0, join())]
    if not others:
        return first
    return join(first, fold_if_narrow(f"show {len(names) - count} more charts", *(each for _, each in others)))


def _group_columns(names: Sequence[str]) -> dict[str, list[str]]:
    prefixes = {name.rpartition("/")[0] for name in names}
    groups: dict[str, list[str]] = {}
    for name in names:
        group = name.rpartition("/")[0] if name.startswith(_HELD_OUT) else name.partition("/")[0] if "/" in name else ""
        group = name if name in prefixes else group  # "seconds" stands with its parts
        groups.setdefault(group, []).append(name)
    return groups


def _panel(name: str, unit: str, lines: Sequence[tuple[int, Points]], last: float) -> Html:
    """One column: its name, unit and last value above the lines, their range beside them."""
    values = [value for _, points in lines for _, value in points]
    low, high = min(values), max(values)
    spread = high - low or 1.0

    def place(points: Points) -> str:
        at = [(100 * x / last, 40 - 40 * ((y - low) / spread if high > low else 0.5)) for x, y in _thin_out(points)]
        return join_points(_visible(at))

    drawing = element(
        "svg",
        *(element("polyline", class_=f"curve s{colour % 6}", points=place(points)) for colour, points in lines),
        viewBox="0 0 100 40",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{name}: from {format_figure(low)} to {format_figure(high)}",
    )
    ends = element("p", *(element("span", format_figure(value)) for value in ([high, low] if high > low else [])))
    end = lines[0][1][-1][1]
    head = element(
        "figcaption",
        element("b", shorten(name, 80)),
        element("span", unit) if unit else join(),
        element("data", format_figure(end), value=repr(end)) if len(lines) == 1 else join(),
    )
    return element("figure", head, element("div", drawing, ends), class_="panel")


def format_figure(value: float) -> str:
    """A number of any size with three figures: "0.0123", "1,234", "3e-05"."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
