"""Help texts of all verbs: each begins with a verb or a noun."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from gymcp.cli.app import app

BAD_FIRST_WORD = re.compile(r"(Of|What|Who|Whose|Whether|Which|How|Where|When|With|To|In|Also|Only|Those|For|Its)\b")


def help_texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """(name, help text) of a command, of its parameters, and of its sub-commands."""
    yield name, command.help or ""
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            yield f"{name} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
    for sub_name, sub_command in getattr(command, "commands", {}).items():
        yield from help_texts(sub_command, f"{name} {sub_name}")


def test_every_help_text_begins_with_a_verb_or_a_noun_and_ends_with_a_full_stop() -> None:
    texts = dict(help_texts(typer.main.get_command(app), "gymcp"))
    assert [name for name, text in texts.items() if not text or BAD_FIRST_WORD.match(text)] == []
    assert [name for name, text in texts.items() if not text.rstrip().endswith((".", ")"))] == []
