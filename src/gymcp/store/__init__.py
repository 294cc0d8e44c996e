"""The record of a run: its folder and its episodes."""

from gymcp.store.rows import EpisodeRow, Grade, StepCredit, with_grade
from gymcp.store.run_folder import RUN_FILE, Growth, Run, create_run, is_in_use, open_run
from gymcp.store.trajectories import TrajectoryStore
from gymcp.store.trees.branches import BranchRecord, BranchRow

__all__ = [
    "RUN_FILE",
    "BranchRecord",
    "BranchRow",
    "EpisodeRow",
    "Grade",
    "Growth",
    "Run",
    "StepCredit",
    "TrajectoryStore",
    "create_run",
    "is_in_use",
    "open_run",
    "with_grade",
]
