"""What environment variables stand for, kept out of everything that a server says.

A server that is given a token may repeat it: in a result, a tool's description, an error, its last words. At the
boundary where messages and last words enter the harness each value becomes ``${NAME}`` again, as it is and in the
encodings that programs print by themselves. A server that has no variables costs nothing.

This holds against servers that repeat what they were given. It does not hold against one that hides it on purpose, for
which any transformation will do: docs/security.md says what is not found.
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
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.mcp_servers.variables import is_secret, variable_names
from gymcp.types import Json

MIN_SECRET_CHARS = 8
"""Characters: what is shorter keeps nothing, and occurs by chance."""
_SHORTEST_LINE = 16
"""Characters of a line of a value with several, such as a key file, that is kept out by itself."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SAFE_CHARACTERS = ("", "/", "/:@", "/:@!$&'()*+,;=")
"""What various libraries leave as it is when they encode a URL."""


class Redaction:
    """Replaces values by what is written in their place. Made by `redaction_of`."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets`: value -> what to write instead."""
        parts: list[str] = []
        self._folded: list[str] = []
        """Forms that are found in whatever case they are written."""
        self._exact: list[str] = []
        self._names: dict[str, str] = {}
        for number, (value, name) in enumerate(sorted(secrets.items(), key=lambda pair: -len(pair[0]))):
            folded, exact = _forms(value)
            self._folded += [form.lower() for form in folded]
            self._exact += exact
            self._names[f"s{number}"] = name
            forms = [(form, f"(?i:{re.escape(form)})") for form in folded] + [(form, re.escape(form)) for form in exact]
            forms.sort(key=lambda form: -len(form[0]))
            parts.append(f"(?P<s{number}>{'|'.join(written for _, written in forms)})")
        self._pattern = re.compile("|".join(parts))

    def text(self, text: str) -> str:
        """The text without the values; without its control characters, too, if only they have hidden one."""
        if self._holds(text):
            text = self._pattern.sub(self._written, text)
        if _CONTROL.search(text) is None:
            return text
        plain = plain_text(text)
        return self._pattern.sub(self._written, plain) if self._holds(plain) else text

    def json(self, value: Json) -> Json:
        """The same with every string in it, keys as well."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.json(part) for key, part in value.items()}
        return [self.json(part) for part in value] if isinstance(value, list | tuple) else value

    def message(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """A message of the server's. Most hold no value: they are looked through as one text, and are not copied."""
        together = "\n".join(_strings_of(message.model_dump()))
        if not self._holds(together) and _CONTROL.search(together) is None:
            return message
        if isinstance(message, JSONRPCResponse):
            return message.model_copy(update={"result": self.json(message.result)})
        if isinstance(message, JSONRPCError):
            error = message.error
            said = {"message": self.text(error.message), "data": self.json(error.data)}
            return message.model_copy(update={"error": error.model_copy(update=said)})
        return message.model_copy(update={"params": self.json(message.params)})

    def _holds(self, text: str) -> bool:
        """Whether there is anything to replace: a search for plain strings, which is fast."""
        lowered = text.lower()
        return any(form in lowered for form in self._folded) or any(form in text for form in self._exact)

    def _written(self, found: re.Match[str]) -> str:
        return self._names[found.lastgroup or ""]


def secrets_in(who: str, texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Value -> ``${NAME}`` of the set variables that `texts` refer to; each text comes with what it is the value of.

    Raises ConfigError for a secret that is too short to be kept out.
    """
    found: dict[str, str] = {}
    for what, text in texts:
        for name in variable_names(text):
            value = os.environ.get(name, "").strip()
            if len(value) >= MIN_SECRET_CHARS:
                found[value] = f"${{{name}}}"
            elif value and (is_secret(name) or is_secret(what)):
                raise ConfigError(
                    f"{who}: environment variable '{name}' holds {len(value)} characters: a secret of fewer than"
                    f" {MIN_SECRET_CHARS} cannot be kept out of what is recorded; have a longer one, or, if it is none,"
                    " write the value itself"
                )
    return found


def redaction_of(secrets: Mapping[str, str]) -> Redaction | None:
    """None if there is nothing to keep out."""
    return _made(tuple(secrets.items())) if secrets else None


@functools.lru_cache(maxsize=64)
def _made(secrets: tuple[tuple[str, str], ...]) -> Redaction:
    return Redaction(dict(secrets))


@contextlib.contextmanager
def redact_errors(redaction: Redaction | None) -> Iterator[None]:
    """Errors of gymcp leave the context without the values."""
    try:
        yield
    except GymcpError as error:
        if redaction is not None:
            error.args = tuple(redaction.text(part) if isinstance(part, str) else part for part in error.args)
        raise


def _strings_of(value: Json) -> Iterator[str]:
    """Every string in it, keys as well."""
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
    """How programs print a value: (in any case, in exactly this one)."""
    plain = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _SHORTEST_LINE)}
    pair = _decoded(value)
    if pair is not None:  # of Basic: user and password as they were
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
    """The characters that stand for the bytes alone, wherever in a longer text they begin."""
    for before in range(3):
        coded = base64.b64encode(bytes(before) + raw + bytes(2)).decode()
        first, end = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        yield coded[first:end]
        yield coded[first:end].replace("+", "-").replace("/", "_")


def _decoded(value: str) -> str | None:
    """``user:password`` of a value that is that in base64."""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return text if ":" in text and text.isprintable() and len(text) >= MIN_SECRET_CHARS else None
