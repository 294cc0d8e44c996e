"""Runs that begin, and meet what they cannot use while they go."""

from __future__ import annotations

from case import Case
from things import BANK, BOOM, SHOP

ENV = {"bank.py": BANK}
EVAL = "eval bank.py --policy openai:{model}#m --limit 1"

CASES: tuple[Case, ...] = (
    Case(
        "a matrix with one bad suite",
        "eval boom.py bank.py nope shop.py --out all --limit 1",
        "",
        given={**ENV, "boom.py": BOOM, "shop.py": SHOP},
        lines=2,
        prints="not run",
        makes=("all", "all/bank-oracle*", "all/shop-oracle*"),
        plays=True,
    ),
    Case("a model that hangs", f"{EVAL} --request-timeout 0.3", "", given=ENV, model="hangs", plays=True),
    Case("a model that closes the connection", EVAL, "", given=ENV, model="says nothing", lines=2, plays=True),
    Case("a model that answers 500", EVAL, "", given=ENV, model="answers 500", lines=2, plays=True),
    Case("a model that answers HTML", EVAL, "", given=ENV, model="answers HTML", plays=True),
    Case("a model that echoes the key it refuses", EVAL, "", given=ENV, model="refuses and echoes the key", plays=True),
    Case(
        "a model that fails once the run has begun",
        f"{EVAL} --out run",
        "",
        code=3,
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
        prints="FAIL",
        plays=True,
    ),
    Case(
        "a rule over a tool that is not there",
        "check bank.py --privileges rules.toml",
        "",
        given={**ENV, "rules.toml": '[[rule]]\neffect = "forbid"\ntools = ["wire"]\n'},
        plays=True,
    ),
    Case(
        "a search tool among few tools",
        "eval bank.py --retrieve -1",
        "",
        given=ENV,
        plays=True,
    ),
    Case(
        "a server that is no program",
        "eval env.py --out run",
        "",
        code=3,
        given={
            "env.py": BANK.replace(
                'native_server("bank", Bank)', 'ServerSpec(name="bank", argv=("nothing-here",))'
            ).replace(
                "from gymcp.mcp_servers.native.server import native_server",
                "from gymcp.mcp_servers.spec import ServerSpec",
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
        given={
            "env.py": BANK
            + "\nfrom dataclasses import replace\nENV = replace(ENV, grade=lambda task, trajectory, states: 1 / 0)\n"
        },
        prints="first grader_error: ",
        makes=("run", "run/*"),
        plays=True,
    ),
)
