"""Redaction: secret values of environment variables are removed from everything that a server sends.

A server that is given a token may repeat it: in a result, a tool's description, an error, its standard error. At the
boundary where messages and standard error enter the harness, each value is replaced by ``${NAME}``, as it is and in the
encodings that programs commonly print. A server without variables costs nothing.

This protects against servers that repeat values. It does not protect against a server that hides a value on purpose,
for which any transformation is enough: docs/security.md lists what is not found.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import html
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, quote_plus

from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

from gymcp.errors import ConfigError, GymcpError
from gymcp.mcp_servers.sanitize import has_controls, plain_text
from gymcp.mcp_servers.variables import is_secret, variable_names
from gymcp.types import Json

MIN_SECRET_CHARS = 8
"""Least characters of a value that is redacted: a shorter one protects nothing, and occurs by chance."""
_MIN_LINE_CHARS = 16
"""Least characters of a line that is redacted by itself, if the value has several lines, such as a key file."""
_SAFE_CHARACTERS = ("", "/", "/:@", "/:@!$&'()*+,;=")
"""Characters that various libraries leave unchanged when they encode a URL."""
_TURN_CHARS = 1_000_000
"""Characters searched before other tasks have a turn, counted for each form: one to three milliseconds."""
_MAX_SLICE_CHARS = 50_000
"""Characters searched at once, unless a value is longer. They may hold thousands of values to replace."""
_STRING_CHARS = 1_000
"""Characters that take as long to search as it takes to walk to one string."""
_FOLDED_LETTERS = (("\u0130", "i"), ("\u0131", "i"), ("\u017f", "s"), ("\u03a3", "\u03c3"), ("\u03c2", "\u03c3"))
"""Letters with more than one lower case, or whose lower case has another length or depends on the letters around."""
T = TypeVar("T")


Steps = Generator[None, None, T]
"""Work in steps of a millisecond or so: other tasks may have a turn at each yield."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of a value that is searched."""

    text: str
    name: str
    """Replacement of the value."""
    in_any_case: bool
    stride: int
    """Least characters from one occurrence to the next, which may overlap it."""


class _Turn:
    """Characters that may still be searched before other tasks have a turn."""

    def __init__(self) -> None:
        self._left = _TURN_CHARS

    def is_over(self, chars: int) -> bool:
        """True if it is the turn of others, now that so many more have been searched."""
        self._left -= chars
        if self._left > 0:
            return False
        self._left = _TURN_CHARS
        return True


