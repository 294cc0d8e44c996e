"""Notes, labels and verdicts of people on the episodes of a run: ``notes.jsonl`` in its folder.

Every save appends a line with all that one person says of one episode, so an older line is replaced but never lost. A
line that a kill has cut is skipped, and the next one begins on a line of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.store.untrusted_files import open_foreign, read_foreign
from gymcp.types import Json

NOTES_FILE = "notes.jsonl"
NOTES_FORMAT = 1
PASS, FAIL = "pass", "fail"
MAX_NOTE_CHARS = 20_000
"""Characters of a note."""
MAX_LABEL_CHARS = 60
"""Characters of a label, and of a person's name."""
MAX_LABELS = 20
"""Labels of one person on one episode."""
MAX_CRITERIA = 100
MAX_FILE_BYTES = 64_000_000
"""Size of the longest file of notes that is read or appended to."""


class InvalidNote(StoreError):
    """A note cannot be kept as it is; the message says why."""


class NoteChanged(StoreError):
    """The same person's note was changed elsewhere since it was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Everything that one person says of one episode."""

    episode: str
    """Id of the episode."""
    who: str
    at: str = ""
    """UTC, ISO 8601; empty if it was never kept."""
    note: str = ""
    labels: tuple[str, ...] = ()
    verdict: str = ""
    """``pass``, ``fail``, or empty for none."""
    criteria: Mapping[str, str] = field(default_factory=dict)
    """Id of a rubric's point -> ``pass`` or ``fail``."""

    @property
    def is_empty(self) -> bool:
        """True if it says nothing, as one does that was withdrawn."""
        return not (self.note or self.labels or self.verdict or self.criteria)


def read_notes(folder: Path) -> dict[str, dict[str, Note]]:
    """Episode id -> person -> the newest note; {} without a file. Raises StoreError if the file cannot be read."""
    try:
        content = read_foreign(folder, NOTES_FILE, most_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        return {}
    notes: dict[str, dict[str, Note]] = {}
    for line in content.splitlines():
        if (note := _parse(line)) is not None:
            notes.setdefault(note.episode, {})[note.who] = note
    kept = {id: {who: note for who, note in people.items() if not note.is_empty} for id, people in notes.items()}
    return {id: people for id, people in kept.items() if people}


def check_note(note: Note) -> Note:
    """The note with plain line ends, without blanks around it, and without repeated labels. Raises InvalidNote."""
    plain = note.note.replace("\r\n", "\n").replace("\r", "\n").strip()
    if len(plain) > MAX_NOTE_CHARS:
        raise InvalidNote(f"the note has {len(plain):,} characters; the most is {MAX_NOTE_CHARS:,}: shorten it")
    _refuse_controls("the note", plain, allowed="\n\t")
    labels = tuple(dict.fromkeys(filter(None, (label.strip() for label in note.labels))))
    if len(labels) > MAX_LABELS:
        raise InvalidNote(f"{len(labels)} labels; the most is {MAX_LABELS}")
    for label in labels:
        _check_name("the label", label)
    _check_name("the name", note.who)
    if len(note.criteria) > MAX_CRITERIA:
        raise InvalidNote(f"verdicts on {len(note.criteria)} criteria; the most is {MAX_CRITERIA}")
    for verdict in (note.verdict, *note.criteria.values()):
        if verdict not in (PASS, FAIL, ""):
            raise InvalidNote(f"the verdict is {verdict[:40]!r}; have {PASS}, {FAIL}, or empty for none")
    criteria = {name: verdict for name, verdict in note.criteria.items() if verdict}
    return replace(note, note=plain, labels=labels, criteria=criteria)


def append_note(folder: Path, note: Note, *, seen: str) -> Note:
    """Keep the note; returns it with its time. `seen`: the time of the person's note that was shown, empty for none.

    Raises InvalidNote, NoteChanged if the person's note is another one by now, and StoreError if the file cannot be
    written: nothing is changed then.
    """
    note = check_note(note)
    where = f"run folder {folder}: {NOTES_FILE}"
    try:
        with os.fdopen(open_foreign(folder, NOTES_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = _newest(file.read(MAX_FILE_BYTES + 1), note)
            if known.at != seen:
                raise NoteChanged(
                    "your note on this episode was changed in another window: save again to put this one in its place"
                )
            kept = replace(note, at=datetime.now(UTC).isoformat(timespec="microseconds"))
            _append_line(file.fileno(), kept, where)
            return kept
    except OSError as error:
        raise StoreError(f"{where} cannot be written: {error.strerror or error}") from error


def _append_line(file: int, note: Note, where: str) -> None:
    """Append the note in one write; what a full disk cut short is taken back. Raises OSError, StoreError."""
    size = os.fstat(file).st_size
    starts_new = size == 0 or os.pread(file, 1, size - 1) == b"\n"
    line = (b"" if starts_new else b"\n") + json.dumps(_object(note)).encode("ascii") + b"\n"
    if size + len(line) > MAX_FILE_BYTES:
        raise StoreError(f"{where} would be longer than {MAX_FILE_BYTES:,} bytes: move it away to begin a new one")
    try:
        written = os.write(file, line)
        if written < len(line):
            raise OSError(None, "no space is left")
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _newest(content: bytes, note: Note) -> Note:
    """The newest note of the same person on the same episode; one without a time if there is none."""
    newest = Note(episode=note.episode, who=note.who)
    for line in content.splitlines():
        parsed = _parse(line)
        if parsed is not None and (parsed.episode, parsed.who) == (note.episode, note.who):
            newest = parsed
    return newest


def _object(note: Note) -> dict[str, Json]:
    return {
        "format": NOTES_FORMAT,
        "at": note.at,
        "who": note.who,
        "episode": note.episode,
        "note": note.note,
        "labels": list(note.labels),
        "verdict": note.verdict,
        "criteria": dict(note.criteria),
    }


def _parse(line: bytes) -> Note | None:
    """The note of a line; None if it is cut, of a newer format, or was not written by gymcp."""
    try:
        fields = json.loads(line)
        if fields["format"] != NOTES_FORMAT:
            return None
        texts = {name: fields[name] for name in ("at", "who", "episode", "note", "verdict")}
        labels, criteria = fields["labels"], fields["criteria"]
        if not all(isinstance(each, str) for each in (*texts.values(), *labels, *criteria.values())):
            return None
        note = Note(**texts, labels=tuple(labels), criteria=criteria)
        return replace(check_note(note), at=note.at)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidNote):
        return None


def _check_name(what: str, text: str) -> None:
    if not text.strip():
        raise InvalidNote(f"{what} is empty")
    if len(text) > MAX_LABEL_CHARS:
        raise InvalidNote(f"{what} '{text[:20]}…' has {len(text):,} characters; the most is {MAX_LABEL_CHARS}")
    if '"' in text or "," in text:
        raise InvalidNote(f"{what} {text!r} has a quote or a comma: leave it out")
    _refuse_controls(what, text, allowed="")


def _refuse_controls(what: str, text: str, *, allowed: str) -> None:
    """Raise InvalidNote for a control character or a lone surrogate."""
    for at, each in enumerate(text):
        if unicodedata.category(each) in ("Cc", "Cs") and each not in allowed:
            raise InvalidNote(f"{what} has the control character U+{ord(each):04X} at place {at + 1}: leave it out")
