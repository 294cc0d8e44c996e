"""One request to the engine, from its prompt to its last token, and the rule that ends a sample."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Protocol

from gymcp.types import RequestTimes, Sampled, Sampling

DECODE_MARGIN_TOKENS = 4
"""Number of tokens decoded before those that can hold a stop text: some decoders drop the space of the first token."""

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """The part of a tokenizer that the engine uses: stop texts are searched in decoded text."""

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str: ...


class StopRule:
    """The rule that a sample ends with a stop token, or with the token that completes a stop text."""

    def __init__(self, stop_ids: frozenset[int], decoder: Decoder | None) -> None:
        self._stop_ids = stop_ids
        self._decoder = decoder
        self._pieces: dict[int, str] = {}

    def ends_sample(self, ids: list[int], stop: Sequence[str]) -> bool:
        """True if the last of `ids` ends the sample."""
        if ids[-1] in self._stop_ids:
            return True
        if not stop or self._decoder is None:
            return False
        piece = self._piece(ids[-1])
        likely = [text for text in stop if text[-1] in piece or REPLACEMENT_CHARACTER in piece]
        if not likely:
            return False
        # every token but a special one spells a byte or more
        tail = self._decoder.decode(
            ids[-max(len(text.encode()) for text in likely) - DECODE_MARGIN_TOKENS :], skip_special_tokens=False
        )
        return any(text in tail for text in likely)

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            assert self._decoder is not None
            self._pieces[token] = self._decoder.decode([token], skip_special_tokens=False)
        return self._pieces[token]


class Request:
    """A prompt and the tokens sampled for it so far.

    Created on the event loop; then only the model's thread uses it, except for `cancelled` and `future`.
    """

    def __init__(self, prompt: tuple[int, ...], sampling: Sampling, rng: random.Random) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Sampled] = self.loop.create_future()
        self.cancelled = False
        self.slot = -1
        self.source = -1
        """The slot from which a computed prefix will be copied; -1 for none."""
        self.ids: list[int] = []
        self._rng = random.Random(sampling.seed) if sampling.seed is not None else rng
        self._logprobs: list[float] = []
        self._versions: list[tuple[str, int, int]] = []
        self._sent = time.perf_counter()
        self._first_token_s: float | None = None

    def uniform(self) -> float:
        """The random number in [0, 1) with which the next token is sampled."""
        return self._rng.random()

    def add(self, token: int, logprob: float, version: str) -> None:
        """Append a token, sampled with the weights `version`."""
        at = len(self.ids)
        if not at:
            self._first_token_s = time.perf_counter() - self._sent
        self.ids.append(token)
        self._logprobs.append(logprob)
        if self._versions and self._versions[-1][0] == version:
            self._versions[-1] = (version, self._versions[-1][1], at + 1)
        else:
            self._versions.append((version, at, at + 1))

    def to_sampled(self, *, stopped: bool) -> Sampled:
        """The record of the sample."""
        return Sampled(
            prompt_ids=self.prompt,
            ids=tuple(self.ids),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            finish="stop" if stopped else "length",
            request_times=RequestTimes(request_s=time.perf_counter() - self._sent, first_token_s=self._first_token_s),
        )
