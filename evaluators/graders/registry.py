"""Graders by name, as the command line takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.evaluators.graders.answers import answer_equals, answer_includes_json, answer_is_number
from gymcp.evaluators.graders.calls import calls_alike, calls_made
from gymcp.evaluators.graders.combine import all_of
from gymcp.evaluators.graders.files import final_files_equal, final_values_include
from gymcp.evaluators.graders.milestones import milestones
from gymcp.evaluators.graders.patterns import answer_matches
from gymcp.evaluators.graders.states import final_state_equals, state_changes
from gymcp.protocols import GRADER_PARAMETERS, Grader
from gymcp.user_code import check_signature, load_user_module

BY_NAME: Mapping[str, Callable[[str | None], Grader]] = {
    "answer": lambda key: answer_equals(target_key=key),
    "exact": lambda key: answer_equals(target_key=key, exact=True),
    "number": lambda key: answer_is_number(target_key=key, relative=1e-9),
    "pattern": lambda key: answer_matches(target_key=key),
    "json": lambda key: answer_includes_json(target_key=key),
    "state": lambda key: final_state_equals(target_key=key),
    "changes": lambda key: state_changes(target_key=key),
    "files": lambda key: final_files_equal(target_key=key),
    "file-values": lambda key: final_values_include(target_key=key),
    "calls": lambda key: calls_made(target_key=key),
    "calls-any-order": lambda key: calls_made(target_key=key, in_order=False),
    "calls-alike": lambda key: calls_alike(target_key=key),
    "milestones": lambda key: milestones(target_key=key),
}
FORMS = f"NAME or NAME:KEY of the target, with NAME one of {', '.join(BY_NAME)}; or FILE.py with a function GRADE"


def make_grader(specs: Sequence[str]) -> Grader:
    """The grader of a spec, or `all_of` the graders of several. Raises ConfigError for an unknown name, listing the
    known."""
    graders = {spec: _make_one(spec) for spec in specs}
    return next(iter(graders.values())) if len(graders) == 1 else all_of(graders)


def find_grader_file(spec: str) -> Path | None:
    """The user's file that a spec names; None if it names one of gymcp's graders."""
    return Path(spec) if spec.endswith(".py") else None


def _make_one(spec: str) -> Grader:
    if (file := find_grader_file(spec)) is not None:
        return _load_grader(file)
    name, _, key = spec.partition(":")
    if name not in BY_NAME:
        raise ConfigError(f"no grader '{spec}'; have {FORMS}")
    return BY_NAME[name](key or None)


def _load_grader(path: Path) -> Grader:
    what = f"grader file '{path}'"
    if not path.is_file():
        raise ConfigError(f"{what}: not found")
    module = load_user_module(path, what=what, name=f"gymcp_grader_{path.stem}")
    grader: Grader | None = getattr(module, "GRADE", None)
    if not callable(grader):
        raise ConfigError(f"{what}: defines no function GRADE({', '.join(GRADER_PARAMETERS)})")
    check_signature(what, grader, GRADER_PARAMETERS, "Score")
    return grader
