"""Pages of ``--help``: one line for each argument and option, as far as its words fit into it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gymcp.cli.output import console

MAX_WIDTH = 100
"""Columns that a page takes on a wide terminal."""
MAX_NAME = 24
"""Columns of names: the help of a longer one begins in the line below it."""
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


def print_help(command: Any, context: Any) -> None:
    """Print the command's page in the terminal's width."""
    for name, heading, rest in make_page(command, context, min(console.width, MAX_WIDTH)):
        console.print(Text.assemble((name, "bold cyan"), (heading, "bold"), rest), soft_wrap=True, highlight=False)


def make_page(command: Any, context: Any, width: int) -> Iterator[tuple[str, str, str]]:
    """(name, heading, other text) of each line of the page; two of them may be empty."""
    yield "", "Usage:", f" {describe_usage(command, context)}"
    for paragraph in (command.help or "").split("\f")[0].strip().split("\n\n"):
        yield "", "", ""
        for line in textwrap.wrap(" ".join(paragraph.split()), width):
            yield "", "", line
    parameters = describe_parameters(command, context)
    sections = list(dict.fromkeys(parameter.section for parameter in parameters))
    for section in sorted(sections, key=lambda name: (name != "Arguments", name != "Options")):
        rows = [(each.name, _words(each)) for each in parameters if each.section == section]
        yield from _lines_of_section(section, rows, width)
    yield from _lines_of_commands(command, context, width)
    for paragraph in (command.epilog or "").split("\n\n"):
        if paragraph.endswith(":"):
            yield "", "", ""
            yield "", paragraph, ""
        elif paragraph:
            end = " \\" if paragraph.startswith("gymcp ") else ""  # a command goes on in its next line
            lines = textwrap.wrap(paragraph, width - 4, break_on_hyphens=False, break_long_words=False)
            for number, line in enumerate(lines):
                start = "    " if number else "  "
                yield "", "", f"{start}{line}{end if number < len(lines) - 1 else ''}"


def _words(parameter: Parameter) -> str:
    return f"{parameter.help} [{'; '.join(parameter.facts)}]" if parameter.facts else parameter.help


def _lines_of_commands(command: Any, context: Any, width: int) -> Iterator[tuple[str, str, str]]:
    """Lines with the commands of a group, by their headings."""
    if not hasattr(command, "list_commands"):
        return
    inner = [command.commands[name] for name in command.list_commands(context)]
    shown = [each for each in inner if not each.hidden]
    headings = dict.fromkeys(getattr(each, "rich_help_panel", None) or "Commands" for each in shown)
    for heading in headings:
        own = [each for each in shown if (getattr(each, "rich_help_panel", None) or "Commands") == heading]
        rows = [(each.name, (each.help or "").strip().partition("\n")[0]) for each in own]
        yield from _lines_of_section(heading, rows, width)


def _lines_of_section(heading: str, rows: list[tuple[str, str]], width: int) -> Iterator[tuple[str, str, str]]:
    """An empty line, the heading, and a table of names and texts."""
    yield "", "", ""
    yield "", f"{heading}:", ""
    column = min(max(len(name) for name, _ in rows), MAX_NAME)
    for name, text in rows:
        lines = textwrap.wrap(text, width - column - 4, break_on_hyphens=False)
        if len(name) > column:
            yield f"  {name}", "", ""
        else:
            yield f"  {name}", "", " " * (column - len(name) + 2) + lines.pop(0)
        for line in lines:
            yield "", "", " " * (column + 4) + line


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
