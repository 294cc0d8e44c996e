"""Weights, and how examples change them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.trainers.forward import MicroBatch, check_head, plan, token_values
from gymcp.trainers.losses import Denominators, aggregated, kl_estimate, policy_loss
from gymcp.trainers.objective import Loss
from gymcp.trainers.rows import Example
from gymcp.types import Row

Schedule = Literal["constant", "linear", "cosine"]


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
    clipped: float
    """Share of tokens whose ratio lay outside of the clip."""


class Learner:
    """A causal language model and its optimiser. The model object is shared with whoever samples from it: no copy."""

    def __init__(
        self, model: PreTrainedModel, settings: LearnerSettings, *, reference: PreTrainedModel | None = None
    ) -> None:
        """Raises ConfigError for a model without anything to train, or with a head of its own kind."""
        self.model = model
        self.settings = settings
        self.steps = 0
        self._reference = reference
        self._trained = [weight for weight in model.parameters() if weight.requires_grad]
        if not self._trained:
            raise ConfigError("learner: no weight of the model is to be trained; is everything frozen?")
        if not check_head(model):
            raise ConfigError(
                f"learner: {type(model).__name__} scales or caps its logits; models whose logits are their output"
                " embeddings applied to the last hidden state can be trained (Qwen, Llama, Mistral ...)"
            )
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )

    def logprobs(self, rows: Sequence[Row], groups: Sequence[int] | None = None) -> list[np.ndarray[Any, Any]]:
        """[B] rows -> for each, [L]: the log-probability of every drawn token; 0 elsewhere."""
        return self._logprobs_of(self.model, rows, groups)

    def _logprobs_of(
        self, model: PreTrainedModel, rows: Sequence[Row], groups: Sequence[int] | None
    ) -> list[np.ndarray[Any, Any]]:
        found = [np.zeros(len(row.token_ids)) for row in rows]
        with torch.no_grad():
            for micro in self._plan(rows, groups):
                values = token_values(
                    model, [rows[b] for b in micro.rows], prefix=micro.prefix, temperature=self.settings.temperature
                )
                flat = values.logprobs.double().cpu().numpy()
                at = 0
                for b in micro.rows:
                    drawn = np.flatnonzero(rows[b].loss_mask)
                    found[b][drawn] = flat[at : at + len(drawn)]
                    at += len(drawn)
        return found

    def update(
        self,
        examples: Sequence[Example],
        loss: Loss,
        *,
        weights: Sequence[float] = (1.0,),
        groups: Sequence[int] | None = None,
        old: Sequence[np.ndarray[Any, Any]] | None = None,
    ) -> Update:
        """One step of the optimiser on the whole batch, in micro-batches with denominators of the whole.

        `weights` are those of the preset's terms, `groups` the number of each row's task, `old` the log-probabilities
        under the weights before the first update on this batch (None: those of now). Where the loss corrects for the
        engine, the recorded log-probabilities are what it compares `old` with. Raises FloatingPointError for a loss
        that is not finite, before any weight has changed.
        """
        rows = [each.row for each in examples]
        totals = [_denominators(examples, term) for term in range(len(weights))]
        reference = self._logprobs_of(self._reference, rows, groups) if self._reference and loss.kl else None
        self._optimizer.zero_grad(set_to_none=True)
        seen = _Seen()
        for micro in self._plan(rows, groups):
            part = self._loss(examples, micro, loss, weights, totals, old, reference, seen)
            if not torch.isfinite(part):
                self._optimizer.zero_grad(set_to_none=True)
                raise FloatingPointError(f"the loss of update {self.steps + 1} is not finite; no weight was changed")
            torch.autograd.backward(part)
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self.settings.max_grad_norm))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"the gradient of update {self.steps + 1} is not finite; no weight was changed")
        rate = learning_rate(self.settings, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.steps += 1
        return Update(
            step=self.steps,
            loss=seen.loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=seen.tokens,
            seen_tokens=sum(len(row.token_ids) for row in rows),
            entropy=seen.entropy / max(seen.tokens, 1),
            kl=seen.kl / max(seen.tokens, 1),
            clipped=seen.clipped / max(seen.tokens, 1),
        )

    def _loss(
        self,
        examples: Sequence[Example],
        micro: MicroBatch,
        loss: Loss,
        weights: Sequence[float],
        totals: Sequence[Denominators],
        old: Sequence[np.ndarray[Any, Any]] | None,
        reference: Sequence[np.ndarray[Any, Any]] | None,
        seen: _Seen,
    ) -> Tensor:
        chosen = [examples[b] for b in micro.rows]
        rows = [each.row for each in chosen]
        values = token_values(self.model, rows, prefix=micro.prefix, temperature=self.settings.temperature)
        shape = _Ragged(rows)
        new = shape.square(values.logprobs)
        before = new.detach() if old is None else shape.taken([old[b] for b in micro.rows], new)
        rollout = shape.taken([np.array(row.logprobs) for row in rows], new)
        part = new.new_zeros(())
        for term, (weight, whole) in enumerate(zip(weights, totals, strict=True)):
            advantage = shape.taken([each.advantages[term] for each in chosen], new)
            mask = shape.taken([each.counted[term] for each in chosen], new)
            corrected = rollout if loss.weight is not None or loss.decoupled else None
            part = part + weight * policy_loss(
                loss, new, before, advantage, mask, rollout=corrected, denominators=whole
            )
        if reference is not None:
            divergence = kl_estimate(new, shape.taken([reference[b] for b in micro.rows], new))
            part = part + loss.kl * aggregated(loss, divergence, shape.mask(new), totals[0])
        with torch.no_grad():
            seen.add(loss, part, new, before, shape.mask(new), values.entropy)
        return part

    def _plan(self, rows: Sequence[Row], groups: Sequence[int] | None) -> list[MicroBatch]:
        chosen = list(groups) if groups is not None else [0] * len(rows)
        share = self.settings.share_prefixes and groups is not None
        return plan(rows, chosen, tokens=self.settings.micro_batch_tokens, share=share)

    def save(self, folder: Path) -> None:
        """Trained weights, optimiser, random state, counters: all that `load` needs to go on bit-exactly."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "weights": {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad},
            "optimizer": self._optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "steps": self.steps,
        }
        target = folder / "learner.pt"
        partial = target.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(target)
        about = {"steps": self.steps, "settings": asdict(self.settings)}
        write_atomically(folder / "learner.json", json.dumps(about).encode())

    def load(self, folder: Path) -> Self:
        """Goes on from `save`. Raises ConfigError for a checkpoint of another model."""
        try:
            state = torch.load(folder / "learner.pt", weights_only=True)
        except FileNotFoundError:
            raise ConfigError(f"checkpoint {folder}: there is no learner.pt") from None
        own = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        shapes = {name: tuple(weight.shape) for name, weight in own.items()}
        if {name: tuple(weight.shape) for name, weight in state["weights"].items()} != shapes:
            raise ConfigError(f"checkpoint {folder}: its weights are those of another model")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.steps = int(state["steps"])
        return self


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


