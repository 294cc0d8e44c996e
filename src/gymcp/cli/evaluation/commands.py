"""Options of the verbs grade, host, stress and suites; their work is in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.completion import complete_agent, complete_environment, complete_run, complete_suite, offer
from gymcp.cli.evaluation.eval_options import (
    AgentMountOption,
    AgentSandboxOption,
    AgentStdinOption,
    CassetteOption,
    JudgeOption,
    KeyEnvOption,
    MaxEpisodeSecondsOption,
    MaxTokensOption,
    RequestTimeoutOption,
    TemperatureOption,
    UserPolicyOption,
)
from gymcp.cli.known_names import AGENT_FORMS, GRADERS, POLICY_FORMS, SANDBOXES, STRESSORS
from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import (
    AsJson,
    Concurrency,
    EnvName,
    Limit,
    MinCoverage,
    RunEnvironment,
    RunFolder,
    SandboxName,
    Seed,
    TaskPatterns,
)
from gymcp.samples import KEY_VARIABLE, REQUEST_TIMEOUT_S

suites = typer.Typer(
    invoke_without_command=True, add_completion=False, help="List the environments, or install their files."
)


@defer_to("evaluation.grade:execute")
def grade(
    run: RunFolder,
    env: RunEnvironment = None,
    grader: Annotated[
        list[str] | None,
        typer.Option(
            help="Grader NAME or NAME:KEY of the target, or FILE.py; repeatable; default: the environment's.",
            autocompletion=offer(GRADERS),
        ),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look up again the values that dynamic graders compare with.")
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Model to ask about episodes that still lack the verdict of a judge, as --policy of eval; default:"
            " none, and nothing leaves this machine."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grade a recorded run again, offline.

    Only with --judge a model is asked. The first grades stay, the newest count. The grader is tried on one episode
    that has a score, before anything is recorded. An episode on which it fails keeps its verdict. The grader is code of
    the run's environment. Code of the catalog is gymcp's own; a file that the run names is run only if you ran it here
    before with the same content, or name it with --env.
    Exit code 1 if a score differs from the previous one, 3 if the grader failed on an episode.
    """


@defer_to("evaluation.stress:execute")
def stress(
    env: EnvName,
    stressor: Annotated[
        list[str] | None,
        typer.Option(
            help="Stressor, or several joined by +; repeatable; default: each one by itself.",
            autocompletion=offer(STRESSORS),
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            help=f"Agent, or your own: {AGENT_FORMS}, cmd:PROGRAM; default: react with --policy, else adaptive.",
            autocompletion=complete_agent,
        ),
    ] = None,
    agent_sandbox: AgentSandboxOption = "bwrap",
    agent_stdin: AgentStdinOption = False,
    agent_mount: AgentMountOption = None,
    policy: Annotated[
        str | None, typer.Option(help=f"Model of agent react or of your own: {POLICY_FORMS}; default: none.")
    ] = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 1.0,
    max_episode_seconds: MaxEpisodeSecondsOption = None,
    key_env: KeyEnvOption = KEY_VARIABLE,
    request_timeout: RequestTimeoutOption = None,
    sandbox: SandboxName = "bwrap",
    tasks: TaskPatterns = None,
    limit: Limit = 40,
    seed: Seed = 0,
    concurrency: Concurrency = 8,
    min_coverage: MinCoverage = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far a score falls when the tools get worse.

    The same tasks are played with the same seeds without and with each stressor. The drop in the mean score has a 95 %
    interval over the tasks that have a score in both; if too few have one, there is no drop. The agent may be a
    model's, your own or any program. To keep the episodes, or to set other limits, use `gymcp eval --stress`, which has
    --privileges, --attack and --retrieve, too.
    """


@defer_to("evaluation.host:execute")
def host(
    env: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names in the catalog, or paths of environment files, whose code is run; without --openapi required.",
            metavar="ENV...",
            show_default=False,
            autocompletion=complete_environment,
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option("--listen", help="Address to listen on; one that others can reach needs a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1 or --listen; 0: a free one.")] = 8765,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients send; default: $GYMCP_HOST_TOKEN, else none.")
    ] = None,
    max_live: Annotated[int, typer.Option(min=1, help="Maximum number of live episodes.")] = 100,
    idle_timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Seconds without a request after which an episode ends: as it stands, or unscored at its start.",
        ),
    ] = 600.0,
    max_episode_seconds: MaxEpisodeSecondsOption = None,
    sandbox: SandboxName = "bwrap",
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the run folders; default: runs/host-TIME.", autocompletion=complete_run
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Add episodes to the runs that --out holds.")] = False,
    cassette: CassetteOption = None,
    user_policy: UserPolicyOption = None,
    judge: JudgeOption = None,
    key_env: KeyEnvOption = KEY_VARIABLE,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for one answer of the models.")
    ] = REQUEST_TIMEOUT_S,
    openapi: Annotated[bool, typer.Option("--openapi", help="Print the OpenAPI document, and serve nothing.")] = False,
) -> None:
    """Serve the episodes of environments over HTTP until Ctrl-C.

    A trainer or a harness starts episodes, each with a prompt, an MCP server for its tools and a token for its agent;
    it sends the agent's messages, gets the user's replies, and at the end a verdict. Episodes are sandboxed, reset,
    graded and recorded as by `gymcp eval`, one run folder for each environment and agent. The contract is docs/host.md.
    The address is printed, alone on its line.

    Exit code: 0 if it was stopped, 2 for a usage error or a port that cannot be used.
    """


@suites.callback()
def list_suites(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Play the gates of every suite on a fixed sample of its tasks.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Play all tasks, with --check.")] = False,
    only: Annotated[
        str, typer.Option(help="Select environments whose name matches this glob.", autocompletion=complete_suite)
    ] = "*",
    sandbox: Annotated[
        str, typer.Option(help="Sandbox for --check: bwrap, docker or none.", autocompletion=offer(SANDBOXES))
    ] = "bwrap",
    as_json: AsJson = False,
) -> None:
    """List the environments of the catalog, or play their gates. Exit code 1 if a gate fails."""
    if context.invoked_subcommand is None:
        _list_suites(check=check, full=full, only=only, sandbox=sandbox, as_json=as_json)


@defer_to("evaluation.suites:list_all")
def _list_suites(*, check: bool, full: bool, only: str, sandbox: str, as_json: bool) -> None:
    """List the environments, or play their gates."""


@suites.command("install")
@defer_to("evaluation.suites:install")
def install_suite(
    name: Annotated[str, typer.Argument(help="Name in the catalog.", autocompletion=complete_suite)],
    sandbox: Annotated[
        str | None,
        typer.Option(
            help="Sandbox for the suite's own code, if it has any; none: unconfined; default: bwrap.",
            autocompletion=offer(SANDBOXES),
        ),
    ] = None,
) -> None:
    """Download and verify a suite's files, so that later runs need no network; changed files are installed again."""
