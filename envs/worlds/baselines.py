"""Proof that a fresh state is clean: it must equal its baseline, which two independent starts have agreed on.

A baseline is the digest that a fresh state must have. The first start of a state opens a witness beside it, in a
sandbox of its own and with another seed, before any action; only if both digests agree do they become the baseline. So
the proof costs one reset more, once for each state and machine. The baseline is kept in gymcp's cache under the digest
of what the state is made from. Afterwards a reset costs one look into a dictionary.

Taking the first two episodes as the two starts would save that reset. But the first episode could not be scored until a
second one had come, and in a run of one trial there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gymcp.aio import keyed_lock
from gymcp.atomic import cache_errors
from gymcp.envs.worlds.baseline_store import baseline_store
from gymcp.errors import DirtyReset


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshState:
    """The state of a server or of a world after its reset, to be proven clean."""

    identity: str
    """Digest of all that the state is made from; the seed is not part of it."""
    key: str
    """Digest of the state."""
    names: Mapping[str, str]
    """Names that the baseline is recorded with, for people who read the store."""
    subject: str
    """Name of the server or world in an error message."""
    advice: str
    """Likely causes, and what to do about them, in an error message."""


async def verify_fresh(fresh: FreshState, open_witness: Callable[[], AbstractAsyncContextManager[str]]) -> None:
    """Compares the state with its baseline, and makes the baseline if there is none.

    `open_witness` starts the same state a second time, with another seed, and yields its key. Several episodes of one
    event loop share one witness. Raises DirtyReset; UsageError if the cache cannot be used.
    """
    with cache_errors():
        expected = baseline_store().get(fresh.identity)
    if expected is None:
        async with keyed_lock(fresh.identity):
            with cache_errors():
                expected = baseline_store().get(fresh.identity)
            if expected is None:
                expected = await _make_baseline(fresh, open_witness)
    if expected != fresh.key:
        raise DirtyReset(_describe(fresh, "the reset is not clean", expected, fresh.key))


async def _make_baseline(fresh: FreshState, open_witness: Callable[[], AbstractAsyncContextManager[str]]) -> str:
    async with open_witness() as witness_key:
        if witness_key != fresh.key:
            raise DirtyReset(_describe(fresh, "two fresh worlds differ", fresh.key, witness_key))
    with cache_errors():
        return baseline_store().add(fresh.identity, fresh.key, fresh.names)


def _describe(fresh: FreshState, problem: str, expected: str, found: str) -> str:
    return f"{fresh.subject}: {problem}: expected {expected}, found {found}. {fresh.advice}"
