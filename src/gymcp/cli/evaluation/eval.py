"""``gymcp eval``: run an agent on the tasks of an environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.policies.specs import FORMS
from gymcp.agents.runner.run import AGENTS, RunEnd
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.tool_calls.formats import FORMATS
from gymcp.cli.evaluation.eval_run import EvalConfig, EvalResult, run_eval
from gymcp.cli.output import print_json, print_summary
from gymcp.cli.policy_options import KEY_VARIABLE, REQUEST_TIMEOUT_S, ModelConfig
from gymcp.envs.wrappers.injection import ATTACKS
from gymcp.envs.wrappers.stress import STRESSORS
from gymcp.types import Sampling

LOST_TO_INFRA = 3
OUT_OF_MONEY = 4
INTERRUPTED = 130
REACT_PANEL = "Agent react"


def command(
    env: Annotated[str, typer.Argument(help="Catalog name (see `gymcp suites`) or path of an environment file.")],
    agent: Annotated[str, typer.Option(help=f"Agent: {', '.join(AGENTS)}.")] = "oracle",
    sandbox: Annotated[str, typer.Option(help="Sandbox: bwrap, docker, or none (trusted servers only).")] = "bwrap",
    tasks: Annotated[str, typer.Option(help="Run only tasks whose id matches this glob.")] = "*",
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of tasks, evenly spread; 0: all.")] = 0,
    trials: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/ENV-AGENT-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out if there is one.")] = False,
    cassette: Annotated[
        str | None,
        typer.Option(
            help="Mode for servers with a URL. record: call them and record their answers; replay: never call them."
        ),
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(help=f"Play every task with every attacker's goal, under this attack: {', '.join(ATTACKS)}."),
    ] = None,
    privileges: Annotated[
        Path | None, typer.Option(help="TOML file with rules over tool calls, enforced between agent and servers.")
    ] = None,
    stress: Annotated[
        list[str] | None, typer.Option(help=f"Stressor to apply to the tools: {', '.join(STRESSORS)}; repeatable.")
    ] = None,
    user_policy: Annotated[
        str | None, typer.Option(help="Model that plays the user by each task's scenario; same forms as --policy.")
    ] = None,
    retrieve: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of tools to show, found by the user's words; a search tool is added for the others."
        ),
    ] = None,
    tool_budget: Annotated[
        int | None, typer.Option(help="Maximum characters of all tools shown at a time, with --retrieve.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    policy: Annotated[
        str | None, typer.Option(help=f"Model of agent react: {FORMS}.", rich_help_panel=REACT_PANEL)
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0: always the likeliest token.", rich_help_panel=REACT_PANEL)
    ] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Probability mass of the likeliest tokens to draw from.", rich_help_panel=REACT_PANEL)
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Number of likeliest tokens to draw from; 0: all.", rich_help_panel=REACT_PANEL)
    ] = 0,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens in one answer.", rich_help_panel=REACT_PANEL)] = 512,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an answer; repeatable.", rich_help_panel=REACT_PANEL)
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(help="Maximum answers of the model in one episode.", rich_help_panel=REACT_PANEL)
    ] = None,
    max_episode_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum tokens that the model draws in one episode.", rich_help_panel=REACT_PANEL),
    ] = None,
    max_episode_seconds: Annotated[
        float | None,
        typer.Option(help="Maximum seconds of the model's time in one episode.", rich_help_panel=REACT_PANEL),
    ] = None,
    max_episode_cost: Annotated[
        float | None,
        typer.Option(help="End an episode once its model has cost this much (USD).", rich_help_panel=REACT_PANEL),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(help="Stop the run once this much has been spent (USD).", rich_help_panel=REACT_PANEL),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="TOML file with prices per million tokens (USD).", rich_help_panel=REACT_PANEL)
    ] = None,
    overflow: Annotated[
        str,
        typer.Option(help="Reaction to a full context: stop, or drop old tool results.", rich_help_panel=REACT_PANEL),
    ] = "stop",
    system: Annotated[Path | None, typer.Option(help="File with a system prompt.", rich_help_panel=REACT_PANEL)] = None,
    tool_calls: Annotated[
        str, typer.Option(help="Form of an endpoint's tool calls: native or text.", rich_help_panel=REACT_PANEL)
    ] = "native",
    tool_format: Annotated[
        str | None,
        typer.Option(
            help=f"Format of tool calls in the chat template: {', '.join(FORMATS)} or transformers;"
            " default: by template.",
            rich_help_panel=REACT_PANEL,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer folder for a remote vLLM server.", rich_help_panel=REACT_PANEL)
    ] = None,
    key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the endpoint's key.", rich_help_panel=REACT_PANEL)
    ] = KEY_VARIABLE,
    requests_per_minute: Annotated[
        float | None, typer.Option(help="Maximum requests per minute to the endpoint.", rich_help_panel=REACT_PANEL)
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for one answer of the endpoint.", rich_help_panel=REACT_PANEL)
    ] = REQUEST_TIMEOUT_S,
    slots: Annotated[
        int, typer.Option(min=1, help="Answers that a local model draws at a time.", rich_help_panel=REACT_PANEL)
    ] = 16,
    device: Annotated[
        str | None, typer.Option(help="Device of a local model, such as cpu or cuda.", rich_help_panel=REACT_PANEL)
    ] = None,
) -> None:
    """Run an agent on the tasks of an environment: a name of the catalog, or a Python file, whose code is run.

    Exit code: 0 if every episode was scored, 3 if some were lost to infrastructure, 2 for a usage error,
    4 if --max-cost was reached and 130 if interrupted (continue either with --resume).
    """
    sampling = Sampling(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, stop=tuple(stop or ())
    )
    budget = Budget(turns=max_turns, tokens=max_episode_tokens, seconds=max_episode_seconds, cost=max_episode_cost)
    model = ModelConfig(
        sampling=sampling, budget=budget, overflow=overflow, tool_calls=tool_calls, tool_format=tool_format,
        tokenizer=tokenizer, system=system, prices=prices, key_env=key_env, requests_per_minute=requests_per_minute,
        request_timeout_s=request_timeout, slots=slots, device=device,
    )  # fmt: skip
    config = EvalConfig(
        env=env, agent=agent, sandbox=sandbox, tasks=tasks, limit=limit, trials=trials, concurrency=concurrency,
        seed=seed, out=out, resume=resume, cassette=cassette, attack=attack, privileges=privileges,
        stress=tuple(stress or ()), retrieve=retrieve, tool_budget=tool_budget, policy=policy, user_policy=user_policy,
        max_cost=max_cost, model=model,
    )  # fmt: skip
    result = run_eval(config)
    print_json(result.summary) if as_json else print_summary(result.summary)
    _exit(result, max_cost)


def _exit(result: EvalResult, max_cost: float | None) -> None:
    """End the command with the exit code of the result; print how to continue a run that did not finish."""
    if result.ended is not RunEnd.FINISHED:
        interrupted = result.ended is RunEnd.INTERRUPTED
        why = "interrupted" if interrupted else f"--max-cost {max_cost:g} is spent"
        more = "" if interrupted else ", and a higher --max-cost"
        print(
            f"gymcp: {why}; to go on, type the same command with: --out {result.folder} --resume{more}", file=sys.stderr
        )
        raise typer.Exit(INTERRUPTED if interrupted else OUT_OF_MONEY)
    if result.summary["scored"] < result.summary["episodes"]:
        raise typer.Exit(LOST_TO_INFRA)
