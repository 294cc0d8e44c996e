"""The reference of the command line as Markdown, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from gymcp.cli.app import app
from gymcp.cli.help.parameters import Parameter, describe_parameters, describe_usage


def describe_commands() -> str:
    """A page with a section for each command: what it does, its arguments, its options with their defaults."""
    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="gymcp")
    sections = [_describe(command, inner) for command, inner in _walk(root, context)]
    return (
        "\n\n".join(["# Command line", "Made from the code: `gymcp COMMAND --help` says the same.", *sections]) + "\n"
    )


def _walk(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """The commands that can be typed, each with its context, in the order of the help."""
    if not hasattr(command, "list_commands"):
        yield command, context
        return
    if context.parent is not None and command.invoke_without_command:
        yield command, context
    for name in command.list_commands(context):
        _, inner, _ = command.resolve_command(context, [name])  # a verb may be imported only when it is typed
        if inner is not None and not inner.hidden:
            yield from _walk(inner, inner.context_class(inner, info_name=name, parent=context))


def _describe(command: Any, context: Any) -> str:
    rows = [_row(each) for each in describe_parameters(command, context) if "--help" not in each.name]
    help_text = " ".join((command.help or "").split("\f")[0].split())
    parts = [f"## {context.command_path}", _escape(help_text), f"```text\n{describe_usage(command, context)}\n```"]
    if rows:
        parts.append("\n".join(["| argument, option | meaning | default, bounds |", "|---|---|---|", *rows]))
    if examples := [line for line in (command.epilog or "").splitlines() if line.startswith("gymcp ")]:
        parts.append("```text\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(part for part in parts if part)


def _row(parameter: Parameter) -> str:
    facts = "; ".join(fact.removeprefix("default: ") for fact in parameter.facts)
    return f"| `{_cell(parameter.name)}` | {_cell(_escape(parameter.help))} | {f'`{_cell(facts)}`' if facts else ''} |"


def _escape(text: str) -> str:
    """Text without marks that Markdown would read as its own, outside of code."""
    parts = text.split("`")
    return "`".join(part if number % 2 else _escape_plain(part) for number, part in enumerate(parts))


def _escape_plain(text: str) -> str:
    for mark in ("\\", "*", "_", "[", "]"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
