"""tau2's telecom domain in dual control: a user shares the world with the agent, and only the user has the phone."""

from gymcp.envs.catalog.tau2 import ENV as SOLO
from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.tau2 import suite as tau2
from gymcp.envs.suites.tau2.tasks import script
from gymcp.envs.users import InstructedUser

ENV = EnvSpec(
    name="tau2_dual",
    description="tau2 telecom, dual control: 13 tools for the agent, 30 for a user who does what they are told.",
    servers=SOLO.servers,
    suite=lambda: tau2.load_suite(dual=True),
    grade=SOLO.grade,
    costs=SOLO.costs,
    components=SOLO.components,
    user=lambda task: InstructedUser(opening=task.prompts[0], script=script(task)),
    user_tools=tau2.USER_TOOLS,
    installed=SOLO.installed,
    prepare=SOLO.prepare,
)
