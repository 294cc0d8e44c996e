"""A preset in words and as a formula, made from the same records that compute it."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

from gymcp.trainers.credit.assign import advantages
from gymcp.trainers.credit.cautions import find_cautions
from gymcp.trainers.credit.estimators import AdvantageTerm, BetaDensity, StdScale
from gymcp.trainers.credit.preset import LossTerm, Preset
from gymcp.trainers.credit.shapers import Components
from gymcp.trainers.credit.signals.registry import list_signals
from gymcp.trainers.credit.transforms import ChargeSteps
from gymcp.trainers.settings.loss import BandWeight, Loss

STEP = "(i,t)"
"""Index of a quantity that differs from step t to step t of episode i."""
_COLUMNS = {
    "reward": "the recorded score, on the episode's last step; 0 on the others",
    "tokens": "tokens that the policy drew in the step",
    "cost_money": "price of the step's calls, without questions to the user",
    "cost_seconds": "seconds of the step's calls, as the environment declares them, or as measured",
    "cost_calls": "calls of the step, as the environment counts them",
    "cost_bytes": "bytes of the answers to the step's calls",
    "cost_risk": "risk of the step's calls, as the environment declares it",
    "cost_asking": "price of the step's questions to the user",
    "mismatch": "1 on a step whose action was replaced, 0 on the others",
    "gold": "the gold calls and final texts of the tasks; a task without gold is an error",
}
"""Meaning of columns that no shaper makes."""
_KEYS = {
    "group": "of the same task",
    "state": "in the same state",
    "turn": "with the same index",
    "calls": "with as many tool calls",
    "trajectory": "of the same episode",
    "parent": "after the same step",
}
_UNITS = {"trajectory": ("episode", "episodes"), "step": ("step", "steps"), "leaf": ("leaf", "leaves")}
"""Unit of the statistics -> its word for one, and for several."""
_EXAMPLE_REWARDS = ((0.0, 1.0), (0.0, 0.0, 0.0))
"""Rewards of the example: an episode that succeeds in its second step, and one that fails in its third."""
_EXAMPLE_STATES = (("s", "a"), ("s", "b", "c"))
_EXAMPLE_CALLS = ((1.0, 0.0), (1.0, 1.0, 0.0))
_EXAMPLE_MODEL = {
    "entropy": ((0.2, 0.4), (0.6, 0.8, 1.0)),
    "token_entropy": ((0.2, 0.4), (0.6, 0.8, 1.0)),
    "logprob": ((-0.8, -0.6), (-0.4, -0.2, -0.1)),
    "value": ((0.4, 0.6), (0.4, 0.2, 0.1)),
    "gold_logprob": ((-2.0, -0.5), (-2.0, -1.8, -2.4)),
    "token_value": ((0.4, 0.6), (0.4, 0.2, 0.1)),
    "progress": ((0.4, 0.5), (0.2, 0.0, 0.1)),
    "option_values": ((1.0, 0.0), (1.0, 1.0, 0.0)),
    "observation_gain": ((0.4, math.nan), (0.1, 0.3, math.nan)),
    "critique": ((0.0, 0.0), (0.0, 1.0, 1.0)),
}
_EXAMPLE_FURTHER: Mapping[str, Mapping[str, tuple[tuple[float, ...], ...]]] = {
    "gold_logprob": {"gold_logprob_after": ((-0.5, math.nan), (-1.8, -2.4, math.nan))},
    "option_values": {
        "option_low": ((0.4, 0.6), (0.4, 0.2, 0.1)),
        "option_high": ((0.5, 0.6), (0.5, 0.3, 0.2)),
        "option_end": ((0.4, 0.5), (0.4, 0.3, 0.1)),
    },
}
"""Further columns of a signal."""
_EXAMPLE_WORDS = (
    "example: two episodes of one task begin in the same state and then part; the first scores 1 after 2 steps, the"
    " second 0 after 3"
)


def explain_preset(preset: Preset) -> list[str]:
    """Lines that say what the advantage of each step is made of: columns, filters, formulas, cautions and loss; and an
    example."""
    return [
        *_explain_columns(preset),
        *(f"filter: {_describe_record(each)}" for each in preset.filters),
        *_explain_terms(preset),
        *(f"caution: {caution}" for caution in find_cautions(preset)),
        *_explain_loss(preset.loss),
        *_explain_turns(preset),
        *_explain_example(preset),
    ]


def write_formula(term: AdvantageTerm) -> str:
    """The term's advantage of step t of episode i as a formula, such as ``(R(i) - mean R) / (std R + 1e-06)``."""
    value, of_step = _write_value(term)
    shown = f"{value}{of_step}" + (f" - {term.penalty}{STEP}" if term.penalty else "")
    if term.centre == "none" and term.scale is None:
        return shown
    # an episode counts in the statistics with its value before the penalty
    counted = value if term.unit == "trajectory" or not term.penalty else f"({value} - {term.penalty})"
    if term.centre == "mean":
        shown = f"{shown} - mean {counted}"
    elif term.centre == "leave_one_out":
        shown = f"{shown} - mean of the other {counted}"
    if term.scale is None:
        return shown
    divisor = {
        "std": f"std {counted} + {_number(term.scale)}",
        "root": f"sqrt(var {counted} + {_number(term.scale)})",
        "density": f"density(mean {counted})",
    }[_kind_of_scale(term.scale)]
    return f"({shown}) / {divisor if divisor.startswith(('sqrt', 'density')) else f'({divisor})'}"


