"""What an iteration learns from its episodes: credit, then one or more updates of the weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from gymcp.trainers.credit.assign import Credit, assign_credit
from gymcp.trainers.credit.diagnostics import anchor_statistics
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import batch_of
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.learner import Learner, Update
from gymcp.trainers.learner.token_rows import Example, example, rows_of
from gymcp.trainers.run.model_columns import with_signals
from gymcp.trainers.settings.loss import Loss
from gymcp.types import Json, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Demonstrations that are gone over again beside practice: `size` of them, drawn anew, after every update."""

    examples: Sequence[Example]
    size: int
    draw: np.random.Generator

    def __call__(self, learner: Learner) -> float:
        """One update of its own; its loss, in nats per token."""
        chosen = self.draw.choice(len(self.examples), size=min(self.size, len(self.examples)), replace=False)
        shown = [self.examples[int(i)] for i in chosen]
        return learner.update(shown, Loss(kind="likelihood"), groups=[0] * len(shown)).loss


class Lessons:
    """Of one iteration. What `learn` has found is there afterwards."""

    def __init__(
        self,
        preset: Preset,
        learner: Learner,
        critic: Critic | None,
        *,
        updates: int,
        passes: int = 1,
        repetition: Repetition | None = None,
    ) -> None:
        self._repetition = repetition
        self._preset, self._learner, self._critic = preset, learner, critic
        self._parts, self._passes = updates, passes
        self.metrics: dict[str, Json] = {}
        self.trackers = Trackers()
        self.credit: Credit | None = None
        self.credit_s = 0.0
        """Seconds that credit took, signals of the model included."""

    def learn(self, scored: Sequence[Trajectory], gold: Mapping[str, Task], trackers: Trackers) -> None:
        """Changes the weights. Raises ConfigError for what the batch lacks, FloatingPointError as the learner does."""
        started = time.perf_counter()
        batch, lesson = with_signals(batch_of(scored, gold), self._preset, self._learner, self._critic)
        credit = assign_credit(batch, self._preset, trackers)
        self.credit, self.trackers = credit, credit.trackers
        anchors = anchor_statistics(batch, batch.keys["state"], self._preset)
        self.metrics = {"dropped": credit.dropped, **_advantages(credit)}
        self.metrics |= {f"anchor/{name}": value for name, value in asdict(anchors).items()}
        self.credit_s = time.perf_counter() - started
        if lesson is not None and self._critic is not None:
            loss = self._critic.fit(lesson.features, lesson.returns)
            self.metrics |= {"critic/loss": loss, "critic/explained": lesson.explained}
        found, repeated = self._update(credit)
        self.metrics |= merged(found)
        if repeated:
            self.metrics["demonstrations/loss"] = float(np.mean(repeated))

    def _update(self, credit: Credit) -> tuple[list[Update], list[float]]:
        """The updates of one batch, cut by groups into as many parts as the recipe says, and gone over as often.

        With them the losses of the demonstrations that were repeated in between.
        """
        examples, groups = examples_of(credit)
        if not examples:
            return [], []
        weights = [term.weight for term in credit.terms]
        learner = self._learner
        old = learner.logprobs([each.row for each in examples], groups) if self._parts * self._passes > 1 else None
        found, repeated = [], []
        for part in [*range(self._parts)] * self._passes:
            chosen = [i for i, group in enumerate(groups) if group % self._parts == part]
            if chosen:
                found.append(
                    learner.update(
                        [examples[i] for i in chosen],
                        self._preset.loss,
                        weights=weights,
                        groups=[groups[i] for i in chosen],
                        old=[old[i] for i in chosen] if old is not None else None,
                    )
                )
                if self._repetition is not None:
                    repeated.append(self._repetition(learner))
        return found, repeated


def examples_of(credit: Credit) -> tuple[list[Example], list[int]]:
    """[N] trajectories -> their rows with the terms' advantages on the tokens, and the number of each row's task."""
    examples: list[Example] = []
    groups: list[int] = []
    starts = credit.batch.starts
    for n, record in enumerate(credit.batch.sources):
        own = slice(int(starts[n]), int(starts[n + 1]))
        for row in rows_of(record):
            advantages = [term.advantage[own] for term in credit.terms]
            examples.append(example(row, advantages, [term.counted[own] for term in credit.terms]))
            groups.append(int(credit.batch.keys["group"][starts[n]]))
    return examples, groups


def merged(updates: Sequence[Update]) -> dict[str, Json]:
    """What the metrics say of an iteration's updates: means over tokens. Nothing where there was none."""
    if not updates:
        return {}
    tokens = sum(update.tokens for update in updates)
    names = ["loss", "grad_norm", "entropy", "kl", "clipped"]
    if not np.isnan(updates[0].kl_reference):
        names.append("kl_reference")
    means = {name: sum(getattr(update, name) * update.tokens for update in updates) / max(tokens, 1) for name in names}
    return {**means, "tokens": tokens, "learning_rate": updates[-1].learning_rate, "updates": updates[-1].step}


def _advantages(credit: Credit) -> dict[str, Json]:
    """How much there is to learn: the mean size of an advantage, and the share of steps that have one."""
    advantage = credit.advantage
    if not len(advantage):
        return {"advantage/size": 0.0, "advantage/active": 0.0}
    return {
        "advantage/size": float(np.abs(advantage).mean()),
        "advantage/active": float((advantage != 0).mean()),
    }
