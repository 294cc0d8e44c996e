"""TextWorld: coin collector, treasure hunts and cooking, played over tools; any number of games, made on demand."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites import textworld
from gymcp.envs.tool_costs import CallCost, rate_risks
from gymcp.evaluators.graders.textworld import game_won
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import EpisodeLimits

PROGRAM = "gymcp.mcp_servers.programs.textworld.server"
RULES = "gymcp.mcp_servers.programs.textworld.rules"

ENV = EnvSpec(
    name="textworld",
    description="TextWorld's coins, treasure hunts and kitchens at five levels, with exact state; games without end.",
    servers=lambda: (native_server("textworld", PROGRAM, modules=(RULES,), start="fork"),),
    suite=textworld.make_suite,
    more_tasks=textworld.make_tasks,
    grade=game_won,
    limits=EpisodeLimits(steps=60),
    costs=rate_risks(
        {0.5: ("chop", "cook", "dice", "drink", "eat", "slice")},  # a wrong one loses the game
        default=CallCost(seconds=1.0),
    ),
    components=("milestones",),
    installed=textworld.suite_is_made,
    prepare=textworld.prepare,
)
