"""Sizes of ScienceWorld for a small policy: tokens to read and write, variations to be shown, time of the episodes.

By kind of task, shortest gold first: the oracle plays one test variation of each whose gold is short. Tokens are those
of a tokenizer of `--vocabulary` pieces that has learnt from these very episodes, so a policy's own could only be worse.
Nothing is trained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from report_table import Result, options, show
from rich.console import Console
from rich.table import Table

from gymcp.agents.policies.tiny_model import make_tiny_tokenizer
from gymcp.agents.runner.run import Plan
from gymcp.cli.evaluation.gates import play
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import FIRST_DEMONSTRATION
from gymcp.envs.suites.scienceworld.records import read_splits
from gymcp.envs.suites.scienceworld.tasks import divide_training
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.trainers.recipe.model import corpus_of
from gymcp.types import Trajectory

CONTEXT = 1024
"""Tokens that the policies of recipes/ read at most."""
BUDGET = (16, 16, 8, 2, 400)
"""Iterations, tasks, episodes, evaluations and their tasks of one run of benchmarks/registrations/rounds-1.toml."""
RUNS = 10
"""Runs of two arms on five paired seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of task."""

    name: str
    gold: int
    """Actions of the gold."""
    action: float
    """Tokens of an action, on average."""
    seen: float
    """Tokens of an answer, on average."""
    whole: int
    """Tokens of the whole episode."""
    trained: int
    """Variations to practise on."""
    shown: int
    """Variations for demonstrations."""
    test: int


def main() -> None:
    parser = options(__doc__, "kinds with at most 4 actions")
    parser.add_argument("--longest", type=int, default=16, help="most actions of the gold of a kind that is played")
    parser.add_argument("--vocabulary", type=int, default=1000, help="pieces of the tokenizer")
    args = parser.parse_args()
    loaded, sandbox = load_env(load_spec("scienceworld")), get_sandbox("bwrap")
    most = 4 if args.quick else args.longest
    chosen = tuple(task.id for task in loaded.suite.tasks if len(task.gold[0].calls) <= most)
    started = time.perf_counter()
    ended = play(loaded, sandbox, Plan(agent="oracle", sandbox=sandbox.name, tasks=chosen), 4)
    rate = len(ended) / (time.perf_counter() - started)
    kinds = measure_kinds(ended, args.vocabulary)
    if args.json:
        show("scienceworld_reading", list_results(kinds, rate), as_json=True)
    else:
        show_kinds(kinds, rate)


def measure_kinds(ended: Sequence[Trajectory], vocabulary: int) -> list[Kind]:
    """The kinds of these episodes, the one with the shortest gold first."""
    tokenizer = make_tiny_tokenizer("terse", vocabulary=vocabulary, context=CONTEXT, corpus=corpus_of(ended))
    splits, kinds = read_splits(), []
    for record in ended:
        calls = [call for step in record.steps for call in step.action.tool_calls]
        acts = [call.arguments["action"] for call in calls if not isinstance(call.arguments, str)]
        written = [len(tokenizer(act)["input_ids"]) for act in acts]
        texts = [[message.content for message in step.observation.messages] for step in record.steps]
        read = [sum(len(tokenizer(text)["input_ids"]) for text in of_step) for of_step in texts]
        name = next(kind for kind in sorted(splits, key=len, reverse=True) if record.task.startswith(f"{kind}-"))
        kinds.append(
            Kind(
                name=name,
                gold=len(acts),
                action=fmean(written),
                seen=fmean(read[1:] or [0]),
                whole=sum(written) + sum(read),
                trained=len(divide_training(splits[name]["train"], 0)[0]),
                shown=len(divide_training(splits[name]["train"], FIRST_DEMONSTRATION)[0]),
                test=len(splits[name]["test"]),
            )
        )
    return sorted(kinds, key=lambda kind: (kind.gold, kind.name))


def hours_of_comparison(rate: float) -> float:
    """Hours that the episodes of a comparison take at `rate` episodes a second, without any update."""
    iterations, tasks, episodes, evaluations, held_out = BUDGET
    return RUNS * (iterations * tasks * episodes + evaluations * held_out) / rate / 3600


def list_results(kinds: Sequence[Kind], rate: float) -> list[Result]:
    rows = [
        Result(metric=f"{kind.name}: {metric}", value=value, unit=unit)
        for kind in kinds
        for metric, value, unit in (
            ("gold", kind.gold, "actions"),
            ("an action", round(kind.action, 1), "tokens"),
            ("an answer", round(kind.seen, 1), "tokens"),
            ("episode", kind.whole, "tokens"),
            ("to practise on", kind.trained, "variations"),
            ("to demonstrate", kind.shown, "variations"),
        )
    ]
    return [
        Result(metric="episodes of the oracle", value=round(rate, 3), unit="1/s"),
        Result(metric=f"episodes of {RUNS} runs", value=round(hours_of_comparison(rate), 1), unit="h"),
        *rows,
    ]


def show_kinds(kinds: Sequence[Kind], rate: float) -> None:
    headings = ("kind", "gold", "action, tokens", "answer, tokens", "episode, tokens", "practise", "shown", "test")
    table = Table(*headings)
    for kind in kinds:
        figures = (kind.gold, f"{kind.action:.1f}", f"{kind.seen:.0f}", kind.whole, kind.trained, kind.shown, kind.test)
        table.add_row(kind.name, *map(str, figures))
    console = Console(width=130)
    console.print(table)
    console.print(
        f"{rate:.2f} episodes of the oracle a second; {RUNS} runs of rounds-1's size would take"
        f" {hours_of_comparison(rate):.1f} h for their episodes alone",
        highlight=False,
    )


if __name__ == "__main__":
    main()
