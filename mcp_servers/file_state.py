"""The state of a server in its files: what is digested, what is left out, and what is recorded."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from gymcp.errors import ConfigError

MAX_RECORDED_BYTES = 16_000_000
"""Largest `FileState.recorded_bytes`: a recorded state is one line of JSON, and the store reads 128 MB of it."""
MAX_PATTERN_CHARS = 2_000

MaskKind = Literal["ignore", "zip_timestamps", "regex", "json_pointer"]
ReaderKind = Literal["csv", "docx", "json", "sqlite", "xlsx"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DigestLimits:
    """Limits beyond which a state has no digest. An episode that exceeds one ends and is graded on the state before."""

    total_bytes: int = 512_000_000
    """Bytes of all files together; for a database a quarter of that."""
    entries: int = 100_000
    depth: int = 64
    seconds: float = 20.0

    def to_options(self) -> dict[str, float]:
        """The limits under the names that the helper in the sandbox knows."""
        return {"bytes": self.total_bytes, "entries": self.entries, "depth": self.depth, "seconds": self.seconds}

    def __repr__(self) -> str:
        """The limits as code, for digests of environments: with the names under which they were first recorded."""
        return f"DigestLimits({', '.join(f'{name}={value!r}' for name, value in self.to_options().items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A part of files that differs from run to run, and so counts neither for the digest nor for the record.

    Raises ConfigError for a kind that does not exist, or a pattern that cannot be applied.
    """

    files: str
    """Pattern of paths below `FileState.path`, such as ``*.xlsx``; an asterisk matches slashes, too."""
    kind: MaskKind = "ignore"
    """ignore: the whole file or folder. zip_timestamps: the times of a zip archive's members, and the times of creation
    and change in an Office document. regex: every match of `pattern` in a text. json_pointer: the value in a JSON
    document to which `pattern` points."""
    pattern: str = ""
    """For regex: the regular expression, in which ^ and $ match at lines. For json_pointer: the pointer (RFC 6901), in
    which ``*`` stands for every key or item, such as ``/orders/*/id``."""

    def __post_init__(self) -> None:
        who = f"mask of '{self.files}'"
        _check_kind(who, self.files, self.kind, get_args(MaskKind))
        if (self.kind in ("regex", "json_pointer")) != bool(self.pattern):
            raise ConfigError(f"{who}: kind '{self.kind}' {'takes no pattern' if self.pattern else 'needs a pattern'}")
        if len(self.pattern) > MAX_PATTERN_CHARS:
            raise ConfigError(f"{who}: its pattern is longer than {MAX_PATTERN_CHARS} characters")
        if self.kind == "json_pointer" and not self.pattern.startswith("/"):
            raise ConfigError(f"{who}: the pointer '{self.pattern}' does not begin with a slash")
        if self.kind == "regex":
            _check_regex(who, self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """A reader for files: what it returns is recorded instead of their bytes, so that graders can use it offline.

    Raises ConfigError for a kind that does not exist.
    """

    files: str
    """Pattern of paths below `FileState.path`, such as ``*.xlsx``; an asterisk matches slashes, too."""
    kind: ReaderKind
    """csv: rows. docx: paragraphs and tables. json: the value. sqlite: columns and rows of each table. xlsx: the cells
    of each sheet. docs/adding-a-server.md shows what each returns."""

    def __post_init__(self) -> None:
        _check_kind(f"reader of '{self.files}'", self.files, self.kind, get_args(ReaderKind))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileState:
    """The server's state is the files below /workspace when a call returns.

    A task's ``initial_state`` is then ``{"files": ..., "commands": ...}`` (`gymcp.mcp_servers.workspaces.seeds`).
    Raises ConfigError for a setting that is out of its range.
    """

    kind: Literal["workspace", "sqlite", "git"] = "workspace"
    """workspace: all files. sqlite: schema and rows of a database. git: HEAD, refs, index and work tree."""
    path: str = "."
    """Path of the folder, database or repository below /workspace."""
    masks: tuple[str | Mask, ...] = ()
    """Parts that differ from run to run. A text is the pattern of paths below `path` that are left out as a whole, such
    as ``*.log``."""
    limits: DigestLimits = field(default_factory=DigestLimits)
    recorded_file_bytes: int = 1_000_000
    """Largest file whose content is recorded, in bytes; of a larger file, size and hash are recorded. It is also the
    longest value of a reader, as JSON."""
    recorded_bytes: int = 4_000_000
    """Most bytes of all contents in one recorded state, and of all values of readers, the smallest files first."""
    readers: tuple[FileReader, ...] = ()
    """Readers of files; for each file the first one counts that matches its path."""

    def __post_init__(self) -> None:
        for name in ("masks", "readers"):  # lists would make the state unhashable
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, most in (("recorded_bytes", MAX_RECORDED_BYTES), ("recorded_file_bytes", self.recorded_bytes)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"FileState: {name} is {getattr(self, name)}, not a number from 0 to {most}")
        if self.kind == "sqlite" and (self.masks or self.readers):
            raise ConfigError("FileState: a database has no masks and no readers: its rows are recorded as they are")

    def to_options(self) -> dict[str, Any]:
        """The settings as the helper in the sandbox reads them (`programs/digest/server.py`)."""
        return {**asdict(self), "limits": self.limits.to_options()}

    def __repr__(self) -> str:
        """The settings as code, for digests of environments: a later setting is named only if it is not the default."""
        first = ("kind", "path", "masks", "limits")
        default: dict[str, Any] = {each.name: each.default for each in fields(self)}
        names = [name for name in default if name in first or getattr(self, name) != default[name]]
        return f"FileState({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _check_kind(who: str, files: str, kind: str, kinds: tuple[str, ...]) -> None:
    if kind not in kinds:
        raise ConfigError(f"{who}: no kind '{kind}'; have {', '.join(kinds)}")
    if not files or files.startswith(("/", "./")):
        raise ConfigError(f"{who}: a pattern of paths below the state's folder is needed, such as *.xlsx")


def _check_regex(who: str, pattern: str) -> None:
    try:
        expression = re.compile(pattern, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{who}: '{pattern}' is not a regular expression: {error}") from error
    if expression.search("") is not None:
        raise ConfigError(f"{who}: '{pattern}' matches the empty text, so it would mask nothing everywhere")
