"""Curves of registered comparisons as files of the package, one for each comparison whose ranked runs have ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.evaluators.training_curves import is_share
from gymcp.types import Json

PACKAGED = Path(__file__).parent
"""Folder of the files that the package ships."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredArm:
    name: str
    label: str
    """Name for people."""
    rate: float
    """Learning rate."""
    success: Mapping[int, Mapping[int, float]]
    """Seed -> iteration -> success on held-out tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredCurves:
    """Curves of the ranked arms of one comparison, and what a reader needs to tell them from other curves."""

    registration: str
    """Name of the registration."""
    digest: str
    """Digest of the registration."""
    recipe_digest: str
    title: str
    verdict: str
    claims: Mapping[str, str]
    """Claim in words -> its verdict."""
    baseline: str
    """Arm that the others are compared with."""
    seeds: tuple[int, ...]
    recipe: Mapping[str, Json]
    """Recipe of the arms; what they differ in, section ``credit`` and the learning rate, is that of none of them."""
    arms: tuple[RegisteredArm, ...]


def write_registered_curves(curves: RegisteredCurves, folder: Path = PACKAGED) -> Path:
    """Write the file of a comparison, a line for each seed, and return its path."""
    table = asdict(curves)
    arms = table.pop("arms")
    head = json.dumps(table, indent=1).removesuffix("\n}")
    lines = ",\n".join(
        "  "
        + json.dumps({key: value for key, value in arm.items() if key != "success"}).removesuffix("}")
        + ', "success": {\n'
        + ",\n".join(f'    "{seed}": {json.dumps(points)}' for seed, points in arm["success"].items())
        + "}}"
        for arm in arms
    )
    path = folder / f"{curves.registration}.json"
    write_atomically(path, f'{head},\n "arms": [\n{lines}\n ]\n}}\n'.encode())
    return path


def read_registered_curves(folder: Path = PACKAGED) -> tuple[RegisteredCurves, ...]:
    """The comparisons of a folder, the last name first; empty if nothing has been measured yet.

    Raises ConfigError for a file that is not what `write_registered_curves` writes.
    """
    return tuple(_read(path) for path in sorted(folder.glob("*.json"), reverse=True))


def _read(path: Path) -> RegisteredCurves:
    try:
        curves = _parse(json.loads(path.read_text(encoding="utf-8")))
        if curves.registration != path.stem:
            raise ValueError(f"it holds '{curves.registration}'")
        return curves
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"curves of a registered comparison {path}: cannot be read: {error}; python benchmarks/credit.py --report"
            " writes it again"
        ) from error


def _parse(table: Json) -> RegisteredCurves:
    """The record of a file's content. Raises ValueError, naming what is wrong."""
    texts = {name: _take(table, name, str) for name in _TEXTS}
    claims, recipe = _take(table, "claims", dict), _take(table, "recipe", dict)
    if not all(isinstance(verdict, str) for verdict in claims.values()):
        raise ValueError("'claims' must be texts")
    seeds = _take(table, "seeds", list)
    if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise ValueError("'seeds' must be whole numbers")
    arms = tuple(_parse_arm(arm, seeds) for arm in _take(table, "arms", list))
    if texts["baseline"] not in [arm.name for arm in arms]:
        raise ValueError(f"no arm '{texts['baseline']}', its baseline")
    return RegisteredCurves(claims=claims, recipe=recipe, seeds=tuple(seeds), arms=arms, **texts)


_TEXTS = ("registration", "digest", "recipe_digest", "title", "verdict", "baseline")


def _parse_arm(table: Json, seeds: Sequence[int]) -> RegisteredArm:
    name, label, success = _take(table, "name", str), _take(table, "label", str), _take(table, "success", dict)
    rate = _take(table, "rate", float)
    if set(success) != {str(seed) for seed in seeds}:
        raise ValueError(f"arm '{name}': its seeds are {', '.join(success)}, not {', '.join(map(str, seeds))}")
    return RegisteredArm(
        name=name,
        label=label,
        rate=rate,
        success={seed: _parse_points(success[str(seed)], f"arm '{name}'") for seed in seeds},
    )


def _parse_points(points: Json, who: str) -> dict[int, float]:
    is_line = isinstance(points, dict) and points and all(at.isdecimal() and is_share(y) for at, y in points.items())
    if not is_line:
        raise ValueError(f"{who}: success must be shares by iteration")
    return {int(at): float(share) for at, share in points.items()}


def _take(table: Json, name: str, kind: type) -> Any:
    value = table.get(name) if isinstance(table, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"'{name}' must be {_KINDS[kind]}")
    return value


_KINDS = {str: "a text", float: "a number", dict: "a table", list: "a list"}
