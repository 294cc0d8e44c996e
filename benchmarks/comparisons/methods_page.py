"""The table of methods in Markdown, and as one picture for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from comparisons.figures import FIGURES
from comparisons.methods import Answer, has_collapsed, judge_paper, rank_pairs, select_ended
from comparisons.page import make_table, show_estimate
from comparisons.pictures import SCHEMES, write_pictures
from comparisons.registration import Arm, Registration
from comparisons.tuning import find_rate_arm
from comparisons.verdicts import Estimate, Results, estimate_figure

NOT_MEASURED = "not measured yet"
Reasons = Mapping[str, Mapping[str, str]]
"""Registration -> arm -> why its claim does not show, as far as it was found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One laboratory of the table, with its results so far."""

    registration: Registration
    results: Results

    def seeds_measured(self, arm: Arm) -> list[int]:
        ended = select_ended(self.registration, self.results)
        return [seed for seed in self.registration.seeds if (arm.name, seed) in ended]


def write_methods_page(grounds: Sequence[Ground], reasons: Reasons) -> str:
    """The whole page."""
    arms = [(ground, arm) for ground in grounds for arm in ground.registration.arms]
    measured = sum(len(ground.seeds_measured(arm)) >= ground.registration.shown_seeds for ground, arm in arms)
    parts = [
        "# Methods, each trained on a ground on which its mechanism can act",
        f"{measured} of {len(arms)} rows are measured. A claim shows if the 95 % interval of its difference, over"
        " paired seeds, lies on the claimed side of 0. Rows are in the order of registration, which ranks nothing.",
        *([_show_picture()] if any(ground.results for ground in grounds) else []),
    ]
    for ground in grounds:
        parts += _describe_ground(ground, reasons)
    left_out = {name: why for ground in grounds for name, why in ground.registration.left_out.items()}
    if left_out:
        parts += ["## Presets without a row", make_table(("preset", "reason"), list(left_out.items()))]
    return "\n\n".join(parts) + "\n"


def _show_picture() -> str:
    light, dark = (f"methods-{scheme}.png" for scheme in SCHEMES)
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="Success of each method at the end, with its interval over seeds"></picture>'
    )


def _describe_ground(ground: Ground, reasons: Reasons) -> Iterator[str]:
    registration = ground.registration
    first = ", ".join(map(str, registration.seeds[: registration.shown_seeds]))
    further = ", ".join(map(str, registration.seeds[registration.shown_seeds :]))
    tuning = f"seed{'s' * (len(registration.tuning_seeds) > 1)} {', '.join(map(str, registration.tuning_seeds))}"
    yield f"## {registration.title}"
    yield (
        f"Registration `{registration.name}`, digest `{registration.digest[:16]}`: {registration.iterations} iterations"
        f" of {registration.batch:,} {registration.batch_unit} in every row; rates chosen on {tuning};"
        f" seeds {first}, and {further} for rows whose score is at most {registration.near_best:g} below the best. Rows"
        f" compare on their first {registration.shown_seeds} seeds, the other figures are over all seeds of the"
        f" row.{_describe_time(ground)}"
    )
    shared = f"{FIGURES['success'].title}, first {registration.shown_seeds} seeds"
    headings = ("method", "seeds", "rate", shared, *(FIGURES[name].title for name in registration.figures), "runs")
    yield make_table(headings, [_figure_row(ground, arm) for arm in registration.arms])
    rows = [
        _claim_row(ground, arm, reasons.get(registration.name, {}))
        for arm in registration.arms
        if arm.paper is not None
    ]
    yield make_table(("method", "its paper claims", "compared with", "difference", "here"), rows)
    yield _describe_ranking(ground)


def _describe_time(ground: Ground) -> str:
    longest = max((run.seconds for run in ground.results.values()), default=0.0)
    return f" The longest of {len(ground.results)} runs took {longest:.0f} s." if longest else ""


def _figure_row(ground: Ground, arm: Arm) -> tuple[str, ...]:
    registration, seeds = ground.registration, ground.seeds_measured(arm)
    if not seeds:
        return (arm.label, "0", "", "", *[""] * len(registration.figures), NOT_MEASURED)
    runs = [ground.results[arm.name, seed] for seed in seeds]
    found = {
        name: estimate_figure(registration, select_ended(registration, ground.results), arm, name)
        for name in registration.figures
    }
    failed = sum((arm.name, seed) in ground.results for seed in registration.seeds) - len(seeds)
    collapsed = sum(map(has_collapsed, runs))
    state = [f"{failed} failed"] * (failed > 0) + [f"**{collapsed} collapsed**"] * (collapsed > 0)
    if len(seeds) < registration.shown_seeds:
        state.append(f"{NOT_MEASURED}: {len(seeds)} of {registration.shown_seeds} seeds")
    rates = ", ".join(sorted({_show_rate(registration, arm, run.rate) for run in runs}))
    cells = [show_estimate(value, name) if value else "" for name, value in found.items()]
    shared = _show_shared_mean(ground, arm)
    return (arm.label, str(len(seeds)), rates, shared, *cells, "; ".join(state) or "none collapsed")


def _show_shared_mean(ground: Ground, arm: Arm) -> str:
    """Mean success at the end over the seeds that every row has; empty if one is not measured."""
    registration = ground.registration
    first = registration.seeds[: registration.shown_seeds]
    ended = select_ended(registration, ground.results)
    values = [FIGURES["success"].of(ended[arm.name, seed].rows) for seed in first if (arm.name, seed) in ended]
    known = [value for value in values if value is not None]
    return f"{fmean(known):.1%}".replace("%", " %") if len(known) == len(first) else ""


def _show_rate(registration: Registration, arm: Arm, rate: float) -> str:
    grid = find_rate_arm(registration, arm).rates
    return f"{rate:g} (end of its grid)" if rate in (min(grid), max(grid)) else f"{rate:g}"


def _claim_row(ground: Ground, arm: Arm, reasons: Mapping[str, str]) -> tuple[str, ...]:
    assert arm.paper is not None
    registration, paper = ground.registration, arm.paper
    answer, gain = judge_paper(registration, ground.results, arm)
    over = registration.arm(paper.over or registration.baseline).label
    difference = show_estimate(gain, paper.figure, signed=True) if gain else ""
    if answer in ("does not show", "the opposite shows"):
        here = f"**{answer}**: {_explain(answer, gain, paper.figure, reasons.get(arm.name, ''))}"
    elif paper.direction == "none" and gain is not None and answer != NOT_MEASURED:
        here = "no claim for this ground" + (f": {reasons[arm.name]}" if arm.name in reasons else "")
    else:
        here = f"**{answer}**" if answer == "shows" else NOT_MEASURED
    expected = "" if paper.direction == "none" else f", {paper.direction}"
    return (arm.label, paper.says, f"{over}: {FIGURES[paper.figure].title}{expected}", difference, here)


def _explain(answer: Answer, gain: Estimate | None, figure: str, reason: str) -> str:
    """The reason that was found; if it may be chance, also the difference that would show on so many seeds."""
    if answer != "does not show" or gain is None or gain.ci95 is None:
        return reason or "the reason is not known"
    half = show_estimate(replace(gain, mean=(gain.ci95.high - gain.ci95.low) / 2, ci95=None), figure, signed=True)
    power = f"on {gain.seeds} seeds only a difference above {half.removeprefix('+')} would show"
    return f"{reason}; {power}" if reason else power


def _describe_ranking(ground: Ground) -> str:
    pairs = rank_pairs(ground.registration, ground.results)
    if not pairs:
        return "No two methods are ranked: no difference of two is told from chance, corrected for all pairs."
    lines = [
        f"- {pair.better.label} above {pair.worse.label}: {show_estimate(pair.gain, 'success', signed=True)}, corrected"
        f" p = {pair.p:.2g}"
        for pair in pairs
    ]
    return "Ranked, by success at the end; all other pairs are not:\n\n" + "\n".join(lines)


def draw_methods(grounds: Sequence[Ground], folder: Path) -> list[Path]:
    """Write a picture for each scheme: each method's success at the end, its interval and its seeds."""
    return write_pictures("methods", folder, partial(_draw, grounds))


