"""Recipes with random values load, or fail with one line that names the key."""

from __future__ import annotations

import tempfile
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.errors import ConfigError
from gymcp.trainers.credit.presets import PRESETS
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import load_recipe, make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Json

texts = st.text(max_size=8) | st.sampled_from(("vllm", "embedded", "vllm:http://x#y", "constant", "auto", "tiny"))
values: st.SearchStrategy[Json] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 9) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def keys() -> list[tuple[str, ...]]:
    """Every key of a recipe, with its section."""
    hints = get_type_hints(Recipe)
    found: list[tuple[str, ...]] = []
    for each in fields(Recipe):
        hint = hints[each.name]
        if is_dataclass(hint):
            found += [(each.name, inner.name) for inner in fields(hint)]
        found.append((each.name,))
    return found


def make_or_refuse(table: dict[str, Json]) -> None:
    try:
        recipe = make_recipe(table)
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert build_preset(recipe).loss_terms


@given(st.sampled_from(keys()), values)
def test_any_value_of_any_key(key: tuple[str, ...], value: Json) -> None:
    table: dict[str, Json] = {"env": "backoffice"}
    make_or_refuse({**table, key[0]: {key[1]: value} if len(key) == 2 else value})


@given(
    st.sampled_from(sorted(PRESETS)),
    st.dictionaries(texts | st.sampled_from(("gamma", "anchor", "step_weight")), values),
)
@example("gigpo", {"gamma": 10**18})
def test_any_credit_options(preset: str, options: dict[str, Json]) -> None:
    make_or_refuse({"env": "backoffice", "credit": {"preset": preset, **options}})


@given(st.dictionaries(texts | st.sampled_from(("clip_low", "weight", "kl")), values))
@example({"weight": {"rule": []}})
def test_any_loss_settings(loss: dict[str, Json]) -> None:
    make_or_refuse({"env": "backoffice", "loss": loss})


@given(st.dictionaries(texts, values, max_size=3), st.lists(st.tuples(texts, values), max_size=2))
def test_any_toml_file(table: dict[str, Json], settings: list[tuple[str, Json]]) -> None:
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = Path(folder) / "recipe.toml"
        file.write_text(tomli_w.dumps({"env": "backoffice", **table}), encoding="utf-8")
        try:
            load_recipe(file, settings)
        except ConfigError:
            return


@given(st.binary(max_size=100))
@example(b"x = " + b"[" * 10_000)
def test_any_bytes_as_a_file(content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = Path(folder) / "recipe.toml"
        file.write_bytes(content)
        try:
            load_recipe(file)
        except ConfigError:
            return
