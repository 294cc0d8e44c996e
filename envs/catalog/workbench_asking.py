"""Workbench with requests of which half leave something out, so that the agent must ask the user, which has a price."""

from dataclasses import replace

from gymcp.envs.catalog.workbench import ENV as WORKBENCH
from gymcp.envs.suites.workbench.underspecified_requests import make_suite
from gymcp.envs.wrappers.ask_user import add_ask_user

ENV = add_ask_user(
    replace(
        WORKBENCH,
        name="workbench_asking",
        description="Workbench requests, half of which leave out what only the user knows: 90 tasks.",
        suite=make_suite,
        more_tasks=None,
    )
)
