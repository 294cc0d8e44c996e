"""Updates that compute nothing for rows without advantage, and no probabilities that the engine has recorded.

CPU seconds of all updates of an iteration: as they are, and with everything computed (the advantages that are 0 are
1e-12 then, and the learner computes `old`). The same model, rows and threads; rounds are interleaved, medians taken.

Then groups whose episodes end after few steps or many, some of them equal: as they are, and with each made as long as
the longest of its group by tokens of its own, which is what padding costs. They change neither loss nor gradient.

Then trees, whose episodes share their prompt and, behind it, steps at several depths: as they are, with the prompt
alone computed once, and with nothing shared.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report_table import Result, against, options, show
from training import SIZE, SMALL, Case, example
from transformers import AutoModelForCausalLM

from gymcp.agents.policies.tiny_model import make_tiny_model
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.old_logprobs import find_old_logprobs
from gymcp.trainers.learner.token_rows import Example, Row
from gymcp.trainers.settings.loss import Loss

GROUPS = 8
EPISODES = Case(name="prompts of 128 tokens", prompt=128, completions=(16, 48))
SHARES = (0.0, 0.5)
"""Shares of the groups whose episodes all end alike."""
LITTLE = 1e-12
"""Advantage that is computed and is lost in rounding, but not so little that its gradients are denormal."""

PROMPT, TAILS, EQUAL = 384, (72, 72, 72, 112, 152, 200, 264, 328), 3
"""Tokens of a prompt, those behind it of each episode of a group, and how many of its first episodes are equal."""
STEP, DRAWN = 40, 8
"""Tokens of a step, and those of them that the policy draws."""
FORKS = (2, 2, 2)
"""Ways in which every episode of a tree goes on, at each depth: eight leaves."""
BETWEEN = 80
"""Tokens of two steps, before the first fork and behind each: a leaf has 320 behind its prompt."""
SHARING: Mapping[str, Mapping[str, Any]] = {
    "nothing shared": LearnerSettings(learning_rate=0.0, share_prefixes=False),
    "the prompt shared": LearnerSettings(learning_rate=0.0, nest_prefixes=False),
    "shared at every depth": LearnerSettings(learning_rate=0.0),
}
"""Settings of the learner, the first as the baseline."""


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


def make_uneven(vocabulary: int, *, padded: bool) -> list[Example]:
    """Rows of different lengths in groups; `padded`: each goes on to the longest of its group, with nothing drawn."""
    rng = random.Random(0)

    def draw(count: int) -> list[int]:
        return [rng.randrange(10, vocabulary) for _ in range(count)]

    made = []
    for _ in range(GROUPS):
        prompt, tails, rest = draw(PROMPT), [draw(size) for size in TAILS], [draw(max(TAILS)) for _ in TAILS]
        for n, tail in enumerate([*[tails[0]] * EQUAL, *tails[EQUAL:]]):
            ids = [*prompt, *tail, *(rest[n][len(tail) :] if padded else ())]
            made.append(make_stepwise(ids, range(PROMPT + 1, PROMPT + len(tail) - DRAWN, STEP), (-1.0) ** n))
    return made


def make_stepwise(ids: Sequence[int], starts: Sequence[int], advantage: float) -> Example:
    """A row in which the policy has drawn the tokens of a step from each of these places."""
    steps = tuple((number, start, start + DRAWN) for number, start in enumerate(starts))
    mask = np.zeros(len(ids), bool)
    for _, start, end in steps:
        mask[start:end] = True
    row = Row(
        token_ids=tuple(ids), loss_mask=tuple(mask.tolist()), logprobs=(0.0,) * len(ids), versions=(), steps=steps
    )
    return Example(row=row, advantages=(np.where(mask, advantage, 0.0),), counted=(mask,))


def make_trees(vocabulary: int) -> list[Example]:
    """Rows of trees, task after task; each learns the steps that no row before it has."""
    rng = random.Random(0)

    def draw(count: int) -> list[int]:
        return [rng.randrange(10, vocabulary) for _ in range(count)]

    made = []
    for _ in range(GROUPS):
        paths = [draw(PROMPT + BETWEEN)]
        firsts = [PROMPT]
        """The first token of each path that is not of one before it."""
        for ways in FORKS:
            both = list(zip(paths, firsts, strict=True))
            firsts = [len(path) if way else first for path, first in both for way in range(ways)]
            paths = [[*path, *draw(BETWEEN)] for path in paths for _ in range(ways)]
        for n, (path, first) in enumerate(zip(paths, firsts, strict=True)):
            made.append(make_stepwise(path, range(first + 1, len(path) - DRAWN, STEP), (-1.0) ** n))
    return made


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


def measure_uneven(folder: Path, rounds: int) -> list[Result]:
    learner = Learner(AutoModelForCausalLM.from_pretrained(folder), LearnerSettings(learning_rate=0.0))
    batches = [make_uneven(learner.model.config.vocab_size, padded=padded) for padded in (True, False)]
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for n, batch in enumerate(batches):
            seconds[n].append(cpu_seconds(learner, batch, 1, shortcuts=True))
    name = f"1 update, {EQUAL} of {len(TAILS)} episodes equal, lengths differ"
    everything = Result(metric=f"{name}: everything", value=statistics.median(seconds[0]), unit="CPU s")
    return [everything, against(name, statistics.median(seconds[1]), "CPU s", everything)]


def measure_trees(folder: Path, rounds: int) -> list[Result]:
    """CPU seconds of an update on trees for each way to share, every one beside the first."""
    learners = [Learner(AutoModelForCausalLM.from_pretrained(folder), settings) for settings in SHARING.values()]
    examples = make_trees(learners[0].model.config.vocab_size)
    seconds: list[list[float]] = [[] for _ in learners]
    for _ in range(rounds):
        for own, learner in zip(seconds, learners, strict=True):
            own.append(cpu_seconds(learner, examples, 1, shortcuts=True))
    width = learners[0].model.config.hidden_size
    names = [f"trees of {len(examples) // GROUPS} leaves, hidden size {width}, {name}" for name in SHARING]
    base = Result(metric=names[0], value=statistics.median(seconds[0]), unit="CPU s")
    rest = zip(names[1:], seconds[1:], strict=True)
    return [base, *(against(name, statistics.median(own), "CPU s", base) for name, own in rest)]


def main() -> None:
    parser = options(__doc__, "one round instead of five")
    parser.add_argument("--only", choices=("groups", "trees"), help="part to measure; default: both")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if arguments.quick else 5
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only != "trees":
            model = make_tiny_model(Path(folder) / "groups", size=SMALL)
            results += [*measure(model, rounds), *measure_uneven(model, rounds)]
        for size in (SMALL, SIZE) if arguments.only != "groups" else ():
            results += measure_trees(make_tiny_model(Path(folder) / str(size.hidden), size=size), rounds)
    show("update_shortcuts", results, as_json=arguments.json)


if __name__ == "__main__":
    main()
