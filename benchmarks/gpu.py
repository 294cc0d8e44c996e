"""Measurements on a GPU: learner, engine, their agreement, memory, wrapped processes, training with sandboxed servers.

Each part takes a few minutes at most on one H100-class GPU, without a network, and runs alone with --only. It needs
torch, transformers, peft and accelerate; TRL and bubblewrap take part if they are there. Weights are random, except
that `train` starts from SmolLM2 if its folder is in the cache. Without a GPU every part runs at toy size on the CPU, in
bfloat16 alike: that shows that the kit works, and says nothing about speed.

- ``learner-SIZE-full``, ``learner-SIZE-lora``: tokens/s of the learner and its peak memory; TRL's in the same run.
- ``engine``: tokens/s of the embedded engine against transformers' continuous batching.
- ``agreement``: log-probabilities of the engine against those of the learner, over the same weights.
- ``credit``: seconds of a preset's advantages for a million steps. Credit is numpy's work, on the host.
- ``memory-RECIPE``: peak of one update with the recipe's micro-batches, against the memory that its head names, if any.
- ``processes``: an update in DDP and in FSDP2, in one process, against the bare learner's.
- ``train``: `gymcp train` on `backoffice`, with servers under bubblewrap.
"""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from credit_speed import batch, seconds
from gpu_models import SIZES, TOY, Shape, make_model, make_rows, with_adapter
from gpu_processes import compare_processes
from parts import keep_part, list_left, make_part, read_parts, show_parts
from report_table import Result, against, options
from training import example
from training_trl import trl_trainer
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from gymcp.agents.policies.engine.engine import EngineOptions, open_engine
from gymcp.agents.policies.pretrained.smollm2 import cached_folder
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.envs import load_env, load_spec
from gymcp.errors import UsageError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import Row
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Sampling

ROOT = Path(__file__).parents[1]
NAME = "gpu"
GROUP, GROUPS, PROMPT, COMPLETION, ROUNDS = 8, 4, 1024, 256, 5
MICRO_BATCH_TOKENS = 16_384
SLOTS, SAMPLED = 64, 128
MILLION = 1_000_000
RECIPES = {"qwen3-0.6b-full": "0.6b", "qwen3-4b-lora": "4b"}
HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


def pick(full: int, toy: int) -> int:
    """The full size on a GPU, the toy size elsewhere."""
    return full if HAS_GPU else toy


def shape_of(size: str) -> Shape:
    return SIZES[size] if HAS_GPU else TOY


def peak_gb() -> float:
    """Peak of the GPU's memory in GB since `reset_peak`; NaN on a CPU, where other things are in the process, too."""
    return torch.cuda.max_memory_allocated() / 1e9 if HAS_GPU else float("nan")


