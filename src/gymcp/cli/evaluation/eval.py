"""``gymcp eval``: run an agent on the tasks of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gymcp.agents.strategies.budgets import Budget
from gymcp.cli.configs import KEY_VARIABLE, REQUEST_TIMEOUT_S, EvalConfig, ModelConfig
from gymcp.cli.evaluation.eval_options import (
    AgentOption,
    AttackOption,
    CassetteOption,
    DeviceOption,
    KeyEnvOption,
    LimitOption,
    MaxCostOption,
    MaxEpisodeCostOption,
    MaxEpisodeSecondsOption,
    MaxEpisodeTokensOption,
    MaxTokensOption,
    MaxTurnsOption,
    OutOption,
    OverflowOption,
    PolicyOption,
    PricesOption,
    PrivilegesOption,
    RequestsPerMinuteOption,
    RequestTimeoutOption,
    ResumeOption,
    RetrieveOption,
    SlotsOption,
    StopOption,
    StressOption,
    SystemOption,
    TemperatureOption,
    TokenizerOption,
    ToolBudgetOption,
    ToolCallsOption,
    ToolFormatOption,
    TopKOption,
    TopPOption,
    TrialsOption,
    UserPolicyOption,
)
from gymcp.cli.lazy_verbs import import_place
from gymcp.cli.option_types import AsJson, Concurrency, EnvNames, MinCoverage, SandboxName, Seed, TaskPatterns
from gymcp.types import Sampling


def command(
    env: EnvNames,
    agent: AgentOption = None,
    sandbox: SandboxName = "bwrap",
    tasks: TaskPatterns = None,
    limit: LimitOption = None,
    trials: TrialsOption = 1,
    concurrency: Concurrency = 8,
    seed: Seed = 0,
    out: OutOption = None,
    resume: ResumeOption = False,
    cassette: CassetteOption = None,
    attack: AttackOption = None,
    privileges: PrivilegesOption = None,
    stress: StressOption = None,
    user_policy: UserPolicyOption = None,
    retrieve: RetrieveOption = None,
    tool_budget: ToolBudgetOption = None,
    as_json: AsJson = False,
    policy: PolicyOption = None,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    max_tokens: MaxTokensOption = 512,
    stop: StopOption = None,
    max_turns: MaxTurnsOption = None,
    max_episode_tokens: MaxEpisodeTokensOption = None,
    max_episode_seconds: MaxEpisodeSecondsOption = None,
    max_episode_cost: MaxEpisodeCostOption = None,
    max_cost: MaxCostOption = None,
    min_coverage: MinCoverage = None,
    prices: PricesOption = None,
    overflow: OverflowOption = "stop",
    system: SystemOption = None,
    tool_calls: ToolCallsOption = "native",
    tool_format: ToolFormatOption = None,
    tokenizer: TokenizerOption = None,
    key_env: KeyEnvOption = KEY_VARIABLE,
    requests_per_minute: RequestsPerMinuteOption = None,
    request_timeout: RequestTimeoutOption = REQUEST_TIMEOUT_S,
    slots: SlotsOption = 16,
    device: DeviceOption = None,
) -> None:
    """Run an agent on the tasks of an environment, or of several.

    With --policy the agent is react, which asks that model; otherwise it is oracle, which plays the gold calls.
    Several environments or policies give a run for each pair, in a folder of its own below --out, and one table.
    A run that has stopped goes on with --out and --resume; with a higher --limit or --trials it grows.
    Exit code: 0 if all is scored, 3 if episodes were lost, 2 for a usage error, 4 at --max-cost, 130 if interrupted.
    """
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, stop=(*(stop or ()),))
    budget = Budget(turns=max_turns, tokens=max_episode_tokens, seconds=max_episode_seconds, cost=max_episode_cost)
    model = ModelConfig(sampling=sampling, budget=budget, overflow=overflow, tool_calls=tool_calls, system=system,
        tool_format=tool_format, tokenizer=tokenizer, prices=prices, key_env=key_env, slots=slots, device=device,
        requests_per_minute=requests_per_minute, request_timeout_s=request_timeout)  # fmt: skip
    config = EvalConfig(env=env[0], agent=agent, sandbox=sandbox, tasks=tasks, limit=limit, trials=trials, seed=seed,
        concurrency=concurrency, out=out, resume=resume, cassette=cassette, attack=attack, privileges=privileges,
        stress=tuple(stress or ()), retrieve=retrieve, tool_budget=tool_budget, max_cost=max_cost,
        user_policy=user_policy, min_coverage=min_coverage, model=model)  # fmt: skip
    _start(config, env, policy or [], as_json=as_json)


def _start(config: EvalConfig, envs: Sequence[str], policies: Sequence[str], *, as_json: bool) -> None:
    """One run, or a run for each pair of an environment and a policy."""
    if len(envs) == 1 and len(policies) < 2:
        one = replace(config, policy=policies[0]) if policies else config
        import_place("evaluation.eval_run:execute")(one, as_json=as_json)
    else:
        import_place("evaluation.eval_matrix:execute")(config, envs=envs, policies=policies, as_json=as_json)
