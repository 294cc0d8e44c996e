"""``gymcp judge``: a language model's verdict on a recorded run, and how far people agree with it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.policies.judge_adapter import as_judge
from gymcp.agents.policies.prices import load_prices
from gymcp.agents.policies.specs import FORMS, ModelOptions, PolicySpec, open_model, parse_policy
from gymcp.aio import hold_open
from gymcp.cli.evaluation.judge_agreement import print_agreement
from gymcp.cli.output import console, in_one_line, print_json, print_summary
from gymcp.cli.policy_options import check_sampling, read_key
from gymcp.errors import ConfigError, PolicyInfraError, PromptTooLong
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.judge import PROMPT_VERSION, Answer, JudgeAnswers, Rubric, judge_grader, load_rubric, question
from gymcp.evaluators.judge.answers import answer_key, open_answers
from gymcp.evaluators.judge.record import load_judge, save_judge
from gymcp.evaluators.report import write_report
from gymcp.protocols import Judge
from gymcp.store import EpisodeRow, TrajectoryStore, open_run
from gymcp.types import Json, Outcome, Sampling, Task, Trajectory

EPISODES_AT_A_TIME = 64
UNJUDGED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    spec: PolicySpec
    options: ModelOptions
    rubric: Rubric
    votes: int
    sampling: Sampling
    """Of the first vote; the seed of each is its number."""

    @property
    def judge(self) -> str:
        """The same model at another address gives the same answers."""
        return f"{self.spec.kind}:{self.spec.model}"

    @property
    def grader(self) -> str:
        rubric = f"{self.rubric.name}/{self.rubric.version}"
        return f"judge {rubric} by {self.judge}, {self.votes} votes, prompt {PROMPT_VERSION}"

    def ballots(self) -> list[Sampling]:
        """One for each vote."""
        return [replace(self.sampling, seed=vote) for vote in range(self.votes)]


def command(
    run: Annotated[str, typer.Argument(help="A run folder; or the word agreement, and then a file of labels.")],
    labels: Annotated[Path | None, typer.Argument(help="After agreement: a CSV of labels, see docs/judge.md.")] = None,
    policy: Annotated[str | None, typer.Option(help=f"The judge: {FORMS}.")] = None,
    rubric: Annotated[Path | None, typer.Option(help="What to judge by: a TOML file, see docs/judge.md.")] = None,
    votes: Annotated[int, typer.Option(min=1, help="Answers for each episode; the majority counts.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(help="Default: 0 for one vote, 1 for several, which would else be alike.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="In one answer.")] = 1024,
    beside: Annotated[
        bool, typer.Option("--beside", help="Keep the scores; the verdict becomes a component named judge.")
    ] = False,
    of_run: Annotated[Path | None, typer.Option("--run", help="With agreement: the judged run of the labels.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers at a time.")] = 8,
    key_env: Annotated[str, typer.Option(help="Variable that holds an endpoint's key.")] = "OPENAI_API_KEY",
    prices: Annotated[Path | None, typer.Option(help="TOML with prices per million tokens.")] = None,
    request_timeout: Annotated[float, typer.Option(help="Seconds for one answer of an endpoint.")] = 120.0,
    tokenizer: Annotated[Path | None, typer.Option(help="Of a vLLM elsewhere: its model's tokenizer.")] = None,
    device: Annotated[str | None, typer.Option(help="Of a local model, such as cpu or cuda.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Let a model judge a recorded run by a rubric; or, with agreement, compare its verdicts with people's.

    Answers are kept in the run folder: judging again asks only what was not asked before. Exit code 3 where an episode
    got no verdict: it has no score then, and is never a 0.
    """
    if run == "agreement":
        if labels is None:
            raise ConfigError("judge agreement: name a file of labels")
        print_agreement(labels, of_run, as_json=as_json)
        return
    if labels is not None:
        raise ConfigError(f"judge: one run at a time, not '{labels}' as well")
    if policy is None or rubric is None:
        raise ConfigError(f"judge: needs --policy ({FORMS}) and --rubric FILE")
    heat = temperature if temperature is not None else float(votes > 1)
    sampling = Sampling(max_tokens=max_tokens, temperature=heat)
    check_sampling(sampling)
    if not request_timeout > 0:
        raise ConfigError(f"--request-timeout: must be more than 0, not {request_timeout}")
    options = ModelOptions(
        device=device,
        tokenizer=tokenizer,
        key=read_key(key_env),
        timeout_s=request_timeout,
        concurrency=concurrency,
        slots=concurrency,
        prices=load_prices(prices) if prices else {},
    )
    plan = Plan(spec=parse_policy(policy), options=options, rubric=load_rubric(rubric), votes=votes, sampling=sampling)
    figures = _judge(Path(run), plan, beside=beside)
    save_judge(Path(run), {**(load_judge(Path(run)) or {}), **figures})
    summary = write_report(Path(run))
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)
        _print(figures)
    if figures["errors"]:
        raise typer.Exit(UNJUDGED)


