"""Runs that begin, and meet what they cannot use while they go."""

from __future__ import annotations

from case import Case, Given
from things import BANK, BOOM, SHOP

ENV: Given = {"bank.py": BANK}
EVAL = "eval bank.py --policy openai:{model}#m --limit 1"

CASES: tuple[Case, ...] = (
    Case(
        "a matrix with one bad suite",
        "eval boom.py bank.py nope shop.py --out all --limit 1",
        (
            "boom by oracle: will be left out: environment file 'boom.py': boom.py:1: RuntimeError: boom",
            "nope by oracle: will be left out: no environment 'nope'; have agentdojo, backoffice, ",
        ),
        given={**ENV, "boom.py": BOOM, "shop.py": SHOP},
        lines=2,
        prints="not run",
        makes=("all", "all/bank-oracle*", "all/shop-oracle*"),
        plays=True,
    ),
    Case(
        "a model that hangs",
        f"{EVAL} --request-timeout 0.3",
        (
            "the policy does not answer: model 'm' at http://",
            "/v1: says nothing: no answer to GET /models within 0.3 s; is it still starting",
        ),
        given=ENV,
        model="hangs",
        plays=True,
    ),
    Case(
        "a model that closes the connection",
        EVAL,
        (
            "the policy does not answer: model 'm' at http://",
            "/v1: no answer in 6 attempts; the last: the connection was closed before the whole answer had come",
        ),
        given=ENV,
        model="says nothing",
        plays=True,
    ),
    Case(
        "a model that answers 500",
        EVAL,
        (
            "the policy does not answer: model 'm' at http://",
            "/v1: no answer in 6 attempts; the last: status 500: out of order",
        ),
        given=ENV,
        model="answers 500",
        plays=True,
    ),
    Case(
        "a model that answers HTML",
        EVAL,
        (
            "the policy does not answer: model 'm' at http://",
            "/v1: the answer is not JSON:",
        ),
        given=ENV,
        model="answers HTML",
        plays=True,
    ),
    Case(
        "a model that echoes the key it refuses",
        EVAL,
        ("model 'm' at http://", "/v1: refuses the key (status 401): Incorrect API key provided: (the key)"),
        given=ENV,
        model="refuses and echoes the key",
        plays=True,
    ),
    Case(
        "a model that fails once the run has begun",
        f"{EVAL} --out run",
        "",
        code=3,
        lines=0,
        given=ENV,
        model="fails once the run has begun",
        prints="first policy_infra: ",
        makes=("run", "run/*"),
        plays=True,
    ),
    Case(
        "a machine whose cache cannot be written",
        "doctor",
        "",
        code=1,
        lines=0,
        env={"GYMCP_HOME": "/proc/x"},
        prints="/proc/x cannot be written; set GYMCP_HOME to a folder that can",
        plays=True,
    ),
    Case(
        "a rule over a tool that is not there",
        "check bank.py --privileges rules.toml",
        "privileges: rule 1: no tool 'wire'; have balance, transfer",
        given={**ENV, "rules.toml": '[[rule]]\neffect = "forbid"\ntools = ["wire"]\n'},
        plays=True,
    ),
    Case(
        "fewer than no tools",
        "eval bank.py --retrieve -1",
        "eval: invalid value for '--retrieve': must be greater than or equal to 0; see gymcp eval --help",
        given=ENV,
        plays=True,
    ),
    Case(
        "a server that is no program",
        "eval env.py --out run",
        "",
        code=3,
        lines=0,
        given={
            "env.py": BANK.replace(
                'native_server("bank", Bank)', 'ServerSpec(name="bank", argv=("nothing-here",))'
            ).replace(
                "from gymcp.mcp_servers import ToolError, native_server",
                "from gymcp.mcp_servers import ServerSpec, ToolError",
            )
        },
        prints="first env_infra: ",
        makes=("run", "run/*"),
        plays=True,
    ),
    Case(
        "a grader that fails on every episode",
        "eval env.py --out run --limit 1",
        "",
        code=3,
        lines=0,
        given={
            "env.py": BANK
            + "\nfrom dataclasses import replace\nENV = replace(ENV, grade=lambda task, trajectory, states: 1 / 0)\n"
        },
        prints="first grader_error: ",
        makes=("run", "run/*"),
        plays=True,
    ),
)
