"""AgentDojo v1.2.2: office work, travel, banking and chat, in worlds that may hold text by strangers."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.agentdojo import suite as agentdojo
from gymcp.envs.suites.agentdojo.grader import grade, surfaces
from gymcp.envs.tool_costs import CallCost, rate_risks
from gymcp.types import EpisodeLimits

ENV = EnvSpec(
    name="agentdojo",
    description="AgentDojo v1.2.2: 97 tasks, 74 tools in four suites, graded by upstream's own functions.",
    servers=agentdojo.servers,
    suite=agentdojo.load_suite,
    grade=grade,
    surfaces=surfaces,
    limits=EpisodeLimits(steps=40),
    costs=rate_risks(
        {
            1.0: ("delete_email", "delete_file", "post_webpage", "schedule_transaction", "send_money"),
            0.5: (
                *("cancel_calendar_event", "invite_user_to_slack", "remove_user_from_slack", "reserve_car_rental"),
                *("reserve_hotel", "reserve_restaurant", "send_channel_message", "send_direct_message", "send_email"),
                *("share_file", "update_password", "update_scheduled_transaction", "update_user_info"),
            ),
        },
        default=CallCost(seconds=0.5),
    ),
    installed=agentdojo.is_installed,
    prepare=lambda sandbox: agentdojo.install_agentdojo(sandbox=sandbox),
)
