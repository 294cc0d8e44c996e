"""Office work over real third-party servers and two native ones: categories, levels, wordings, tasks without end."""

from gymcp.envs.suites.workbench.grading import grade
from gymcp.envs.suites.workbench.tasks import FAMILIES, LEVELS, SPLITS, categories, make_suite, make_tasks

__all__ = ["FAMILIES", "LEVELS", "SPLITS", "categories", "grade", "make_suite", "make_tasks"]
