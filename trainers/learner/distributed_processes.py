"""The processes that change one model together: this one alone, or those that `accelerate launch` has started.

Accelerate wraps the model (DDP, FSDP2), takes gradients and adds up. What is done here is to deal out the micro-batches
of a batch that every process has whole: denominators are those of the whole, and all have equally many.
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
from gymcp.trainers.learner.forward import MicroBatch, Scorer

T = TypeVar("T")
U = TypeVar("U")
Work = Callable[[MicroBatch], tuple[T, Tensor]]
"""A micro-batch -> what was seen of it, and its part of the loss."""


class Processes(Protocol):
    """What a learner asks of the processes it runs in."""

    main: bool
    """Whether this one writes what there is to write."""
    parts: int
    """Micro-batches that are computed at a time."""
    spread: bool
    """Whether every process has a part of each weight. Then no keys and values of one forward are used in another: FSDP
    gathers a layer's weights for the gradient of its output, and theirs comes another way."""

    def place(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """The scorer of the model and the optimiser to use from now on; the model may have other parameters then.

        Raises ConfigError for a model with a head of its own kind.
        """
        ...

    def dealt(self, micros: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        """What this process computes: as many as every other, and whether what comes of each counts."""
        ...

    def gradients(self, work: Work[T], micros: Sequence[MicroBatch], weights: Sequence[Tensor]) -> Iterator[T]:
        """Adds the gradients of all micro-batches to the weights'; what was seen of those that this process had."""
        ...

    def forget(self) -> None:
        """Whatever was gathered of weights that are about to be overwritten."""
        ...

    def added(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        ...

    def wait(self) -> None:
        """Until all processes are here."""
        ...


class Alone:
    """One process, with `workers` threads for as many micro-batches."""

    main = True
    spread = False

    def __init__(self, workers: int) -> None:
        self.parts = workers

    def place(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> tuple[Scorer, torch.optim.Optimizer]:
        return Scorer(model), optimizer

    def dealt(self, micros: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        return [(micro, True) for micro in micros]

    def gradients(self, work: Work[T], micros: Sequence[MicroBatch], weights: Sequence[Tensor]) -> Iterator[T]:
        """They are added up in the order of the micro-batches, whatever the number of threads."""

        def one(micro: MicroBatch) -> tuple[T, tuple[Tensor, ...]]:
            seen, part = work(micro)
            return seen, torch.autograd.grad(part, weights, materialize_grads=True)

        with ThreadPoolExecutor(self.parts) as pool:
            for seen, found in _in_turn(pool, one, micros, self.parts):
                for weight, gradient in zip(weights, found, strict=True):
                    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
                yield seen

    def forget(self) -> None:
        pass

    def added(self, values: Tensor) -> Tensor:
        return values

    def wait(self) -> None:
        pass


class Accelerated:
    """Those of an `Accelerator`, each with a share of every batch: DDP or FSDP2, on GPUs or on CPU cores.

    All of them call the same methods of a learner with the same batch. The same object is for all learners of a model.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        """Raises ConfigError for what wraps or scales in another way."""
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
        self.main = accelerator.is_main_process
        self.parts = accelerator.num_processes
        self.spread = bool(accelerator.is_fsdp2)

    def place(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        if model is self._model:
            return self._scorer, self._accelerator.prepare_optimizer(optimizer)
        self._scorer, placed = self._accelerator.prepare(Scorer(model), optimizer)
        self._model = model
        return self._scorer, placed

    def dealt(self, micros: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        short = -len(micros) % self.parts  # those get one that counts elsewhere: a forward is everybody's work
        every = [*((micro, True) for micro in micros), *((micro, False) for micro in micros[:1] * short)]
        return every[self._accelerator.process_index :: self.parts]

    def gradients(self, work: Work[T], micros: Sequence[MicroBatch], weights: Sequence[Tensor]) -> Iterator[T]:
        dealt = self.dealt(micros)
        for n, (micro, counts) in enumerate(dealt, start=1):
            # FSDP would have to keep whole gradients to add them up at the end
            later = n < len(dealt) and not self.spread
            with self._accelerator.no_sync(self._scorer) if later else nullcontext():
                seen, part = work(micro)
                self._accelerator.backward(part * (self.parts if counts else 0))  # means are taken over processes
            if counts:
                yield seen

    def forget(self) -> None:
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):  # the embeddings stay gathered after a forward without a backward
                module.reshard()

    def added(self, values: Tensor) -> Tensor:
        found: Tensor = self._accelerator.reduce(values.to(self._accelerator.device), "sum")
        return found.to(values.device)

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()

    def told(self, what: T | None = None) -> T:
        """What the main process says here, in all of them."""
        (said,) = broadcast_object_list([what])
        return cast(T, said)


def whole(tensor: Tensor) -> Tensor:
    """Of a weight that is spread over processes, all of it; every process has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(weight: Tensor, tensor: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where this part of the weight is; every process has the whole."""
    tensor = tensor.to(weight.device)
    if not isinstance(weight, DTensor):
        return tensor
    return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)


def _in_turn(pool: ThreadPoolExecutor, work: Callable[[T], U], items: Sequence[T], ahead: int) -> Iterator[U]:
    """The results in the order of the items, of which at most `ahead` are under way or waiting to be taken."""
    under_way = deque(pool.submit(work, item) for item in items[:ahead])
    for item in items[ahead:]:
        yield under_way.popleft().result()
        under_way.append(pool.submit(work, item))
    while under_way:
        yield under_way.popleft().result()
