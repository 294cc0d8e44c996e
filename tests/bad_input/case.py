"""One row of the table of bad inputs: what the user typed or wrote, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

SECRET = "sk-table-0123456789abcdef"
"""Key of every model endpoint of the table; no command may print it or write it into a file."""

Thing = str | bytes | Callable[[Path], object]
"""Content of a file, or a function that makes the file or folder at a path."""
Given = Mapping[str, Thing]
"""Files and folders in the user's folder, by path."""


@dataclass(frozen=True, slots=True)
class Case:
    """A bad input. After the command no file that was there is lost, and none is new unless `makes` names it."""

    id: str
    typed: str
    """Words after ``gymcp``, as in a shell; ``{model}`` is the address of the endpoint, ``{port}`` a port in use."""
    says: str | tuple[str, ...]
    """Texts that the lines on standard error must hold."""
    _: KW_ONLY
    code: int = 2
    """Exit code, as README and the help of the verb document it."""
    given: Given = field(default_factory=dict)
    model: str = ""
    """Name of the endpoint in `endpoints.ANSWERS` that answers at ``{model}``."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; ``{here}`` is the user's folder."""
    lines: int = 1
    """Lines on standard error."""
    prints: str = ""
    """Text that standard output must hold; it is not asked to be empty."""
    makes: tuple[str, ...] = ()
    """Globs of paths that the command may make."""
    grows: tuple[str, ...] = ()
    """Paths that the command may change; run folders among them keep every episode."""
    plays: bool = False
    """True if the command starts servers, in bubblewrap."""
