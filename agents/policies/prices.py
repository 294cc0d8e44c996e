"""Prices of models, from a file that the user maintains: a list shipped with gymcp would soon be wrong."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price per million tokens."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """Price of prompt tokens that the endpoint had in its cache; None for the price of any other prompt token."""

    def of(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """The cost of a request; the `cached_tokens` are among the `prompt_tokens`."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.prompt + cached_tokens * cached + completion_tokens * self.completion) / 1e6


def load_prices(file: Path) -> dict[str, Price]:
    """Prices by model, from a TOML file.

    A model has a table ``[models."NAME"]`` with ``prompt``, ``completion`` and maybe ``cached``, per million tokens.
    Raises ConfigError.
    """
    who = f"prices {file}"
    try:
        content = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{who}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{who}: not TOML: {error}") from error
    models = content.get("models")
    if not isinstance(models, dict):
        raise ConfigError(f'{who}: has no prices; write [models."NAME"] with prompt and completion per million tokens')
    return {name: _price(f"{who}: model '{name}'", entry) for name, entry in models.items()}


def _price(who: str, entry: Json) -> Price:
    known = ("prompt", "completion", "cached")
    if not isinstance(entry, Mapping) or not {"prompt", "completion"} <= entry.keys() <= set(known):
        raise ConfigError(f"{who}: needs prompt and completion, may have cached, and nothing else")
    for key, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{who}: {key} must be a number from 0, not {value!r}")
    return Price(**entry)
