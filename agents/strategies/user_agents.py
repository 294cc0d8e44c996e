"""Agents of the user: a name in a Python file, in a module, or in an installed package.

An agent is made by one of two functions, which are told apart by their parameters:

* ``NAME(task, seed) -> Agent``: an `AgentFactory`, such as a class with these two parameters and a method ``act``;
* ``NAME(model, settings) -> AgentFactory``: the same over the model of ``--policy``, as `react` is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from gymcp.agents.policies.metering import meter_model
from gymcp.agents.policies.models import Model
from gymcp.agents.strategies.guarded_agent import GuardedAgent
from gymcp.agents.strategies.react import ReactSettings
from gymcp.errors import ConfigError
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import Json, Task
from gymcp.user_code import (
    AGENT_PLUGINS,
    UserObject,
    call_user,
    describe_kind,
    find_plugins,
    load_user_object,
    locate_function,
)

_SIGNATURES = "def NAME(task, seed) -> agent, or def NAME(model, settings) -> a function of task and seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAgent:
    """An agent that the user has named, imported and not made yet."""

    name: str
    """Name in records and tables: "careful.py:Careful", or "my_package.agents:careful"."""
    source: str
    """Name with the absolute path of the file."""
    digest: str
    """SHA-256 of the file that defines it; empty if it is in no file."""
    make: Callable[..., object]
    takes_model: bool
    """True if it is a function of a model and settings."""

    def config(self) -> dict[str, Json]:
        """Entries of ``run.json``, beside the agent's name."""
        return {"agent_source": self.source, "agent_digest": self.digest}


def is_user_agent(name: str) -> bool:
    """True for the name of an agent of the user; the names of gymcp's own agents have no colon."""
    return ":" in name


def list_plugin_agents() -> tuple[str, ...]:
    """Names of the agents that installed packages bring."""
    return tuple(find_plugins(AGENT_PLUGINS))


def load_agent(text: str) -> UserAgent | None:
    """The agent that the user has named, whose code is run; None if the name is neither a place nor a plug-in.

    Raises ConfigError if it cannot be imported, or is no agent.
    """
    object_ = load_user_object(text, kind="agent", plugins=AGENT_PLUGINS)
    return None if object_ is None else _make_record(object_)


def make_user_agents(agent: UserAgent, model: Model | None, settings: ReactSettings) -> AgentFactory:
    """The guarded agents of all episodes. `model`: for an agent that takes one.

    Each episode is bounded by ``settings.budget``. Raises ConfigError if the function of model and settings raises or
    gives no function.
    """
    who = f"agent '{agent.name}'"
    factory = agent.make
    if model is not None:
        make_agent = call_user(who, lambda: agent.make(meter_model(model), settings))
        if not callable(make_agent):
            raise ConfigError(
                f"{who}: gave {describe_kind(make_agent)} for a model and settings, not a function of task and seed"
            )
        factory = make_agent
    reported: set[str] = set()

    def make(task: Task, seed: int) -> Agent:
        return GuardedAgent(lambda: _make_checked(who, factory, task, seed), settings.budget, reported)

    return make


def check_user_agents(make: AgentFactory, task: Task) -> None:
    """Raise ConfigError if no agent is made for the task. The agent that is made is thrown away."""
    made = make(task, 0)
    if isinstance(made, GuardedAgent):
        made.check()


def _make_checked(who: str, factory: Callable[..., object], task: Task, seed: int) -> Agent:
    made = call_user(who, lambda: factory(task, seed))
    act = getattr(made, "act", None)
    if not callable(act):
        raise ConfigError(
            f"{who}: made {describe_kind(made)}, which is no agent: it has no method 'async def act(observation)'"
        )
    if not inspect.iscoroutinefunction(act):
        place = locate_function(act)
        raise ConfigError(f"{who}: {place + ': ' if place else ''}its act must be 'async def act(observation)'")
    return made  # type: ignore[return-value]


def _make_record(found: UserObject) -> UserAgent:
    made = found.value
    if not callable(made):
        raise ConfigError(f"{found.who}: is {describe_kind(made)}, not a function or class: {_SIGNATURES}")
    takes_model = _takes_model(made, found.who)
    return UserAgent(name=found.name, source=found.source, digest=found.digest, make=made, takes_model=takes_model)


def _takes_model(make: Callable[..., object], who: str) -> bool:
    """True if the function takes a model and settings, False if task and seed. Raises ConfigError for any other."""
    place = locate_function(make)
    where = f"{who}: {place}" if place else who
    if inspect.iscoroutinefunction(make):
        raise ConfigError(f"{where}: is async; make it a plain function: {_SIGNATURES}")
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # a builtin may have none
        return False
    try:
        signature.bind(None, None)
    except TypeError:
        raise ConfigError(f"{where}: takes {signature}; it is called with 2 arguments: {_SIGNATURES}") from None
    return next(iter(signature.parameters)) == "model"
