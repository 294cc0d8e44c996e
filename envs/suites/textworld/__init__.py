"""TextWorld's games as tasks, which TextWorld itself makes on demand in a sandbox; there is no last one."""

from gymcp.envs.suites.textworld.games import install_textworld
from gymcp.envs.suites.textworld.tasks import FAMILIES, LEVELS, SPLITS, make_suite, make_tasks, prepare, suite_is_made

__all__ = ["FAMILIES", "LEVELS", "SPLITS", "install_textworld", "make_suite", "make_tasks", "prepare", "suite_is_made"]
