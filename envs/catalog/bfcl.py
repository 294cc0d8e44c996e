"""BFCL v4 multi-turn: 800 third-party tasks over eight stateful APIs."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.bfcl import suite as bfcl
from gymcp.envs.tool_costs import CallCost, rate_risks

ENV = EnvSpec(
    name="bfcl",
    description="BFCL v4 multi-turn: 800 tasks, 128 tools, graded in every user turn at parity with upstream.",
    servers=bfcl.servers,
    suite=bfcl.load_suite,
    grade=bfcl.grade,
    costs=rate_risks(
        {
            1.0: ("book_flight", "place_order", "post_tweet", "purchase_insurance", "rm"),
            0.5: (
                "cancel_booking",
                "cancel_order",
                "delete_message",
                "fund_account",
                "mv",
                "rmdir",
                "send_message",
                "withdraw_funds",
            ),
        },
        default=CallCost(seconds=0.5),
    ),
    components=("turns_passed", "did_not_act"),
    installed=bfcl.is_installed,
    prepare=lambda sandbox: bfcl.install_bfcl(sandbox=sandbox),
)
