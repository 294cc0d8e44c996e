"""Calls that failed because a server could not reach the network: a fact about the sandbox, not about the agent."""

from __future__ import annotations

import re

from gymcp.types import ToolResult

SEARCHED_CHARS = 4_000
"""Characters at the beginning and at the end of a result in which the words are looked for."""
_WORDS = re.compile(
    r"temporary failure in name resolution|name or service not known|nodename nor servname provided|"
    r"no address associated with hostname|network is unreachable|no route to host|could not resolve host|"
    r"failed to resolve|getaddrinfo|dns error|net::ERR_(?:NAME_NOT_RESOLVED|INTERNET_DISCONNECTED|ADDRESS_UNREACHABLE)|"
    r"\b(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH|EHOSTUNREACH)\b",
    re.IGNORECASE,
)
"""Words of resolvers, sockets, curl, node and browsers for a host that cannot be reached."""


def lacks_network(result: ToolResult) -> bool:
    """True for an error result that speaks of a network which is not there."""
    return result.is_error and speaks_of_no_network(result.content)


def speaks_of_no_network(error: str) -> bool:
    """True if the text of an error says that a host could not be reached."""
    return any(_WORDS.search(part) for part in (error[:SEARCHED_CHARS], error[-SEARCHED_CHARS:]))
