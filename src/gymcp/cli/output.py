"""Print results; every string passes through this module before it reaches a terminal.

`clean_output` replaces standard output and standard error by a `CleanStream`: prints, logs, warnings and tracebacks
come out with their unseen characters spelt out. Only `OutputConsole` writes past it: it cleans text before it adds
colours, and it interprets no markup.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterable
from typing import IO, Any, TextIO

from rich.console import (
    Console,  # noqa: TID251 - all others are made from this one
    ConsoleOptions,
    HighlighterType,
    JustifyMethod,
    OverflowMethod,
    RenderableType,
)
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from gymcp.types import Json
from gymcp.visible_text import one_line, visible

MAX_LINE_CHARS = 400
"""Characters of untrusted text that are printed on one line."""
LINE_START_CHARS = 150
"""Characters of a longer text that are printed from its beginning; the others are from its end."""
USER_MODULES = ("gymcp_env_", "gymcp_grader_", "gymcp_agent_", "gymcp_preset_")
"""Beginnings of the names under which files of the user are imported."""
_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")

log = logging.getLogger("gymcp")


class CleanStream:
    """A text stream that spells out control and unseen characters, and replaces characters that its encoding lacks."""

    def __init__(self, stream: TextIO, *, colours: bool = False) -> None:
        self.stream = stream
        self._colours = colours
        if not colours and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    @property
    def rich_proxied_file(self) -> CleanStream:
        """Stream for consoles of other libraries: it keeps their colours."""
        return CleanStream(self.stream, colours=self.stream.isatty())

    def write(self, text: str) -> int:
        if self._colours:
            parts = _COLOURS.split(text)
            parts[::2] = map(visible, parts[::2])
            self.stream.write("".join(parts))
        else:
            self.stream.write(visible(text.replace("\r\n", "\n")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def clean_output() -> None:
    """Make standard output and standard error `CleanStream`s until the process ends."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanStream):
            setattr(sys, name, CleanStream(stream))


class OutputConsole(Console):
    """Console of rich without markup and emoji codes; text is cleaned before it is measured and styled."""

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, **settings)

    @property
    def file(self) -> IO[str]:
        """The stream below a `CleanStream`, because colours and cursor movements are the console's own."""
        stream: Any = super().file
        return stream.stream if isinstance(stream, CleanStream) else stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        return super().render_str(
            visible(text),
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=emoji,
            markup=markup,
            highlight=highlight,
            highlighter=highlighter,
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console = OutputConsole()


def print_json(value: Json) -> None:
    """Print one JSON object on one line of standard output."""
    sys.stdout.write(json.dumps(value) + "\n")


def in_one_line(text: str) -> str:
    """Untrusted text as one line that is safe to print on a terminal.

    A long text is cut in the middle: its beginning says who failed, and its end has the last words.
    """
    line = one_line(text)
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:LINE_START_CHARS]} [...] {line[LINE_START_CHARS - MAX_LINE_CHARS :]}"


def print_traceback(error: BaseException) -> None:
    """Print the traceback on standard error if ``--debug`` was given."""
    if log.isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)


def hint_at_debug(error: BaseException) -> str:
    """End of a message about an error of the user's code; empty for other errors, and if ``--debug`` was given."""
    return "" if log.isEnabledFor(logging.DEBUG) or not _is_of_user_code(error) else "; gymcp --debug shows where"


def _is_of_user_code(error: BaseException) -> bool:
    """True if the error, or one that caused it, was raised in a file that is neither gymcp's nor a library's."""
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    names = [
        str(frame.f_globals.get("__name__", "")).partition(".")[0]
        for each in chain
        for frame, _ in traceback.walk_tb(each.__traceback__)
    ]
    return any(name.startswith(USER_MODULES) for name in names)