def _write_value(term: AdvantageTerm) -> tuple[str, str]:
    """(symbol of the compared value, its index)."""
    of = "" if term.signal == "reward" else f"[{term.signal}]"
    if term.returns == "none" or term.order == "norm_then_return":
        return term.signal, STEP
    symbols = {"total": ("R", "(i)"), "discounted": ("G", STEP), "gae": ("E", STEP)}
    symbol, index = symbols[term.returns]
    return f"{symbol}{of}", index


def _describe_value(term: AdvantageTerm) -> str:
    symbol, index = _write_value(term)
    x = term.signal
    if term.returns == "none":
        return f"{symbol}{index}: the column itself"
    if term.order == "norm_then_return":
        return f"{symbol}{index}: the column itself; what the comparison gives is then summed from the step on"
    if term.returns == "total":
        return f"{symbol}{index}: the sum of {x} over the episode"
    if term.returns == "discounted":
        cut = f", up to a step with {term.cut_on}, which has its own {x} alone" if term.cut_on else ""
        return f"{symbol}{index} = {_write_series(f'{x}(i,t', ')', term.gamma)}: the return from the step on{cut}"
    surprise = f"d(t) = {x}(i,t) + {_write_product(term.gamma, 'value(i,t+1)')} - value(i,t)"
    return f"{symbol}{index} = {_write_series('d(t', ')', term.gamma * term.lam)}, with {surprise}"


def _write_series(before: str, after: str, gamma: float) -> str:
    following = [_write_product(gamma, f"{before}+1{after}")]
    following.append(f"{before}+2{after}" if gamma == 1.0 else f"{gamma:g}^2 {before}+2{after}")
    return " + ".join([f"{before}{after}", *following, "..."])


def _describe_comparison(term: AdvantageTerm) -> str:
    if term.centre == "none" and term.scale is None:
        return "compared with nothing"
    unit, units = _UNITS[term.unit]
    keys = " ".join(_describe_key(key) for key in term.key)
    among = f"{units} {keys}" if term.key else f"all {units} of the batch"
    weight = ", weighed by their tokens" if term.by_tokens else ""
    parts = [f"compared among {among}{weight}; each {unit} counts once"]
    if isinstance(term.scale, StdScale):
        parts.append(f"std and var divide by {'n - 1' if term.scale.ddof else 'n'}")
    parts.append(f"with nothing to compare it with, a step gets {'0' if term.singleton == 'zero' else 'its own value'}")
    return "; ".join(parts)


