"""The learner: computes values of recorded tokens and changes the weights by training examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gymcp.errors import ConfigError
from gymcp.trainers.learner.distributed_processes import Processes, SingleProcess, full_tensor, shard_like
from gymcp.trainers.learner.forward import (
    FeaturePlaces,
    TokenValues,
    encode_beginning,
    estimate_call_costs,
    feature_positions,
    reads_masks_of_trees,
    why_no_shared_prefix,
)
from gymcp.trainers.learner.learner_checkpoint import fingerprint, read_checkpoint, write_checkpoint
from gymcp.trainers.learner.learner_settings import LearnerSettings, learning_rate
from gymcp.trainers.learner.micro_batch_loss import LearnerBatch, LossStats, batch_loss, make_batch
from gymcp.trainers.learner.micro_batches import MicroBatch, common_beginning, find_distinct, plan_micro_batches
from gymcp.trainers.learner.token_rows import Example, Row, has_gradient
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """Statistics of one update."""

    step: int
    """Number of optimiser steps so far, this one included."""
    skipped: bool
    """True: no row had a gradient, so the step was left out and no weight was changed."""
    loss: float
    grad_norm: float
    """Norm before clipping."""
    learning_rate: float
    tokens: int
    """Tokens that the policy drew."""
    computed_tokens: int
    """Drawn tokens of the rows that have a gradient: `entropy`, `kl` and `clipped` are means over them."""
    entropy: float
    """In nats; if no row has a gradient, the mean of -log p of the drawn tokens as the engine recorded it, whose
    expectation it is."""
    kl: float
    """Mean k3 estimate, per drawn token, of the divergence of `old` from the current weights."""
    kl_reference: float
    """Mean k3 estimate, per drawn token, of the divergence of the current weights from the reference; NaN without a
    reference."""
    clipped: float
    """Share of drawn tokens whose ratio lay outside of the clip range."""


class Learner:
    """A causal language model and its optimiser. The model object is shared with the engine that samples: no copy."""

    def __init__(
        self, model: PreTrainedModel, settings: LearnerSettings, processes: Processes | None = None
    ) -> None:  # fmt: skip
        """Raises ConfigError for a model without trainable weights, or one that changes its embeddings' logits.

        With `processes`, each of them makes a learner and calls the same methods with the same arguments.
        """
        self.model = model
        self.settings = settings
        self.steps = 0
        self._processes = processes or SingleProcess(settings.workers)
        self._shares_prefixes = (
            settings.share_prefixes and not self._processes.is_sharded and not why_no_shared_prefix(model)
        )
        nests = settings.nest_prefixes and reads_masks_of_trees(model)
        self._call_costs = estimate_call_costs(model) if nests else None
        self._reference: list[Tensor] | None = None
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        if not trained:
            raise ConfigError("learner: no weight of the model is to be trained; is everything frozen?")
        optimizer = torch.optim.AdamW(
            trained, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self._scorer, self._optimizer = self._processes.prepare(model, optimizer)
        self._trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def logprobs(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[Floats]:
        """[B] rows -> [L] for each: the log-probability of every drawn token, 0 elsewhere.

        `groups` are the task numbers of the rows: here and below, rows of one task may share their encoded prefix.
        """
        return self._token_columns(rows, groups, lambda values: values.logprobs)

    def entropies(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[Floats]:
        """[B] rows -> [L] for each: the entropy (nats) of the distribution of every drawn token, 0 elsewhere."""
        return self._token_columns(rows, groups, lambda values: values.entropy)

    def features(
        self, rows: Sequence[Row], groups: Sequence[int] | None = None, places: FeaturePlaces = "step"
    ) -> Tensor:
        """[B] rows -> [P, H], row after row: the last hidden states at these places of their steps."""
        width = self.model.config.get_text_config().hidden_size
        sizes = [len(feature_positions(row, places)) for row in rows]
        features = [torch.zeros(size, width, device=self.model.device) for size in sizes]
        for micro, counts in self._processes.shard(self._plan(rows, groups)):
            chosen = [rows[b] for b in micro.rows]
            with self._autocast(), torch.no_grad():
                (found,) = self._scorer(chosen, prefix=micro.prefix, nested=micro.nested, features=places)
            parts = torch.split(found, [sizes[b] for b in micro.rows])
            for b, part in zip(micro.rows, parts, strict=True):
                if counts:
                    features[b] = part
        return self._processes.all_reduce_sum(torch.cat(features))

    def set_reference(self) -> None:
        """Save the current trainable weights as the reference policy for the KL term."""
        self._reference = [weight.detach().clone() for weight in self._trained.values()]

    def restart(self) -> None:
        """Put the reference's weights back and forget the optimiser's moments; the updates go on being counted.

        Raises ConfigError without a reference.
        """
        self._write_weights(self._get_reference())
        self._optimizer.state.clear()

    def reference_logprobs(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[Floats]:
        """`logprobs` under the reference policy. While this runs, nothing else may compute with the model."""
        with self._reference_weights():
            return self.logprobs(rows, groups)

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        reference = self._get_reference()
        current = [weight.detach().clone() for weight in self._trained.values()]
        try:
            self._write_weights(reference)
            yield
        finally:
            self._write_weights(current)

    def _get_reference(self) -> list[Tensor]:
        if self._reference is None:
            raise ConfigError("learner: the weights of a reference are asked for, and none was kept")
        return self._reference

    @torch.no_grad()
    def _write_weights(self, values: Sequence[Tensor]) -> None:
        self._processes.discard_gathered_weights()
        for weight, value in zip(self._trained.values(), values, strict=True):
            weight.copy_(value)

    def _token_columns(
        self, rows: Sequence[Row], groups: Sequence[int] | None, pick: Callable[[TokenValues], Tensor]
    ) -> list[Floats]:
        columns = [np.zeros(len(row.token_ids)) for row in rows]
        with torch.no_grad():
            for micro, counts in self._processes.shard(self._plan(rows, groups)):
                flat = pick(self._values([rows[b] for b in micro.rows], micro)).double().cpu().numpy()
                at = 0
                for b in micro.rows if counts else ():
                    drawn = np.flatnonzero(rows[b].loss_mask)
                    columns[b][drawn] = flat[at : at + len(drawn)]
                    at += len(drawn)
        total = self._processes.all_reduce_sum(torch.from_numpy(np.concatenate([*columns, np.zeros(0)]))).numpy()
        return np.split(total, np.cumsum([len(row.token_ids) for row in rows]))[:-1]

    def _values(
        self, rows: Sequence[Row], micro: MicroBatch, *, entropy_gradient: bool = False, common: Sequence[Tensor] = ()
    ) -> TokenValues:
        with self._autocast():
            logprobs, entropy = self._scorer(
                rows,
                prefix=micro.prefix,
                nested=micro.nested,
                temperature=self.settings.temperature,
                entropy_gradient=entropy_gradient,
                common=common,
            )
        return TokenValues(logprobs=logprobs, entropy=entropy)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast)

    def _plan(
        self, rows: Sequence[Row], groups: Sequence[int] | None, active: Sequence[int] | None = None
    ) -> list[MicroBatch]:
        """Micro-batches of the rows at the places `active`; None: of all."""
        if active is not None and len(active) < len(rows):
            plan = self._plan([rows[b] for b in active], [groups[b] for b in active] if groups is not None else None)
            return [replace(micro, rows=tuple(active[i] for i in micro.rows)) for micro in plan]
        tasks = list(groups) if groups is not None else [0] * len(rows)
        share = self._shares_prefixes and groups is not None
        tokens, parallel = self.settings.micro_batch_tokens, self._processes.parallel_micro_batches
        if parallel > 1:  # at least one micro-batch for each process or thread
            tokens = min(tokens, -(-sum(len(row.token_ids) for row in find_distinct(rows)[0]) // parallel))
        return plan_micro_batches(rows, tasks, tokens=tokens, share=share, costs=self._call_costs)

    def update(
        self,
        examples: Sequence[Example],
        loss: Loss,
        *,
        weights: Sequence[float] = (1.0,),
        groups: Sequence[int] | None = None,
        old: Sequence[Floats] | None = None,
    ) -> UpdateStats:
        """Take one optimiser step on the whole batch, computed in micro-batches with denominators of the whole batch.

        A row without advantage is not computed, unless the loss has a KL term or an entropy bonus. If no row has a
        gradient, the step is left out: the momentum of earlier steps would change the weights.

        `weights` are those of the preset's terms, `groups` the task numbers of the rows, `old` the log-probabilities
        before the first update on this batch (None: those of the current weights). If the loss corrects for the engine,
        it compares `old` with the recorded log-probabilities. Raises FloatingPointError for a loss or gradient that is
        not finite, before any weight has changed.
        """
        rows = [example.row for example in examples]
        reference = self.reference_logprobs(rows, groups) if loss.kl else None
        batch = make_batch(examples, loss, weights, old=old, reference=reference)
        active = [b for b, each in enumerate(examples) if loss.reaches_all_tokens or has_gradient(each, weights)]
        if not active:
            return self._skip(rows)
        stats = self._accumulate_gradients(batch, self._plan(rows, groups, active))
        self._check_finite("loss", stats.loss)
        norm = self._clip_gradients()
        self._check_finite("gradient", norm)
        rate = learning_rate(self.settings, self.steps)
        if norm > 0:
            self._step(rate)
        else:
            self._optimizer.zero_grad(set_to_none=True)
        computed = max(stats.tokens, 1)
        return UpdateStats(
            step=self.steps,
            skipped=norm == 0,
            loss=stats.loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=sum(sum(row.loss_mask) for row in rows),
            computed_tokens=int(stats.tokens),
            entropy=stats.entropy / computed,
            kl=stats.kl / computed,
            kl_reference=stats.kl_reference / computed if reference is not None else math.nan,
            clipped=stats.clipped / computed,
        )

    def _skip(self, rows: Sequence[Row]) -> UpdateStats:
        """Statistics of an update in which no row has a gradient."""
        drawn = np.concatenate([np.array(row.logprobs)[np.array(row.loss_mask, bool)] for row in rows])
        drawn = drawn[np.isfinite(drawn)]
        return UpdateStats(
            step=self.steps,
            skipped=True,
            loss=0.0,
            grad_norm=0.0,
            learning_rate=learning_rate(self.settings, self.steps),
            tokens=sum(sum(row.loss_mask) for row in rows),
            computed_tokens=0,
            entropy=-float(drawn.mean()) if len(drawn) else 0.0,
            kl=0.0,
            kl_reference=math.nan,
            clipped=0.0,
        )

    def _accumulate_gradients(self, batch: LearnerBatch, micros: Sequence[MicroBatch]) -> LossStats:
        """Leave the gradient of the whole batch with the weights; the statistics of the whole batch."""

        beginning = common_beginning([example.row for example in batch.examples], micros)

        def encode_common() -> list[Tensor]:
            with self._autocast():
                return encode_beginning(self.model, beginning)

        def compute_loss(micro: MicroBatch, common: Sequence[Tensor]) -> tuple[Tensor, LossStats]:
            rows = [batch.examples[b].row for b in micro.rows]
            own = common if micro.prefix else ()
            values = self._values(rows, micro, entropy_gradient=batch.loss.entropy != 0, common=own)
            return batch_loss(batch, micro.rows, values)

        self._optimizer.zero_grad(set_to_none=True)
        stats, weights = LossStats(), list(self._trained.values())
        shared = encode_common if beginning else None
        for of_micro in self._processes.accumulate_gradients(compute_loss, micros, weights, shared):
            stats = stats.merge(of_micro)
        return LossStats.from_tensor(self._processes.all_reduce_sum(stats.to_tensor()))

    def _check_finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            self._optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"the {name} of update {self.steps + 1} is not finite; no weight was changed")

    def _clip_gradients(self) -> float:
        """Clip the gradient; returns its norm before that."""
        weights = self._trained.values()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(weights, self.settings.max_grad_norm, norm)
        return float(norm)

    def _step(self, rate: float) -> None:
        """Change the weights by their gradients, at this learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1

    def full_state_dict(self) -> dict[str, Tensor] | None:
        """All weights by name, gathered in the main process; None if weights are not sharded: use the model's own."""
        return self._gather(self.model.state_dict()) if self._processes.is_sharded else None

    def save(self, folder: Path) -> None:
        """Write trained weights, optimiser, random state and counters: all that `load` needs to go on bit-exactly.

        The main process writes full tensors, even if weights are sharded.
        """
        optimizer = self._optimizer.state_dict()
        state = {
            "weights": self._gather(self._trained),
            "optimizer": {**optimizer, "state": {n: self._gather(own) for n, own in optimizer["state"].items()}},
            "random": torch.get_rng_state(),
            "steps": self.steps,
            "frozen": fingerprint(self.model),
        }
        if self._reference is not None:
            state["reference"] = list(self._gather(dict(enumerate(self._reference))).values())
        if self._processes.is_main:
            write_checkpoint(folder, state, {"steps": self.steps, "settings": asdict(self.settings)})
        self._processes.barrier()

    def _gather(self, tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """Full tensors on the CPU in the main process, nothing in the others."""
        full = ((name, full_tensor(tensor)) for name, tensor in tensors.items())
        return {name: tensor.detach().cpu() for name, tensor in full if self._processes.is_main}

    def load(self, folder: Path) -> Self:
        """Go on from `save`. Raises ConfigError if there is no checkpoint, or one of another model."""
        frozen = fingerprint(self.model)  # a collective, so before the file, which one process may lack
        state = read_checkpoint(folder, {name: weight.shape for name, weight in self._trained.items()}, frozen)
        trained = self._trained
        self._write_weights([shard_like(weight, state["weights"][name]) for name, weight in trained.items()])
        optimizer: dict[str, Any] = state["optimizer"]
        moments = optimizer["state"].values()
        for weight, of_weight in zip(trained.values(), moments, strict=bool(optimizer["state"])):
            of_weight.update({name: shard_like(weight, of_weight[name]) for name in ("exp_avg", "exp_avg_sq")})
        self._optimizer.load_state_dict(optimizer)
        if "reference" in state:
            pairs = zip(trained.values(), state["reference"], strict=True)
            self._reference = [shard_like(weight, value) for weight, value in pairs]
        torch.set_rng_state(state["random"])
        self.steps = int(state["steps"])
        return self