def _draw(grounds: Sequence[Ground]) -> Figure:
    counts = [len(ground.registration.arms) for ground in grounds]
    figure = Figure(figsize=(8, 1.2 * len(grounds) + 0.24 * sum(counts)), dpi=110, layout="constrained")
    panels: Any = figure.subplots(len(grounds), 1, squeeze=False, height_ratios=[count + 2 for count in counts])
    for ground, axes in zip(grounds, panels[:, 0], strict=True):
        for place, arm in enumerate(ground.registration.arms):
            _draw_method(axes, ground, arm, place)
        axes.set(title=ground.registration.title, xlim=(-0.02, 1.02), ylim=(len(ground.registration.arms) - 0.5, -0.5))
        axes.set_yticks(range(len(ground.registration.arms)), [arm.label for arm in ground.registration.arms])
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.6)
    panels[-1, 0].set_xlabel("success on held-out tasks at the end: mean, 95 % interval over seeds, each seed")
    return figure


def _draw_method(axes: Any, ground: Ground, arm: Arm, place: int) -> None:
    ended = select_ended(ground.registration, ground.results)
    found = estimate_figure(ground.registration, ended, arm, "success")
    if found is None:
        axes.text(0.0, place, NOT_MEASURED, fontsize=6, va="center", alpha=0.7)
        return
    ends = [FIGURES["success"].of(ended[arm.name, seed].rows) for seed in ground.seeds_measured(arm)]
    seeds = [end for end in ends if end is not None]
    axes.plot(seeds, [place] * len(seeds), linestyle="", marker="|", color="C0", alpha=0.7)
    axes.plot([found.mean], [place], marker="o", markersize=4, color="C0")
    if found.ci95 is not None:
        axes.plot([found.ci95.low, found.ci95.high], [place, place], color="C0", linewidth=1.2)
