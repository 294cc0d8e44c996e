"""Weights, and how examples change them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.trainers.learner.distributed_processes import Alone, Processes, spread_like, whole
from gymcp.trainers.learner.forward import MicroBatch, TokenValues, plan
from gymcp.trainers.learner.micro_batch_loss import LearnerBatch, Sums, batch_loss, denominators_of
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Row

FIRST = 256
"""Numbers of a frozen weight by which it is known again."""
Schedule = Literal["constant", "linear", "cosine"]
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How weights are changed."""

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    total_steps: int = 1000
    """Updates until the schedule has ended."""
    micro_batch_tokens: int = 8192
    """Tokens computed at once, padding included: what bounds memory."""
    share_prefixes: bool = True
    """Whether what the rows of a task begin with is encoded once. Gradients are the same."""
    temperature: float = 1.0
    """At which the tokens were drawn."""
    autocast: bool = False
    """Whether the model computes in bfloat16 where that is safe, over weights that may be float32."""
    workers: int = 1
    """Micro-batches computed at a time, each in a thread. On CPU cores, for models so small that the threads of one
    operation would mostly wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step of the optimiser did."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    tokens: int
    """Drawn by the policy, trained on."""
    seen_tokens: int
    """Prompts and all, each sequence counted whole."""
    entropy: float
    """Mean over the tokens, in nats."""
    kl: float
    """Mean k3 estimate of the change since `old`, per token."""
    kl_reference: float
    """Mean k3 estimate of the divergence from the reference, per token; NaN without a reference."""
    clipped: float
    """Share of tokens whose ratio lay outside of the clip."""


class Learner:
    """A causal language model and its optimiser. The model object is shared with whoever samples from it: no copy."""

    def __init__(
        self, model: PreTrainedModel, settings: LearnerSettings, processes: Processes | None = None
    ) -> None:  # fmt: skip
        """Raises ConfigError for a model without anything to train, or with a head of its own kind.

        With `processes` of several, all of them make a learner and call the same methods with the same arguments.
        """
        self.model = model
        self.settings = settings
        self.steps = 0
        self._processes = processes or Alone(settings.workers)
        self._reference: list[Tensor] | None = None
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        if not trained:
            raise ConfigError("learner: no weight of the model is to be trained; is everything frozen?")
        optimizer = torch.optim.AdamW(
            trained, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self._scorer: Any
        self._optimizer: Any
        self._scorer, self._optimizer = self._processes.place(model, optimizer)
        self._trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def logprobs(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[Floats]:
        """[B] rows -> for each, [L]: the log-probability of every drawn token; 0 elsewhere."""
        return self._columns(rows, groups, lambda values: values.logprobs)

    def entropies(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[Floats]:
        """[B] rows -> for each, [L]: the entropy, in nats, of what every drawn token was drawn from; 0 elsewhere."""
        return self._columns(rows, groups, lambda values: values.entropy)

    def features(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> Tensor:
        """[B] rows -> [S, H] for their S steps, row after row: the last hidden state before a step's first token."""
        width = self.model.config.get_text_config().hidden_size
        found = [torch.zeros(len(row.steps), width, device=self.model.device) for row in rows]
        for micro, counts in self._processes.dealt(self._plan(rows, groups)):
            chosen = [rows[b] for b in micro.rows]
            with self._precision(), torch.no_grad():
                (of_steps,) = self._scorer(chosen, prefix=micro.prefix, features=True)
            parts = torch.split(of_steps, [len(row.steps) for row in chosen])
            for b, part in zip(micro.rows, parts, strict=True):
                if counts:
                    found[b] = part
        return self._processes.added(torch.cat(found))

    def keep_reference(self) -> None:
        """The trained weights as they are now are what `reference_logprobs` is about, from now on."""
        self._reference = [weight.detach().clone() for weight in self._trained.values()]

    def reference_logprobs(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[Floats]:
        """As `logprobs`, of the kept reference. While it runs, nobody else may compute with the model."""
        with self._as_reference():
            return self.logprobs(rows, groups)

    @contextmanager
    def _as_reference(self) -> Iterator[None]:
        if self._reference is None:
            raise ConfigError("learner: the loss asks for a divergence from a reference, and none was kept")
        now = [weight.detach().clone() for weight in self._trained.values()]
        try:
            self._put(self._reference)
            yield
        finally:
            self._put(now)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        self._processes.forget()
        for weight, value in zip(self._trained.values(), values, strict=True):
            weight.copy_(value)

    def _columns(
        self, rows: Sequence[Row], groups: Sequence[int] | None, pick: Callable[[TokenValues], Tensor]
    ) -> list[Floats]:
        found = [np.zeros(len(row.token_ids)) for row in rows]
        with torch.no_grad():
            for micro, counts in self._processes.dealt(self._plan(rows, groups)):
                flat = pick(self._values([rows[b] for b in micro.rows], micro.prefix)).double().cpu().numpy()
                at = 0
                for b in micro.rows if counts else ():
                    drawn = np.flatnonzero(rows[b].loss_mask)
                    found[b][drawn] = flat[at : at + len(drawn)]
                    at += len(drawn)
        together = self._processes.added(torch.from_numpy(np.concatenate([*found, np.zeros(0)]))).numpy()
        return np.split(together, np.cumsum([len(row.token_ids) for row in rows]))[:-1]

    def _values(self, rows: Sequence[Row], prefix: int) -> TokenValues:
        with self._precision():
            logprobs, entropy = self._scorer(rows, prefix=prefix, temperature=self.settings.temperature)
        return TokenValues(logprobs=logprobs, entropy=entropy)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast)

    def update(
        self,
        examples: Sequence[Example],
        loss: Loss,
        *,
        weights: Sequence[float] = (1.0,),
        groups: Sequence[int] | None = None,
        old: Sequence[Floats] | None = None,
    ) -> Update:
        """One step of the optimiser on the whole batch, in micro-batches with denominators of the whole.

        `weights` are those of the preset's terms, `groups` the number of each row's task, `old` the log-probabilities
        under the weights before the first update on this batch (None: those of now). Where the loss corrects for the
        engine, the recorded log-probabilities are what it compares `old` with. Raises FloatingPointError for a loss
        that is not finite, before any weight has changed.
        """
        rows = [each.row for each in examples]
        reference = self.reference_logprobs(rows, groups) if loss.kl else None
        batch = LearnerBatch(
            examples=examples,
            loss=loss,
            weights=weights,
            totals=[denominators_of(examples, term) for term in range(len(weights))],
            old=old,
            reference=reference,
        )
        seen = self._gradients(batch, self._plan(rows, groups))
        if not math.isfinite(seen.loss):
            self._optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"the loss of update {self.steps + 1} is not finite; no weight was changed")
        norm = self._clip()
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"the gradient of update {self.steps + 1} is not finite; no weight was changed")
        rate = learning_rate(self.settings, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        tokens = max(seen.tokens, 1)
        return Update(
            step=self.steps,
            loss=seen.loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=int(seen.tokens),
            seen_tokens=sum(len(row.token_ids) for row in rows),
            entropy=seen.entropy / tokens,
            kl=seen.kl / tokens,
            kl_reference=seen.kl_reference / tokens if reference is not None else math.nan,
            clipped=seen.clipped / tokens,
        )

    def _gradients(self, batch: LearnerBatch, micros: Sequence[MicroBatch]) -> Sums:
        """Leaves the gradient of the whole batch with the weights."""

        def work(micro: MicroBatch) -> tuple[Sums, Tensor]:
            own = Sums()
            values = self._values([batch.examples[b].row for b in micro.rows], micro.prefix)
            return own, batch_loss(batch, micro.rows, values, own)

        self._optimizer.zero_grad(set_to_none=True)
        seen = Sums()
        for own in self._processes.gradients(work, micros, list(self._trained.values())):
            seen.join(own)
        return Sums.of(self._processes.added(seen.values()))

    def _clip(self) -> float:
        """The norm of the gradient before it is clipped."""
        weights = self._trained.values()
        norm = whole(torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None]))
        torch.nn.utils.clip_grads_with_norm_(weights, self.settings.max_grad_norm, norm)
        return float(norm)

    def _plan(self, rows: Sequence[Row], groups: Sequence[int] | None) -> list[MicroBatch]:
        chosen = list(groups) if groups is not None else [0] * len(rows)
        share = self.settings.share_prefixes and not self._processes.spread and groups is not None
        tokens = self.settings.micro_batch_tokens
        if self._processes.parts > 1:  # something to do for each of them
            tokens = min(tokens, -(-sum(len(row.token_ids) for row in rows) // self._processes.parts))
        return plan(rows, chosen, tokens=tokens, share=share)

    def weights(self) -> dict[str, Tensor] | None:
        """All weights by name, whole, in the main process; None where those of the model are whole by themselves."""
        return self._gathered(self.model.state_dict()) if self._processes.spread else None

    def save(self, folder: Path) -> None:
        """Trained weights, optimiser, random state, counters: all that `load` needs to go on bit-exactly.

        Tensors are whole, on however many processes they were spread, and the main one writes them.
        """
        optimizer = self._optimizer.state_dict()
        state = {
            "weights": self._gathered(self._trained),
            "optimizer": {**optimizer, "state": {n: self._gathered(own) for n, own in optimizer["state"].items()}},
            "random": torch.get_rng_state(),
            "steps": self.steps,
            "frozen": fingerprint(self.model),
        }
        if self._reference is not None:
            state["reference"] = list(self._gathered(dict(enumerate(self._reference))).values())
        if self._processes.main:
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / "learner.pt"
            partial = target.with_suffix(".partial")
            with partial.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
            about = {"steps": self.steps, "settings": asdict(self.settings)}
            write_atomically(folder / "learner.json", json.dumps(about).encode())
        self._processes.wait()

    def _gathered(self, tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """Whole ones, where they are written; nothing elsewhere."""
        found = ((name, whole(tensor)) for name, tensor in tensors.items())
        return {name: tensor.detach().cpu() for name, tensor in found if self._processes.main}

    def load(self, folder: Path) -> Self:
        """Goes on from `save`. Raises ConfigError for a checkpoint of another model."""
        frozen = fingerprint(self.model)  # all processes are here before one of them may lack the file
        try:
            state = torch.load(folder / "learner.pt", map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise ConfigError(f"checkpoint {folder}: there is no learner.pt") from None
        own = self._trained
        shapes = {name: weight.shape for name, weight in own.items()}
        if {name: weight.shape for name, weight in state["weights"].items()} != shapes:
            raise ConfigError(f"checkpoint {folder}: its weights are those of another model")
        if state.get("frozen", frozen) != frozen:  # older checkpoints do not say
            raise ConfigError(
                f"checkpoint {folder}: its adapter belongs to another model of the same shape: what is frozen differs"
            )
        self._put([spread_like(weight, state["weights"][name]) for name, weight in own.items()])
        optimizer = state["optimizer"]
        for weight, of_weight in zip(own.values(), optimizer["state"].values(), strict=bool(optimizer["state"])):
            of_weight.update({name: spread_like(weight, of_weight[name]) for name in ("exp_avg", "exp_avg_sq")})
        self._optimizer.load_state_dict(optimizer)
        if "reference" in state:
            pairs = zip(own.values(), state["reference"], strict=True)
            self._reference = [spread_like(weight, then) for weight, then in pairs]
        torch.set_rng_state(state["random"])
        self.steps = int(state["steps"])
        return self


def fingerprint(model: PreTrainedModel) -> str:
    """Of the weights that are not trained: the first numbers of each, since a large model has too many to read them."""
    found = hashlib.sha256()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            first = whole(weight.detach()).flatten()[:FIRST].float().cpu().numpy()
            found.update(name.encode() + first.tobytes())
    return found.hexdigest()


def learning_rate(settings: LearnerSettings, step: int) -> float:
    """Of the update after `step` updates: up in a line, then as the schedule says, down to 0 at `total_steps`."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (step - settings.warmup_steps) / max(settings.total_steps - settings.warmup_steps, 1)
    done = min(done, 1.0)
    factor = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * factor
