"""Registered comparisons of training runs: arms, seeds, rates and claims, fixed before the first measured run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from comparisons.figures import FIGURES
from gymcp.envs.anchors import StateAnchor
from gymcp.errors import ConfigError
from gymcp.mcp_servers.digest import digest
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.settings.validate import check_value
from gymcp.types import Json

BENCHMARKS = Path(__file__).parents[1]
RECIPES = BENCHMARKS / "curves"
REGISTRATIONS = BENCHMARKS / "registrations"
MIN_RATES = 3
"""Fewest learning rates that an arm is tuned over."""
UNWRITTEN = "to be written"
"""A prediction that waits for the recorded run: such a registration has no claims, and no measured seed of it runs."""
Range = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperClaim:
    """A method's claim as its paper has it, to be compared with what the arm shows (`methods.judge_paper`)."""

    says: str
    direction: Literal["higher", "lower", "none"]
    """Expected sign of the difference; none: the paper claims no difference that this ground could show."""
    over: str = ""
    """Arm that is subtracted; empty: the baseline."""
    figure: str = "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to train, compared with the others from the same start, on the same tasks."""

    name: str
    title: str = ""
    """Name for people; empty: `name`."""
    credit: Mapping[str, Json]
    """Section ``credit`` of the recipe."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Further keys of the recipe that this arm alone sets."""
    anchor: StateAnchor | None = None
    """Anchor of steps; None: the environment's own."""
    ranked: bool = False
    """True: measured on all seeds; False: on the first ones, shown and never ranked. A table of methods ranks by
    itself."""
    rates: tuple[float, ...] = ()
    """Learning rates that are tried on the tuning seed."""
    rate_of: str = ""
    """Arm whose tuned rate this one takes, in place of `rates`."""
    expected: Mapping[str, Range] = field(default_factory=dict)
    """Figure -> the range in which its mean over seeds was expected."""
    paper: PaperClaim | None = None
    """Claim of the method's paper, in a table of methods."""

    @property
    def label(self) -> str:
        return self.title or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerAssumption:
    """Assumed truth with which the power of a claim is computed."""

    effect: float
    sd: float
    """Standard deviation over seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Bounds on the mean of ``figure of arm - times * figure of over``, and on its 95 % interval over seeds."""

    says: str
    arm: str
    figure: str
    over: str = ""
    """Arm of the same seed that is subtracted; empty: nothing is."""
    times: float = 1.0
    mean_min: float | None = None
    mean_max: float | None = None
    low_above: float | None = None
    """Lower end of the interval: above this."""
    high_below: float | None = None
    """Upper end of the interval: below this."""
    expected: Range | None = None
    power: PowerAssumption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Bounds on an arm's mean success over seeds after some iterations; outside, nothing further is run."""

    arm: str
    after: int
    min_success: float
    max_success: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    name: str
    digest: str
    """sha256 of the registration and its recipe, as parsed: comments do not count."""
    recipe: str
    """Name of the recipe in ``benchmarks/curves``."""
    recipe_digest: str
    iterations: int
    """Iterations of a run: the same in all arms."""
    batch: int
    """Size of an iteration, in `batch_unit`: the same in all arms."""
    batch_unit: Literal["episodes", "sampled tokens"]
    """Unit of `batch`: tokens if the recipe has ``rollout.batch_tokens``, so that arms may have trees."""
    title: str
    tuning_seeds: tuple[int, ...]
    """Seeds on which rates, warm start and recipe are chosen, by the mean over them; they are never measured. A file
    may name a single one as ``tuning_seed``."""
    seeds: tuple[int, ...]
    shown_seeds: int
    """Number of seeds of the arms that are not ranked."""
    baseline: str
    figures: tuple[str, ...]
    """Figures of the table of arms."""
    expected_start: Range
    """Expected success before practice."""
    tuned_by: Mapping[str, float]
    """Figure -> its weight in the sum by which a learning rate is chosen."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Keys of the recipe that are set in all arms."""
    stop: StopRule | None = None
    prediction: str = ""
    """Sentence that a rule gave before the runs and the claims test, or `UNWRITTEN`."""
    by_default: bool = True
    """True: run by ``make curves``; False: only if it is named (``--only``)."""
    near_best: float = 0.0
    """In a table of methods: arms whose score (`tuned_by`) is no further than this below the best are measured on all
    seeds, the others on the first `shown_seeds`."""
    accepts_ends: bool = False
    """True: the best rate may be an end of its grid, which the table shows. A rate that is added to the file would make
    all that was measured before void."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """In a table of methods: preset that has no arm -> the reason."""
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]

    def arm(self, name: str) -> Arm:
        """The arm of that name. Raises ConfigError if there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = ", ".join(arm.name for arm in self.arms)
        raise ConfigError(f"registration '{self.name}': no arm '{name}'; have {names}")

    def seeds_of(self, arm: Arm) -> tuple[int, ...]:
        """Seeds on which the arm may be measured; in a table of methods `methods.choose_seeds` names some of them."""
        return self.seeds if arm.ranked or arm.paper is not None else self.seeds[: self.shown_seeds]


