"""Arguments and options of a command, in plain words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

PATH, NUMBER, TEXT = "PATH", "N", "TEXT"
_VALUES = {"path": PATH, "list[Path]": PATH}
_NUMBERS = ("int", "float", "list[int]", "list[float]")
_BOUNDS = ((r"(\S+?)<=x<=(\S+)", r"\1 to \2"), (r"x>=(\S+)", r"at least \1"), (r"x<=(\S+)", r"at most \1"))
"""Bounds in Typer's words, and in plain ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument or an option, as a page shows it."""

    name: str
    """Its names, and a word for its value."""
    help: str
    facts: tuple[str, ...]
    """Default, bounds, and whether it is required."""
    section: str


def describe_parameters(command: Any, context: Any) -> list[Parameter]:
    """The arguments and options that the help shows, in the order of the command."""
    found = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or getattr(parameter, "hidden", False):
            continue
        text, extra = record[1], ""
        if text.endswith("]") and "  [" in text:
            text, extra = text[:-1].rsplit("  [", 1)
        facts = [fact for fact in extra.split("; ") if fact and fact != "x>=0"]
        for pattern, words in _BOUNDS:
            facts = [re.sub(rf"^{pattern}$", words, fact) for fact in facts]
        is_argument = not parameter.opts[0].startswith("-")
        found.append(
            Parameter(
                name=_name_argument(parameter) if is_argument else _name_option(parameter, context),
                help=" ".join(text.split()),
                facts=tuple(facts),
                section=getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options"),
            )
        )
    return found


def describe_usage(command: Any, context: Any) -> str:
    """The command with its arguments, such as ``gymcp eval [OPTIONS] ENV...``."""
    words = [context.command_path, "[OPTIONS]"]
    for parameter in command.get_params(context):
        if not parameter.opts[0].startswith("-") and not getattr(parameter, "hidden", False):
            name = _name_argument(parameter)
            words.append(name if parameter.required else f"[{name}]")
    return " ".join([*words, *(["COMMAND [ARGS]..."] if hasattr(command, "commands") else [])])


def _name_argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper().replace("_", "-")).removesuffix("...")
    return name if parameter.nargs == 1 else f"{name}..."


def _name_option(parameter: Any, context: Any) -> str:
    """Long names first, then a word for the value; none for a switch."""
    names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: not name.startswith("--"))
    return ", ".join(names) if parameter.is_flag else f"{', '.join(names)} {_name_value(parameter, context)}"


def _name_value(parameter: Any, context: Any) -> str:
    """A plain word for the value of an option."""
    if parameter.metavar:
        return str(parameter.metavar)
    kind = str(parameter.display_type_rich(ctx=context)).strip("<>")
    return NUMBER if kind.removesuffix(" range") in _NUMBERS else _VALUES.get(kind, TEXT)
