"""Tasks for the back office by family, wording, level and split; there is no last one."""

from gymcp.envs.suites.backoffice.families import FAMILIES, HELD_OUT_FAMILIES
from gymcp.envs.suites.backoffice.tasks import LEVELS, SPLITS, make_suite, make_tasks
from gymcp.envs.suites.backoffice.tempting_requests import TEMPTING_FAMILIES

__all__ = ["FAMILIES", "HELD_OUT_FAMILIES", "LEVELS", "SPLITS", "TEMPTING_FAMILIES", "make_suite", "make_tasks"]
