"""A `Policy` over transformers' own `generate`: slow, simple, and the reference for others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.parsing import choose_format
from gymcp.types import Sampled, Sampling

torch.set_num_threads(1)  # tiny matrices: more threads only wait for each other


class GeneratePolicy:
    """Draws one sample at a time."""

    def __init__(self, model: Any) -> None:
        self.model = model

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(sampling.seed or 0)
            made = self.model.generate(
                torch.tensor([list(prompt_ids)]),
                attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
                max_new_tokens=sampling.max_tokens,
                do_sample=True,
                temperature=sampling.temperature,
                top_p=1.0,
                top_k=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = made.sequences[0, len(prompt_ids) :].tolist()
        rows = torch.stack(made.logits)[:, 0].float().div(sampling.temperature).log_softmax(-1)
        ends = self.model.generation_config.eos_token_id
        ended = ids[-1] in (ends if isinstance(ends, list) else [ends])
        return Sampled(
            prompt_ids=tuple(prompt_ids),
            ids=tuple(ids),
            logprobs=tuple(rows[range(len(ids)), ids].tolist()),
            versions=(("0", 0, len(ids)),),
            finish="stop" if ended else "length",
        )


def load(folder: Path) -> TokenModel:
    """A tiny model's folder, ready for an agent."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    return TokenModel(
        name="tiny",
        policy=GeneratePolicy(model),
        renderer=Renderer(tokenizer, "tiny"),
        parse_calls=choose_format(None, tokenizer, "tiny"),
        context=model.config.max_position_embeddings,
    )
