"""The back office with a price on every call: ask the user, look it up, or act at once, whichever is the cheapest."""

from dataclasses import replace

from gymcp.envs.catalog.backoffice import ENV as BACKOFFICE
from gymcp.envs.suites.backoffice.choice_grading import COMPONENTS, with_prices
from gymcp.envs.suites.backoffice.priced_choices import (
    ACT_PRICE,
    ASK_PRICE,
    LOOK_PRICE,
    make_suite,
    make_tasks,
)
from gymcp.envs.tool_costs import ToolCosts
from gymcp.envs.wrappers.ask_user import add_ask_user

COSTS = ToolCosts(
    default=replace(BACKOFFICE.costs.default, money=LOOK_PRICE),
    tools={name: replace(cost, money=ACT_PRICE) for name, cost in BACKOFFICE.costs.tools.items()},
)
"""The tools that have a risk are those that change something."""

_ASKING = add_ask_user(
    replace(
        BACKOFFICE,
        name="backoffice_choosing",
        description="Back-office requests for which asking, looking or acting at once is best, each at its price.",
        suite=make_suite,
        more_tasks=make_tasks,
        costs=COSTS,
    ),
    price=ASK_PRICE,
)
ENV = replace(_ASKING, grade=with_prices(_ASKING.grade, _ASKING.costs), components=(*_ASKING.components, *COMPONENTS))
