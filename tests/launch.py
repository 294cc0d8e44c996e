"""Starts two training processes, and is the program that each of them runs (``launch.py WAY COMMAND ...``).

The way ``alone`` is a gymcp command in one process with one thread.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import small_models as tiny
import torch
import warm_command
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from coin_flip_bank import make_coin_flip_bank
from free_ports import find_free_port
from length import IS_FULL
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from gymcp.cli import main as cli
from gymcp.cli.training import train_run
from gymcp.errors import ConfigError
from gymcp.trainers.learner.distributed_processes import Accelerated, full_tensor
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import Example, Row
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.engines import SERVED_WEIGHTS
from gymcp.trainers.run import distributed_controller
from gymcp.trainers.run.loop import train
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Json

WAIT_S = 400
PROCESSES = 2
WARM_GYMCP = Path(__file__).with_name("warm_gymcp.py")
LOAD = Learner.load

# three tasks, in a number of micro-batches that two processes cannot share equally
ROWS = [*tiny.group(1, episodes=2), *tiny.group(2, episodes=2), *tiny.group(3, episodes=1)]
GROUPS = [0, 0, 1, 1, 2]
SETTINGS = LearnerSettings(learning_rate=1e-2, micro_batch_tokens=60, max_grad_norm=0.5)
LOSS = Loss(kl=0.1)


def make_adapter(seed: int, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(seed)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(tiny.model(seed=seed).to(dtype), lora)  # type: ignore[arg-type, return-value]


MODELS: dict[str, Callable[[int], PreTrainedModel]] = {
    "tied": lambda seed: tiny.model("qwen3", seed),
    "untied": lambda seed: tiny.model("llama", seed),
    "adapter": lambda seed: make_adapter(seed, torch.float32),
    "adapter of bfloat16": lambda seed: make_adapter(seed, torch.bfloat16),
}


def launch(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run two processes of ``gymcp ARGUMENTS`` under torch's launcher to their end.

    The launcher and both processes are forks of a process that has imported all of it; `warm_gymcp` is what the
    launcher starts. Full tests start new interpreters, as users do.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1", warm_command.RUN_ID: warm_command.get_run_id()}
    if IS_FULL:
        command = ["torch.distributed.run", "--nproc_per_node", str(PROCESSES), "-m", "gymcp.cli"]
        command = [sys.executable, "-m", *command, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=WAIT_S, check=False)
    words = ["--nproc_per_node", str(PROCESSES), str(WARM_GYMCP), *map(str, arguments)]
    return warm_command.run(words, cwd=None, env=env, timeout_s=WAIT_S, program="torch.distributed.run")


def run_together(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run two processes of ``launch.py ARGUMENTS`` to their end, with the variables that a launcher sets.

    They are forks of a process that has imported all of it: that takes longer than what most of them do. No launcher
    ends the second if the first fails. Returns the output of both, and the first exit code that is not 0.
    """
    port = find_free_port()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": PROCESSES, "LOCAL_WORLD_SIZE": PROCESSES}

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        variables = {**shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1}
        env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        return warm_command.run(list(map(str, arguments)), cwd=None, env=env, timeout_s=WAIT_S, program="launch")

    with ThreadPoolExecutor(PROCESSES) as pool:
        ended = list(pool.map(run, range(PROCESSES)))
    code = next((one.returncode for one in ended if one.returncode), 0)
    out, err = ("".join(streams) for streams in zip(*((one.stdout, one.stderr) for one in ended), strict=True))
    return subprocess.CompletedProcess(list(map(str, arguments)), code, out, err)


def make_accelerator(way: str, **options: Any) -> Accelerator:
    """An accelerator on CPU cores. Accelerate would choose FSDP on GPUs only; torch has it on CPU cores too."""
    accelerator = Accelerator(cpu=True, **options)
    if way != "ddp":
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=way == "fsdp-from-main"
        )
    return accelerator


def make_examples(rows: list[Row]) -> list[Example]:
    return [tiny.example(row, (0.5 * n - 1, 1.0)) for n, row in enumerate(rows)]


def max_difference(one: list[Any], other: list[Any]) -> float:
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, other, strict=True))


