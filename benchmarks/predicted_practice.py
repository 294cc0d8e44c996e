"""The rule of docs/credit.md, "From one run to a prediction", against simulated practice: what it says and what comes.

The world is that of `rounds` in one process, without servers; the policy is a table with a softmax for each name of a
parcel and each side room. Worlds differ in what wrong tools do, in length, and in what the policy can do at the start.
In each, the policy's first episodes are diagnosed as `gymcp credit RUN --diagnose` does. With what GRPO's practice
reaches, that predicts the success of GiGPO, which then practises from the same start. Rates are tuned for each preset
on a seed that is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from report_table import Result, options, show
from rich.console import Console
from rich.table import Table

from gymcp.trainers.credit.diagnosis.advice import ENOUGH_STEPS
from gymcp.trainers.credit.diagnosis.gradient_factors import gradient_factors
from gymcp.trainers.credit.diagnosis.prediction import scale_gain
from gymcp.trainers.credit.diagnosis.signal import Signal, estimate_signals
from gymcp.trainers.credit.presets import Preset, make_preset
from gymcp.trainers.credit.step_batch import StepBatch, batch_of_columns
from gymcp.trainers.settings.arrays import Floats, Ints

TOOLS, ROOMS = 8, 20
RIGHT, NOTHING, ASIDE, BACK, SPOIL, END = range(6)
"""Effects of a tool at a parcel."""
TUNING_SEED, SEEDS = 100, (0, 1, 2, 3)
RATES = (100.0, 300.0, 1000.0, 3000.0)
GROUPS, EPISODES, ITERATIONS, HELD_OUT = 16, 8, 8, 1000
RECORDED = (64, 16)
"""Tasks, and episodes of each, of the run that is diagnosed."""
PRESETS: Mapping[str, Preset] = {
    "grpo": make_preset("grpo"),
    "gigpo, norm mean, step_weight 1, gamma 0.95": make_preset("gigpo", norm="mean", step_weight=1.0, gamma=0.95),
    "gigpo, step_weight 1, gamma 0.95": make_preset("gigpo", step_weight=1.0, gamma=0.95),
    "gigpo": make_preset("gigpo"),
    "gigpo, step_weight 0": make_preset("gigpo", step_weight=0.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Rounds of `length` parcels with 2.5 steps for each."""

    name: str
    effects: tuple[int, ...]
    """Effects of the eight tools, drawn anew for each name."""
    length: int = 12
    names: int = 300
    known: float = 0.6
    """Share of the names at which the start is right in 95 of 100 cases; in 40 at the others."""


