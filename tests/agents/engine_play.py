"""An engine for a test, its prompts, and tokenizers that show or stop what it does."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import torch
from engine_models import VOCABULARY

from gymcp.agents.policies.engine.engine import Engine, EngineOptions, open_engine
from gymcp.protocols import Policy
from gymcp.types import Sampled, Sampling

WAIT_S = 120.0
"""Timeout in seconds, far longer than any test here takes, so that a test that hangs fails."""


class Letters:
    """A tokenizer of one letter per token."""

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(chr(ord("0") + token) for token in ids)


class Counted(Letters):
    """A tokenizer that sees every token of a request with the stop text `NEVER` and pauses the engine at some."""

    def __init__(self, *counts: int) -> None:
        self._counts = dict.fromkeys(counts)
        self._drawn = 0
        self._reached = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str:
        if len(ids) > 1:
            self._drawn += 1
            if self._drawn in self._counts:
                self._reached.release()
                assert self._go_on.acquire(timeout=WAIT_S)
        return "\N{REPLACEMENT CHARACTER}"

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Enter when the next count is reached; the engine continues on exit, with the updates submitted meanwhile."""
        assert await asyncio.to_thread(self._reached.acquire, timeout=WAIT_S)
        try:
            yield
        finally:
            self._go_on.release()


NEVER = ("\N{SNOWMAN}",)


@asynccontextmanager
async def engine_on(model: Any, slots: int = 4, **options: Any) -> AsyncIterator[Engine]:
    async with asyncio.timeout(WAIT_S), open_engine(model, slots=slots, options=EngineOptions(**options)) as engine:
        yield engine


def prompts(count: int, *, seed: int = 0, shared: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    beginning = [rng.randrange(VOCABULARY) for _ in range(shared)]
    return [[*beginning, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40)))] for _ in range(count)]


async def sample_all(engine: Policy, asked: list[list[int]], sampling: Sampling) -> list[Sampled]:
    """Sample all prompts at once, each with its own seed and length."""
    return await asyncio.gather(
        *(
            engine.sample(prompt, replace(sampling, seed=at, max_tokens=1 + (sampling.max_tokens + 5 * at) % 23))
            for at, prompt in enumerate(asked)
        )
    )


def copy_into(model: Any, other: Any) -> None:
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