def compare(together: Accelerated, way: str, kind: str, folder: Path) -> dict[str, float]:
    """Largest differences between what these processes compute together and what one process computes alone."""
    # with DDP, and with FSDP from the main process, the main one's weights count: the others start with different ones
    make = MODELS[kind]
    model = make(0 if together.is_main or way == "fsdp" else 1)
    Learner(model, SETTINGS, together)  # as a warm start does
    settings = replace(SETTINGS, share_prefixes=not together.is_sharded)
    alone, shared = Learner(make(0), settings), Learner(model, SETTINGS, together)
    found = {"start": max_difference(alone.logprobs(ROWS), shared.logprobs(ROWS))}
    alone.set_reference()
    shared.set_reference()
    found |= {f"first {name}": value for name, value in update_both(alone, shared, ROWS, GROUPS).items()}
    found |= {f"one row {name}": value for name, value in update_both(alone, shared, ROWS[:1], GROUPS[:1]).items()}
    found["weights"] = max_difference(weights_of(alone), weights_of(shared))
    found["logprobs"] = max_difference(alone.logprobs(ROWS, GROUPS), shared.logprobs(ROWS, GROUPS))
    found["entropies"] = max_difference(alone.entropies(ROWS, GROUPS), shared.entropies(ROWS, GROUPS))
    found["features"] = max_difference([alone.features(ROWS, GROUPS)], [shared.features(ROWS, GROUPS)])
    found["reference"] = max_difference(alone.reference_logprobs(ROWS), shared.reference_logprobs(ROWS))
    found["after the reference"] = max_difference(alone.logprobs(ROWS), shared.logprobs(ROWS))
    found["spoilt"] = change_by_spoilt_update(shared)

    shared.save(folder)
    saved = shared.full_state_dict()
    if together.is_main:
        again = Learner(make(0), SETTINGS).load(folder)
        found["loaded alone"] = max_difference(weights_of(again), weights_of(alone))
        if saved is not None:
            fresh = make(1)
            fresh.load_state_dict(saved)
            found["all weights"] = max_difference(Learner(fresh, SETTINGS).logprobs(ROWS), alone.logprobs(ROWS))
    update_both(alone, shared, ROWS, GROUPS)
    shared.load(folder)
    alone.load(folder)
    found |= {f"loaded {name}": value for name, value in update_both(alone, shared, ROWS, GROUPS).items()}
    return found


def update_both(alone: Learner, shared: Learner, rows: list[Row], groups: list[int]) -> dict[str, float]:
    """Update both learners on the same batch; the differences between their statistics."""
    one, other = (asdict(learner.update(make_examples(rows), LOSS, groups=groups)) for learner in (alone, shared))
    return {name: abs(one[name] - other[name]) for name in one}


def weights_of(learner: Learner) -> list[Any]:
    return [full_tensor(weight.detach()).float().numpy() for weight in learner._trained.values()]


def change_by_spoilt_update(learner: Learner) -> float:
    """Largest change of a weight by an update whose advantages are not finite; infinite if the update is taken."""
    before = weights_of(learner)
    spoilt = [replace(one, advantages=(one.advantages[0] * np.inf,)) for one in make_examples(ROWS)]
    try:
        learner.update(spoilt, LOSS, groups=GROUPS)
    except FloatingPointError:
        return max_difference(before, weights_of(learner))
    return math.inf


def keep_served(folder: Path) -> Callable[[Mapping[str, Json]], None]:
    """A callback that copies what the server samples from in a run's second iteration to `folder`/kept."""

    def keep(row: Mapping[str, Json]) -> None:
        if row.get("iteration") == 1:
            shutil.copytree(folder / SERVED_WEIGHTS / "1", folder / "kept")

    return keep


def train_together(recipe: Recipe, folder: Path, way: str) -> None:
    """Train on the coin-flip bank in all processes."""
    processes = Accelerated(make_accelerator(way))
    if not processes.is_main:
        distributed_controller.worker_loop(processes)
        return
    with distributed_controller.controller(processes):
        ending = train(
            recipe, make_coin_flip_bank(), folder, resume=False, on_row=keep_served(folder), processes=processes
        )
        assert ending.reason == "finished"


def main() -> None:
    way, command, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    if command == "compare":
        accelerator, folder = make_accelerator(way), Path(arguments[0])
        found = {kind: compare(Accelerated(accelerator), way, kind, folder / kind) for kind in arguments[1:]}
        if accelerator.is_main_process:
            (folder / "found.json").write_text(json.dumps(found))
    elif command == "train-on-bank":
        recipe, folder = map(Path, arguments)
        train_together(make_recipe(json.loads(recipe.read_text())), folder, way)
    elif command == "blind":
        folder = Path(arguments[-1])
        if os.environ["RANK"] == "1":  # as on another machine, which does not see the run's folder
            missing = folder.with_name("nowhere")
            Learner.load = lambda self, folder: LOAD(self, missing)  # type: ignore[method-assign]
        sys.argv = ["gymcp", "train", *arguments]
        cli.main()
    elif command == "refuse":
        with contextlib.suppress(ConfigError):
            Accelerated(make_accelerator(way, gradient_accumulation_steps=2))
            raise AssertionError("gradients that are accumulated elsewhere were taken")
    elif way == "alone":
        sys.argv = ["gymcp", command, *arguments]
        cli.main()
    else:
        train_run.join_process_group = lambda: Accelerated(make_accelerator(way))  # type: ignore[attr-defined]
        sys.argv = ["gymcp", command, *arguments]
        cli.main()
