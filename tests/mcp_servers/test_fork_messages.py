"""The messages of the fork server: the table in the spawner is all that both sides need."""

from __future__ import annotations

from typing import Any

import pytest

from gymcp.mcp_servers.forkserver import spawner
from gymcp.mcp_servers.forkserver.failures import compose_message, describe_failure
from gymcp.mcp_servers.forkserver.spawner import (
    MESSAGES,
    CopiesFinished,
    CopyChecked,
    CopyServer,
    Ended,
    LoadProgram,
    StartServer,
    decode_message,
    encode_message,
)


@pytest.mark.parametrize(
    "message",
    [
        LoadProgram(["/srv"], "m", None, "filter", "", 1, 2, False),
        StartServer(number=3, rehearse=True, has_workspace=False),
        Ended(number=3, status=-9),
        CopyChecked(refused="it has 2 threads"),
        CopyServer(),
        CopiesFinished([0, 256]),
    ],
)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    assert decode_message(encode_message(message)) == message
    assert type(decode_message(encode_message(message))) is type(message)


def test_the_table_has_every_message() -> None:
    fds = {"ServerFds", "NestFds", "NestedFds", "CopyFds"}
    tuples = {name for name, value in vars(spawner).items() if hasattr(value, "_fields") and isinstance(value, type)}
    assert tuples - fds == MESSAGES.keys()


@pytest.mark.parametrize(
    "data",
    [b"[", b"7", b"[]", b"null", b"{}", b'{"message": []}', b'{"message": "No"}', b'{"message": "Ended"}', b"\xff"],
)
def test_anything_else_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_message(data)


@pytest.mark.parametrize(
    ("error", "last_words", "says"),
    [
        (TimeoutError(), "", "fork server: does not start: no answer within 20 s"),
        (EOFError(), " \n", "fork server: does not start: EOFError"),
        (
            ValueError("invalid message"),
            "bwrap: no\n",
            "fork server: does not start: invalid message; its last words: bwr",
        ),
    ],
)
def test_no_reason_of_an_error_is_empty(error: Exception, last_words: str, says: str) -> None:
    assert compose_message(f"does not start: {describe_failure(error)}", last_words).startswith(says)
    assert not compose_message(f"does not start: {describe_failure(error)}", last_words).endswith(": ")


def test_no_data_is_the_end() -> None:
    assert decode_message(b"") is None
