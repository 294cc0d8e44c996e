"""Several processes: how they are launched, and what each of them runs (``spread.py WAY COMMAND ...``)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from parity import even_answers
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from gymcp.cli import main as cli
from gymcp.errors import ConfigError
from gymcp.trainers.learner.distributed_processes import Accelerated, whole
from gymcp.trainers.learner.learner import Learner, LearnerSettings
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.engines import SERVED
from gymcp.trainers.run import distributed_controller
from gymcp.trainers.run.loop import train
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Json, Row

WAIT_S = 400
SCRIPT = Path(__file__)
LOAD = Learner.load

# three tasks in micro-batches of which the processes cannot have equally many
ROWS = [*tiny.group(1), *tiny.group(2), *tiny.group(3, episodes=1)]
GROUPS = [0] * 4 + [1] * 4 + [2]
SETTINGS = LearnerSettings(learning_rate=1e-2, micro_batch_tokens=60, max_grad_norm=0.5)
LOSS = Loss(kl=0.1)


def adapter(seed: int, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(seed)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(tiny.model(seed=seed).to(dtype), lora)  # type: ignore[arg-type, return-value]


MODELS: dict[str, Callable[[int], PreTrainedModel]] = {
    "tied": lambda seed: tiny.model("qwen3", seed),
    "untied": lambda seed: tiny.model("llama", seed),
    "adapter": lambda seed: adapter(seed, torch.float32),
    "adapter of bfloat16": lambda seed: adapter(seed, torch.bfloat16),
}


def launched(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Two processes of ``python ARGUMENTS``, ended."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launcher, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=env)


def accelerator(way: str, **options: Any) -> Accelerator:
    """Accelerate chooses FSDP by itself on GPUs only; torch has it on CPU cores, too."""
    made = Accelerator(cpu=True, **options)
    if way != "ddp":
        made.state.distributed_type = DistributedType.FSDP
        made.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=way == "fsdp-from-main"
        )
    return made


def examples(rows: list[Row]) -> list[Example]:
    return [tiny.example(row, (0.5 * n - 1, 1.0)) for n, row in enumerate(rows)]


def apart(one: list[Any], other: list[Any]) -> float:
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, other, strict=True))


def compared(together: Accelerated, way: str, kind: str, folder: Path) -> dict[str, float]:
    """How far what these processes do together is from what one does alone."""
    # where the main process's weights are those that count, the others start with different ones
    make = MODELS[kind]
    model = make(0 if together.main or way == "fsdp" else 1)
    Learner(model, SETTINGS, together)  # as a warm start does
    settings = replace(SETTINGS, share_prefixes=not together.spread)
    alone, shared = Learner(make(0), settings), Learner(model, SETTINGS, together)
    found = {"start": apart(alone.logprobs(ROWS), shared.logprobs(ROWS))}
    alone.keep_reference()
    shared.keep_reference()
    found |= {f"first {name}": value for name, value in updated(alone, shared, ROWS, GROUPS).items()}
    found |= {f"one row {name}": value for name, value in updated(alone, shared, ROWS[:1], GROUPS[:1]).items()}
    found["weights"] = apart(weights_of(alone), weights_of(shared))
    found["logprobs"] = apart(alone.logprobs(ROWS, GROUPS), shared.logprobs(ROWS, GROUPS))
    found["entropies"] = apart(alone.entropies(ROWS, GROUPS), shared.entropies(ROWS, GROUPS))
    found["features"] = apart([alone.features(ROWS, GROUPS)], [shared.features(ROWS, GROUPS)])
    found["reference"] = apart(alone.reference_logprobs(ROWS), shared.reference_logprobs(ROWS))
    found["after the reference"] = apart(alone.logprobs(ROWS), shared.logprobs(ROWS))
    found["spoilt"] = spoilt(shared)

    shared.save(folder)
    saved = shared.weights()
    if together.main:
        again = Learner(make(0), SETTINGS).load(folder)
        found["loaded alone"] = apart(weights_of(again), weights_of(alone))
        if saved is not None:
            fresh = make(1)
            fresh.load_state_dict(saved)
            found["all weights"] = apart(Learner(fresh, SETTINGS).logprobs(ROWS), alone.logprobs(ROWS))
    updated(alone, shared, ROWS, GROUPS)
    shared.load(folder)
    alone.load(folder)
    found |= {f"loaded {name}": value for name, value in updated(alone, shared, ROWS, GROUPS).items()}
    return found


def updated(alone: Learner, shared: Learner, rows: list[Row], groups: list[int]) -> dict[str, float]:
    """Of the same update of both: the differences of what it says."""
    one, other = (asdict(learner.update(examples(rows), LOSS, groups=groups)) for learner in (alone, shared))
    return {name: abs(one[name] - other[name]) for name in one}


def weights_of(learner: Learner) -> list[Any]:
    return [whole(weight.detach()).float().numpy() for weight in learner._trained.values()]


def spoilt(learner: Learner) -> float:
    """How far the weights are from what they were, after advantages that are not finite."""
    before = weights_of(learner)
    every = [replace(each, advantages=(each.advantages[0] * np.inf,)) for each in examples(ROWS)]
    try:
        learner.update(every, LOSS, groups=GROUPS)
    except FloatingPointError:
        return apart(before, weights_of(learner))
    return math.inf


def keep_served(folder: Path) -> Callable[[Mapping[str, Json]], None]:
    """Keeps what the server draws from in a run's second iteration, in `folder`/kept."""

    def keep(row: Mapping[str, Json]) -> None:
        if row.get("iteration") == 1:
            shutil.copytree(folder / SERVED / "1", folder / "kept")

    return keep


def trained(recipe: Recipe, folder: Path, way: str) -> None:
    processes = Accelerated(accelerator(way))
    if not processes.main:
        distributed_controller.follow(processes)
        return
    with distributed_controller.leading(processes):
        ending = train(
            recipe, even_answers(), folder, resume=False, tell=keep_served(folder), processes=processes
        )  # fmt: skip
        assert ending.reason == "finished"


def main(way: str, command: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    if command == "compare":
        made, folder = accelerator(way), Path(arguments[0])
        found = {kind: compared(Accelerated(made), way, kind, folder / kind) for kind in MODELS}
        if made.is_main_process:
            (folder / "found.json").write_text(json.dumps(found))
    elif command == "practise":
        recipe, folder = map(Path, arguments)
        trained(make_recipe(json.loads(recipe.read_text())), folder, way)
    elif command == "blind":
        folder = Path(arguments[-1])
        if os.environ["RANK"] == "1":  # as on another machine
            away = folder.with_name("nowhere")
            Learner.load = lambda self, folder: LOAD(self, away)  # type: ignore[method-assign]
        sys.argv = ["gymcp", "train", *arguments]
        cli.main()
    elif command == "refuse":
        with contextlib.suppress(ConfigError):
            Accelerated(accelerator(way, gradient_accumulation_steps=2))
            raise AssertionError("gradients that are accumulated elsewhere were taken")
    else:
        distributed_controller.processes_here = lambda: Accelerated(accelerator(way))
        sys.argv = ["gymcp", command, *arguments]
        cli.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