def read_registrations(folder: Path = REGISTRATIONS) -> list[Registration]:
    """All registrations of a folder, by name. Raises ConfigError, also if two measure one seed."""
    found = [read_registration(path) for path in sorted(folder.glob("*.toml"))]
    check_seeds(found)
    return found


def check_seeds(registrations: Sequence[Registration]) -> None:
    """Raise ConfigError if a measured seed is measured, or tuned on, by another registration, of whichever recipe."""
    for one, other in combinations(registrations, 2):
        shared = ({*one.seeds} & {*other.seeds, *other.tuning_seeds}) | ({*other.seeds} & {*one.tuning_seeds})
        if shared:
            raise ConfigError(
                f"registration '{other.name}': seed {min(shared)} is one of '{one.name}': name seeds that no other"
                " registration has"
            )


def find_latest(registrations: Sequence[Registration]) -> list[Registration]:
    """The last registration of each recipe: the one with the highest number behind its name."""
    return list({each.recipe: each for each in sorted(registrations, key=_number)}.values())


def read_registration(path: Path, recipes: Path = RECIPES) -> Registration:
    """The registration of a file. Raises ConfigError, naming what is wrong."""
    who = f"registration '{path.stem}'"
    table = _read_toml(path, who)
    arms = _sections(table.pop("arms", {}), who, "arms")
    claims = _read_claims(table, arms, who)
    whole = {"registration": {**table, "arms": arms, "claims": list(claims.values())}}
    recipe = _read_toml(recipes / f"{table.get('recipe')}.toml", f"{who}: recipe '{table.get('recipe')}'")
    if "tuning_seed" in table:
        table["tuning_seeds"] = [table.pop("tuning_seed")]
    registration = _make(
        Registration,
        table,
        who,
        name=path.stem,
        digest=digest({**whole, "recipe": recipe}),
        recipe_digest=digest(recipe),
        iterations=0,
        batch=0,
        batch_unit="episodes",
        arms=tuple(_make_arm(name, arm, f"{who}: arms.{name}") for name, arm in arms.items()),
        claims=tuple(_make(Claim, claim, f"{who}: claim {number}") for number, claim in claims.items()),
    )
    _check(registration)
    return _with_budget(registration, recipes)


def load_arm_recipe(
    registration: Registration, arm: Arm | None, seed: int, rate: float | None = None, recipes: Path = RECIPES
) -> Recipe:
    """The recipe of an arm before its warm start; None for the arm: that of the warm start which all arms share."""
    settings = {**registration.settings, "seed": seed}
    if arm is not None:
        settings |= {**arm.settings, "credit": dict(arm.credit), "name": arm.name}
    if rate is not None:
        settings["learn.learning_rate"] = rate
    return load_recipe(recipes / f"{registration.recipe}.toml", list(settings.items()))


def _number(registration: Registration) -> tuple[int, str]:
    number = registration.name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, registration.name)


