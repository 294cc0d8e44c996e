"""Every gymcp command on a page of the documentation has a verb and options that exist.

What the commands do is tested by playing the pages: tests/cli/test_pages.py and the tests that a page names.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from page_blocks import DOCS, ROOT, read_blocks
from typer.core import TyperGroup

from gymcp.cli.app import app


def commands(page: Path) -> Iterator[str]:
    """The gymcp commands of a page's shell blocks, continued lines joined."""
    for block in read_blocks(page):
        if block.language == "sh" and block.mark != "fails":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith("gymcp "):
                    yield line


PAGES = [page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if any(commands(page))]


def parse(words: list[str]) -> None:
    """Parse a command without running it. Raises TyperException if a verb, option or argument does not exist."""
    command: Any = typer.main.get_command(app)
    name: str | None = "gymcp"
    while True:
        context = command.make_context(name, words)
        words = [*context._protected_args, *context.args]
        if not isinstance(command, TyperGroup) or not words:
            return
        name, command, words = command.resolve_command(context, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_can_be_parsed(page: Path, subtests: pytest.Subtests) -> None:
    for command in commands(page):
        with subtests.test(command):
            parse(shlex.split(command, comments=True)[1:])


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Exception, match="no-such"):
        parse(["eval", "bank", "--no-such"])
