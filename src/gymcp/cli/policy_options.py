"""What ``--agent react`` needs: the policy that was named, opened, checked, and kept until the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gymcp.agents.policies.chat_adapter import as_chat
from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.policies.prices import load_prices
from gymcp.agents.policies.specs import ModelOptions, PolicySpec, open_model, parse_policy
from gymcp.agents.runner.preflight import check_model, check_servers, check_user
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import Overflow, ReactSettings, react
from gymcp.aio import hold_open
from gymcp.envs.episodes.tool_listing import tools_at_start
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.wrappers.simulated_user import check_scenarios, simulate_user
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import Json, Sampling, Task

_PARTS_OF_A_MODEL = (".safetensors", ".bin", ".json", ".jinja", ".model")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """A policy and how it is played, checked as far as that goes without asking it."""

    spec: PolicySpec
    options: ModelOptions
    settings: ReactSettings
    counted: bool = False
    """Whether a budget depends on how many tokens an endpoint says an answer took."""

    def user_config(self) -> dict[str, Json]:
        """What `run.json` records where the policy plays the user."""
        return {"user_policy": self.spec.text, "user_sampling": asdict(self.settings.sampling)}

    def config(self) -> dict[str, Json]:
        """What `run.json` records: what scores depend on, and no key."""
        return {
            "policy": self.spec.text,
            "sampling": asdict(self.settings.sampling),
            "budget": asdict(self.settings.budget),
            "overflow": self.settings.overflow,
            "system": self.settings.system,
            "tool_format": self.options.tool_format,
            "calls_as_text": self.options.calls_as_text,
            **({"weights": _digest(Path(self.spec.model))} if self.spec.kind == "local" else {}),
        }


def plan_policy(
    policy: str | None,
    *,
    sampling: Sampling,
    budget: Budget,
    overflow: str,
    tool_calls: str,
    tool_format: str | None,
    tokenizer: Path | None,
    system: Path | None,
    prices: Path | None,
    key_env: str,
    requests_per_minute: float | None,
    timeout_s: float,
    slots: int,
    concurrency: int,
    device: str | None,
    max_cost: float | None,
) -> PolicyPlan:
    """The options of the command line, in records. Raises ConfigError for the first that is wrong."""
    if policy is None:
        raise ConfigError("agent 'react' needs a model: --policy tiny | local:PATH | vllm:URL#MODEL | openai:URL#MODEL")
    spec = parse_policy(policy)
    _one_of("--overflow", overflow, ("stop", "drop"))
    _one_of("--tool-calls", tool_calls, ("native", "text"))
    if tool_calls == "text" and spec.kind != "openai":
        raise ConfigError("--tool-calls text: only for openai: policies; others are spoken to in their chat template")
    if tokenizer is not None and spec.kind != "vllm":
        raise ConfigError("--tokenizer: only for vllm: policies; a local model brings its own, an endpoint needs none")
    check_sampling(sampling)
    for name, value in (("--request-timeout", timeout_s), ("--requests-per-minute", requests_per_minute)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}: must be more than 0, not {value}")
    known = load_prices(prices) if prices else {}
    # what runs in this process costs nothing, unless a price is named
    limit = "--max-episode-cost" if budget.cost is not None else "--max-cost" if max_cost and spec.url else ""
    if limit and spec.name not in known:
        raise ConfigError(f"{limit}: model '{spec.name}' has no price, so it would never be spent; see --prices")
    rule: Overflow = "drop" if overflow == "drop" else "stop"
    return PolicyPlan(
        spec=spec,
        options=ModelOptions(
            slots=slots,
            concurrency=concurrency,
            device=device,
            tool_format=tool_format,
            tokenizer=tokenizer,
            calls_as_text=tool_calls == "text",
            key=read_key(key_env),
            requests_per_minute=requests_per_minute,
            timeout_s=timeout_s,
            prices=known,
        ),
        settings=ReactSettings(sampling=sampling, budget=budget, overflow=rule, system=_read(system)),
        counted=any(limit is not None for limit in (max_cost, budget.cost, budget.tokens)),
    )


def read_key(variable: str) -> str | None:
    """The key in that variable of the environment; None where there is none. Raises ConfigError, without the key."""
    key = os.environ.get(variable, "").strip()
    if not all(" " <= character <= "~" for character in key):
        raise ConfigError(f"--key-env: ${variable} holds no key: it has characters that no header can carry")
    return key or None


def check_sampling(sampling: Sampling) -> None:
    """Raises ConfigError for what no engine can do."""
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
def opened(
    runner: asyncio.Runner, plan: PolicyPlan, env: LoadedEnv, sandbox: Sandbox, tasks: Sequence[Task]
) -> Iterator[AgentFactory]:
    """Agents over the open policy, after one real call to every server and one real request to the model.

    Raises ConfigError, or EnvInfraError where a server fails.
    """
    with hold_open(runner, open_model(plan.spec, plan.options)) as model:
        if isinstance(model, TokenModel) and model.renderer.note:
            print(f"gymcp: {plan.spec.who}: {model.renderer.note}", file=sys.stderr)
        runner.run(_preflight(model, plan, env, sandbox, tasks))
        yield react(model, plan.settings)


@contextlib.contextmanager
def with_user(
    runner: asyncio.Runner, plan: PolicyPlan | None, env: LoadedEnv, tasks: Sequence[Task]
) -> Iterator[LoadedEnv]:
    """The environment with a user whom the plan's model plays, after one real request to it; without a plan, as it is.

    Raises ConfigError.
    """
    if plan is None:
        yield env
        return
    check_scenarios(env)
    with hold_open(runner, open_model(plan.spec, plan.options)) as model:
        played = simulate_user(env, as_chat(model), plan.settings.sampling)
        runner.run(check_user(played, plan.spec.who, tasks[0]))
        yield played


async def _preflight(model: Model, plan: PolicyPlan, env: LoadedEnv, sandbox: Sandbox, tasks: Sequence[Task]) -> None:
    listing = await check_servers(env, sandbox, tasks[0])
    await check_model(
        model, plan.settings, tasks, lambda task: tools_at_start(env, task, listing), needs_usage=plan.counted
    )


def _digest(folder: Path) -> str:
    """Of a model's weights, tokenizer and templates: a folder's name says nothing of what was trained in between."""
    whole = hashlib.sha256()
    for file in sorted(folder.glob("*")):
        if file.suffix in _PARTS_OF_A_MODEL and file.is_file():
            with file.open("rb") as opened:
                whole.update(file.name.encode() + b"\0" + hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{option}: no '{value}'; have {', '.join(known)}")


def _read(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--system {file}: cannot be read: {error}") from error
