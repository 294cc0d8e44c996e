"""A company's back office: look-ups, conditional actions by a handbook, corrections, refusals; any number of tasks."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.backoffice import make_suite, make_tasks
from gymcp.evaluators.graders import all_of, answer_equals, final_state_equals, with_milestones
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import EpisodeLimits

PROGRAM = "gymcp.mcp_servers.programs.backoffice.server"
BOOKS = "gymcp.mcp_servers.programs.backoffice.books"
COMPANY = "gymcp.mcp_servers.programs.backoffice.company"

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
)
