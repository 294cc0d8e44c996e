"""Policies over texts instead of a model, and the call that solves the bank's first task in every style."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from generate_policy import GeneratePolicy

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.tiny_model import Style
from gymcp.types import Sampled, Sampling


class Spelled(GeneratePolicy):
    """A policy whose samples are prepared texts in the tokenizer's own tokens, with the template's end token."""

    def __init__(self, model: TokenModel, texts: Sequence[str]) -> None:
        self._model = model
        self._texts = list(texts)
        self.sampling: list[Sampling] = []
        self.contexts: list[tuple[int, ...]] = []
        """Tokens that were read and written in each request."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.sampling.append(sampling)
        text = self._texts.pop(0)
        ids = [*self._model.renderer.tokenizer.encode(text), min(self._model.renderer.end_ids)]
        self.contexts.append((*prompt_ids, *ids))
        return Sampled(
            prompt_ids=tuple(prompt_ids), ids=tuple(ids), logprobs=(0.0,) * len(ids), versions=(("0", 0, len(ids)),)
        )


class RandomPayer:
    """A policy that pays at random, more than there is at times, until it says that all is paid.

    What it draws, log-probabilities too, follows from the seed of the request alone.
    """

    def __init__(self, model: TokenModel) -> None:
        self._renderer = model.renderer

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        rng = random.Random(sampling.seed)
        payment = {"source": rng.choice(["ann", "bob"]), "target": "ann", "amount": rng.randint(1, 60)}
        call = f'<tool_call>\n{{"name": "transfer", "arguments": {json.dumps(payment)}}}\n</tool_call>'
        text = "All is paid." if rng.random() < 0.2 else call
        ids = (*self._renderer.tokenizer.encode(text), min(self._renderer.end_ids))
        logprobs = tuple(-rng.random() for _ in ids)
        return Sampled(prompt_ids=tuple(prompt_ids), ids=ids, logprobs=logprobs, versions=(("0", 0, len(ids)),))


FIVE = '{"source": "ann", "target": "bob", "amount": 5}'
PAY: dict[Style, str] = {
    "qwen": f'<tool_call>\n{{"name": "transfer", "arguments": {FIVE}}}\n</tool_call>',
    "llama": f'{{"name": "transfer", "parameters": {FIVE}}}',
    "compact": "<|c|>transfer<|v|>5<|v|>ann<|v|>bob",
    "terse": "<|c|>transfer<|v|>5<|v|>ann<|v|>bob",
}
