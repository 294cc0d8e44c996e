"""Environment variables, ``${NAME}``, in the description of a server. They are filled in when the server starts."""

from __future__ import annotations

import re
from collections.abc import Mapping

VARIABLE = re.compile(r"\$\{(?P<name>[^}]*)\}")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTHORIZATION|COOKIE", re.IGNORECASE)


def substitute_variables(text: str, environment: Mapping[str, str]) -> str:
    """The text with ``${NAME}`` and ``${NAME:-default}`` replaced. Raises KeyError for a name that is not set."""
    return VARIABLE.sub(lambda match: _value(match["name"], environment), text)


def variable_names(text: str) -> list[str]:
    """Names of the environment variables that the text refers to."""
    return [match["name"].partition(":-")[0] for match in VARIABLE.finditer(text)]


def is_secret(name: str) -> bool:
    """True if a setting, header or variable of that name probably holds a secret."""
    return _SECRET.search(name) is not None


def _value(name: str, environment: Mapping[str, str]) -> str:
    name, _, default = name.partition(":-")
    return environment.get(name) or default or environment[name]
