"""Charts in SVG, in the page's own colours, so that they suit light and dark mode. Texts are escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gymcp.evaluators.metrics import Radar, Times
from gymcp.evaluators.report.formatting import percent, seconds
from gymcp.evaluators.report.html import Html, element, join

RADAR = ("accuracy", "selection", "parameters", "efficiency", "speed")
TIMES = ("policy", "tool", "reset", "grading", "harness")
_SIZE, _CENTRE, _REACH = 300.0, 150.0, 92.0


def radar(radars: Sequence[tuple[str, Radar]]) -> Html:
    """Radar chart of the five dimensions, one outline per run."""
    angles = [2 * math.pi * n / len(RADAR) - math.pi / 2 for n in range(len(RADAR))]
    parts = []
    for share in (0.25, 0.5, 0.75, 1.0):
        corners = [_at(angle, share) for angle in angles]
        parts.append(element("polygon", class_="grid", points=join_points(corners)))
    for angle, name in zip(angles, RADAR, strict=True):
        x, y = _at(angle, 1.0)
        parts.append(element("line", class_="grid", x1=f"{_CENTRE:g}", y1=f"{_CENTRE:g}", x2=f"{x:.1f}", y2=f"{y:.1f}"))
        tx, ty = _at(angle, 1.16)
        anchor = "middle" if abs(tx - _CENTRE) < 8 else "start" if tx > _CENTRE else "end"
        parts.append(element("text", name, x=f"{tx:.1f}", y=f"{ty + 4:.1f}", text_anchor=anchor))
    for number, (name, dimensions) in enumerate(radars):
        values = [getattr(dimensions, each).value or 0.0 for each in RADAR]
        corners = [_at(angle, value) for angle, value in zip(angles, values, strict=True)]
        legend = ", ".join(f"{each} {percent(getattr(dimensions, each).value)}" for each in RADAR)
        parts.append(
            element(
                "polygon",
                element("title", f"{name}: {legend}"),
                class_=f"area s{number % 6}",
                points=join_points(corners),
            )
        )
    return element(
        "svg",
        *parts,
        class_="radar",
        viewBox=f"0 0 {_SIZE:g} {_SIZE - 20:g}",
        role="img",
        aria_label="radar of the runs",
    )


def _at(angle: float, share: float) -> tuple[float, float]:
    return _CENTRE + share * _REACH * math.cos(angle), _CENTRE + share * _REACH * math.sin(angle)


def join_points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def time_split(times: Times) -> Html:
    """Bar of the episodes' time by kind, with a legend."""
    kinds = [(name, times.share.get(name, 0.0), times.seconds.get(name, 0.0)) for name in TIMES]
    if not any(share for _, share, _ in kinds):
        return join()
    x, bars = 0.0, []
    for name, share, _ in kinds:
        bars.append(
            element("rect", class_=f"t-{name}", x=f"{100 * x:.3f}", y="0", width=f"{100 * share:.3f}", height="10")
        )
        x += share
    key = [
        element("span", element("i", class_=f"t-{name}"), f"{name} {percent(share)}, {seconds(spent)}")
        for name, share, spent in kinds
    ]
    return join(
        element(
            "svg",
            *bars,
            class_="split",
            viewBox="0 0 100 10",
            preserveAspectRatio="none",
            role="img",
            aria_label="where the time went",
        ),
        element("p", *key, class_="key"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One run in the plane of effort and success."""

    name: str
    cost: float
    success: float
    low: float
    high: float


def scatter(dots: Sequence[Dot], unit: str) -> Html:
    """Success against the effort of an episode; up and to the left is better. Bars are 95 % intervals."""
    width, height, left, bottom = 460.0, 220.0, 44.0, 34.0
    most = max((dot.cost for dot in dots), default=0.0) or 1.0

    def x(cost: float) -> float:
        return left + (width - left - 16) * cost / (1.15 * most)

    def y(share: float) -> float:
        return 10 + (height - bottom - 10) * (1 - share)

    parts = share_axis(width, left, y)
    for share in (0.0, 0.5, 1.0):
        value = 1.15 * most * share
        parts.append(
            element("text", f"{value:,.3g}", x=f"{x(value):.1f}", y=f"{height - 18:.1f}", text_anchor="middle")
        )
    parts.append(element("text", unit, x=f"{(left + width) / 2:.1f}", y=f"{height - 3:.1f}", text_anchor="middle"))
    for number, dot in enumerate(dots):
        at = f"{x(dot.cost):.1f}"
        label = f"{dot.name}: {percent(dot.success)}, {dot.cost:,.4g} {unit}"
        parts.append(
            element(
                "line", class_=f"whisker s{number % 6}", x1=at, x2=at, y1=f"{y(dot.low):.1f}", y2=f"{y(dot.high):.1f}"
            )
        )
        parts.append(
            element(
                "circle", element("title", label), class_=f"dot s{number % 6}", cx=at, cy=f"{y(dot.success):.1f}", r="5"
            )
        )
    return element(
        "svg",
        *parts,
        class_="chart",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label="success against effort",
    )


def share_axis(width: float, left: float, y: Callable[[float], float]) -> list[Html]:
    """Lines and labels of a vertical axis from 0 to 100 %."""
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = f"{y(share):.1f}"
        parts.append(element("line", class_="grid", x1=f"{left:g}", x2=f"{width - 8:g}", y1=at, y2=at))
        parts.append(
            element("text", f"{100 * share:.0f} %", x=f"{left - 6:g}", y=f"{y(share) + 4:.1f}", text_anchor="end")
        )
    return parts
