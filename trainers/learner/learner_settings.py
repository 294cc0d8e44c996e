"""Settings of a learner, and its learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Settings of the optimiser, and of the forward passes that compute its loss."""

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    """Updates during which the learning rate rises."""
    schedule: Schedule = "constant"
    total_steps: int = 1000
    """Updates until the schedule has ended."""
    micro_batch_tokens: int = 8192
    """Maximum tokens per forward pass, padding included. It bounds memory."""
    share_prefixes: bool = True
    """True: the common prefix of a task's rows is encoded once, if all layers of the model have full attention. The
    gradients are the same either way."""
    nest_prefixes: bool = True
    """True: with `share_prefixes`, what some rows of a task share behind that prefix is encoded once, too, as in
    episodes that branch off each other. The gradients are the same either way."""
    temperature: float = 1.0
    """Temperature at which the tokens were drawn."""
    autocast: bool = False
    """True: the model computes in bfloat16 if that is safe, over weights that may be float32."""
    workers: int = 1
    """Threads that each compute a micro-batch. For models on CPU cores that are so small that the threads of one
    operation would mostly wait for each other."""


def learning_rate(settings: LearnerSettings, step: int) -> float:
    """The rate of the update that follows `step` updates: a linear warm-up, then the schedule, down to 0 at its end."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (step - settings.warmup_steps) / max(settings.total_steps - settings.warmup_steps, 1)
    done = min(done, 1.0)
    factor = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * factor