def _denominators(examples: Sequence[Example], term: int) -> Denominators:
    counted = [int(each.counted[term].sum()) for each in examples]
    return Denominators(tokens=float(sum(counted)), sequences=float(sum(count > 0 for count in counted)))


class _Ragged:
    """Drawn tokens of rows, as a rectangle [B, K] with the shorter rows padded."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._drawn = [np.flatnonzero(row.loss_mask) for row in rows]
        self._width = max((len(each) for each in self._drawn), default=0)

    def square(self, flat: Tensor) -> Tensor:
        parts = torch.split(flat, [len(each) for each in self._drawn])
        return torch.stack([torch.nn.functional.pad(part, (0, self._width - len(part))) for part in parts])

    def taken(self, columns: Sequence[np.ndarray[Any, Any]], like: Tensor) -> Tensor:
        table = np.zeros((len(columns), self._width))
        for b, (column, drawn) in enumerate(zip(columns, self._drawn, strict=True)):
            table[b, : len(drawn)] = column[drawn]
        return torch.as_tensor(table, dtype=like.dtype, device=like.device)

    def mask(self, like: Tensor) -> Tensor:
        lengths = torch.tensor([len(each) for each in self._drawn], device=like.device)
        return (torch.arange(self._width, device=like.device)[None, :] < lengths[:, None]).to(like.dtype)


class _Seen:
    """Sums over the micro-batches of an update."""

    def __init__(self) -> None:
        self.loss = self.entropy = self.kl = self.clipped = 0.0
        self.tokens = 0

    def add(self, loss: Loss, part: Tensor, new: Tensor, old: Tensor, mask: Tensor, entropy: Tensor) -> None:
        ratio = torch.exp((new - old).clamp(-20, 20))
        outside = (ratio < 1 - loss.clip_low) | (ratio > 1 + loss.clip_high)
        self.loss += float(part)
        self.entropy += float(entropy.sum())
        self.kl += float((kl_estimate(new, old) * mask).sum())
        self.clipped += float((outside * mask).sum())
        self.tokens += int(mask.sum())
