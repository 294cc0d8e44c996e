"""Policies for ``gymcp eval``: options checked, models opened and tested, and kept open until the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from gymcp.agents.policies.chat_adapter import as_chat
from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.policies.prices import load_prices
from gymcp.agents.policies.specs import FORMS, ModelOptions, PolicySpec, locate_folder, open_model, parse_policy
from gymcp.agents.runner.preflight import call_every_server, check_model, check_user
from gymcp.agents.strategies.budgets import MAX_TOKENS, Budget
from gymcp.agents.strategies.react import Overflow, ReactSettings, react
from gymcp.aio import hold_open
from gymcp.cli.configs import ModelConfig
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.tool_costs import ToolCosts
from gymcp.envs.worlds.tool_listing import tools_at_start
from gymcp.envs.wrappers.simulated_user import check_scenarios, simulate_user
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.samples import REQUEST_TIMEOUT_S
from gymcp.types import Json, Sampling, Task, Tool

T = TypeVar("T")

LOCATED = ("local", "smollm2")
"""Kinds of policies whose weights lie in a folder that this process reads."""
_MODEL_FILES = (".safetensors", ".bin", ".json", ".jinja", ".model")
"""Suffixes of the files of a model folder that its digest covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model whose weights another machine holds."""

    model: TokenModel
    """Its policy asks that machine."""
    weights: str
    """Digest of the weights, if they lie in a folder; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """A policy and its settings, checked as far as possible without a request to the model."""

    spec: PolicySpec
    options: ModelOptions
    settings: ReactSettings
    counted: bool = False
    """True if a budget depends on the token counts that an endpoint reports."""
    opened: OpenedModel | None = None
    """The model, if it is open elsewhere; None: it is opened here."""

    def user_config(self) -> dict[str, Json]:
        """Entries of ``run.json`` if the policy plays the user."""
        return {"user_policy": self.spec.text, "user_sampling": asdict(self.settings.sampling)}

    def config(self) -> dict[str, Json]:
        """Entries of ``run.json`` if the policy is the agent: everything that scores depend on, without the key."""
        return {
            "policy": self.spec.text,
            "sampling": asdict(self.settings.sampling),
            "budget": asdict(self.settings.budget),
            "overflow": self.settings.overflow,
            "system": self.settings.system,
            "tool_format": self.options.tool_format,
            "calls_as_text": self.options.calls_as_text,
            **({"weights": self._digest_weights()} if self.spec.kind in LOCATED else {}),
        }

    def _digest_weights(self) -> str:
        return self.opened.weights if self.opened is not None else _digest_model(locate_folder(self.spec))


def plan_policy(
    policy: str | None, config: ModelConfig, *, concurrency: int, max_cost: float | None, agent: str = "react"
) -> PolicyPlan:
    """The checked plan of the policy of an agent; `max_cost` bounds the cost of the run.

    Raises ConfigError for the first error.
    """
    if policy is None:
        raise ConfigError(f"agent '{agent}' needs a model: --policy {FORMS}")
    spec = parse_policy(policy)
    _check_options(spec, config)
    prices = load_prices(config.prices) if config.prices else {}
    _check_prices(spec, config.budget, max_cost, priced=spec.name in prices)
    overflow: Overflow = "drop" if config.overflow == "drop" else "stop"
    return PolicyPlan(
        spec=spec,
        options=ModelOptions(
            slots=config.slots,
            concurrency=concurrency,
            device=config.device,
            tool_format=config.tool_format,
            tokenizer=config.tokenizer,
            calls_as_text=config.tool_calls == "text",
            key=read_key(config.key_env),
            requests_per_minute=config.requests_per_minute,
            timeout_s=config.request_timeout_s,
            stream=config.stream,
            prices=prices,
        ),
        settings=ReactSettings(
            sampling=config.sampling, budget=config.budget, overflow=overflow, system=_read_system(config.system)
        ),
        counted=max_cost is not None or config.budget.cost is not None or config.budget.tokens != MAX_TOKENS,
    )


def _check_options(spec: PolicySpec, config: ModelConfig) -> None:
    _check_choice("--overflow", config.overflow, ("stop", "drop"))
    _check_choice("--tool-calls", config.tool_calls, ("native", "text"))
    if config.tool_calls == "text" and spec.kind != "openai":
        raise ConfigError("--tool-calls text: only for openai: policies; others are spoken to in their chat template")
    if config.tokenizer is not None and spec.kind != "vllm":
        raise ConfigError("--tokenizer: only for vllm: policies; a local model brings its own, an endpoint needs none")
    if config.stream and spec.kind != "openai":
        raise ConfigError(
            "--stream: only for openai: policies; a local model tells the time to its first token anyway, and a vLLM"
            " server does as openai:URL/v1#MODEL"
        )
    check_sampling(config.sampling)
    positive = (
        ("--request-timeout", config.request_timeout_s),
        ("--requests-per-minute", config.requests_per_minute),
    )
    for name, value in positive:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}: must be more than 0, not {value}")


def _check_prices(spec: PolicySpec, budget: Budget, max_cost: float | None, *, priced: bool) -> None:
    # a model that runs in this process costs nothing, unless a price is named
    limit = "--max-episode-cost" if budget.cost is not None else "--max-cost" if max_cost and spec.url else ""
    if limit and not priced:
        raise ConfigError(f"{limit}: model '{spec.name}' has no price, so it would never be spent; see --prices")


