"""BFCL v4 multi-turn: 800 third-party tasks over eight stateful APIs."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.bfcl import suite as bfcl

ENV = EnvSpec(
    name="bfcl",
    description="BFCL v4 multi-turn: 800 tasks, 128 tools, graded in every user turn at parity with upstream.",
    servers=bfcl.servers,
    suite=bfcl.load_suite,
    grade=bfcl.grade,
    installed=bfcl.is_installed,
    prepare=lambda sandbox: bfcl.install_bfcl(sandbox=sandbox),
)
