"""``gymcp judge``: a language model's verdict on a recorded run, and its agreement with people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.policies.specs import FORMS
from gymcp.cli.evaluation.judge_agreement import print_agreement
from gymcp.cli.evaluation.judge_run import JudgeConfig, run_judge
from gymcp.cli.option_types import AsJson, DefaultCommandGroup, replaced_option
from gymcp.cli.output import console, in_one_line, print_json, print_summary
from gymcp.cli.policy_options import KEY_VARIABLE, REQUEST_TIMEOUT_S
from gymcp.errors import ConfigError
from gymcp.evaluators.report import write_report
from gymcp.types import Json

UNJUDGED = 3

app = typer.Typer(
    cls=DefaultCommandGroup, help="Let a model judge a recorded run, or compare its verdicts with people's."
)


@app.command(DefaultCommandGroup.default)
def judge_run(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    policy: Annotated[str | None, typer.Option(help=f"Model that judges: {FORMS}.")] = None,
    rubric: Annotated[Path | None, typer.Option(help="TOML file with the rubric, see docs/judge.md.")] = None,
    votes: Annotated[int, typer.Option(min=1, help="Answers for each episode; the majority counts.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(help="Sampling temperature; default: 0 for one vote, 1 for several, which would else be alike."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens in one answer.")] = 1024,
    as_component: Annotated[
        bool, typer.Option("--as-component", help="Keep the scores; the verdict becomes a component named judge.")
    ] = False,
    beside: Annotated[bool, replaced_option("--beside", "--as-component")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers at a time.")] = 8,
    key_env: Annotated[str, typer.Option(help="Environment variable that holds the endpoint's key.")] = KEY_VARIABLE,
    prices: Annotated[Path | None, typer.Option(help="TOML file with prices per million tokens (USD).")] = None,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for one answer of the endpoint.")
    ] = REQUEST_TIMEOUT_S,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder for a remote vLLM server.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of a local model, such as cpu or cuda.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let a model judge a recorded run by a rubric. `gymcp judge RUN` is short for `gymcp judge run RUN`.

    Answers are kept in the run folder: judging again asks only what was not asked before. Exit code 3 if an episode
    got no verdict: it then has no score, and is never counted as 0.
    """
    if policy is None or rubric is None:
        needed = {"--policy": (policy, FORMS), "--rubric": (rubric, "a TOML file, see docs/judge.md")}
        missing = {name: form for name, (given, form) in needed.items() if given is None}
        forms = "; ".join(f"{name} {form}" for name, form in missing.items())
        raise ConfigError(f"judge: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing: {forms}")
    config = JudgeConfig(
        run=run, policy=policy, rubric=rubric, votes=votes, temperature=temperature, max_tokens=max_tokens,
        as_component=as_component, concurrency=concurrency, key_env=key_env, prices=prices,
        request_timeout_s=request_timeout, tokenizer=tokenizer, device=device,
    )  # fmt: skip
    figures = run_judge(config)
    summary = write_report(run)
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)
        _print(figures)
    if figures["errors"]:
        raise typer.Exit(UNJUDGED)


@app.command("agreement")
def agreement(
    labels: Annotated[Path, typer.Argument(help="CSV file with people's labels, see docs/judge.md.")],
    run: Annotated[
        Path | None, typer.Option(help="Judged run of the labels; default: the verdicts in the file's column judge.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a judge's verdicts with people's labels: agreement and Cohen's kappa.

    Exit code 1 if a label names no judged episode.
    """
    print_agreement(labels, run, as_json=as_json)


def _print(figures: dict[str, Json]) -> None:
    line = f"judge: {figures['judged']} judged, {figures['errors']} without a verdict, {figures['asked']} asked for now"
    if figures["votes"] > 1 and figures["judged"]:
        line += f", unanimous in {100 * figures['unanimous'] / figures['judged']:.0f} %"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    if figures["first_error"]:
        print(f"gymcp: {in_one_line(figures['first_error'])}", file=sys.stderr)
