"""A laboratory for step-level credit: parcels, hidden tables, detours and ways back. Its truth is known."""

from functools import partial

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.rounds import ROUNDS, grade_round, make_suite, make_tasks
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import EpisodeLimits

PROGRAM = "gymcp.mcp_servers.programs.rounds.server"
HOUSE = "gymcp.mcp_servers.programs.rounds.house"

ENV = EnvSpec(
    name="rounds",
    description="A laboratory: parcels that each need one of eight tools, and only practice tells which; five levels.",
    servers=lambda: (native_server("rounds", PROGRAM, modules=(HOUSE,), start="fork"),),
    suite=partial(make_suite, ROUNDS),
    more_tasks=partial(make_tasks, ROUNDS),
    grade=grade_round,
    anchor="world",  # the state decides all that can follow
    limits=EpisodeLimits(steps=80),
    costs=ToolCosts(default=CallCost(seconds=1.0, risk=0.1)),  # one tool of eight spoils the round, for each name
    components=("parcels",),
)
