"""The back office with requests that leave something out: the user must be asked, which costs, or must not be."""

from dataclasses import replace

from gymcp.envs.catalog.backoffice import ENV as BACKOFFICE
from gymcp.envs.suites.backoffice.underspecified_requests import make_suite
from gymcp.envs.wrappers.ask_user import add_ask_user

ENV = add_ask_user(
    replace(
        BACKOFFICE,
        name="backoffice_asking",
        description="Back-office requests, half of which leave out what only the user knows: 104 tasks.",
        suite=make_suite,
        more_tasks=None,
    )
)