WORLDS = (
    World(name="as rounds", effects=(RIGHT, NOTHING, NOTHING, ASIDE, ASIDE, BACK, SPOIL, END)),
    World(name="nothing is final", effects=(RIGHT, NOTHING, NOTHING, NOTHING, ASIDE, ASIDE, ASIDE, BACK), known=0.0),
    World(name="all is final", effects=(RIGHT, SPOIL, SPOIL, SPOIL, END, END, END, END), known=0.8),
    World(name="short", effects=(RIGHT, NOTHING, NOTHING, ASIDE, ASIDE, BACK, SPOIL, END), length=4, known=0.2),
    World(name="long", effects=(RIGHT, NOTHING, NOTHING, ASIDE, ASIDE, BACK, SPOIL, END), length=20, known=0.75),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """Effects of tools, and preferences of the policy at the start."""

    effects: Ints
    """[names, tools]."""
    way_back: Ints
    """[rooms]: the tool that leads back."""
    logits: Floats
    """[names + rooms, tools]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    batch: StepBatch
    rows: Ints
    """[S]: row of the table that each step was drawn from."""
    tools: Ints
    """[S]."""
    success: float


def make_tables(world: World, seed: int) -> Tables:
    rng = np.random.default_rng(seed)
    effects = np.stack([rng.permutation(np.array(world.effects)) for _ in range(world.names)])
    way_back = rng.integers(0, TOOLS, ROOMS)
    share = np.where(rng.random(world.names) < world.known, 0.95, 0.4)[:, None]
    at_parcels = np.where(effects == RIGHT, share, (1 - share) / (TOOLS - 1))
    in_rooms = np.where(np.arange(TOOLS) == way_back[:, None], 0.6, 0.4 / (TOOLS - 1))
    return Tables(effects=effects, way_back=way_back, logits=np.log(np.concatenate((at_parcels, in_rooms))))


def play(world: World, tables: Tables, logits: Floats, groups: int, episodes: int, rng: np.random.Generator) -> Played:
    """Play rounds of new sequences, all episodes of a group the same one."""
    total = groups * episodes
    rounds = np.repeat(rng.integers(0, world.names, (groups, world.length)), episodes, axis=0)
    at, room, spoiled, over = np.zeros(total, int), np.full(total, -1), np.zeros(total, bool), np.zeros(total, bool)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    sums = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
    states: list[list[int]] = [[] for _ in range(total)]
    rows: list[list[int]] = [[] for _ in range(total)]
    tools: list[list[int]] = [[] for _ in range(total)]
    everyone = np.arange(total)
    for _ in range(int(2.5 * world.length)):
        name = rounds[everyone, np.minimum(at, world.length - 1)]
        row = np.where(room >= 0, world.names + room, name)
        tool = np.minimum((rng.random(total)[:, None] > sums[row]).sum(axis=1), TOOLS - 1)
        state = (at * (ROOMS + 1) + room + 1) * 2 + spoiled
        for n in np.flatnonzero(~over).tolist():
            states[n].append(int(state[n]))
            rows[n].append(int(row[n]))
            tools[n].append(int(tool[n]))
        aside = room >= 0
        effect = np.where(aside, -1, tables.effects[name, tool])
        left = np.where(aside & (tables.way_back[room] == tool), -1, room)
        entered = np.where(effect == ASIDE, (name * TOOLS + tool) % ROOMS, left)
        room = np.where(over, room, entered)
        moved = np.maximum(at + (effect == RIGHT) - (effect == BACK), 0)
        at = np.where(over, at, moved)
        spoiled |= ~over & (effect == SPOIL)
        over |= (effect == END) | (at >= world.length)
    won = (at >= world.length) & ~spoiled
    rewards = [[0.0] * (len(own) - 1) + [float(score)] for own, score in zip(rows, won, strict=True)]
    return Played(
        batch=batch_of_columns(rewards, np.repeat(np.arange(groups), episodes).tolist(), states),
        rows=np.concatenate([np.array(own) for own in rows]),
        tools=np.concatenate([np.array(own) for own in tools]),
        success=float(won.mean()),
    )


def practise(world: World, preset: Preset, rate: float, seed: int) -> tuple[float, float]:
    """Held-out success before and after practice."""
    tables, rng = make_tables(world, seed), np.random.default_rng([seed, 1])
    logits = tables.logits.copy()
    for _ in range(ITERATIONS):
        played = play(world, tables, logits, GROUPS, EPISODES, rng)
        logits += rate * find_gradient(logits, played, gradient_factors(played.batch, preset))
    before, after = (
        play(world, tables, each, HELD_OUT, 1, np.random.default_rng([seed, 2])).success
        for each in (tables.logits, logits)
    )
    return before, after


def find_gradient(logits: Floats, played: Played, factors: Floats) -> Floats:
    """[rows, tools]: sum over steps of the factor times the gradient of the log-probability of the step's tool."""
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    gradient = np.zeros_like(logits)
    np.add.at(gradient, (played.rows, played.tools), factors)
    np.add.at(gradient, played.rows, -factors[:, None] * chances[played.rows])
    return gradient


def tune(world: World, preset: Preset) -> float:
    """The rate with the highest success on the seed that is not shown."""
    return max(RATES, key=lambda rate: practise(world, preset, rate, TUNING_SEED)[1])


def diagnose(world: World, seed: int) -> tuple[float, dict[str, Signal]]:
    """Steps of an episode of the policy at the start, and the presets' signals over GRPO's, if they can be told."""
    tables = make_tables(world, seed)
    played = play(world, tables, tables.logits, *RECORDED, np.random.default_rng([seed, 3]))
    factors = {name: gradient_factors(played.batch, preset) for name, preset in PRESETS.items()}
    signals = estimate_signals(played.batch, factors, played.tools).signals
    return len(played.tools) / (RECORDED[0] * RECORDED[1]), {each.preset: each for each in signals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Means over seeds for one world and preset."""

    world: str
    preset: str
    seeds: int
    steps: float
    before: float
    grpo: float
    ratio: float
    by_ratio: float
    """Success by the ratio alone, however long episodes are."""
    predicted: float
    measured: float


def compare(world: World, seeds: Sequence[int]) -> list[Row]:
    rates = {name: tune(world, preset) for name, preset in PRESETS.items()}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in PRESETS if name != "grpo"}
    for seed in seeds:
        steps, signals = diagnose(world, seed)
        before, grpo = practise(world, PRESETS["grpo"], rates["grpo"], seed)
        for name in found.keys() & signals.keys():
            ratio = signals[name].ratio
            measured = practise(world, PRESETS[name], rates[name], seed)[1]
            by_ratio = scale_gain(before, grpo, ratio)
            predicted = by_ratio if steps >= ENOUGH_STEPS else grpo
            found[name].append((steps, before, grpo, ratio, by_ratio, predicted, measured))
    return [
        Row(
            world=world.name,
            preset=name,
            seeds=len(rows),
            **dict(zip(_FIGURES, map(fmean, zip(*rows, strict=True)), strict=True)),
        )
        for name, rows in found.items()
        if rows
    ]


_FIGURES = ("steps", "before", "grpo", "ratio", "by_ratio", "predicted", "measured")


def main() -> None:
    parser = options(__doc__, "one seed")
    parser.add_argument("--world", choices=[world.name for world in WORLDS], help="only this one")
    args = parser.parse_args()
    worlds = [world for world in WORLDS if args.world in (None, world.name)]
    rows = [row for world in worlds for row in compare(world, SEEDS[:1] if args.quick else SEEDS)]
    if args.json:
        show("predicted_practice", list_results(rows), as_json=True)
        return
    table = Table("world", "preset", "seeds", *_FIGURES, "error, points")
    for row in rows:
        shares = (row.before, row.grpo, row.by_ratio, row.predicted, row.measured)
        before, grpo, *rest = (f"{100 * share:.1f} %" for share in shares)
        error = f"{100 * (row.predicted - row.measured):+.1f}"
        figures = (f"{row.steps:.0f}", before, grpo, f"{row.ratio:.2f}", *rest, error)
        table.add_row(row.world, row.preset, str(row.seeds), *figures)
    Console(width=170).print(table)


def list_results(rows: Sequence[Row]) -> list[Result]:
    return [
        Result(metric=f"{row.world}: {row.preset}: {name}", value=round(getattr(row, name), 4), unit="")
        for row in rows
        for name in _FIGURES
    ]


if __name__ == "__main__":
    main()
