"""Tokens per second of the embedded engine, against transformers' continuous batching and vLLM on the same model.

A random Qwen3 of 1.3 M parameters (4 layers of 128, 4096 tokens) in float32; 64 requests at once on 64 slots, 256
tokens in and 64 out. The rounds of all contenders are interleaved, and the median of each is taken: they meet the same
machine.
vLLM is measured where `gymcp serve` has set it up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from gymcp.agents.engine import Engine, EngineOptions, open_engine
from gymcp.types import Sampling

VOCABULARY, SLOTS, PROMPT, SAMPLED, TURNS, OBSERVATION = 4096, 64, 256, 64, 6, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    metric: str
    value: float
    unit: str
    baseline: str | None = None
    baseline_value: float | None = None
    ratio: float | None = None


def against(metric: str, value: float, baseline: Result) -> Result:
    return Result(
        metric=metric,
        value=value,
        unit="tok/s",
        baseline=baseline.metric,
        baseline_value=baseline.value,
        ratio=value / baseline.value,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per forward pass, for all contenders alike")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.WARNING)
    results = asyncio.run(measure(rounds=2 if args.quick else 5, threads=args.threads))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, torch {torch.__version__}"
    if args.json:
        print(json.dumps({"name": "engine", "machine": machine, "results": [asdict(result) for result in results]}))
        return
    table = Table("what", "value", "unit", "against", "ratio", title=machine)
    for result in results:
        ratio = f"{result.ratio:.2f}" if result.ratio else ""
        table.add_row(result.metric, f"{result.value:.0f}", result.unit, result.baseline or "", ratio)
    Console().print(table)


def tiny_qwen() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def random_prompts(seed: int, count: int = SLOTS, length: int = PROMPT) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]


async def measure(*, rounds: int, threads: int) -> list[Result]:
    model = tiny_qwen()
    continuous: list[float] = []
    ours: list[float] = []
    alone: list[float] = []
    kept: list[float] = []
    recomputed: list[float] = []
    async with open_engine(model, slots=SLOTS, options=EngineOptions(seed=0)) as engine:
        await all_at_once(engine, random_prompts(0))  # warm
        for at in range(rounds):
            continuous.append(transformers_rate(model, random_prompts(3 * at + 1)))
            ours.append(await all_at_once(engine, random_prompts(3 * at + 2)))
            alone.append(await all_at_once(engine, random_prompts(3 * at + 3, count=1)))
            kept.append(await episodes(engine, at, keep=True))
            recomputed.append(await episodes(engine, at, keep=False))
    baseline = Result(metric="transformers continuous batching", value=statistics.median(continuous), unit="tok/s")
    again = Result(metric="episodes, everything recomputed", value=statistics.median(recomputed), unit="tok/s")
    return [
        baseline,
        against(f"embedded engine, {SLOTS} at once", statistics.median(ours), baseline),
        Result(metric="embedded engine, 1 alone", value=statistics.median(alone), unit="tok/s"),
        again,
        against("episodes, keys and values kept", statistics.median(kept), again),
    ]


async def all_at_once(engine: Engine, prompts: Sequence[Sequence[int]]) -> float:
    """Sampled tokens per second, the prompts included in the time."""
    started = time.perf_counter()
    samples = await asyncio.gather(*(engine.sample(prompt, Sampling(max_tokens=SAMPLED)) for prompt in prompts))
    return sum(len(sampled.ids) for sampled in samples) / (time.perf_counter() - started)


async def episodes(engine: Engine, seed: int, *, keep: bool) -> float:
    """Sampled tokens per second of episodes of several turns; every turn adds an observation."""
    rows = random_prompts(1000 + seed)
    rng = random.Random(seed)
    started, drawn = time.perf_counter(), 0
    for _ in range(TURNS):
        if not keep:
            await engine.update(engine.version)  # forgets what idle slots hold
        samples = await asyncio.gather(*(engine.sample(row, Sampling(max_tokens=SAMPLED)) for row in rows))
        drawn += sum(len(sampled.ids) for sampled in samples)
        rows = [[*s.prompt_ids, *s.ids, *(rng.randrange(VOCABULARY) for _ in range(OBSERVATION))] for s in samples]
    return drawn / (time.perf_counter() - started)


def transformers_rate(model: Any, prompts: list[list[int]]) -> float:
    """The same with `generate_batch`: its memory has to be stated where there is no GPU to infer it from."""
    generation = GenerationConfig(
        max_new_tokens=SAMPLED, do_sample=True, temperature=1.0, eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig(
        page_size=32, num_blocks=1024, max_batch_tokens=2048, return_logprobs=True, seed=1
    )
    started = time.perf_counter()
    outputs = model.generate_batch(
        prompts, generation_config=generation, continuous_batching_config=batching, warmup=False, progress_bar=False
    )
    seconds = time.perf_counter() - started
    drawn = sum(len(output.generated_tokens) for output in outputs.values())
    if drawn != SAMPLED * len(prompts):
        raise SystemExit(f"transformers drew {drawn} tokens, not {SAMPLED * len(prompts)}")
    return drawn / seconds


if __name__ == "__main__":
    main()
