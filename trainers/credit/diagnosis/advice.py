"""Sentences of advice that follow from a diagnosis.

The bounds come from simulated practice (docs/credit.md, "When does step credit pay?"): step-level credit paid in worlds
with 12 steps or more, states that recur, and 5 to 80 % success, and not if fewer than one episode of a group succeeds.
The smaller bounds are for tasks in which there is nothing to tell apart.
"""

from __future__ import annotations

from functools import partial

from gymcp.evaluators.percent import format_percent
from gymcp.trainers.credit.diagnosis.diagnosis import Diagnosis, GroupEnds
from gymcp.trainers.credit.diagnosis.gradient_factors import WITHOUT_STEPS, lacks_steps
from gymcp.trainers.credit.diagnosis.signal import Signal

MIN_RECURRING = 0.5
"""Smallest share of steps whose state recurs."""
MIN_STEPS, ENOUGH_STEPS = 3.0, 12.0
"""Fewest steps per episode for step credit at all, and from which on it paid."""
MIN_SUCCESS, MAX_SUCCESS = 0.05, 0.9
"""Least success with enough solved episodes to compare, and greatest success that still leaves much to learn."""
MIN_GAIN = 1.2
"""Signal-to-noise ratio over GRPO's from which on it is worth a setting."""
MAX_FOLLOWS_TURN = 0.9
"""Share of the step part that the index of the step may explain."""
MAX_ALIKE = 0.5
"""Share of groups that may end alike before other tasks are the better advice."""
format_whole_percent = partial(format_percent, decimals=0)


def advise(found: Diagnosis) -> tuple[str, ...]:
    """Sentences on what to do next, the most important first; at least one."""
    sentences = (_advise_on_tasks(found.ends), _advise_on_steps(found), _advise_on_preset(found), _warn(found))
    return tuple(sentence for sentence in sentences if sentence)


def _advise_on_tasks(ends: GroupEnds) -> str:
    if ends.alike < MAX_ALIKE * ends.groups:
        return ""
    if ends.failed > 2 * ends.solved:
        wanted = "easier tasks, or demonstrations first"
    elif ends.solved > 2 * ends.failed:
        wanted = "harder tasks"
    else:
        wanted = "tasks that are sometimes solved"
    ways = f"{ends.failed} failed, {ends.solved} solved"
    return f"{ends.alike} of {ends.groups} groups ended alike ({ways}), so their scores teach nothing: use {wanted}."


def _advise_on_steps(found: Diagnosis) -> str:
    against = reasons_against(found)
    if against:
        return f"Step credit is not likely to pay here: {'; '.join(against)}."
    recurring, success = format_whole_percent(1 - found.anchors.singletons), format_whole_percent(found.success)
    facts = f"{recurring} of steps recur, episodes have {found.steps_per_episode:.0f} steps, {success} succeed"
    best = best_step_preset(found)
    has_signal = best is None or (best.low > 1 and best.ratio >= MIN_GAIN)
    pays = found.steps_per_episode >= ENOUGH_STEPS and has_signal
    return f"Step credit {'is likely to pay' if pays else 'may pay a little'} here: {facts}."


def reasons_against(found: Diagnosis) -> list[str]:
    """Reasons why step-level credit would bring nothing; empty if there are none."""
    recurring, best = 1 - found.anchors.singletons, best_step_preset(found)
    reasons = []
    if found.steps_per_episode < MIN_STEPS:
        reasons.append(f"episodes have {found.steps_per_episode:.1f} steps, so there is little to tell apart")
    if recurring < MIN_RECURRING:
        reasons.append(f"only {format_whole_percent(recurring)} of steps share their state with another step")
    if found.success < MIN_SUCCESS:
        reasons.append(f"{format_whole_percent(found.success)} of episodes succeed, so most groups hold no success")
    if found.success > MAX_SUCCESS:
        reasons.append(f"{format_whole_percent(found.success)} of episodes succeed already")
    if found.anchors.step_share and found.anchors.follows_turn > MAX_FOLLOWS_TURN:
        share = format_whole_percent(found.anchors.follows_turn)
        reasons.append(f"the index of a step explains {share} of its step part, which then only says that late is good")
    if best is not None and best.high < 1:
        reasons.append("its gradient has less signal than GRPO's")
    return reasons


def best_step_preset(found: Diagnosis) -> Signal | None:
    """The signal of GiGPO's best settings that were measured; None if the record does not tell any."""
    steps = [each for each in found.signal.signals if each.preset.startswith("gigpo") and not lacks_steps(each.preset)]
    return max(steps, key=lambda each: each.ratio, default=None)


def _advise_on_preset(found: Diagnosis) -> str:
    if found.signal.missing:
        return f"No gradient can be estimated: {found.signal.missing}."
    best = best_step_preset(found)
    if best is None:
        return ""
    fewer = ", so about that many times fewer episodes would teach the same" if best.low > 1 else ""
    plain = next((each for each in found.signal.signals if each.preset == WITHOUT_STEPS), None)
    beside = "" if plain is None else f" Without its step part it has {plain.ratio:.1f} times."
    return f"The gradient of {best.preset} has {_times(best)} GRPO's signal-to-noise ratio{fewer}.{beside}"


def _warn(found: Diagnosis) -> str:
    if not found.call_logs:
        return ""
    return (
        "The servers do not tell their state, and a log of the calls stands for it: steps are compared only if all"
        " calls before them were the same."
    )


def _times(signal: Signal) -> str:
    return f"{signal.ratio:.1f} times ({signal.low:.1f} to {signal.high:.1f})"
