"""``gymcp judge``: a language model's verdict on a recorded run, and its agreement with people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.completion import complete_run
from gymcp.cli.configs import JudgeConfig
from gymcp.cli.known_names import POLICY_FORMS
from gymcp.cli.lazy_verbs import defer_to, import_place
from gymcp.cli.option_types import AsJson, DefaultCommandGroup, RunFolder, replaced_option
from gymcp.errors import ConfigError
from gymcp.paths import find_page
from gymcp.samples import KEY_VARIABLE, REQUEST_TIMEOUT_S

app = typer.Typer(
    cls=DefaultCommandGroup,
    add_completion=False,
    help="Let a model judge a recorded run, or compare it with people.",
)


@app.command(DefaultCommandGroup.default)
def judge_run(
    run: RunFolder,
    policy: Annotated[str | None, typer.Option(help=f"Model that judges: {POLICY_FORMS}; required.")] = None,
    rubric: Annotated[Path | None, typer.Option(help="TOML file with the rubric, see docs/judge.md; required.")] = None,
    votes: Annotated[int, typer.Option(min=1, help="Answers for each episode; the majority counts.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(help="Sampling temperature; default: 0 for one vote, 1 for several, so that they differ."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens in one answer.")] = 1024,
    as_component: Annotated[
        bool, typer.Option("--as-component", help="Keep the scores; the verdict becomes a component named judge.")
    ] = False,
    beside: Annotated[bool, replaced_option("--beside", "--as-component")] = False,
    of_labels: Annotated[Path | None, replaced_option("--run", "gymcp judge agreement LABELS --run RUN")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent answers.")] = 8,
    key_env: Annotated[str, typer.Option(help="Environment variable that holds the endpoint's key.")] = KEY_VARIABLE,
    prices: Annotated[
        Path | None, typer.Option(help="TOML file with prices per million tokens (USD); default: no prices.")
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for one answer of the endpoint.")
    ] = REQUEST_TIMEOUT_S,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Tokenizer folder for a remote vLLM server; default: the server's own."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device of a local model, such as cpu or cuda; default: chosen automatically.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a model judge a recorded run by a rubric. `gymcp judge RUN` is short for `gymcp judge run RUN`.

    Answers are kept in the run folder: judging again asks only what was not asked before. Exit code 3 if an episode
    got no verdict: it then has no score, and is never counted as 0.
    """
    if policy is None or rubric is None:
        needed = {"--policy": (policy, POLICY_FORMS), "--rubric": (rubric, f"a TOML file, see {find_page('judge.md')}")}
        missing = {name: form for name, (given, form) in needed.items() if given is None}
        forms = "; ".join(f"{name} {form}" for name, form in missing.items())
        raise ConfigError(f"judge: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing: {forms}")
    config = JudgeConfig(
        run=run, policy=policy, rubric=rubric, votes=votes, temperature=temperature, max_tokens=max_tokens,
        as_component=as_component, concurrency=concurrency, key_env=key_env, prices=prices,
        request_timeout_s=request_timeout, tokenizer=tokenizer, device=device,
    )  # fmt: skip
    import_place("evaluation.judge_run:execute")(config, as_json=as_json)


@app.command("agreement")
@defer_to("evaluation.judge_agreement:print_agreement")
def agreement(
    labels: Annotated[
        Path,
        typer.Argument(
            help="CSV file with people's labels, or a judged run, for the verdicts that people have given in the"
            " viewer; see docs/judge.md.",
            metavar="LABELS|RUN",
            autocompletion=complete_run,
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(
            help="Judged run of the labels; default: the verdicts in the file's column judge.",
            autocompletion=complete_run,
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="Person whose verdicts in the viewer count; default: all, if they agree.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Compare a judge's verdicts with people's labels: agreement and Cohen's kappa.

    Exit code 1 if a label names no judged episode.
    """
