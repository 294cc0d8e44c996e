"""Each kind of state has a tracker, which alone decides what a key means and which errors are the agent's doing."""

from __future__ import annotations

import hashlib

import pytest

from gymcp.errors import ServerLimitExceeded, Undigestible
from gymcp.mcp_servers.native.runtime import STATE_UNAVAILABLE, canonical_json
from gymcp.mcp_servers.sessions.state_trackers import (
    CallLogTracker,
    DeclaredTracker,
    StatelessTracker,
    StateTracker,
    make_tracker,
)
from gymcp.mcp_servers.spec import FileState, ServerSpec, StateSource
from gymcp.mcp_servers.transports.messages import TOO_LARGE


@pytest.mark.parametrize(
    ("state", "kind", "is_observable", "key_identifies_state"),
    [
        ("declared", DeclaredTracker, True, True),
        ("opaque", CallLogTracker, False, False),
        ("stateless", StatelessTracker, False, True),
    ],
)
def test_every_state_has_its_tracker(
    state: StateSource, kind: type[StateTracker], is_observable: bool, key_identifies_state: bool
) -> None:
    tracker = make_tracker(ServerSpec(name="s", state=state))
    assert type(tracker) is kind
    assert (tracker.is_observable, tracker.key_identifies_state) == (is_observable, key_identifies_state)


def test_a_state_in_files_needs_a_digester() -> None:
    with pytest.raises(TypeError, match="server 's': the state in its files needs a digester"):
        make_tracker(ServerSpec(name="s", state=FileState()))


def test_the_log_of_calls_is_their_canonical_json_and_a_fork_goes_on_alone() -> None:
    tracker = CallLogTracker()
    tracker.log_call("add", {"b": 1, "a": 2})
    copy = tracker.fork()
    copy.log_call("add", {})
    first, second = canonical_json(["add", {"a": 2, "b": 1}]), canonical_json(["add", {}])
    assert tracker.key == hashlib.sha256(first.encode()).hexdigest()
    assert copy.key == hashlib.sha256((first + second).encode()).hexdigest()


@pytest.mark.parametrize(
    ("tracker", "stage", "code", "error"),
    [
        (DeclaredTracker(), "setup", STATE_UNAVAILABLE, Undigestible),
        (DeclaredTracker(), "tool 'x'", TOO_LARGE, ServerLimitExceeded),
        (DeclaredTracker(), "list", TOO_LARGE, None),
        (CallLogTracker(), "tool 'x'", TOO_LARGE, None),
        (StatelessTracker(), "tool 'x'", STATE_UNAVAILABLE, None),
    ],
)
def test_only_a_declared_state_can_be_too_large_by_the_agents_doing(
    tracker: StateTracker, stage: str, code: int, error: type[Exception] | None
) -> None:
    assert tracker.error_class(stage, code) is error