def _read_toml(path: Path, who: str) -> dict[str, Json]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{who}: {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{who}: {path} is not TOML: {error}") from error


def _sections(value: Json, who: str, key: str) -> dict[str, dict[str, Json]]:
    if not isinstance(value, dict) or not value or not all(isinstance(each, dict) for each in value.values()):
        raise ConfigError(f"{who}: '{key}' must be one or more sections")
    return value


def _read_claims(table: dict[str, Json], arms: Mapping[str, dict[str, Json]], who: str) -> dict[str, dict[str, Json]]:
    """Take the claims out of the table. They may be missing if the arms have those of their papers instead, or before
    the prediction that they test is written."""
    if "claims" not in table and (table.get("prediction") == UNWRITTEN or any("paper" in arm for arm in arms.values())):
        return {}
    return _sections({str(number): claim for number, claim in enumerate(table.pop("claims", []), 1)}, who, "claims")


def _make_arm(name: str, table: Mapping[str, Json], who: str) -> Arm:
    expected = {
        figure: _range(value, f"{who}.expected.{figure}") for figure, value in table.get("expected", {}).items()
    }
    return _make(Arm, {**table, "expected": expected}, who, name=name)


def _make(cls: type[T], table: Mapping[str, Json], who: str, **given: object) -> T:
    """The record of a table and the `given` values. Raises ConfigError for an unknown, missing or mistyped key."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints or key in given:
            raise ConfigError(f"{who}: no key '{key}'; have {', '.join(name for name in hints if name not in given)}")
        inner = _INNER.get((cls, key))
        if inner is not None:
            values[key] = _make(inner, value, f"{who}.{key}")
        elif hints[key] in (Range, Range | None):
            values[key] = _range(value, f"{who}: {key}")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
            check_value(f"{who}: {key}", values[key], hints[key])
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name not in {*values, *given} and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{who}: '{each.name}' is missing")
    return cls(**values, **given)


_INNER: Mapping[tuple[type, str], type] = {
    (Registration, "stop"): StopRule, (Claim, "power"): PowerAssumption, (Arm, "paper"): PaperClaim,
}  # fmt: skip
"""Keys whose value is a record of its own."""


def _range(value: Json, who: str) -> Range:
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(x, int | float) for x in value)
    if not is_pair or value[0] > value[1]:
        raise ConfigError(f"{who} is {value!r}; it must be a list of a lower and an upper end")
    return float(value[0]), float(value[1])


def _with_budget(registration: Registration, recipes: Path) -> Registration:
    """The registration with the budget of its arms. Raises ConfigError if a recipe cannot be, or budgets differ."""
    who, budgets = f"registration '{registration.name}'", set()
    for arm in registration.arms:
        try:
            recipe = load_arm_recipe(registration, arm, registration.seeds[0], recipes=recipes)
        except ConfigError as error:
            raise ConfigError(f"{who}: arms.{arm.name}: {error}") from error
        budgets.add((recipe.learn.iterations, *_measure_batch(recipe)))
    if len(budgets) > 1:
        raise ConfigError(f"{who}: its arms have different numbers of episodes, or of sampled tokens")
    ((iterations, batch, unit),) = budgets
    if registration.stop is not None and not 0 < registration.stop.after < iterations:
        raise ConfigError(f"{who}: stop.after must be from 1 to {iterations - 1}")
    return replace(registration, iterations=iterations, batch=batch, batch_unit=unit)


def _measure_batch(recipe: Recipe) -> tuple[int, Literal["episodes", "sampled tokens"]]:
    """Size of an iteration, and its unit."""
    rollout = recipe.rollout
    return (
        (rollout.batch_tokens, "sampled tokens")
        if rollout.batch_tokens
        else (rollout.groups * rollout.episodes, "episodes")
    )


def _check(registration: Registration) -> None:
    """Raise ConfigError for a name that is not there, or a seed that must not be measured."""
    who = f"registration '{registration.name}'"
    seeds = registration.seeds
    if len({*seeds}) != len(seeds) or len(seeds) < 2 or {*seeds} & {*registration.tuning_seeds}:
        tuning = ", ".join(map(str, registration.tuning_seeds))
        raise ConfigError(f"{who}: seeds must be two or more different ones, and none of them for tuning ({tuning})")
    if registration.prediction == UNWRITTEN and registration.claims:
        raise ConfigError(f"{who}: it has claims, and its prediction is '{UNWRITTEN}': write that too")
    if not registration.tuning_seeds:
        raise ConfigError(f"{who}: tuning_seeds is empty; name one or more")
    if not 0 < registration.shown_seeds <= len(seeds):
        raise ConfigError(f"{who}: shown_seeds is {registration.shown_seeds}; it must be from 1 to {len(seeds)}")
    named = [registration.baseline, *([registration.stop.arm] if registration.stop else [])]
    named += [name for claim in registration.claims for name in (claim.arm, claim.over) if name]
    if unranked := [name for name in named if not registration.arm(name).ranked]:
        raise ConfigError(f"{who}: arm '{unranked[0]}' is not ranked, so nothing can be claimed of it")
    figures = [*registration.figures, *registration.tuned_by, *(claim.figure for claim in registration.claims)]
    papers = [arm.paper for arm in registration.arms if arm.paper is not None]
    figures += [paper.figure for paper in papers]
    for paper in papers:
        registration.arm(paper.over or registration.baseline)
    figures += [figure for arm in registration.arms for figure in arm.expected]
    if unknown := [name for name in figures if name not in FIGURES]:
        raise ConfigError(f"{who}: no figure '{unknown[0]}'; have {', '.join(FIGURES)}")
    for arm in registration.arms:
        source = registration.arm(arm.rate_of) if arm.rate_of else arm
        if bool(arm.rates) == bool(arm.rate_of) or len(set(source.rates)) < MIN_RATES:
            raise ConfigError(f"{who}: arms.{arm.name}: name rate_of, or {MIN_RATES} or more different rates")