def reset_peak() -> None:
    gc.collect()
    if HAS_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measure_seconds(work: Callable[[], object]) -> float:
    """Seconds of the work, the GPU's included."""
    if HAS_GPU:
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if HAS_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def learner(size: str, way: str) -> list[Result]:
    """Tokens/s of one optimiser step in bfloat16, and its peak memory; TRL on the same batch if it is installed."""
    shape = shape_of(size)
    prompt, completion = pick(PROMPT, 48), pick(COMPLETION, 16)
    rows = make_rows(shape, groups=pick(GROUPS, 1), group=GROUP, prompt=prompt, completion=completion)
    tokens = sum(map(len, (part for row in rows for part in row)))
    examples = [example(*row, advantage=n % 2 - 0.5) for n, row in enumerate(rows)]
    numbers = [n // GROUP for n in range(len(rows))]
    reset_peak()
    dtype = torch.bfloat16 if way == "lora" else torch.float32
    model = make_model(shape, dtype, DEVICE)
    model = with_adapter(model) if way == "lora" else model
    settings = LearnerSettings(learning_rate=1e-6, micro_batch_tokens=pick(MICRO_BATCH_TOKENS, 512), autocast=True)
    trained = Learner(model, settings)
    step = partial(trained.update, examples, Loss(), groups=numbers)
    times = [measure_seconds(step) for _ in range(pick(ROUNDS, 1) + 1)][1:]
    what = f"learner, {shape.name}, {way}, {len(rows)} rows of {prompt} + {completion} tokens"
    mine, peak = tokens / statistics.median(times), peak_gb()
    del trained, model, step
    results = [Result(metric=what, value=mine, unit="tok/s")]
    if HAS_GPU:
        results.append(Result(metric=f"{what}: peak memory", value=peak, unit="GB"))
    if way == "full":
        results += beside_trl(shape, rows, what, mine, tokens)
    return results


def beside_trl(
    shape: Shape, rows: list[tuple[list[int], list[int]]], what: str, mine: float, tokens: int
) -> list[Result]:
    """TRL's tokens/s on the same rows and the ratio to it; nothing if TRL is not installed beside this Python."""
    if find_spec("trl") is None:
        print("TRL is not installed here, and takes no part", file=sys.stderr)
        return []
    reset_peak()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(shape, torch.float32, "cpu").save_pretrained(folder / "model")
        _write_tokenizer(folder / "model")
        steps = pick(ROUNDS, 1) + 1
        with trl_trainer(
            folder / "model", rows, group=GROUP, micro_batch=GROUP, steps=steps, threads=torch.get_num_threads(),
            folder=folder, python=Path(sys.executable),
        ) as trl:  # fmt: skip
            times = [trl.step() for _ in range(steps)][1:]
    base = Result(metric=f"TRL, {shape.name}, full", value=tokens / statistics.median(times), unit="tok/s")
    return [base, against(f"{what}, against TRL", mine, "tok/s", base)]


def _write_tokenizer(folder: Path) -> None:
    """A tokenizer beside a model, for a trainer that wants one; the rows are tokens already."""
    with tempfile.TemporaryDirectory() as name:
        tiny = make_tiny_model(Path(name))
        for file in [*tiny.glob("tokenizer*"), *tiny.glob("chat_template*")]:
            shutil.copy(file, folder)


def engine() -> list[Result]:
    """Sampled tokens/s with all requests at once, prompts included in the time."""
    shape = shape_of("0.6b")
    model = make_model(shape, torch.bfloat16, DEVICE)
    count, sampled = pick(SLOTS, 4), pick(SAMPLED, 8)
    prompts = [prompt for prompt, _ in make_rows(shape, groups=count, group=1, prompt=pick(256, 32), completion=1)]

    async def play() -> float:
        async with open_engine(model, slots=count, options=EngineOptions(seed=0)) as policy:
            times = []
            for _ in range(pick(ROUNDS, 1) + 1):
                began = time.perf_counter()
                drawn = await asyncio.gather(
                    *(policy.sample(prompt, Sampling(max_tokens=sampled)) for prompt in prompts)
                )
                times.append((time.perf_counter() - began) / sum(len(each.ids) for each in drawn))
            return 1 / statistics.median(times[1:])

    ours = asyncio.run(play())
    generation = GenerationConfig(max_new_tokens=sampled, do_sample=True, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(
        page_size=32, num_blocks=1024, max_batch_tokens=2048, return_logprobs=True, seed=1
    )

    def generate() -> None:
        model.generate_batch(
            prompts, generation_config=generation, continuous_batching_config=batching, warmup=False, progress_bar=False
        )

    times = [measure_seconds(generate) for _ in range(pick(ROUNDS, 1) + 1)][1:]
    theirs = count * sampled / statistics.median(times)
    base = Result(metric=f"transformers' continuous batching, {shape.name}, bf16", value=theirs, unit="tok/s")
    return [base, against(f"embedded engine, {shape.name}, bf16, {count} requests", ours, "tok/s", base)]


def agreement() -> list[Result]:
    """Differences of the log-probabilities of sampled tokens, over one bfloat16 model with an adapter."""
    shape = shape_of("0.6b")
    model = with_adapter(make_model(shape, torch.bfloat16, DEVICE))
    prompts = [row[0] for row in make_rows(shape, groups=pick(16, 4), group=1, prompt=pick(256, 32), completion=1)]

    async def play() -> list[Any]:
        async with open_engine(model, slots=len(prompts), options=EngineOptions(seed=0)) as policy:
            asked = Sampling(max_tokens=pick(SAMPLED, 8))
            return list(await asyncio.gather(*(policy.sample(prompt, asked) for prompt in prompts)))

    samples = asyncio.run(play())
    rows = [_row(prompt, sampled) for prompt, sampled in zip(prompts, samples, strict=True)]
    found = Learner(model, LearnerSettings(autocast=True)).logprobs(rows)
    apart = np.concatenate(
        [
            np.abs(here[list(row.loss_mask)] - np.array(s.logprobs))
            for here, row, s in zip(found, rows, samples, strict=True)
        ]
    )
    what = f"engine against learner, {shape.name}, bf16, {apart.size} tokens"
    return [
        Result(metric=f"{what}: mean difference", value=float(apart.mean()), unit="nats"),
        Result(metric=f"{what}: largest difference", value=float(apart.max()), unit="nats"),
    ]


def _row(prompt: list[int], sampled: Any) -> Row:
    start, end = len(prompt), len(prompt) + len(sampled.ids)
    return Row(
        token_ids=(*prompt, *sampled.ids),
        loss_mask=tuple(place >= start for place in range(end)),
        logprobs=(*(0.0 for _ in prompt), *sampled.logprobs),
        versions=(("0", 0, len(sampled.ids)),),
        steps=((0, start, end),),
    )


def credit() -> list[Result]:
    """Seconds of two presets' advantages, on the host."""
    steps = pick(MILLION, 2_000)
    made = batch(steps)
    return [
        Result(metric=f"advantages, {name}, {steps:,} steps", value=seconds(name, made, {}), unit="s")
        for name in ("grpo", "gigpo")
    ]


def memory(name: str) -> list[Result]:
    """Peak memory of one update with rows of the recipe's context, beside what the recipe's head says of memory."""
    path = ROOT / "recipes" / f"{name}.toml"
    recipe, shape = load_recipe(path), shape_of(RECIPES[name])
    reset_peak()
    is_adapter = recipe.model.lora_rank > 0
    model = make_model(shape, torch.bfloat16 if is_adapter else torch.float32, DEVICE)
    model = with_adapter(model, recipe.model.lora_rank) if is_adapter else model
    tokens = pick(recipe.learn.micro_batch_tokens, 256)
    length = min(pick(recipe.model.context, 64), tokens)
    rows = make_rows(shape, groups=2, group=1, prompt=length // 2, completion=length - length // 2)
    settings = LearnerSettings(learning_rate=1e-6, micro_batch_tokens=tokens, autocast=True)
    examples = [example(*row, advantage=n % 2 - 0.5) for n, row in enumerate(rows)]
    taken = measure_seconds(lambda: Learner(model, settings).update(examples, Loss(), groups=[0, 1]))
    results = [Result(metric=f"one update of {name}, rows of {length} tokens", value=taken, unit="s")]
    if HAS_GPU:
        claim = re.search(r"(\d+) GB", path.read_text().partition("env =")[0])
        peak = Result(metric=f"peak memory of the learner, {name}", value=peak_gb(), unit="GB")
        claimed = (
            Result(metric=f"memory that the head of {name} names", value=float(claim[1]), unit="GB") if claim else None
        )
        results += [claimed, against(peak.metric, peak.value, "GB", claimed)] if claimed else [peak]
    return results


def processes() -> list[Result]:
    """Differences of DDP's and FSDP2's first update from the bare learner's, in one process, and tokens/s."""
    shape = shape_of("0.6b")
    rows = make_rows(shape, groups=2, group=2, prompt=pick(512, 24), completion=pick(128, 8))
    return compare_processes(shape, [example(*row, advantage=n % 2 - 0.5) for n, row in enumerate(rows)], DEVICE)


def whole_training() -> list[Result]:
    """Seconds of the recipe smollm2 with one iteration, from SmolLM2, or from random weights if it is not there."""
    try:
        get_sandbox("bwrap").check()
    except UsageError as error:
        print(f"bubblewrap does not run here, and train takes no part: {error}", file=sys.stderr)
        return []
    smollm2 = cached_folder("float32")
    is_pretrained = HAS_GPU and smollm2.is_dir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = TinySize(hidden=pick(256, 32), layers=pick(4, 1))
        model = smollm2 if is_pretrained else make_tiny_model(folder / "model", "compact", size=size)
        recipe = load_recipe(ROOT / "recipes" / "smollm2.toml", [("model.path", str(model))])
        recipe = replace(
            recipe,
            warm_start=replace(recipe.warm_start, tasks=pick(64, 4), epochs=1, batch_size=pick(16, 2)),
            rollout=replace(recipe.rollout, groups=pick(16, 2), episodes=pick(8, 2)),
            learn=replace(recipe.learn, iterations=1),
            evaluation=replace(recipe.evaluation, tasks=pick(32, 1), final_tasks=0, final_splits=()),
        )
        rows: list[Any] = []
        taken = measure_seconds(
            lambda: train(recipe, load_env(load_spec(recipe.env)), folder / "run", resume=False, on_row=rows.append)
        )
    what = f"gymcp train, {'SmolLM2-135M' if is_pretrained else 'random weights'}, bubblewrap"
    practised = [row for row in rows if row.get("iteration") == 1]
    return [
        Result(metric=f"{what}: the whole run", value=taken, unit="s"),
        *(Result(metric=f"{what}: the iteration", value=row["seconds"], unit="s") for row in practised),
    ]


PARTS: dict[str, Callable[[], list[Result]]] = {
    "learner-0.6b-full": partial(learner, "0.6b", "full"),
    "learner-0.6b-lora": partial(learner, "0.6b", "lora"),
    "learner-1.7b-full": partial(learner, "1.7b", "full"),
    "learner-1.7b-lora": partial(learner, "1.7b", "lora"),
    "engine": engine,
    "agreement": agreement,
    "credit": credit,
    **{f"memory-{name}": partial(memory, name) for name in RECIPES},
    "processes": processes,
    "train": whole_training,
}


def main() -> None:
    parser = options(__doc__, "toy sizes, as without a GPU")
    parser.add_argument("--only", default="", help="parts, separated by commas; default: those that are left")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-gpu", help="folder of the result file")
    args = parser.parse_args()
    if args.quick:
        globals().update(HAS_GPU=False, DEVICE="cpu")
    names = args.only.split(",") if args.only else list_left(NAME, tuple(PARTS), args.out)
    if unknown := set(names) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; have {', '.join(PARTS)}")
    device = torch.cuda.get_device_name() if HAS_GPU else "CPU, toy sizes"
    args.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"{name} ({device}) ...", file=sys.stderr, flush=True)
        part = make_part(PARTS[name]())
        keep_part(NAME, name, replace(part, machine=f"{part.machine}, {device}, torch {torch.__version__}"), args.out)
        reset_peak()
    show_parts(NAME, read_parts(args.out / f"{NAME}.json"), as_json=args.json)


if __name__ == "__main__":
    main()
