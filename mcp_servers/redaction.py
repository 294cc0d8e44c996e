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
import re
from collections.abc import Iterable, Iterator, Mapping
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


class Redaction:
    """Replaces secret values by the names of their variables. `redaction_of` makes it."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets`: replacement by value."""
        parts: list[str] = []
        self._folded: list[str] = []
        """Forms of values that are found in upper and lower case."""
        self._exact: list[str] = []
        self._names: dict[str, str] = {}
        for number, (value, name) in enumerate(sorted(secrets.items(), key=lambda pair: -len(pair[0]))):
            folded, exact = _forms(value)
            self._folded += [form.lower() for form in folded]
            self._exact += exact
            self._names[f"s{number}"] = name
            forms = [(form, f"(?i:{re.escape(form)})") for form in folded] + [(form, re.escape(form)) for form in exact]
            forms.sort(key=lambda form: -len(form[0]))
            parts.append(f"(?P<s{number}>{'|'.join(pattern for _, pattern in forms)})")
        self._pattern = re.compile("|".join(parts))

    def text(self, text: str) -> str:
        """The text without the values. Control characters are removed, too, if they have hidden a value."""
        if self._holds(text):
            text = self._pattern.sub(self._replacement, text)
        if not has_controls(text):
            return text
        plain = plain_text(text)
        return self._pattern.sub(self._replacement, plain) if self._holds(plain) else text

    def json(self, value: Json) -> Json:
        """The value with every string in it redacted, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.json(part) for key, part in value.items()}
        return [self.json(part) for part in value] if isinstance(value, list | tuple) else value

    def message(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """A message of the server, redacted. It is searched as one text first and copied only if it holds a value."""
        together = "\n".join(_strings_of(message.model_dump()))
        if not self._holds(together) and not has_controls(together):
            return message
        if isinstance(message, JSONRPCResponse):
            return message.model_copy(update={"result": self.json(message.result)})
        if isinstance(message, JSONRPCError):
            error = message.error
            redacted = {"message": self.text(error.message), "data": self.json(error.data)}
            return message.model_copy(update={"error": error.model_copy(update=redacted)})
        return message.model_copy(update={"params": self.json(message.params)})

    def _holds(self, text: str) -> bool:
        """True if there is anything to replace. This is a search for plain strings, which is fast."""
        lowered = text.lower()
        return any(form in lowered for form in self._folded) or any(form in text for form in self._exact)

    def _replacement(self, match: re.Match[str]) -> str:
        return self._names[match.lastgroup or ""]


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
    """Every string in the value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from _strings_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings_of(part)


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
