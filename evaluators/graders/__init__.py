"""Graders: pure functions of task and record. docs/evaluation.md says what each is for."""

from gymcp.evaluators.graders.answers import answer_equals, answer_includes_json, answer_is_number, final_answer
from gymcp.evaluators.graders.calls import as_target, calls_alike, calls_made, with_milestones
from gymcp.evaluators.graders.combine import all_of, any_of, of_server, weighted
from gymcp.evaluators.graders.dynamic import dynamic
from gymcp.evaluators.graders.files import (
    NoValue,
    final_bytes,
    final_files,
    final_files_equal,
    final_value,
    final_values_include,
)
from gymcp.evaluators.graders.formats import answer_fits_schema, answer_has_format
from gymcp.evaluators.graders.milestones import milestones
from gymcp.evaluators.graders.patterns import answer_matches
from gymcp.evaluators.graders.questions import with_asking
from gymcp.evaluators.graders.states import final_state, final_state_equals, state_changes

__all__ = [
    "NoValue",
    "all_of",
    "answer_equals",
    "answer_fits_schema",
    "answer_has_format",
    "answer_includes_json",
    "answer_is_number",
    "answer_matches",
    "any_of",
    "as_target",
    "calls_alike",
    "calls_made",
    "dynamic",
    "final_answer",
    "final_bytes",
    "final_files",
    "final_files_equal",
    "final_state",
    "final_state_equals",
    "final_value",
    "final_values_include",
    "milestones",
    "of_server",
    "state_changes",
    "weighted",
    "with_asking",
    "with_milestones",
]
