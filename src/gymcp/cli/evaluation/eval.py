"""``gymcp eval``: run an agent on the tasks of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gymcp.agents.strategies.budgets import MAX_TOKENS, MAX_TURNS, Budget
from gymcp.cli.configs import EvalConfig, ModelConfig, ProgramConfig
from gymcp.cli.evaluation.eval_options import (
    AgentMountOption,
    AgentOption,
    AgentSandboxOption,
    AgentStdinOption,
    AttackOption,
    BranchOption,
    CassetteOption,
    ConcurrencyOption,
    DeviceOption,
    JudgeOption,
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
    PlanOption,
    PolicyOption,
    PricesOption,
    PrivilegesOption,
    RayOption,
    RequestsPerMinuteOption,
    RequestTimeoutOption,
    ResumeOption,
    RetrieveOption,
    SearchOption,
    SlotsOption,
    StopOption,
    StreamOption,
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
from gymcp.cli.option_types import AsJson, EnvNames, MinCoverage, SandboxName, Seed, TaskPatterns
from gymcp.samples import KEY_VARIABLE
from gymcp.types import Sampling


def command(
    env: EnvNames,
    agent: AgentOption = None,
    agent_sandbox: AgentSandboxOption = "bwrap",
    agent_stdin: AgentStdinOption = False,
    agent_mount: AgentMountOption = None,
    sandbox: SandboxName = "bwrap",
    tasks: TaskPatterns = None,
    limit: LimitOption = None,
    trials: TrialsOption = 1,
    branch: BranchOption = None,
    search: SearchOption = None,
    concurrency: ConcurrencyOption = None,
    ray: RayOption = None,
    plan: PlanOption = None,
    seed: Seed = 0,
    out: OutOption = None,
    resume: ResumeOption = False,
    cassette: CassetteOption = None,
    attack: AttackOption = None,
    privileges: PrivilegesOption = None,
    stress: StressOption = None,
    user_policy: UserPolicyOption = None,
    judge: JudgeOption = None,
    retrieve: RetrieveOption = None,
    tool_budget: ToolBudgetOption = None,
    as_json: AsJson = False,
    policy: PolicyOption = None,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    max_tokens: MaxTokensOption = 512,
    stop: StopOption = None,
    max_turns: MaxTurnsOption = MAX_TURNS,
    max_episode_tokens: MaxEpisodeTokensOption = MAX_TOKENS,
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
    request_timeout: RequestTimeoutOption = None,
    stream: StreamOption = False,
    slots: SlotsOption = 16,
    device: DeviceOption = None,
) -> None:
    """Run an agent on the tasks of an environment, or of several.

    With --policy the agent is react, otherwise oracle, which plays the gold calls. One of your own is code, which is
    run: docs/adding-an-agent.md, docs/agent-programs.md. Several environments or policies give a run for each pair, in
    a folder below --out, and one table. A run that has stopped goes on with --out and --resume, or grows.
    Exit code: 0 if all is scored, 3 if episodes were lost, 2 for a usage error, 4 at --max-cost, 130 if interrupted.
    """
    _start(_read_config(SimpleNamespace(**locals())), env, policy or [], as_json=as_json)


def _read_config(given: Any) -> EvalConfig:
    """The config of the options of `command`, which are the attributes of `given`."""
    sampling = Sampling(
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        stop=tuple(given.stop or ()),
    )
    budget = Budget(
        turns=given.max_turns,
        tokens=given.max_episode_tokens,
        seconds=given.max_episode_seconds,
        cost=given.max_episode_cost,
    )
    same = ("overflow", "tool_calls", "system", "tool_format", "tokenizer", "prices", "key_env", "slots", "device",
        "requests_per_minute", "stream")  # fmt: skip
    model = ModelConfig(
        sampling=sampling,
        budget=budget,
        request_timeout_s=given.request_timeout,
        **{name: getattr(given, name) for name in same},
    )
    program = ProgramConfig(sandbox=given.agent_sandbox, stdin=given.agent_stdin, mounts=tuple(given.agent_mount or ()))
    named = ("agent", "sandbox", "tasks", "limit", "trials", "seed", "concurrency", "out", "resume", "cassette",
        "attack", "privileges", "retrieve", "tool_budget", "max_cost", "user_policy", "judge",
        "min_coverage", "branch", "search", "ray", "plan")  # fmt: skip
    return EvalConfig(
        env=given.env[0],
        model=model,
        program=program,
        stress=tuple(given.stress or ()),
        **{name: getattr(given, name) for name in named},
    )


def _start(config: EvalConfig, envs: Sequence[str], policies: Sequence[str], *, as_json: bool) -> None:
    """One run, or a run for each pair of an environment and a policy."""
    if len(envs) == 1 and len(policies) < 2:
        one = replace(config, policy=policies[0]) if policies else config
        import_place("evaluation.eval_run:execute")(one, as_json=as_json)
    else:
        import_place("evaluation.eval_matrix:execute")(config, envs=envs, policies=policies, as_json=as_json)