def _describe_key(key: str) -> str:
    if found := re.fullmatch(r"history(\d+)", key):
        through = {"0": "", "1": ", reached through the same state"}
        same = through.get(found[1], f", reached through the same {found[1]} states")
        return f"{_KEYS['group']} {_KEYS['state']}{same}"
    return _KEYS.get(key, f"with the same {key}")


def _explain_columns(preset: Preset) -> Iterator[str]:
    signals = [term.signal for term in preset.advantage_terms]
    charged = [name for term in preset.loss_terms for each in _charges_of(term) for name, _ in each.weights]
    known = {each.name: each for each in list_signals(preset)}
    for name in dict.fromkeys([*signals, *sorted(preset.needs), *charged]):
        if name in known:
            yield f"signal {name}: {known[name].describes}; {known[name].cost}"
        elif name in _COLUMNS:
            yield f"column {name}: {_COLUMNS[name]}"
    for shaper in preset.shapers:
        yield f"made from the record: {_describe_record(shaper)}"


def _charges_of(term: LossTerm) -> list[ChargeSteps]:
    return [each for each in term.transforms if isinstance(each, ChargeSteps)]


def _explain_terms(preset: Preset) -> Iterator[str]:
    yield f"advantage of step t of episode i, copied to each token that the policy drew in it: {_write_sum(preset)}"
    number = 0
    for loss_term in preset.loss_terms:
        for term in loss_term.advantage_terms:
            number += 1
            yield f"  A{number}{STEP} = {write_formula(term)}"
            yield f"    {_describe_value(term)}"
            yield f"    {_describe_comparison(term)}"
        if loss_term.backup is not None:
            yield f"  then, as rewards of the steps: {_describe_record(loss_term.backup)}"
        for transform in loss_term.transforms:
            yield f"  then: {_describe_transform(transform)}"
        if loss_term.active_only:
            yield "  its loss is averaged over the episodes that have an advantage in it"


def _describe_transform(transform: object) -> str:
    if not isinstance(transform, ChargeSteps):
        return _describe_record(transform)
    charges = "".join(f" - {_write_product(weight, f'{name}{STEP}')}" for name, weight in transform.weights)
    return f"A{STEP}{charges}: the step's own costs; they are in no return, so no other step pays for them"


def _write_sum(preset: Preset) -> str:
    """The weighted sum of the numbered terms; one sum in brackets for each loss of its own."""
    number = 0
    sums = []
    for loss_term in preset.loss_terms:
        parts = []
        for term in loss_term.advantage_terms:
            number += 1
            parts.append(_write_product(term.weight, f"A{number}{STEP}"))
        total = " + ".join(parts)
        sums.append((loss_term, f"({total}) / the weights of those that are not 0" if loss_term.average else total))
    if len(sums) == 1:
        return f"A{STEP} = {sums[0][1]}"
    losses = [f"{_write_product(loss_term.weight, 'loss')} on {text}" for loss_term, text in sums]
    return f"{len(sums)} losses, each on a sum of its own: {' + '.join(losses)}"


def _write_product(weight: float, text: str) -> str:
    return text if weight == 1.0 else f"{weight:g} {text}"


