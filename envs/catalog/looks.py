"""A laboratory for costs of tools: rounds in which looking is sometimes needed and never harms. Its truth is known."""

from functools import partial

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.rounds import LOOKS, grade_looks, make_suite, make_tasks
from gymcp.envs.suites.rounds.grading import LOOK
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import EpisodeLimits

PROGRAM = "gymcp.mcp_servers.programs.rounds.looks"
MODULES = ("gymcp.mcp_servers.programs.rounds.house", "gymcp.mcp_servers.programs.rounds.server")
PRICE_OF_A_LOOK = 0.05

ENV = EnvSpec(
    name="looks",
    description="A laboratory: rounds with sealed parcels and a tool that looks, sometimes needed and never harmful.",
    servers=lambda: (native_server("looks", PROGRAM, modules=MODULES, start="fork"),),
    suite=partial(make_suite, LOOKS),
    more_tasks=partial(make_tasks, LOOKS),
    grade=grade_looks,
    costs=ToolCosts(
        default=CallCost(seconds=1.0, risk=0.1), tools={LOOK: CallCost(money=PRICE_OF_A_LOOK, seconds=1.0)}
    ),
    components=("parcels", "needed_looks", "needless_looks", "sealed"),
    limits=EpisodeLimits(steps=96),
)
