"""Pages of ``--help``: one line for each argument and option, as far as its words fit into it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from gymcp.cli.help.parameters import Parameter, describe_parameters, describe_usage
from gymcp.cli.output import console
from gymcp.paths import find_page

MAX_WIDTH = 100
"""Columns that a page takes on a wide terminal."""
MAX_NAME = 24
"""Columns of names: the help of a longer one begins in the line below it."""


def print_help(command: Any, context: Any) -> None:
    """Print the command's page in the terminal's width."""
    for name, heading, rest in make_page(command, context, min(console.width, MAX_WIDTH)):
        console.print(Text.assemble((name, "bold cyan"), (heading, "bold"), rest), soft_wrap=True, highlight=False)


def make_page(command: Any, context: Any, width: int) -> Iterator[tuple[str, str, str]]:
    """(name, heading, other text) of each line of the page; two of them may be empty.

    The first page, and every page that names one of the documentation, ends with the folder of the documentation.
    """
    lines = list(_make_lines(command, context, width))
    yield from lines
    if context.parent is None or any("docs/" in text for line in lines for text in line):
        yield "", "", ""
        yield "", "Documentation (docs/):", ""
        yield "", "", f"  {find_page('index.md').parent}"


def _make_lines(command: Any, context: Any, width: int) -> Iterator[tuple[str, str, str]]:
    """Lines of the page without its end."""
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