def _explain_loss(loss: Loss) -> Iterator[str]:
    low, high, unit = f"{1 - loss.clip_low:g}", f"{1 + loss.clip_high:g}", loss.sequence
    kinds = {
        "ppo": f"token ratios r = p_new / p_old, -min(r A, clip(r, {low}, {high}) A)",
        "gspo": f"one ratio r for each {unit}'s tokens, -min(r A, clip(r, {low}, {high}) A)",
        "cispo": f"-clip(r, {low}, {high}) A log p, with no gradient through the clip",
        "sapo": "token ratios r = p_new / p_old, -(4 / tau) sigmoid(tau (r - 1)) A,"
        f" tau = {loss.sharpness_up:g} if A is positive, else {loss.sharpness_down:g}",
        "likelihood": "-A log p",
    }
    line = f"loss ({loss.kind}): {kinds[loss.kind]}"
    if loss.kind == "ppo" and loss.dual_clip is not None:
        line += f", at most {loss.dual_clip:g} |A| if A is negative"
    if loss.keep_clipped_gradient:
        line += f"; above {high} a token counts {high} and keeps its gradient"
    averages = {
        "token-mean": "averaged over all tokens of the batch",
        "seq-mean-token-sum": f"summed over the tokens of each {unit}, averaged over {unit}s",
        "seq-mean-token-mean": f"averaged over the tokens of each {unit}, then over {unit}s",
        "seq-mean-token-sum-norm": f"summed over tokens, divided by {loss.constant_length} times the {unit}s",
    }
    yield f"{line}; {averages[loss.averaging]}"
    if loss.kl:
        yield f"  plus {loss.kl:g} times the divergence (k3) from the weights before the first iteration"
    if loss.entropy:
        yield f"  less {loss.entropy:g} times the mean entropy of the tokens' distributions"
    if loss.decoupled:
        yield (
            f"  times p_old / p_rollout, 0 above {loss.behaviour_cap:g}: p_old by the weights before the update,"
            " p_rollout by those that drew the token"
        )
    elif loss.weight is not None:
        rule = "0 outside the band" if isinstance(loss.weight, BandWeight) else "cut at the cap"
        yield f"  times p_old / p_rollout, {rule}: {_describe_record(loss.weight, words=False)}"


def _explain_turns(preset: Preset) -> Iterator[str]:
    if preset.turns is not None:
        yield f"updates: {_describe_record(preset.turns)}; each is followed by a forward pass over all episodes"


def _explain_example(preset: Preset) -> Iterator[str]:
    columns: dict[str, Sequence[Sequence[float]]] = {"calls": _EXAMPLE_CALLS, "cost_calls": _EXAMPLE_CALLS}
    columns |= {name: values for name, values in _EXAMPLE_MODEL.items() if name in preset.needs}
    columns |= {further: at for name in preset.needs for further, at in _EXAMPLE_FURTHER.get(name, {}).items()}
    for shaper in preset.shapers:
        if isinstance(shaper, Components):
            columns |= dict.fromkeys((shaper.prefix + name for name in shaper.names), _EXAMPLE_REWARDS)
    try:
        found = advantages(preset, _EXAMPLE_REWARDS, ["task", "task"], _EXAMPLE_STATES, **columns)
    except Exception:  # it needs records, or its filters left nothing; a preset of the user may raise anything
        return
    yield f"{_EXAMPLE_WORDS}: advantages {_round(found)}"


def _round(rows: Sequence[Sequence[float]]) -> str:
    return ", ".join(f"[{', '.join(f'{value + 0.0:.3g}' for value in row)}]" for row in rows)


def _describe_record(record: object, *, words: bool = True) -> str:
    """First sentence of the docstring of a function or class, and its settings: ``... (smooth=0.1)``."""
    text = re.sub(r"`+", "", " ".join((inspect.getdoc(record) or "").split("\n\n")[0].split())).rstrip(".")
    settings = ", ".join(f"{f.name}={getattr(record, f.name)}" for f in fields(record)) if is_dataclass(record) else ""
    name = getattr(record, "__name__", type(record).__name__)
    return f"{name}({settings})" + (f": {text}" if words else "")


def _kind_of_scale(scale: StdScale | BetaDensity) -> str:
    if isinstance(scale, BetaDensity):
        return "density"
    return "root" if scale.epsilon_in_variance else "std"


def _number(scale: StdScale | BetaDensity) -> str:
    return f"{scale.epsilon:g}" if isinstance(scale, StdScale) else ""
