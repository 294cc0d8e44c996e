"""tau2's telecom domain in solo mode: the agent has the tools of the company and of the customer's phone."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.tau2 import suite as tau2
from gymcp.envs.suites.tau2.grader import grade

ENV = EnvSpec(
    name="tau2",
    description="tau2 telecom, solo: 114 tickets, 43 tools of a company and of a phone, graded by upstream's checks.",
    servers=tau2.servers,
    suite=tau2.load_suite,
    grade=grade,
    installed=tau2.is_installed,
    prepare=lambda sandbox: tau2.install_tau2(sandbox=sandbox),
)
