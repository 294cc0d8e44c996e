"""The agent of a run: one of gymcp's by name, or one of the user, with its model if it has one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from gymcp.agents.programs.agent import open_program_agents
from gymcp.agents.programs.settings import ProgramSettings, is_program, make_program
from gymcp.agents.runner.run import AGENTS, REACT
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import ReactSettings
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.agents.strategies.user_agents import (
    UserAgent,
    check_user_agents,
    list_plugin_agents,
    load_agent,
    make_user_agents,
)
from gymcp.aio import hold_open
from gymcp.cli.configs import ModelConfig, ProgramConfig
from gymcp.cli.policy_options import PolicyPlan, open_agents, plan_policy
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import Json, Task
from gymcp.user_code import FORMS

ORACLE = "oracle"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """An agent and its model, checked as far as possible without a request to the model."""

    name: str
    """Name in the record of the run."""
    budget: Budget
    user: UserAgent | None = None
    """None: one of gymcp's own agents."""
    policy: PolicyPlan | None = None
    """None: the agent has no model."""
    program: ProgramSettings | None = None
    """None: the agent is no program."""

    def config(self) -> dict[str, Json]:
        """Entries of ``run.json`` beside the agent's name: everything that scores depend on, without a key."""
        own = self.user.config() if self.user is not None else {}
        if self.program is not None:
            own = self.program.config()
        if self.policy is not None:
            return {**self.policy.config(), **own}
        return {**own, "budget": asdict(self.budget)} if own else {}


def choose_agent(agent: str | None, policy: str | None) -> str:
    """Name of the agent: the one that was given, or react if there is a model for it."""
    return agent or (REACT if policy is not None else ORACLE)


def plan_program(agent: str | None, config: ProgramConfig, env: str) -> ProgramSettings | None:
    """The settings of a program; None if the agent is none. `env`: hidden from the program if it is a file.

    Raises ConfigError, also for options of programs without a program.
    """
    if agent is None or not is_program(agent):
        if config != ProgramConfig():
            raise ConfigError("--agent-sandbox, --agent-stdin, --agent-mount: only for --agent 'cmd:PROGRAM ARGS'")
        return None
    return make_program(
        agent,
        sandbox=config.sandbox,
        stdin=config.stdin,
        mounts=config.mounts,
        env=env,
    )


def plan_agent(
    agent: str | None,
    policy: str | None,
    model: ModelConfig,
    *,
    concurrency: int,
    max_cost: float | None,
    program: ProgramSettings | None = None,
) -> AgentPlan:
    """The checked plan of an agent and its model. The file of an agent of the user is run. Raises ConfigError."""
    name = choose_agent(agent, policy)
    if program is not None:
        if model.system is not None or model.overflow != ModelConfig().overflow:
            raise ConfigError("--system, --overflow: a program writes its own prompts; leave them out")
        planned = None
        if policy is not None:
            planned = plan_policy(policy, model, agent=name, concurrency=concurrency, max_cost=max_cost)
        return AgentPlan(name=name, budget=model.budget, policy=planned, program=program)
    user = None if name in AGENTS else load_agent(name)
    if user is None and name not in AGENTS:
        have = ", ".join((*AGENTS, *list_plugin_agents()))
        raise ConfigError(f"no agent '{name}'; have {have}, or give one of your own: {FORMS}")
    name = name if user is None else user.name
    takes_model = name == REACT if user is None else user.takes_model
    if not takes_model and policy is not None:
        hint = "--agent react has" if user is None else "a function of model and settings has"
        raise ConfigError(f"--policy: agent '{name}' has no model; {hint}")
    planned = None
    if takes_model:
        planned = plan_policy(policy, model, agent=name, concurrency=concurrency, max_cost=max_cost)
    return AgentPlan(name=name, budget=model.budget, user=user, policy=planned)


@contextlib.contextmanager
def open_agent(
    runner: asyncio.Runner, plan: AgentPlan, env: LoadedEnv, sandbox: Sandbox, tasks: Sequence[Task]
) -> Iterator[AgentFactory]:
    """The agents of all episodes, with their model opened and tried.

    Raises ConfigError, also if an agent of the user cannot be made for the first task; EnvInfraError if a server fails.
    """
    if plan.program is not None:
        with _open_programs(runner, plan, plan.program, env, sandbox, tasks) as agents:
            yield agents
    elif plan.user is None and plan.policy is None:
        yield SCRIPTED[plan.name]
    elif plan.user is None and plan.policy is not None:
        with open_agents(runner, plan.policy, env, sandbox, tasks) as agents:
            yield agents
    elif plan.user is not None:
        make = partial(make_user_agents, plan.user)
        with contextlib.ExitStack() as stack:
            if plan.policy is None:
                agents = make(None, ReactSettings(budget=plan.budget))
            else:
                agents = stack.enter_context(open_agents(runner, plan.policy, env, sandbox, tasks, make=make))
            check_user_agents(agents, tasks[0])
            yield agents


@contextlib.contextmanager
def _open_programs(
    runner: asyncio.Runner,
    plan: AgentPlan,
    program: ProgramSettings,
    env: LoadedEnv,
    sandbox: Sandbox,
    tasks: Sequence[Task],
) -> Iterator[AgentFactory]:
    """Agents that run the program, over the opened model if the plan has one."""
    with contextlib.ExitStack() as stack:
        if plan.policy is None:
            model, settings = None, ReactSettings(budget=plan.budget)
        else:
            opened = open_agents(runner, plan.policy, env, sandbox, tasks, make=lambda *pair: pair)
            model, settings = stack.enter_context(opened)
        settings_of_run = replace(program, sampling=settings.sampling, budget=settings.budget)
        yield stack.enter_context(hold_open(runner, open_program_agents(model, settings_of_run)))
