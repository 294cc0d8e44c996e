"""Office work over third-party servers and two native ones, by category, level and wording; there is no last task."""

from gymcp.envs.suites.workbench.grading import grade
from gymcp.envs.suites.workbench.tasks import FAMILIES, LEVELS, SPLITS, categories, make_suite, make_tasks

__all__ = ["FAMILIES", "LEVELS", "SPLITS", "categories", "grade", "make_suite", "make_tasks"]
