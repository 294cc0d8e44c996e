"""Agents of the user: a name in a Python file, in a module, or in an installed package.

An agent is made by one of two functions, which are told apart by their parameters:

* ``NAME(task, seed) -> Agent``: an `AgentFactory`, such as a class with these two parameters and a method ``act``;
* ``NAME(model, settings) -> AgentFactory``: the same over the model of ``--policy``, as `react` is.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from gymcp.agents.policies.metering import meter_model
from gymcp.agents.policies.models import Model
from gymcp.agents.strategies.guarded_agent import GuardedAgent
from gymcp.agents.strategies.react import ReactSettings
from gymcp.errors import ConfigError
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import Json, Task
from gymcp.user_code import (
    AGENT_PLUGINS,
    describe_error,
    describe_plugin,
    find_plugins,
    load_plugin,
    load_user_module,
    locate_function,
)

FORMS = "FILE.py:NAME, MODULE:NAME"
"""Forms of an agent of the user, beside the names of plug-ins."""
_SIGNATURES = "def NAME(task, seed) -> agent, or def NAME(model, settings) -> a function of task and seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAgent:
    """An agent that the user has named, imported and not made yet."""

    name: str
    """Name in records and tables: "careful.py:Careful", or "my_package.agents:careful"."""
    source: str
    """The same with the absolute path of the file."""
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
    if ":" not in text:
        if (point := find_plugins(AGENT_PLUGINS).get(text)) is None:
            if text.endswith(".py"):
                raise ConfigError(f"agent '{text}': name the agent in the file: {text}:NAME")
            return None
        return _make_record(point.value, load_plugin(point), _find_file(point.value), who=describe_plugin(point))
    place, _, name = text.rpartition(":")
    if not name.isidentifier():
        raise ConfigError(f"agent '{text}': '{name}' is no name; give {FORMS}")
    if place.endswith(".py") or "/" in place:
        return _load_from_file(Path(place), name, who=f"agent '{text}'")
    module = _import_module(place, who=f"agent '{text}'")
    return _make_record(text, _find(module, name, f"agent '{text}'"), _find_file(text), who=f"agent '{text}'")


def make_user_agents(agent: UserAgent, model: Model | None, settings: ReactSettings) -> AgentFactory:
    """The guarded agents of all episodes. `model`: for an agent that takes one.

    Each episode is bounded by ``settings.budget``. Raises ConfigError if the function of model and settings raises or
    gives no function.
    """
    who = f"agent '{agent.name}'"
    factory = agent.make
    if model is not None:
        made = _call_user(who, lambda: agent.make(meter_model(model), settings))
        if not callable(made):
            raise ConfigError(f"{who}: gave {_kind(made)} for a model and settings, not a function of task and seed")
        factory = made
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
    made = _call_user(who, lambda: factory(task, seed))
    act = getattr(made, "act", None)
    if not callable(act):
        raise ConfigError(
            f"{who}: made {_kind(made)}, which is no agent: it has no method 'async def act(observation)'"
        )
    if not inspect.iscoroutinefunction(act):
        place = locate_function(act)
        raise ConfigError(f"{who}: {place + ': ' if place else ''}its act must be 'async def act(observation)'")
    return made  # type: ignore[return-value]


def _call_user(who: str, call: Callable[[], object]) -> object:
    try:
        return call()
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise ConfigError(f"{who}: {describe_error(error)}") from error


def _load_from_file(path: Path, name: str, *, who: str) -> UserAgent:
    if not path.is_file():
        raise ConfigError(f"{who}: no file '{path}'")
    module = load_user_module(path, what=f"agent file '{path}'", name=f"gymcp_agent_{path.stem}")
    record = f"{path.name}:{name}"
    return _make_record(record, _find(module, name, who), path, who=who, source=f"{path.resolve()}:{name}")


def _import_module(name: str, *, who: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{who}: no module '{name}' is installed; give a file by its path: ./FILE.py:NAME"
            ) from error
        raise ConfigError(f"{who}: {describe_error(error)}") from error
    except (Exception, SystemExit) as error:  # the module's code, which may raise anything
        raise ConfigError(f"{who}: {describe_error(error)}") from error


def _find(module: ModuleType, name: str, who: str) -> object:
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        raise ConfigError(f"{who}: defines no '{name}'; have {', '.join(own) or 'nothing that can be called'}")
    return getattr(module, name)


def _find_file(place: str) -> Path | None:
    """The file of a module, of which ``MODULE:NAME`` has been imported."""
    file = getattr(importlib.import_module(place.partition(":")[0]), "__file__", None)
    return None if file is None else Path(file)


def _make_record(name: str, made: object, file: Path | None, *, who: str, source: str = "") -> UserAgent:
    if not callable(made):
        raise ConfigError(f"{who}: is {_kind(made)}, not a function or class: {_SIGNATURES}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file is not None else ""
    takes_model = _takes_model(made, who)
    return UserAgent(name=name, source=source or name, digest=digest, make=made, takes_model=takes_model)


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


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
