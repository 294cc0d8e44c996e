"""The reference of the command line as Markdown, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from gymcp.cli.app import app


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
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [_row(*record) for record in records if record is not None and "--help" not in record[0]]
    help_text = " ".join((command.help or "").split("\f")[0].split())
    parts = [f"## {context.command_path}", _escape(help_text), f"```text\n{usage}\n```"]
    if rows:
        parts.append("\n".join(["| argument, option | meaning | default, bounds |", "|---|---|---|", *rows]))
    if examples := [line for line in (command.epilog or "").splitlines() if line.startswith("gymcp ")]:
        parts.append("```text\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(part for part in parts if part)


def _row(name: str, text: str) -> str:
    text, extra = text[:-1].rsplit("  [", 1) if text.endswith("]") and "  [" in text else (text, "")
    extra = "; ".join(part.removeprefix("default: ") for part in extra.split("; ") if part)
    return f"| `{_cell(name)}` | {_cell(_escape(' '.join(text.split())))} | {f'`{_cell(extra)}`' if extra else ''} |"


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
