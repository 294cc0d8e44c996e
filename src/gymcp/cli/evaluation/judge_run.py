"""A language model's verdicts on a recorded run, from a config to the newest grades of its episodes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import typer

from gymcp.agents.policies.judge_adapter import as_judge
from gymcp.agents.policies.prices import load_prices
from gymcp.agents.policies.specs import ModelOptions, PolicySpec, open_model, parse_policy
from gymcp.aio import hold_open
from gymcp.cli.configs import JudgeConfig
from gymcp.cli.evaluation.run_report import rewrite_report
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.policy_options import check_sampling, read_key
from gymcp.cli.summary_table import print_summary
from gymcp.errors import ConfigError, PolicyInfraError, PromptTooLong
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.judge import PROMPT_VERSION, Answer, JudgeAnswers, Rubric, judge_grader, load_rubric, question
from gymcp.evaluators.judge.answers import answer_key, open_answers
from gymcp.evaluators.judge.record import load_judge, save_judge
from gymcp.evaluators.names import JUDGE_UNANIMOUS
from gymcp.outcome import Outcome
from gymcp.protocols import Judge
from gymcp.store import EpisodeRow, TrajectoryStore, open_run
from gymcp.types import Json, Sampling, Task, Trajectory

UNJUDGED = 3
"""Exit code if an episode got no verdict."""
EPISODES_AT_A_TIME = 64
"""Episodes in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePlan:
    """A judge and its settings, checked as far as possible without a request to the model."""

    spec: PolicySpec
    options: ModelOptions
    rubric: Rubric
    votes: int
    sampling: Sampling
    """Sampling settings of every vote; the seed of a vote is its number."""

    @property
    def judge(self) -> str:
        """Name of the judge. It has no address: the same model at another address gives the same answers."""
        return f"{self.spec.kind}:{self.spec.model}"

    @property
    def grader(self) -> str:
        """Name and version under which the grades are recorded."""
        rubric = f"{self.rubric.name}/{self.rubric.version}"
        return f"judge {rubric} by {self.judge}, {self.votes} votes, prompt {PROMPT_VERSION}"

    def ballots(self) -> list[Sampling]:
        """Sampling settings of each vote."""
        return [replace(self.sampling, seed=vote) for vote in range(self.votes)]


def execute(config: JudgeConfig, *, as_json: bool) -> None:
    """Judge the run, write its report again, and print the figures. Exit code 3 if an episode got no verdict."""
    figures = run_judge(config)
    summary = rewrite_report(config.run)
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)
        _print(figures)
    if figures["errors"]:
        raise typer.Exit(UNJUDGED)


def _print(figures: dict[str, Json]) -> None:
    line = f"judge: {figures['judged']} judged, {figures['errors']} without a verdict, {figures['asked']} asked for now"
    if figures["votes"] > 1 and figures["judged"]:
        line += f", unanimous in {100 * figures['unanimous'] / figures['judged']:.0f} %"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    if figures["first_error"]:
        print(f"gymcp: {in_one_line(figures['first_error'])}", file=sys.stderr)


def run_judge(config: JudgeConfig) -> dict[str, Json]:
    """Judge the episodes of a run, record the verdicts as the newest grades, and return the figures.

    Asks only what was not asked before: answers are kept in the run folder. It starts an event loop of its own. Raises
    UsageError for an option that is wrong, or a run or model that cannot be used.
    """
    plan = _plan(config)
    figures = _judge_run(config.run, plan, as_component=config.as_component)
    save_judge(config.run, {**(load_judge(config.run) or {}), **figures})
    return figures


def _plan(config: JudgeConfig) -> JudgePlan:
    temperature = config.temperature if config.temperature is not None else float(config.votes > 1)
    sampling = Sampling(max_tokens=config.max_tokens, temperature=temperature)
    check_sampling(sampling)
    if not config.request_timeout_s > 0:
        raise ConfigError(f"--request-timeout: must be more than 0, not {config.request_timeout_s}")
    options = ModelOptions(
        device=config.device,
        tokenizer=config.tokenizer,
        key=read_key(config.key_env),
        timeout_s=config.request_timeout_s,
        concurrency=config.concurrency,
        slots=config.concurrency,
        prices=load_prices(config.prices) if config.prices else {},
    )
    spec = parse_policy(config.policy)
    return JudgePlan(
        spec=spec, options=options, rubric=load_rubric(config.rubric), votes=config.votes, sampling=sampling
    )


