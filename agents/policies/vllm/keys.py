"""The keys of the vLLM servers that gymcp has started for this user, by port, for as long as they run.

A server on the loopback can be reached by every user of the machine; a file of this user's cache cannot.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from gymcp.atomic import replace_file
from gymcp.paths import gymcp_home
from gymcp.process_owner import is_alive, owner

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def key_for(port: int) -> str:
    """A key that nobody can guess; that of this user's last server on the port, whose clients may come back to it."""
    with suppress(OSError, ValueError, TypeError):
        _, key = json.loads(_file(port).read_text(encoding="utf-8"))
        return str(key)
    return secrets.token_urlsafe(32)


@contextmanager
def kept_key(port: int, key: str) -> Iterator[Path]:
    """The file, readable by this user alone, in which `find_key` finds the key until the end of the context."""
    file = _file(port)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.parent.chmod(0o700)
    _write(file, owner(), key)
    try:
        yield file
    finally:
        _write(file, "", key)


def find_key(url: str) -> str | None:
    """The key of a server on this machine that this user's gymcp has started; None for any other."""
    with suppress(OSError, ValueError, TypeError):
        parts = urlsplit(url)
        if parts.hostname in _LOOPBACK and parts.port is not None:
            tag, key = json.loads(_file(parts.port).read_text(encoding="utf-8"))
            return str(key) if is_alive(tag) else None
    return None


def _write(file: Path, tag: str, key: str) -> None:
    with replace_file(file, mode=0o600) as written:
        written.write(json.dumps([tag, key]).encode())


def _file(port: int) -> Path:
    return gymcp_home() / "vllm" / "keys" / f"{port}.json"
