"""DDP and FSDP2 in one process: what the wrapping itself changes and costs, without a second GPU."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from gpu_models import Shape, make_model
from report_table import Result

from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.settings.loss import Loss

SETTINGS = LearnerSettings(learning_rate=1e-4, micro_batch_tokens=4096, autocast=True)


def compare_processes(shape: Shape, examples: Sequence[Example], device: str) -> list[Result]:
    """For each way: the largest difference from the bare learner's log-probabilities after an update, and tokens/s."""
    rows = [each.row for each in examples]
    tokens = sum(len(row.token_ids) for row in rows)
    bare = Learner(make_model(shape, torch.float32, device), SETTINGS)
    bare.update(examples, Loss())
    expected = np.concatenate(bare.logprobs(rows))
    del bare
    results = []
    for way in ("DDP", "FSDP2"):
        with one_process(way, device) as accelerator:
            learner = Learner(make_model(shape, torch.float32, device), SETTINGS, Accelerated(accelerator))
            learner.update(examples, Loss())
            apart = float(np.abs(np.concatenate(learner.logprobs(rows)) - expected).max())
            began = time.perf_counter()
            learner.update(examples, Loss())
            if device == "cuda":
                torch.cuda.synchronize()
            taken = time.perf_counter() - began
            del learner
        what = f"{way} in one process, {shape.name}"
        results += [
            Result(metric=f"{what}: largest difference from the bare learner", value=apart, unit="nats"),
            Result(metric=f"{what}: update", value=tokens / taken, unit="tok/s"),
        ]
    return results


@contextmanager
def one_process(way: str, device: str) -> Iterator[Any]:
    """An accelerator of one process in a process group of its own, which is left at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1)
    try:
        accelerator: Any = Accelerator(cpu=device == "cpu")
        state = accelerator.state
        state.distributed_type = DistributedType.MULTI_GPU if device == "cuda" else DistributedType.MULTI_CPU
        if way == "FSDP2":  # accelerate would choose it on GPUs only; torch has it on CPU cores too
            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
            )
        yield accelerator
    finally:
        torch.distributed.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
