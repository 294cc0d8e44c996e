"""Graders: pure functions of task and record."""

from gymcp.evaluators.graders.calls import as_target, calls_made
from gymcp.evaluators.graders.exact import all_of, answer_equals, final_state_equals
from gymcp.evaluators.graders.files import final_files, final_files_equal

__all__ = [
    "all_of",
    "answer_equals",
    "as_target",
    "calls_made",
    "final_files",
    "final_files_equal",
    "final_state_equals",
]