class Redaction:
    """Replaces secret values by the names of their variables. `redaction_of` makes it."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets`: replacement by value."""
        forms: dict[tuple[str, bool], _Form] = {}
        for value, name in sorted(secrets.items(), key=lambda pair: -len(pair[0])):
            folded, exact = _forms(value)
            for text, in_any_case in (*((_fold(text), True) for text in folded), *((text, False) for text in exact)):
                forms.setdefault((text, in_any_case), _Form(text, name, in_any_case, _stride(text)))
        self._searched = sorted(forms.values(), key=lambda form: -len(form.text))
        self._overlap = len(self._searched[0].text) - 1
        """Characters behind a slice in which a form that begins in the slice may end."""
        self._slice_chars = max(4 * self._overlap, min(_MAX_SLICE_CHARS, _TURN_CHARS // len(forms)))

    def text(self, text: str) -> str:
        """The text without the values. Control characters are removed, too, if they have hidden a value."""
        return _finish(self._text(text, _Turn()))

    def json(self, value: Json) -> Json:
        """The value with every string in it redacted, keys included."""
        return _finish(self._json(value, _Turn()))

    def message(self, message: JSONRPCMessage) -> Steps[JSONRPCMessage]:
        """A message of the server, redacted. It is searched as a whole first and copied only if it holds a value."""
        turn = _Turn()
        match message:
            case JSONRPCResponse(result=result):
                if (yield from self._is_suspect(result, turn)):
                    return message.model_copy(update={"result": (yield from self._json(result, turn))})
            case JSONRPCError(error=error):
                fields: Json = {"message": error.message, "data": error.data}
                if (yield from self._is_suspect(fields, turn)):
                    redacted = error.model_copy(update=(yield from self._json(fields, turn)))
                    return message.model_copy(update={"error": redacted})
            case _:
                if (yield from self._is_suspect(message.params, turn)):
                    return message.model_copy(update={"params": (yield from self._json(message.params, turn))})
        return message

    def _json(self, value: Json, turn: _Turn) -> Steps[Json]:
        if isinstance(value, str):
            return (yield from self._text(value, turn))
        if isinstance(value, Mapping):
            copy = {}
            for key, part in value.items():
                copy[(yield from self._text(key, turn))] = yield from self._json(part, turn)
            return copy
        if isinstance(value, list | tuple):
            parts = []
            for part in value:
                parts.append((yield from self._json(part, turn)))
            return parts
        return value

    def _text(self, text: str, turn: _Turn) -> Steps[str]:
        if turn.is_over(_STRING_CHARS):
            yield
        text = yield from self._replace(text, turn)
        if not has_controls(text):
            return text
        plain = plain_text(text)
        redacted = yield from self._replace(plain, turn)
        return text if redacted is plain else redacted

    def _replace(self, text: str, turn: _Turn) -> Steps[str]:
        """The text with the names in place of the values, or the text itself if it holds none."""
        parts: list[str] = []
        done = 0
        for start in range(0, len(text), self._slice_chars):
            piece = text[start : start + self._slice_chars + self._overlap]
            for first, end, name in self._find(piece):
                if start + first >= done:
                    parts += (text[done : start + first], name)
                done = max(done, start + end)
            if turn.is_over(len(piece) * len(self._searched)):
                yield
        return "".join((*parts, text[done:])) if parts else text

    def _find(self, piece: str) -> list[tuple[int, int, str]]:
        """(begin, end, name) of each form that begins in a slice; `piece` is the slice with what follows it."""
        folded = _fold(piece)
        found: list[tuple[int, int, str]] = []
        for form in self._searched:
            where = folded if form.in_any_case else piece
            at = where.find(form.text)
            while 0 <= at < self._slice_chars:
                found.append((at, at + len(form.text), form.name))
                at = where.find(form.text, at + form.stride)
        return sorted(found, key=lambda span: (span[0], -span[1]))

    def _is_suspect(self, value: Json, turn: _Turn) -> Steps[bool]:
        """True if a string in the value holds a form, or control characters, which may hide one."""
        batch: list[str] = []
        chars = 0
        for text in _strings_of(value):
            batch.append(text)
            chars += len(text) + _STRING_CHARS
            if chars >= self._slice_chars:
                if (yield from self._is_suspect_text("\n".join(batch), turn)):
                    return True
                batch, chars = [], 0
        return (yield from self._is_suspect_text("\n".join(batch), turn))

    def _is_suspect_text(self, text: str, turn: _Turn) -> Steps[bool]:
        for start in range(0, len(text), self._slice_chars):
            piece = text[start : start + self._slice_chars + self._overlap]
            folded = _fold(piece)
            if has_controls(piece):
                return True
            if any(form.text in (folded if form.in_any_case else piece) for form in self._searched):
                return True
            if turn.is_over(len(piece) * len(self._searched)):
                yield
        return False


def _finish(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _fold(text: str) -> str:
    """The text in lower case, each character in its place, with special letters replaced by the usual ones."""
    if not text.isascii():
        for letter, plain in _FOLDED_LETTERS:
            text = text.replace(letter, plain)
    return text.lower()


def _stride(text: str) -> int:
    return next(shift for shift in range(1, len(text) + 1) if text.startswith(text[shift:]))


def secrets_in(who: str, texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """``${NAME}`` by value, for the variables that are set and that `texts` refer to.

    `texts`: (name of a setting, its text). Raises ConfigError for a secret that is too short to be redacted.
    """
    secrets: dict[str, str] = {}
    for what, text in texts:
        for name in variable_names(text):
            value = os.environ.get(name, "").strip()
            if len(value) >= MIN_SECRET_CHARS:
                secrets[value] = f"${{{name}}}"
            elif value and (is_secret(name) or is_secret(what)):
                raise ConfigError(
                    f"{who}: environment variable '{name}' holds {len(value)} characters: a secret of fewer than"
                    f" {MIN_SECRET_CHARS} cannot be kept out of what is recorded; have a longer one, or, if it is none,"
                    " write the value itself"
                )
    return secrets


def redaction_of(secrets: Mapping[str, str]) -> Redaction | None:
    """The redaction of these values; None if there are none."""
    return _make_redaction(tuple(secrets.items())) if secrets else None


@functools.lru_cache(maxsize=64)
def _make_redaction(secrets: tuple[tuple[str, str], ...]) -> Redaction:
    return Redaction(dict(secrets))


@contextlib.contextmanager
def redact_errors(redaction: Redaction | None) -> Iterator[None]:
    """Redact the messages of gymcp's errors that leave the context."""
    try:
        yield
    except GymcpError as error:
        if redaction is not None:
            error.args = tuple(redaction.text(part) if isinstance(part, str) else part for part in error.args)
        raise


def _strings_of(value: Json) -> Iterator[str]:
    """Every string in the value, keys included, in no particular order."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            yield from part
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


def _forms(value: str) -> tuple[list[str], list[str]]:
    """Forms in which programs print a value: (those in any case, those in exactly this case)."""
    plain = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _MIN_LINE_CHARS)}
    pair = _decode_basic(value)
    if pair is not None:  # HTTP Basic: user and password before the encoding
        plain |= {pair, *(part for part in (pair.partition(":")[2],) if len(part) >= MIN_SECRET_CHARS)}
    folded: set[str] = set()
    exact: set[str] = set()
    for text in plain:
        raw = text.encode("utf-8", "surrogateescape")
        folded |= {text, raw.hex(), html.escape(text), html.escape(text, quote=False)}
        folded |= {quote(raw, safe=safe) for safe in _SAFE_CHARACTERS} | {quote_plus(raw)}
        folded |= {quote(quote(raw, safe=""), safe="")}
        for ascii_only in (True, False):
            once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]
            folded |= {once, twice, once.replace("/", "\\/"), twice.replace("/", "\\\\/")}
        exact |= set(_in_base64(raw))
    return sorted(folded), sorted(exact)


def _in_base64(raw: bytes) -> Iterator[str]:
    """Base64 characters that depend on these bytes alone, for each position in a longer text."""
    for before in range(3):
        coded = base64.b64encode(bytes(before) + raw + bytes(2)).decode()
        first, end = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        yield coded[first:end]
        yield coded[first:end].replace("+", "-").replace("/", "_")


def _decode_basic(value: str) -> str | None:
    """``user:password``, if the value is that in base64 (HTTP Basic); else None."""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return text if ":" in text and text.isprintable() and len(text) >= MIN_SECRET_CHARS else None