def _judge(folder: Path, plan: Plan, *, beside: bool) -> dict[str, Json]:
    """Asks what was not asked before, and records the verdicts as the newest grades."""
    open_run(folder)
    figures: dict[str, Json] = {
        "policy": plan.spec.text, "rubric": f"{plan.rubric.name}/{plan.rubric.version}",
        "prompt_version": PROMPT_VERSION, "votes": plan.votes, "beside": beside, "episodes": 0, "judged": 0,
        "errors": 0, "unanimous": 0, "asked": 0, "first_error": "",
        "prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(TrajectoryStore.open(folder, write=True, create=False))
        answers = stack.enter_context(open_answers(folder))
        runner = stack.enter_context(asyncio.Runner())
        rows = iter([row for row in store.summaries() if not row.outcome.runs_again])
        judge: Judge | None = None
        while page := list(islice(rows, EPISODES_AT_A_TIME)):
            records = [(row, store.load(row.id)) for row in page]
            missing = list(_missing(plan, [record for _, record in records if _is_judged(record)], answers))
            if missing and judge is None:
                judge = as_judge(stack.enter_context(hold_open(runner, open_model(plan.spec, plan.options))))
            if judge is not None and missing:
                figures["asked"] += len(missing)
                runner.run(_ask(judge, plan, missing, answers))
            for row, record in records:
                _grade(store, plan, row, record, answers, figures, beside=beside)
    return figures


def _is_judged(record: Trajectory) -> bool:
    """An agent that gave nothing usable scores 0 without being judged."""
    return record.outcome is not Outcome.AGENT_ERROR


def _missing(
    plan: Plan, records: Sequence[Trajectory], answers: JudgeAnswers
) -> Iterator[tuple[Trajectory, int, Sampling, str]]:
    """(record, vote, sampling, key) of what was never asked."""
    for record in records:
        if not plan.rubric.points_of(record.task) and not plan.rubric.scale:
            continue
        asked = question(plan.rubric, record)
        for vote, sampling in enumerate(plan.ballots()):
            key = answer_key(asked, plan.judge, sampling)
            if answers.get(key) is None:
                yield record, vote, sampling, key


async def _ask(
    judge: Judge, plan: Plan, missing: Sequence[tuple[Trajectory, int, Sampling, str]], answers: JudgeAnswers
) -> None:
    """Raises ConfigError where the judge cannot be reached; what it has said by then is kept."""
    slots = asyncio.Semaphore(plan.options.concurrency)
    said = 0

    async def one(record: Trajectory, vote: int, sampling: Sampling, key: str) -> None:
        nonlocal said
        async with slots:
            with contextlib.suppress(PromptTooLong):  # of this episode alone: it has no verdict
                text, spent = await judge.ask(question(plan.rubric, record).messages, sampling)
                answers.add(
                    key,
                    Answer(text=text, spent=spent),
                    {"episode": record.id, "vote": vote, "judge": plan.judge, "prompt_version": PROMPT_VERSION},
                )
                said += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            for each in missing:
                tasks.create_task(one(*each))
    except* PolicyInfraError as errors:
        raise ConfigError(
            f"the judge does not answer: {errors.exceptions[0]}; {said} answers are kept: judge again to go on"
        ) from errors


def _grade(
    store: TrajectoryStore,
    plan: Plan,
    row: EpisodeRow,
    record: Trajectory,
    answers: JudgeAnswers,
    figures: dict[str, Json],
    *,
    beside: bool,
) -> None:
    asked = question(plan.rubric, record)
    kept = [answers.get(answer_key(asked, plan.judge, sampling)) for sampling in plan.ballots()]
    said = {record.id: [None if answer is None else answer.text for answer in kept]}
    task = Task(id=record.task, prompts=())
    graded = apply_grader(judge_grader(plan.rubric, said), task, record, store.state)
    figures["episodes"] += 1
    for answer in kept:
        if answer is not None and answer.spent is not None:
            figures["prompt_tokens"] += answer.spent.prompt_tokens
            figures["completion_tokens"] += answer.spent.completion_tokens
            figures["cost"] += answer.spent.cost
    if graded.outcome is Outcome.GRADER_ERROR:
        figures["errors"] += 1
        figures["first_error"] = figures["first_error"] or f"{record.task}: {graded.reason}"
    elif _is_judged(record):
        figures["judged"] += 1
        figures["unanimous"] += int(graded.components["judge.unanimous"])
    if beside:
        graded = _beside(row, record, graded)
    same = (row.grader, row.outcome, row.score, row.components, row.reason)
    if same != (plan.grader, graded.outcome, graded.score, graded.components, graded.reason):
        store.add_grade(graded, grader=plan.grader)


def _beside(row: EpisodeRow, record: Trajectory, graded: Trajectory) -> Trajectory:
    """The verdict that was there, with the judge's as components; of an earlier judge nothing remains."""
    kept = {name: value for name, value in row.components.items() if name.partition(".")[0] != "judge"}
    if graded.score is not None:
        kept |= {"judge": graded.score, **graded.components}
    return replace(record, outcome=row.outcome, score=row.score, reason=row.reason, components=kept)


def _print(figures: dict[str, Json]) -> None:
    line = f"judge: {figures['judged']} judged, {figures['errors']} without a verdict, {figures['asked']} asked for now"
    if figures["votes"] > 1 and figures["judged"]:
        line += f", unanimous in {100 * figures['unanimous'] / figures['judged']:.0f} %"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    if figures["first_error"]:
        print(f"gymcp: {in_one_line(figures['first_error'])}", file=sys.stderr)
