"""Success against price in `backoffice_choosing`: agents that always choose alike, and the oracle. Nothing is trained.

Every row is a point of the curve: the share of the tasks that the agent solves, and the mean money for its calls. A
point is on the curve if no other agent solves as much for less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from report_table import Result, options, show
from rich.console import Console
from rich.table import Table

from gymcp.agents.runner.run import Plan
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.cli.evaluation.gates import play
from gymcp.envs import load_env, load_spec
from gymcp.envs.suites.backoffice.choosers import CHOOSERS
from gymcp.envs.suites.backoffice.priced_choices import KINDS
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import Trajectory

AGENTS: Mapping[str, AgentFactory] = {
    **{name: SCRIPTED[name] for name in ("null", "random", "oracle")},
    **CHOOSERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Means over the episodes of one agent."""

    agent: str
    success: float
    by_kind: Mapping[str, float]
    """Kind of task -> success."""
    price: float
    net: float
    """Score less the price."""
    cheapest: float
    """Share of the tasks that were solved at the lowest price."""


def main() -> None:
    args = options(__doc__, "12 tasks instead of 60").parse_args()
    loaded, sandbox = load_env(load_spec("backoffice_choosing")), get_sandbox("bwrap")
    points = []
    for name, agent in AGENTS.items():
        plan = Plan(agent="oracle", sandbox="bwrap", limit=12 if args.quick else 0)
        points.append(make_point(name, play(loaded, sandbox, plan, 8, make_agent=agent)))
    points.sort(key=lambda point: (point.price, point.success))
    if args.json:
        show("ask_look_act", list_results(points), as_json=True)
    else:
        show_curve(points)


def make_point(agent: str, ended: Sequence[Trajectory]) -> Point:
    kinds = {kind: list(of) for kind, of in groupby(sorted(ended, key=kind_of), key=kind_of)}
    return Point(
        agent=agent,
        success=mean([float(each.success or 0) for each in ended]),
        by_kind={kind: mean([float(each.success or 0) for each in kinds[kind]]) for kind in KINDS},
        price=mean([each.components["price"] for each in ended]),
        net=mean([each.components[NET_OF_PRICE] for each in ended]),
        cheapest=mean([each.components["cheapest"] for each in ended]),
    )


def kind_of(record: Trajectory) -> str:
    return record.task.rpartition("-")[2]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def is_on_curve(point: Point, points: Sequence[Point]) -> bool:
    """True if no other agent solves as much for less."""
    return not any(
        other.success >= point.success and other.price < point.price for other in points if other is not point
    )


def list_results(points: Sequence[Point]) -> list[Result]:
    rows = []
    for point in points:
        rows += [
            Result(metric=f"{point.agent}: success", value=round(point.success, 4), unit="share"),
            Result(metric=f"{point.agent}: price", value=round(point.price, 4), unit="an episode"),
            Result(metric=f"{point.agent}: net of price", value=round(point.net, 4), unit="an episode"),
        ]
    return rows


def show_curve(points: Sequence[Point]) -> None:
    table = Table("agent", "price", "success", *KINDS, "net of price", "solved at the lowest price", "on the curve")
    for point in points:
        shares = (point.success, *(point.by_kind[kind] for kind in KINDS))
        table.add_row(
            point.agent,
            f"{point.price:.3f}",
            *(f"{share:.0%}" for share in shares),
            f"{point.net:.3f}",
            f"{point.cheapest:.0%}",
            "yes" if is_on_curve(point, points) else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
