"""Cautions about a preset: advantages that are biased when the policy decides when to stop."""

from __future__ import annotations

from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.presets import Preset

_REMEDY = "unbiased: order='return_then_norm', centre='leave_one_out', scale=None, singleton='raw'"
_SUMS_AFTERWARDS = (
    "subtracts a mean for every step that is still to come, so a policy that decides when to stop is paid for stopping"
    " early: biased, even in its sign"
)
_SHRINKS = (
    "compares a step with the steps of the episodes that got as far, itself included, so the later a step, the less it"
    " counts, and the last one alone counts nothing: biased in its size"
)


def find_cautions(preset: Preset) -> list[str]:
    """Sentences about biased advantage terms, each named as in the preset's explanation (A1, A2 ...); empty if none is.

    docs/credit.md has an example with the exact gradient.
    """
    numbered = enumerate(preset.advantage_terms, start=1)
    found = [(number, _find_bias(term)) for number, term in numbered]
    return [f"A{number} {bias}; {_REMEDY}" for number, bias in found if bias]


def _find_bias(term: AdvantageTerm) -> str:
    compares = term.centre != "none" or term.scale is not None
    if not compares or term.unit == "trajectory":
        return ""
    if term.order == "norm_then_return" and term.returns != "none":
        return _SUMS_AFTERWARDS
    others_only = term.centre == "leave_one_out" and term.scale is None and term.singleton == "raw"
    return _SHRINKS if "turn" in term.key and not others_only else ""
