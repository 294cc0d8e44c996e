"""AgentDojo v1.2.2: office work, travel, banking and chat, in worlds that may hold text by strangers."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.agentdojo import suite as agentdojo
from gymcp.envs.suites.agentdojo.grader import grade, surfaces
from gymcp.types import EpisodeLimits

ENV = EnvSpec(
    name="agentdojo",
    description="AgentDojo v1.2.2: 97 tasks, 74 tools in four suites, graded by upstream's own functions.",
    servers=agentdojo.servers,
    suite=agentdojo.load_suite,
    grade=grade,
    surfaces=surfaces,
    limits=EpisodeLimits(steps=40),
    installed=agentdojo.is_installed,
    prepare=lambda sandbox: agentdojo.install_agentdojo(sandbox=sandbox),
)
