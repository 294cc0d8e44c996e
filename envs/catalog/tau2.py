"""tau2's telecom domain in solo mode: the agent has the tools of the company and of the customer's phone."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.tau2 import suite as tau2
from gymcp.envs.suites.tau2.grader import grade
from gymcp.envs.tool_costs import CallCost, rate_risks

COSTS = rate_risks(
    {
        0.5: ("make_payment", "refuel_data", "resume_line", "send_payment_request", "suspend_line"),
        0.2: ("disable_roaming", "enable_roaming", "reboot_device", "reset_apn_settings", "transfer_to_human_agents"),
    },
    default=CallCost(seconds=1.0),
)

ENV = EnvSpec(
    name="tau2",
    description="tau2 telecom, solo: 114 tickets, 43 tools of a company and of a phone, graded by upstream's checks.",
    servers=tau2.servers,
    suite=tau2.load_suite,
    grade=grade,
    costs=COSTS,
    components=("env_assertion", "action", "communicate", "db"),
    installed=tau2.is_installed,
    prepare=lambda sandbox: tau2.install_tau2(sandbox=sandbox),
)