def _judge_run(folder: Path, plan: JudgePlan, *, as_component: bool) -> dict[str, Json]:
    """Ask for the missing answers page by page, and grade each page."""
    open_run(folder)
    figures: dict[str, Json] = {
        "policy": plan.spec.text, "rubric": f"{plan.rubric.name}/{plan.rubric.version}",
        "prompt_version": PROMPT_VERSION, "votes": plan.votes, "beside": as_component, "episodes": 0, "judged": 0,
        "errors": 0, "unanimous": 0, "asked": 0, "first_error": "",
        "prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(TrajectoryStore.open(folder, write=True, create=False))
        answers = stack.enter_context(open_answers(folder))
        runner = stack.enter_context(asyncio.Runner())
        rows = iter([row for row in store.summaries() if not row.outcome.runs_again])
        judge: Judge | None = None
        counted: set[str] = set()
        while page := list(islice(rows, EPISODES_AT_A_TIME)):
            records = [(row, store.load(row.id)) for row in page]
            missing = list(_find_missing(plan, [record for _, record in records if _needs_judge(record)], answers))
            if missing and judge is None:
                judge = as_judge(stack.enter_context(hold_open(runner, open_model(plan.spec, plan.options))))
            if judge is not None and missing:
                figures["asked"] += len(missing)
                runner.run(_ask(judge, plan, missing, answers))
            for row, record in records:
                ballots = {key: answers.get(key) for _, key in _list_ballots(plan, record)}
                _count_usage(figures, [answer for key, answer in ballots.items() if key not in counted])
                counted |= ballots.keys()
                _grade(store, plan, row, record, list(ballots.values()), figures, as_component=as_component)
    return figures


def _needs_judge(record: Trajectory) -> bool:
    """False if the agent gave nothing usable: such an episode scores 0 without being judged."""
    return record.outcome is not Outcome.AGENT_ERROR


def _find_missing(
    plan: JudgePlan, records: Sequence[Trajectory], answers: JudgeAnswers
) -> Iterator[tuple[Trajectory, int, Sampling, str]]:
    """(record, vote, sampling, key) of each question that was never asked: once, however many of the records ask it."""
    found: set[str] = set()
    for record in records:
        if not plan.rubric.points_of(record.task) and not plan.rubric.scale:
            continue
        for vote, (sampling, key) in enumerate(_list_ballots(plan, record)):
            if key not in found and answers.get(key) is None:
                found.add(key)
                yield record, vote, sampling, key


def _list_ballots(plan: JudgePlan, record: Trajectory) -> list[tuple[Sampling, str]]:
    """Sampling settings of each vote on the record, and the key of its answer, which records that are alike share."""
    asked = question(plan.rubric, record)
    return [(sampling, answer_key(asked, plan.judge, sampling)) for sampling in plan.ballots()]


async def _ask(
    judge: Judge, plan: JudgePlan, missing: Sequence[tuple[Trajectory, int, Sampling, str]], answers: JudgeAnswers
) -> None:
    """Ask each question and keep its answer. Raises ConfigError if the judge cannot be reached; answers so far stay."""
    slots = asyncio.Semaphore(plan.options.concurrency)
    count = 0

    async def ask_one(record: Trajectory, vote: int, sampling: Sampling, key: str) -> None:
        nonlocal count
        async with slots:
            with contextlib.suppress(PromptTooLong):  # concerns this episode alone: it has no verdict
                text, spent = await judge.ask(question(plan.rubric, record).messages, sampling)
                answers.add(
                    key,
                    Answer(text=text, spent=spent),
                    {"episode": record.id, "vote": vote, "judge": plan.judge, "prompt_version": PROMPT_VERSION},
                )
                count += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            for each in missing:
                tasks.create_task(ask_one(*each))
    except* PolicyInfraError as errors:
        raise ConfigError(
            f"the judge does not answer: {errors.exceptions[0]}; {count} answers are kept: judge again to go on"
        ) from errors


def _count_usage(figures: dict[str, Json], answers: Sequence[Answer | None]) -> None:
    """Add tokens and cost of these answers to the figures; None for a vote without an answer."""
    for answer in answers:
        if answer is not None and answer.spent is not None:
            figures["prompt_tokens"] += answer.spent.prompt_tokens
            figures["completion_tokens"] += answer.spent.completion_tokens
            figures["cost"] += answer.spent.cost


def _grade(
    store: TrajectoryStore,
    plan: JudgePlan,
    row: EpisodeRow,
    record: Trajectory,
    ballots: Sequence[Answer | None],
    figures: dict[str, Json],
    *,
    as_component: bool,
) -> None:
    """Grade an episode by the answer to each vote, None for one without, and add it to the figures.

    The grade is recorded if it differs from the newest.
    """
    texts = {record.id: [None if answer is None else answer.text for answer in ballots]}
    task = Task(id=record.task, prompts=())
    graded = apply_grader(judge_grader(plan.rubric, texts), task, record, store.state)
    figures["episodes"] += 1
    if graded.outcome is Outcome.GRADER_ERROR:
        figures["errors"] += 1
        figures["first_error"] = figures["first_error"] or f"{record.task}: {graded.reason}"
    elif _needs_judge(record):
        figures["judged"] += 1
        figures["unanimous"] += int(graded.components[JUDGE_UNANIMOUS])
    if as_component:
        graded = _add_component(row, record, graded)
    newest = (row.grader, row.outcome, row.score, row.components, row.reason)
    if newest != (plan.grader, graded.outcome, graded.score, graded.components, graded.reason):
        store.add_grade(graded, grader=plan.grader)


def _add_component(row: EpisodeRow, record: Trajectory, graded: Trajectory) -> Trajectory:
    """The newest verdict with the judge's verdict as components, which replace those of an earlier judge."""
    components = {name: value for name, value in row.components.items() if name.partition(".")[0] != "judge"}
    if graded.score is not None:
        components |= {"judge": graded.score, **graded.components}
    return replace(record, outcome=row.outcome, score=row.score, reason=row.reason, components=components)
