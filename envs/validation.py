"""Validation of the environment that a file defines. Every fault is a ConfigError of one line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from gymcp.errors import ConfigError, GymcpError
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.http_bridge import fault_of_http
from gymcp.mcp_servers.transports.http_remote import fault_of_url
from gymcp.mcp_servers.transports.service_launch import fault_of_services
from gymcp.types import Suite, Task, ToolOffer, UserScript
from gymcp.user_code import describe_error

T = TypeVar("T")


def check_name(name: object) -> str:
    """Check that the name is valid in folders and records. Returns the words with which errors name the environment.

    Raises ConfigError for any other name.
    """
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_-]+", name):
        raise ConfigError(f"environment {name!r}: its name must be made of letters, digits, _ and -")
    return f"environment '{name}'"


def resolve(who: str, what: str, value: Callable[[], T] | T) -> T:
    """The value, or what it returns if it is a function.

    Raises ConfigError, which names `who` and `what`, if the function raises anything but a GymcpError.
    """
    if not callable(value):
        return value
    try:
        return value()
    except GymcpError:
        raise
    except (Exception, SystemExit) as error:  # the function is the user's code, which may raise anything
        raise ConfigError(f"{who}: its {what} raised {describe_error(error)}") from error


def check_server_specs(who: str, servers: object) -> tuple[ServerSpec, ...]:
    """The servers, if each can be started."""
    if not isinstance(servers, tuple) or not servers:
        raise ConfigError(f"{who}: its servers must be a tuple with at least one ServerSpec, not {_shorten(servers)}")
    for server in servers:
        if not isinstance(server, ServerSpec):
            raise ConfigError(f"{who}: its servers must be of ServerSpec, not {_shorten(server)}")
        if not isinstance(server.name, str) or not server.name:
            raise ConfigError(f"{who}: a server's name must be a text, not {_shorten(server.name)}")
        _check_argv(f"{who}: server '{server.name}'", server)
        if fault := fault_of_http(server) or fault_of_url(server) or fault_of_services(server):
            raise ConfigError(f"{who}: server '{server.name}': {fault}")
    _refuse_duplicates(f"{who}: two servers are named", (server.name for server in servers))
    return servers


def _check_argv(who: str, server: ServerSpec) -> None:
    if not isinstance(server.argv, tuple) or not all(isinstance(word, str) for word in server.argv):
        raise ConfigError(f"{who}: its argv must be a tuple of texts, not {_shorten(server.argv)}")
    if not server.argv and server.image is None and server.url is None:
        raise ConfigError(f"{who}: its argv is empty, and it has no image whose command would be run")


def check_suite(who: str, suite: object, servers: frozenset[str]) -> Suite:
    """The suite, if each of its tasks can be played on servers of these names."""
    if not isinstance(suite, Suite):
        raise ConfigError(f"{who}: its suite must be a gymcp.Suite, not {_shorten(suite)}")
    if not isinstance(suite.tasks, tuple) or not suite.tasks:
        raise ConfigError(f"{who}: its suite has no tasks; they must be a tuple with at least one Task")
    for task in suite.tasks:
        if not isinstance(task, Task):
            raise ConfigError(f"{who}: its tasks must be of Task, not {_shorten(task)}")
        if not isinstance(task.id, str) or not task.id:
            raise ConfigError(f"{who}: a task's id must be a text, not {_shorten(task.id)}")
        _check_task(f"{who}: task '{task.id}'", task, servers)
    _refuse_duplicates(f"{who}: two tasks have the id", (task.id for task in suite.tasks))
    return suite


def _check_task(who: str, task: Task, servers: frozenset[str]) -> None:
    prompts = task.prompts
    if not isinstance(prompts, tuple) or not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise ConfigError(f"{who}: its prompts must be a tuple with at least one text, not {_shorten(prompts)}")
    for name, kind in (("user", UserScript), ("offer", ToolOffer)):
        if not isinstance(value := getattr(task, name), kind):
            raise ConfigError(f"{who}: its {name} must be a gymcp.{kind.__name__}, not {_shorten(value)}")
    if (offered := task.offer.servers) is not None and (not offered or offered - servers):
        unknown = ", ".join(sorted(offered - servers)) or "none"
        raise ConfigError(f"{who}: its servers are {unknown}; have {', '.join(sorted(servers))}")
    try:
        json.dumps(task.initial_state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{who}: its initial_state is not JSON: {error}") from error


def _refuse_duplicates(what: str, names: Iterable[str]) -> None:
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"{what} '{name}'")


def _shorten(value: object) -> str:
    """A short text for a wrong value."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"
