"""Tokens per second of the embedded engine, against transformers' continuous batching and vLLM on the same model.

The engine's forward passes are compared as well: C++, plain torch, and the modules of transformers.

A random Qwen3 of 1.3 M parameters (4 layers of 128, 4096 tokens) in float32; 64 requests at once on 64 slots, 256
tokens in and 64 out. The rounds of all contenders are interleaved, and the median of each counts, so that all meet the
same machine. vLLM, on the CPU and over HTTP, takes part if it is installed (``gymcp serve MODEL --cpu`` installs it);
its time does not include waiting for the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from report_table import machine
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from gymcp.agents.policies.engine.cpp_library import FORWARD_PASSES
from gymcp.agents.policies.engine.engine import Engine, EngineOptions, open_engine
from gymcp.agents.policies.tiny_model import make_tiny_tokenizer
from gymcp.agents.policies.vllm.client import open_vllm
from gymcp.agents.policies.vllm.install import CPU, vllm_python
from gymcp.agents.policies.vllm.server import VllmServer, VllmServerOptions, run_vllm_server
from gymcp.errors import ConfigError
from gymcp.protocols import Policy
from gymcp.types import Sampling

VOCABULARY, SLOTS, PROMPT, SAMPLED, TURNS, OBSERVATION = 4096, 64, 256, 64, 4, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    metric: str
    value: float
    unit: str
    baseline: str | None = None
    baseline_value: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Sampled tokens per second, prompts included in the time, and per second of this process's CPU time."""

    wall: float
    cpu: float


class Watch:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rate(self, tokens: int) -> Rate:
        return Rate(tokens / (time.perf_counter() - self._wall), tokens / (time.process_time() - self._cpu))


def compare_rates(metric: str, rates: list[Rate], baseline: str, others: list[Rate]) -> list[Result]:
    """Medians and their ratios. Ratios of CPU time hold even if other programs disturb the measurement."""
    results = []
    for unit, name in (("tok/s", "wall"), ("tok/CPU s", "cpu")):
        value, other = (statistics.median(getattr(rate, name) for rate in both) for both in (rates, others))
        results.append(Result(metric=baseline, value=other, unit=unit))
        results.append(
            Result(metric=metric, value=value, unit=unit, baseline=baseline, baseline_value=other, ratio=value / other)
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per forward pass, for all contenders alike")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.WARNING)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # vLLM's
    model = tiny_qwen()
    with serve_with_vllm(model) as server:
        results = asyncio.run(measure(model, server, rounds=1 if args.quick else 3))
    described = f"{machine()}, torch {torch.__version__}"
    if args.json:
        print(json.dumps({"name": "engine", "machine": described, "results": [asdict(result) for result in results]}))
        return
    table = Table("what", "value", "unit", "against", "ratio", title=described)
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


@contextlib.contextmanager
def serve_with_vllm(model: Any) -> Iterator[VllmServer | None]:
    """A vLLM server with the model; None if vLLM is not installed."""
    if vllm_python(CPU) is None:
        print("vLLM is not installed, and takes no part", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        make_tiny_tokenizer("qwen").save_pretrained(folder)
        plan = VllmServerOptions(model=Path(folder), name="tiny", max_requests=SLOTS)
        with run_vllm_server(plan, lambda line: print(line, file=sys.stderr)) as server:
            yield server


async def measure(model: Any, server: VllmServer | None, *, rounds: int) -> list[Result]:
    vllm: list[Rate] = []
    continuous: list[Rate] = []
    ours: list[Rate] = []
    kept: list[Rate] = []
    recomputed: list[Rate] = []
    ways: dict[str, list[Rate]] = {name: [] for name in FORWARD_PASSES}
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine(model, slots=SLOTS, options=EngineOptions(seed=0)))
        by_way = await open_every_way(model, stack)
        other = await stack.enter_async_context(open_vllm(server.url, server.model)) if server else None
        policies: list[Policy] = [engine, *by_way.values(), *([other] if other else [])]
        for policy in policies:
            await all_at_once(policy, random_prompts(0))  # warm
        for at in range(rounds):
            continuous.append(transformers_rate(model, random_prompts(2 * at + 1)))
            ours.append(await all_at_once(engine, random_prompts(2 * at + 2)))
            for name, way in by_way.items():
                ways[name].append(await all_at_once(way, random_prompts(2 * at + 2)))
            vllm += [await all_at_once(other, random_prompts(2 * at + 2))] if other else []
            kept.append(await episodes(engine, at, keep=True))
            recomputed.append(await episodes(engine, at, keep=False))
    return [
        *compare_rates("embedded engine", ours, "transformers continuous batching", continuous),
        # vLLM computes in processes of its own, whose CPU time is not this one's
        *(compare_rates("embedded engine", ours, "vLLM on the CPU", vllm)[:2] if vllm else []),
        *(
            result
            for name in ("cpp", "torch")
            if ways[name]
            for result in compare_rates(
                f"forward pass in {name}", ways[name], "forward pass of transformers", ways["transformers"]
            )
        ),
        *compare_rates("episodes, keys and values kept", kept, "episodes, everything recomputed", recomputed),
    ]


async def open_every_way(model: Any, stack: contextlib.AsyncExitStack) -> dict[str, Engine]:
    """An engine for each forward pass that this machine has."""
    engines = {}
    for name in FORWARD_PASSES:
        options = EngineOptions(seed=0, forward=name)
        try:
            engines[name] = await stack.enter_async_context(open_engine(model, slots=SLOTS, options=options))
        except ConfigError as error:
            print(f"{error}; it takes no part", file=sys.stderr)
    return engines


async def all_at_once(policy: Policy, prompts: Sequence[Sequence[int]]) -> Rate:
    watch = Watch()
    samples = await asyncio.gather(*(policy.sample(prompt, Sampling(max_tokens=SAMPLED)) for prompt in prompts))
    return watch.rate(sum(len(sampled.ids) for sampled in samples))


async def episodes(engine: Engine, seed: int, *, keep: bool) -> Rate:
    """The rate of episodes of several turns; every turn adds an observation.

    `keep`: the engine keeps the keys and values of earlier turns.
    """
    rows = random_prompts(1000 + seed)
    rng = random.Random(seed)
    watch, drawn = Watch(), 0
    for _ in range(TURNS):
        if not keep:
            await engine.update(engine.version)  # forgets what idle slots hold
        samples = await asyncio.gather(*(engine.sample(row, Sampling(max_tokens=SAMPLED)) for row in rows))
        drawn += sum(len(sampled.ids) for sampled in samples)
        rows = [[*s.prompt_ids, *s.ids, *(rng.randrange(VOCABULARY) for _ in range(OBSERVATION))] for s in samples]
    return watch.rate(drawn)


def transformers_rate(model: Any, prompts: list[list[int]]) -> Rate:
    """The rate of transformers' `generate_batch`; its memory must be given, since there is no GPU to infer it from."""
    generation = GenerationConfig(
        max_new_tokens=SAMPLED, do_sample=True, temperature=1.0, eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig(
        page_size=32, num_blocks=1024, max_batch_tokens=2048, return_logprobs=True, seed=1
    )
    watch = Watch()
    outputs = model.generate_batch(
        prompts, generation_config=generation, continuous_batching_config=batching, warmup=False, progress_bar=False
    )
    drawn = sum(len(output.generated_tokens) for output in outputs.values())
    rate = watch.rate(drawn)
    if drawn != SAMPLED * len(prompts):
        raise SystemExit(f"transformers drew {drawn} tokens, not {SAMPLED * len(prompts)}")
    return rate


if __name__ == "__main__":
    main()
