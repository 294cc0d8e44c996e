"""A policy over prepared texts, and the call that solves the bank's first task in every style."""

from __future__ import annotations

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


FIVE = '{"source": "ann", "target": "bob", "amount": 5}'
PAY: dict[Style, str] = {
    "qwen": f'<tool_call>\n{{"name": "transfer", "arguments": {FIVE}}}\n</tool_call>',
    "llama": f'{{"name": "transfer", "parameters": {FIVE}}}',
    "compact": "<|c|>transfer<|v|>5<|v|>ann<|v|>bob",
    "terse": "<|c|>transfer<|v|>5<|v|>ann<|v|>bob",
}
