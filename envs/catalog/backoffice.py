"""A company's back office: look-ups, conditional actions by a handbook, corrections, refusals; any number of tasks."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.backoffice import make_suite, make_tasks
from gymcp.envs.tool_costs import CallCost, rate_risks
from gymcp.evaluators.graders import all_of, answer_equals, final_state_equals, with_milestones
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import EpisodeLimits

PROGRAM = "gymcp.mcp_servers.programs.backoffice.server"
BOOKS = "gymcp.mcp_servers.programs.backoffice.books"
COMPANY = "gymcp.mcp_servers.programs.backoffice.company"
COSTS = rate_risks(
    {
        1.0: ("refund_order",),  # the money is gone
        0.5: ("add_credit", "cancel_order"),
        0.2: ("set_city", "set_email", "set_stock", "set_tier"),
        0.1: ("close_ticket", "open_ticket", "set_priority"),
    },
    default=CallCost(seconds=0.5),  # the database answers at once; a company's would not
)

ENV = EnvSpec(
    name="backoffice",
    description="A back office over a database: 23 tools, ten families of requests at five levels, tasks without end.",
    servers=lambda: (native_server("backoffice", PROGRAM, modules=(COMPANY, BOOKS), start="fork"),),
    suite=make_suite,
    more_tasks=make_tasks,
    grade=with_milestones(
        all_of(
            {"state": final_state_equals(target_key="state"), "answer": answer_equals(target_key="answer")},
        )
    ),
    limits=EpisodeLimits(steps=16),
    costs=COSTS,
    components=("state", "answer", "milestones"),
)
