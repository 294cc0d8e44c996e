"""Speed of training: the learner against TRL's, a whole iteration on `backoffice`, advantages for a million steps, and
for a million steps of trees.

Tokens/s count prompt and completion of every sequence, as TRL does, over one step of the optimiser: forward, backward,
update. The same model (a random Qwen3 in float32), the same batch, the same threads; rounds are interleaved and medians
taken. TRL gets its completions ready-made and runs in a virtualenv of its own.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from credit_speed import batch, list_work
from report_table import Result, against, options, show
from training_iteration import iteration
from training_trl import VERSION, trl_trainer
from transformers import AutoModelForCausalLM
from tree_speed import list_work as list_tree_work
from tree_speed import make_forked_tree, measure_memory, measure_seconds

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import Example, Row
from gymcp.trainers.settings.loss import Loss

GROUP = 8
SIZE = TinySize(vocabulary=4096, hidden=256, layers=6, heads=4, context=1024, init_std=0.02)
SMALL = replace(SIZE, hidden=128, layers=4)
MICRO_BATCH_TOKENS = 2048
MILLION = 1_000_000
Work = Mapping[str, Callable[[], object]]
"""Methods by name, each as something to call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sequences on which both learners train."""

    name: str
    prompt: int
    """Tokens of a prompt; a group shares one prompt, unless `shared` is False."""
    completions: tuple[int, int]
    """Tokens of the shortest and of the longest completion."""
    shared: bool = True

    def rows(self, groups: int, vocabulary: int) -> list[tuple[list[int], list[int]]]:
        rng = random.Random(0)

        def draw(count: int) -> list[int]:
            return [rng.randrange(10, vocabulary) for _ in range(count)]

        rows = []
        for _ in range(groups):
            common = draw(self.prompt)
            for _ in range(GROUP):
                rows.append((common if self.shared else draw(self.prompt), draw(rng.randint(*self.completions))))
        return rows


CASES = (
    Case(name="75 % shared", prompt=384, completions=(128, 128)),
    Case(name="nothing shared", prompt=128, completions=(128, 128), shared=False),
    Case(name="lengths differ, nothing shared", prompt=64, completions=(16, 256), shared=False),
)


def example(prompt: list[int], completion: list[int], advantage: float) -> Example:
    """One sequence as the training loop makes it: a prompt, then an answer."""
    start, end = len(prompt), len(prompt) + len(completion)
    mask = np.arange(end) >= start
    row = Row(
        token_ids=(*prompt, *completion),
        loss_mask=tuple(mask.tolist()),
        logprobs=(0.0,) * end,
        versions=(("0", 0, len(completion)),),
        steps=((0, start, end),),
    )
    return Example(row=row, advantages=(np.where(mask, advantage, 0.0),), counted=(mask,))


def beside_trl(case: Case, model: Path, vocabulary: int, *, groups: int, rounds: int, threads: int) -> list[Result]:
    """Tokens/s of both learners; TRL runs with the size of micro-batch that is fastest for it."""
    rows = case.rows(groups, vocabulary)
    tokens = sum(len(prompt) + len(completion) for prompt, completion in rows)
    examples = [example(*row, advantage=n % 2 - 0.5) for n, row in enumerate(rows)]
    numbers = [n // GROUP for n in range(len(rows))]
    settings = LearnerSettings(learning_rate=1e-5, micro_batch_tokens=MICRO_BATCH_TOKENS, workers=threads)
    learner = Learner(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), settings)
    ours: list[float] = []
    theirs: dict[int, list[float]] = {}
    for size in (GROUP, groups * GROUP):
        theirs[size] = []
        with (
            tempfile.TemporaryDirectory() as folder,
            trl_trainer(
                model,
                rows,
                group=GROUP,
                micro_batch=size,
                steps=rounds + 1,
                threads=threads,
                folder=Path(folder),
            ) as trl,
        ):
            for at in range(rounds + 1):
                other = trl.step()
                began = time.perf_counter()
                learner.update(examples, Loss(), groups=numbers)
                if at:  # the first of each warms up
                    ours.append(time.perf_counter() - began)
                    theirs[size].append(other)
    best = min(statistics.median(times) for times in theirs.values())
    base = Result(metric=f"TRL {VERSION} training, {case.name}", value=tokens / best, unit="tok/s")
    return [base, against(f"training, {case.name}", tokens / statistics.median(ours), "tok/s", base)]


def credit(steps: int) -> list[Result]:
    """Seconds and memory of each preset for `steps` steps and for four times as many; a ratio of 4 is linear."""
    return _credit("", list_work(batch(steps)), list_work(batch(4 * steps)), steps)


def tree_credit(steps: int) -> list[Result]:
    """The same for trees of steps."""
    few, many = (list_tree_work(make_forked_tree(size)) for size in (steps, 4 * steps))
    return _credit(" on trees", few, many, steps)


def _credit(where: str, few: Work, many: Work, steps: int) -> list[Result]:
    results = []
    for name in few:
        for what, unit, measure in (("advantages", "s", measure_seconds), ("memory", "MB", measure_memory)):
            base = Result(metric=f"{what}{where}, {name}, {steps:,} steps", value=measure(few[name]), unit=unit)
            more = measure(many[name])
            results += [base, against(f"{what}{where}, {name}, {4 * steps:,} steps", more, unit, base)]
            print(f"{name}{where}: {base.value:.3f} {unit}, {more:.3f} {unit}", file=sys.stderr, flush=True)
    return results


def main() -> None:
    parser = options(__doc__, "smaller model, fewer groups and rounds, a tenth of the steps")
    parser.add_argument("--only", choices=("tokens", "iteration", "credit", "trees"), help="measure only this part")
    arguments = parser.parse_args()
    quick, only = arguments.quick, arguments.only
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in training: one thread for each of as many micro-batches as there are threads
    results: list[Result] = []
    if only in (None, "credit"):
        results += credit(MILLION // 10 if quick else MILLION)
    if only in (None, "trees"):
        results += tree_credit(MILLION // 10 if quick else MILLION)
    if only in (None, "tokens"):
        with tempfile.TemporaryDirectory() as folder:
            model = make_tiny_model(Path(folder), "qwen", size=SMALL if quick else SIZE)
            vocabulary = AutoModelForCausalLM.from_pretrained(model).config.vocab_size
            for case in CASES:
                print(f"{case.name} ...", file=sys.stderr, flush=True)
                results += beside_trl(
                    case, model, vocabulary, groups=1 if quick else 4, rounds=2 if quick else 7, threads=threads
                )
    if only in (None, "iteration"):
        torch.set_num_threads(threads)
        results += iteration(quick=quick)
    show("training", results, as_json=arguments.json, also=f", {threads} threads")


if __name__ == "__main__":
    main()
