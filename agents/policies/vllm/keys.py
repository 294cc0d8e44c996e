"""Keys of the vLLM servers that gymcp has started for this user, by port, in files of the user's cache.

Every user of the machine can reach a server on the loopback, but only this user can read the files.
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


def choose_key(port: int) -> str:
    """A random key, or the key of this user's last server on the port, to which its clients may return."""
    with suppress(OSError, ValueError, TypeError):
        _, key = json.loads(_file(port).read_text(encoding="utf-8"))
        return str(key)
    return secrets.token_urlsafe(32)


@contextmanager
def publish_key(port: int, key: str) -> Iterator[Path]:
    """Write the key to a file that only this user can read; `find_key` finds it there until the context ends."""
    file = _file(port)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.parent.chmod(0o700)
    _write(file, owner(), key)
    try:
        yield file
    finally:
        _write(file, "", key)


def find_key(url: str) -> str | None:
    """The key of a running server that this user's gymcp has started on this machine; None for any other server."""
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
