"""``gymcp connect``: standard streams relayed to an MCP server over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.http_headers import check_headers, is_http_address
from gymcp.mcp_servers.programs.stdio_relay import KEY_VARIABLE, URL_VARIABLE, Relay


def execute(url: str | None, token: Path | None) -> None:
    """Relay until standard input ends. Raises ConfigError."""
    address = url or os.environ.get(URL_VARIABLE)
    if not address:
        raise ConfigError(f"connect: no address: give a URL, or set {URL_VARIABLE}")
    if not is_http_address(address):
        raise ConfigError(f"connect: '{address}' is no address of an MCP server: write http://HOST:PORT/PATH")
    key = os.environ.get(KEY_VARIABLE, "") if token is None else _read_token(token)
    check_headers("connect", {"Authorization": key})
    Relay(address, key, sys.stdout.buffer).run(sys.stdin.buffer)


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"connect: --token {file}: {why}") from error
