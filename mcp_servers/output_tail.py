"""The end of what a program wrote, for an error message: the last whole lines without noise, and a file with all of it.

Noise is what a terminal would not show either, or what says nothing: escape sequences, text that was written over,
bars of progress, and a line that is repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from itertools import groupby
from pathlib import Path

from gymcp.mcp_servers.sanitize import plain_text
from gymcp.paths import gymcp_home

MAX_QUOTE_CHARS = 500
"""Most characters of a program's output that an error message quotes."""
MAX_LOGS = 200
"""Files with the output of programs that failed that are kept; the oldest are removed."""
LONG_CHARS, CUT_CHARS = 10_000, 1_000
"""Characters from which on an output counts as long, and those that are cut off then."""
_FILLED = "█▏▎▍▌▋▊▉━─╸╺▓▒░"
_BAR = re.compile(rf"[|\[][{_FILLED}#=>. -]{{3,}}[|\]]|[{_FILLED}]{{3}}|[#=>]{{5}}")
_PERCENT, _SPINNER = re.compile(r"\d\s?%"), re.compile("[⠀-⣿]")
MAX_BAR_CHARS = 300
"""Characters of the longest line that may be a bar."""


def show_output(output: str) -> str:
    """The output as a terminal shows it at the end: without escape sequences, and without text that was written over.

    The beginning of a long output is cut off: it may be in the middle of a secret, which then would not be recognised.
    """
    output = output if len(output) < LONG_CHARS else output[CUT_CHARS:]
    return plain_text("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in output.split("\n"))).strip()


def describe_output(shown: str, name: str) -> str:
    """Text to add to an error: the log of the program `name`, and its last words; empty if it wrote nothing.

    `shown`: the result of `show_output`, without secrets. There is a log only if the error does not quote all of it.
    """
    words = quote_last_lines(drop_noise(shown))
    if not words:
        return ""
    log = keep_log(shown, name) if words != shown.strip() else None
    return (f"; its log: {log}" if log else "") + f"; its last words: {words}"


def drop_noise(shown: str) -> list[str]:
    """The lines that say something; the last one if none does. A repeated line has the number of times."""
    lines = [line.rstrip() for line in shown.split("\n") if line.strip()]
    kept = [line for line in lines if not _shows_progress(line)] or lines[-1:]
    counted = ((line, sum(1 for _ in same)) for line, same in groupby(kept))
    return [line if count == 1 else f"{line} ({count} times)" for line, count in counted]


def _shows_progress(line: str) -> bool:
    """True for a spinner of braille dots, and for a bar with a percentage."""
    if len(line) > MAX_BAR_CHARS:
        return False
    return bool(_SPINNER.search(line) or (_PERCENT.search(line) and _BAR.search(line)))


def quote_last_lines(lines: list[str], chars: int = MAX_QUOTE_CHARS) -> str:
    """The last whole lines with at most `chars` characters together; the end of a longer last line."""
    text = "\n".join(lines)
    tail = text[-chars:]
    _, newline, whole_lines = tail.partition("\n")
    return whole_lines if newline and len(text) > len(tail) else tail


def keep_log(shown: str, name: str) -> Path | None:
    """A file in the cache with the text, named after its content; None if it cannot be written."""
    content = shown.encode("utf-8", "replace")
    plain = re.sub(r"[^\w-]", "_", name)[:60]
    folder = gymcp_home() / "logs"
    file = folder / f"{plain}-{hashlib.sha256(content).hexdigest()[:12]}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        _remove_oldest(folder)
    except OSError:  # the error that is being described says more than a full disk
        return None
    return file


def _remove_oldest(folder: Path) -> None:
    logs = list(folder.glob("*.log"))
    if len(logs) <= MAX_LOGS:
        return
    with contextlib.suppress(FileNotFoundError):  # another process removes them, too
        for file in sorted(logs, key=lambda log: log.stat().st_mtime)[:-MAX_LOGS]:
            file.unlink(missing_ok=True)