def count_tree_cost(
    policy: PolicyPlan | None, user: PolicyPlan | None, cost: float | None, costs: ToolCosts
) -> PolicyPlan | None:
    """The plan of the agent's policy, whose tokens must be counted if trees have a budget of money (`cost`).

    `costs`: those of the environment's tools. Raises ConfigError if nothing has a price.
    """
    if cost is None:
        return policy
    is_priced = any(plan is not None and plan.spec.name in plan.options.prices for plan in (policy, user))
    if not is_priced and not {"money", "asking"} & {*costs.list_components()}:
        raise ConfigError(f"cost={cost:g}: neither a model nor a tool has a price, so it is never spent; see --prices")
    return None if policy is None else replace(policy, counted=True)


def read_key(variable: str) -> str | None:
    """The key in an environment variable; None if there is none. Raises ConfigError, which does not show the key."""
    key = os.environ.get(variable, "").strip()
    if not all(" " <= character <= "~" for character in key):
        raise ConfigError(f"--key-env: ${variable} holds no key: it has characters that no header can carry")
    return key or None


def check_sampling(sampling: Sampling) -> None:
    """Raise ConfigError for settings that no engine accepts."""
    if not (math.isfinite(sampling.temperature) and 0 <= sampling.temperature <= 100):
        raise ConfigError(f"--temperature: must be from 0 to 100, not {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise ConfigError(f"--top-p: must be more than 0 and at most 1, not {sampling.top_p}")
    if sampling.top_k < 0:
        raise ConfigError(f"--top-k: must be 0 (no limit) or more, not {sampling.top_k}")
    if "" in sampling.stop:
        raise ConfigError("--stop: must not be empty: an empty text ends every answer before it begins")
    if sampling.max_tokens < 1:
        raise ConfigError(f"--max-tokens: must be at least 1, not {sampling.max_tokens}")


@contextlib.contextmanager
def open_agents(
    runner: asyncio.Runner,
    plan: PolicyPlan,
    env: LoadedEnv,
    sandbox: Sandbox,
    tasks: Sequence[Task],
    *,
    make: Callable[[Model, ReactSettings], T] = react,  # type: ignore[assignment]  # T is AgentFactory then
) -> Iterator[T]:
    """Agents over the opened model, after one real call to every server and one real request to the model.

    Raises ConfigError, or EnvInfraError if a server fails.
    """
    if plan.opened is not None:  # the driver has asked it
        runner.run(call_every_server(env, sandbox, tasks[0]))
        yield make(plan.opened.model, plan.settings)
        return
    with hold_open(runner, open_model(plan.spec, plan.options)) as model:
        if isinstance(model, TokenModel) and model.renderer.note:
            print(f"gymcp: {plan.spec.who}: {model.renderer.note}", file=sys.stderr)
        runner.run(_preflight(model, plan, env, sandbox, tasks))
        yield make(model, plan.settings)


def plan_user(policy: str | None, config: ModelConfig, *, concurrency: int) -> PolicyPlan | None:
    """The checked plan of the model that plays the user; None if none is named. Raises ConfigError."""
    if not policy:
        return None
    # greedy answers, as upstream's tau2 asks for, so that all agents meet the same user
    greedy = replace(
        config,
        sampling=replace(config.sampling, temperature=0.0),
        request_timeout_s=config.request_timeout_s or REQUEST_TIMEOUT_S,
    )
    return plan_policy(policy, greedy, concurrency=concurrency, max_cost=None)


@contextlib.contextmanager
def open_user(
    runner: asyncio.Runner, plan: PolicyPlan | None, env: LoadedEnv, task: Task
) -> Iterator[Callable[[LoadedEnv], LoadedEnv]]:
    """A function that gives an environment the user that the plan's model plays; without a plan, its own user stays.

    The model has answered one real request, for a task of `env`. Raises ConfigError, as the function does for tasks
    without a scenario.
    """
    if plan is None:
        yield lambda env: env
        return
    check_scenarios(env)
    with hold_open(runner, open_model(plan.spec, plan.options)) as model:
        policy, sampling = as_chat(model), plan.settings.sampling

        def give_user(env: LoadedEnv) -> LoadedEnv:
            check_scenarios(env)
            return simulate_user(env, policy, sampling)

        runner.run(check_user(give_user(env), plan.spec.who, task))
        yield give_user


async def _preflight(model: Model, plan: PolicyPlan, env: LoadedEnv, sandbox: Sandbox, tasks: Sequence[Task]) -> None:
    listing = await call_every_server(env, sandbox, tasks[0])

    def tools_of(task: Task) -> tuple[Tool, ...]:
        return tools_at_start(env, task, listing)

    await check_model(model, plan.settings, tasks, tools_of, needs_usage=plan.counted)


def _digest_model(folder: Path) -> str:
    """SHA-256 of weights, tokenizer and templates, because training may change a folder without changing its name."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*")):
        if file.suffix in _MODEL_FILES and file.is_file():
            with file.open("rb") as opened:
                digest.update(file.name.encode() + b"\0" + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{option}: no '{value}'; have {', '.join(choices)}")


def _read_system(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--system {file}: cannot be read: {error}") from error
