"""Functions that make presets: their options checked, and those of the user found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_type_hints

from gymcp.errors import ConfigError
from gymcp.trainers.settings.validate import check_range, check_value
from gymcp.user_code import PRESET_PLUGINS, UserObject, call_user, describe_kind, find_plugins, load_user_object

SIGNATURE = "def NAME(*, OPTION=VALUE) -> Preset"


def find_user_preset(text: str, taken: Collection[str]) -> UserObject:
    """The function of the user that makes the preset of this name, whose code is run.

    Raises ConfigError if there is none, if it is no function, or if its own name is one of those `taken`.
    """
    found = load_user_object(text, kind="preset", plugins=PRESET_PLUGINS)
    if found is None:
        plugins = [name for name in find_plugins(PRESET_PLUGINS) if name not in taken]
        raise ConfigError(f"no preset {text!r:.80}; have {', '.join((*taken, *plugins))}, or FILE.py:NAME of your own")
    if not callable(found.value):
        raise ConfigError(f"{found.who}: is {describe_kind(found.value)}, not a function: {SIGNATURE}")
    if inspect.iscoroutinefunction(found.value):
        raise ConfigError(f"{found.who}: is async; make it a plain function: {SIGNATURE}")
    name = text.rpartition(":")[2]
    if name in taken:
        raise ConfigError(f"{found.who}: gymcp has a preset '{name}'; give the function another name")
    return found


def short_name(text: str) -> str:
    """The name of a preset without the folder of its file, for tables and records."""
    return text.rpartition("/")[2]


def check_options(
    who: str,
    function: Callable[..., object],
    options: Mapping[str, object],
    ranges: Mapping[str, tuple[float, ...]],
) -> dict[str, object]:
    """The options as keywords of the function: lists become tuples.

    Raises ConfigError for an unknown option, a missing one, or a value that the annotations or `ranges` do not allow.
    """
    signature: Any = call_user(who, lambda: inspect.signature(function))  # a builtin may have none
    known = signature.parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not takes_all:
            raise ConfigError(f"{who}: no option {option!r:.80}; have {', '.join(known) or 'none'}")
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, parameter in known.items():
        if parameter.kind in kinds and parameter.default is parameter.empty and name not in options:
            raise ConfigError(f"{who}: needs the option '{name}'")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    hints: Any = call_user(who, lambda: get_type_hints(function))
    for option, value in values.items():
        if option in hints:
            check_value(f"{who}: {option}", value, hints[option])
        check_range(f"{who}: {option}", value, *ranges.get(option, (-float("inf"),)))
    return values
