"""ScienceWorld: 30 kinds of elementary-school experiments in a text world, with upstream's simulator and splits."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites import scienceworld
from gymcp.envs.suites.scienceworld.grader import task_solved
from gymcp.envs.tool_costs import CallCost, rate_risks
from gymcp.types import EpisodeLimits

ENV = EnvSpec(
    name="scienceworld",
    description="ScienceWorld: 30 kinds of experiments in a text world, by upstream's simulator (needs Java).",
    servers=scienceworld.servers,
    suite=scienceworld.make_suite,
    more_tasks=scienceworld.make_tasks,
    grade=task_solved,
    anchor="world",  # the declared tree of objects
    limits=EpisodeLimits(steps=100),
    costs=rate_risks({0.2: ("act",)}, default=CallCost(seconds=1.0)),  # a wrong focus loses the task
    components=("progress",),
    installed=scienceworld.suite_is_made,
    prepare=scienceworld.prepare,
)
