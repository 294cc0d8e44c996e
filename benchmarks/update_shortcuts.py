"""Updates that compute nothing for rows without advantage, and no probabilities that the engine has recorded.

CPU seconds of all updates of an iteration: as they are, and with everything computed (the advantages that are 0 are
1e-12 then, and the learner computes `old`). The same model, rows and threads; rounds are interleaved, medians taken.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from report_table import Result, against, options, show
from training import SMALL, Case, example
from transformers import AutoModelForCausalLM

from gymcp.agents.policies.tiny_model import make_tiny_model
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.old_logprobs import find_old_logprobs
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.settings.loss import Loss

GROUPS = 8
EPISODES = Case(name="prompts of 128 tokens", prompt=128, completions=(16, 48))
SHARES = (0.0, 0.5)
"""Shares of the groups whose episodes all end alike."""
LITTLE = 1e-12
"""Advantage that is computed and is lost in rounding, but not so little that its gradients are denormal."""


def make_examples(learner: Learner, share: float, vocabulary: int, nothing: float) -> list[Example]:
    """The iteration's rows with recorded log-probabilities; in the groups that end alike the advantage is `nothing`."""
    rows = EPISODES.rows(GROUPS, vocabulary)
    alike = int(share * GROUPS)
    per_group = len(rows) // GROUPS
    made = [
        example(prompt, completion, nothing if n // per_group < alike else (-1.0) ** n)
        for n, (prompt, completion) in enumerate(rows)
    ]
    recorded = learner.logprobs([each.row for each in made], number_groups(made))
    return [
        replace(each, row=replace(each.row, logprobs=tuple(values.tolist())))
        for each, values in zip(made, recorded, strict=True)
    ]


def number_groups(examples: Sequence[Example]) -> list[int]:
    return [n * GROUPS // len(examples) for n in range(len(examples))]


def cpu_seconds(learner: Learner, examples: Sequence[Example], minibatches: int, *, shortcuts: bool) -> float:
    """CPU seconds of one iteration's updates."""
    groups, loss = number_groups(examples), Loss()
    started = time.process_time()
    old = find_old_logprobs(
        learner, examples, loss, weights=[1.0], groups=groups, version="0",
        engine_shares_weights=shortcuts, several=minibatches > 1,
    )  # fmt: skip
    for part in range(minibatches):
        chosen = [i for i, group in enumerate(groups) if group % minibatches == part]
        learner.update(
            [examples[i] for i in chosen],
            loss,
            groups=[groups[i] for i in chosen],
            old=[old[i] for i in chosen] if old is not None else None,
        )
    return time.process_time() - started


def measure(folder: Path, rounds: int) -> list[Result]:
    learners = [
        Learner(AutoModelForCausalLM.from_pretrained(folder), LearnerSettings(micro_batch_tokens=2048))
        for _ in range(2)
    ]
    results: list[Result] = []
    for minibatches in (1, 4):
        for share in SHARES:
            vocabulary = learners[0].model.config.vocab_size
            batches = [make_examples(each, share, vocabulary, 0.0 if n else LITTLE) for n, each in enumerate(learners)]
            seconds: list[list[float]] = [[], []]
            for _ in range(rounds):
                for shortcuts in (False, True):
                    found = cpu_seconds(learners[shortcuts], batches[shortcuts], minibatches, shortcuts=shortcuts)
                    seconds[shortcuts].append(found)
            name = f"{minibatches} updates, {share:.0%} of the groups end alike"
            everything = Result(metric=f"{name}: everything", value=statistics.median(seconds[0]), unit="CPU s")
            results += [everything, against(name, statistics.median(seconds[1]), "CPU s", everything)]
    return results


def main() -> None:
    arguments = options(__doc__, "one round instead of five").parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(make_tiny_model(Path(folder), size=SMALL), 1 if arguments.quick else 5)
    show("update_shortcuts", results, as_json=arguments.json)


if __name__ == "__main__":
    main()
