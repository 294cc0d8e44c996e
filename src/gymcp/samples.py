"""Records of what a model draws: the settings, the tokens, the times and the cost; and defaults of endpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable that holds an endpoint's key by default."""
REQUEST_TIMEOUT_S = 120.0
"""Seconds for one answer of a judge's or a user's model by default; an agent's model has the agent's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings of one answer."""

    max_tokens: int = 512
    temperature: float = 1.0
    """Softmax temperature; 0: always the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens to draw from; 0: no limit."""
    stop: tuple[str, ...] = ()
    """Texts that end the sample; the tokens that spell them are part of it."""
    seed: int | None = None
    """Seed of the answer; None: the engine's own generator. The same seed, prompt and weights give the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Times of the request that brought a decision, without earlier attempts and waiting in the client."""

    request_s: float
    """Seconds from sending it to the last token of its answer; waiting in the server or engine counts."""
    first_token_s: float | None = None
    """Seconds from sending it to the first token; None if the answer came as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Tokens of one action, exactly as the engine read and drew them."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each of `ids` under the distribution it was drawn from, temperature included, before top-p and
    top-k. At temperature 0: under the distribution at temperature 1."""
    versions: tuple[tuple[str, int, int], ...]
    """(weight version, start, end) spans over `ids`."""
    finish: Literal["stop", "length"] = "stop"
    """``stop``: the model ended the sample; ``length``: `max_tokens` or the context did."""
    request_times: RequestTimes | None = field(default=None, compare=False)
    """Recorded in `Step.request_times` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage:
    """Tokens and cost of one decision, for one model."""

    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Cost in the currency of the price list; 0 if the model has no known price."""
