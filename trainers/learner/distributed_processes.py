"""The processes that train one model together: a single process, or those that `accelerate launch` has started.

Accelerate wraps the model (DDP, FSDP2), averages gradients and runs collectives. This module shards the micro-batches
of a batch that every process holds whole: denominators are those of the whole batch, and all processes get equally many
micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar, cast

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from gymcp.errors import ConfigError
from gymcp.trainers.learner.forward import Scorer
from gymcp.trainers.learner.micro_batches import MicroBatch

T = TypeVar("T")
U = TypeVar("U")
ComputeLoss = Callable[[MicroBatch, Sequence[Tensor]], tuple[Tensor, T]]
"""A micro-batch, and tensors that it may compute from -> its part of the loss, and its statistics."""
ComputeShared = Callable[[], list[Tensor]]
"""Tensors that every micro-batch of an update would compute alike, from the weights."""


class Processes(Protocol):
    """The operations that a learner needs of the processes it runs in."""

    is_main: bool
    """True in the process that writes files."""
    parallel_micro_batches: int
    """Micro-batches computed at the same time: one per process, or one per thread of a single process."""
    is_sharded: bool
    """True if every process holds a shard of each weight. With sharded weights, prefix KV caches cannot be shared
    across forwards: FSDP would not re-gather the weights for their gradient."""

    def prepare(
        self, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The scorer of the model and the optimiser to use from now on; the model may have other parameters then.

        Raises ConfigError for a model that changes the logits of its output embeddings.
        """
        ...

    def shard(self, micros: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        """The micro-batches of this process, equally many in all processes, each with True if its result counts.

        A micro-batch that does not count is padding: its result counts in another process.
        """
        ...

    def accumulate_gradients(
        self,
        compute_loss: ComputeLoss[T],
        micros: Sequence[MicroBatch],
        weights: Sequence[Tensor],
        compute_shared: ComputeShared | None = None,
    ) -> Iterator[T]:
        """Add the gradients of all micro-batches to those of the weights; the statistics of this process's shard.

        `compute_shared`: tensors that the loss of each micro-batch is computed from, unless it gets none.
        """
        ...

    def discard_gathered_weights(self) -> None:
        """Free gathered copies of weights that are about to be overwritten."""
        ...

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        ...

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        ...


class SingleProcess:
    """One process with `workers` threads, each of which computes one micro-batch at a time."""

    is_main = True
    is_sharded = False

    def __init__(self, workers: int) -> None:
        self.parallel_micro_batches = workers

    def prepare(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> tuple[Scorer, torch.optim.Optimizer]:
        return Scorer(model), optimizer

    def shard(self, micros: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        return [(micro, True) for micro in micros]

    def accumulate_gradients(
        self,
        compute_loss: ComputeLoss[T],
        micros: Sequence[MicroBatch],
        weights: Sequence[Tensor],
        compute_shared: ComputeShared | None = None,
    ) -> Iterator[T]:
        """Gradients are added in the order of the micro-batches, whatever the number of threads.

        The shared tensors are computed a second time for their own gradient, so that the memory of their backward pass
        is not held meanwhile.
        """
        with torch.no_grad():
            shared = [tensor.requires_grad_() for tensor in compute_shared()] if compute_shared else []
        totals = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in shared]
        inputs = [*weights, *shared]

        def compute_gradients(micro: MicroBatch) -> tuple[T, tuple[Tensor, ...]]:
            part, stats = compute_loss(micro, shared)
            return stats, torch.autograd.grad(part, inputs, materialize_grads=True)

        with ThreadPoolExecutor(self.parallel_micro_batches) as pool:
            ahead = 3 * self.parallel_micro_batches // 2  # so that few threads wait for a longer micro-batch before
            for stats, gradients in _map_in_order(pool, compute_gradients, micros, ahead):
                for weight, gradient in zip(weights, gradients, strict=False):
                    _add_gradient(weight, gradient)
                for total, gradient in zip(totals, gradients[len(weights) :], strict=True):
                    total.add_(gradient)
                yield stats
        if compute_shared:
            _add_through(compute_shared(), totals, weights)

    def discard_gathered_weights(self) -> None:
        pass

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        return values

    def barrier(self) -> None:
        pass


class Accelerated:
    """The processes of an `Accelerator`, each with a shard of every batch: DDP or FSDP2, on GPUs or on CPU cores.

    All processes call the same methods of a learner with the same batch. One object serves all learners of a model.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        """Raises ConfigError for an accelerator that wraps or scales in another way."""
        kinds = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
        if accelerator.distributed_type not in kinds and not accelerator.is_fsdp2:
            raise ConfigError(
                f"accelerate: {accelerator.distributed_type.value} is not supported; DDP is, and FSDP where"
                " fsdp_version is 2"
            )
        if accelerator.gradient_accumulation_steps != 1 or accelerator.scaler is not None:
            raise ConfigError(
                "accelerate: gradient_accumulation_steps must be 1 and mixed_precision not 'fp16': a learner adds"
                " micro-batches up by itself, and computes in float32 or bfloat16"
            )
        self._accelerator = accelerator
        self._model: PreTrainedModel | None = None
        self._scorer: Any = None
        self.is_main = accelerator.is_main_process
        self.world_size = accelerator.num_processes
        self.parallel_micro_batches = self.world_size
        self.is_sharded = bool(accelerator.is_fsdp2)

    def prepare(
        self, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        if model is self._model:
            return self._scorer, self._accelerator.prepare_optimizer(optimizer)
        self._scorer, prepared_optimizer = self._accelerator.prepare(Scorer(model), optimizer)
        self._model = model
        return self._scorer, prepared_optimizer

    def shard(self, micros: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        missing = -len(micros) % self.world_size  # a forward is a collective: every process has to take part in each
        padded = [*((micro, True) for micro in micros), *((micro, False) for micro in micros[:1] * missing)]
        return padded[self._accelerator.process_index :: self.world_size]

    def accumulate_gradients(
        self,
        compute_loss: ComputeLoss[T],
        micros: Sequence[MicroBatch],
        weights: Sequence[Tensor],
        compute_shared: ComputeShared | None = None,
    ) -> Iterator[T]:
        own = self.shard(micros)
        for n, (micro, counts) in enumerate(own, start=1):
            # without the all-reduce, FSDP would have to keep whole gradients until the last micro-batch
            defer_all_reduce = n < len(own) and not self.is_sharded
            with self._accelerator.no_sync(self._scorer) if defer_all_reduce else nullcontext():
                part, stats = compute_loss(micro, ())
                # DDP and FSDP average gradients over processes; the factor makes it a sum
                self._accelerator.backward(part * (self.world_size if counts else 0))
            if counts:
                yield stats

    def discard_gathered_weights(self) -> None:
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):  # the embeddings stay gathered after a forward without a backward
                module.reshard()

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        total: Tensor = self._accelerator.reduce(values.to(self._accelerator.device), "sum")
        return total.to(values.device)

    def barrier(self) -> None:
        self._accelerator.wait_for_everyone()

    def broadcast(self, message: T | None = None) -> T:
        """The message of the main process, in all processes."""
        (received,) = broadcast_object_list([message])
        return cast(T, received)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a weight that is sharded over processes. A collective: every process has to call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(weight: Tensor, tensor: Tensor) -> Tensor:
    """The shard of a full tensor that corresponds to this shard of the weight; every process has the full tensor."""
    tensor = tensor.to(weight.device)
    if not isinstance(weight, DTensor):
        return tensor
    return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)


def _add_through(outputs: Sequence[Tensor], gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Add to the weights' gradients what they get through these outputs, whose own gradients are given."""
    # nothing that is trained comes before some outputs of a model with frozen weights
    trained = [n for n, output in enumerate(outputs) if output.requires_grad]
    if trained:
        ends, starts = [outputs[n] for n in trained], [gradients[n].to(outputs[n].dtype) for n in trained]
        found = torch.autograd.grad(ends, weights, starts, materialize_grads=True)
        for weight, gradient in zip(weights, found, strict=True):
            _add_gradient(weight, gradient)


def _add_gradient(tensor: Tensor, gradient: Tensor) -> None:
    tensor.grad = gradient if tensor.grad is None else tensor.grad.add_(gradient)


def _map_in_order(pool: ThreadPoolExecutor, work: Callable[[T], U], items: Sequence[T], ahead: int) -> Iterator[U]:
    """Results in the order of the items; at most `ahead` of them are being computed or waiting to be taken."""
    pending = deque(pool.submit(work, item) for item in items[:ahead])
    for item in items[ahead:]:
        yield pending.popleft().result()
        pending.append(pool.submit(work, item))
    while pending:
        yield pending.popleft().result()
