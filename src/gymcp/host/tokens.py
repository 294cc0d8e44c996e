"""Tokens: one of the host, which clients have, and one for each episode, which its agent has."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from gymcp.errors import ConfigError

TOKEN_VARIABLE = "GYMCP_HOST_TOKEN"
MIN_TOKEN_CHARS = 16
_SECRET_BYTES = 24


def make_episode_token(episode: str) -> str:
    """A new token that names its episode and cannot be guessed."""
    return f"{episode}.{secrets.token_urlsafe(_SECRET_BYTES)}"


def episode_named_by(token: str) -> str:
    """Id of the episode that a token claims to be for."""
    return token.partition(".")[0]


def read_presented_token(headers: Mapping[str, str]) -> str:
    """The token of a request; empty if it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def read_service_token(file: Path | None, variable: str | None) -> str | None:
    """The host's token from a file or, without one, from the environment variable; None if there is neither.

    Raises ConfigError, which does not show the token, for one that is short or that no header can carry.
    """
    where = f"--token-file {file}" if file is not None else f"${TOKEN_VARIABLE}"
    if file is not None:
        try:
            text: str | None = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"host: {where}: cannot be read: {error}") from error
    else:
        text = variable
    if text is None:
        return None
    token = text.strip()
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"host: {where}: holds no token: it has characters that no header can carry")
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"host: {where}: holds a token of {len(token)} characters; {MIN_TOKEN_CHARS} are the least: make one with"
            " `openssl rand -hex 32`"
        )
    return token
