"""Calls to actors of Ray that always end, the connection to a cluster, and the machines in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from gymcp.errors import ConfigError, GymcpError, NodeLost
from gymcp.scale.plan import ClusterNode

CONNECT_S = 10.0
"""Seconds until the port of the cluster answers."""
PARENT_POLL_S = 1.0
"""Seconds between two looks at the process of Ray that started an actor."""
SHORT_ID = 8
"""Characters of a node's id in its name: several nodes may share a host."""


async def await_answer(answer: Any, timeout_s: float) -> Any:
    """The result of a call of an actor. Raises NodeLost if there is none, GymcpError as the actor does."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(answer.future())
    except TimeoutError:
        raise NodeLost(f"no answer for {timeout_s:g} s, though Ray calls it alive") from None
    except RayTaskError as error:
        if isinstance(error.cause, GymcpError):
            raise error.cause from None
        raise NodeLost(f"its worker raised {type(error.cause).__name__}: {error.cause}") from error
    except RayError as error:
        raise NodeLost(_describe_death(error)) from error


def _describe_death(error: RayError) -> str:
    """One sentence about an actor that is gone; Ray's own message has many lines."""
    if "ModuleNotFoundError" in str(error):
        return "gymcp, or what it needs, is not installed there"
    if isinstance(error, ActorUnavailableError):
        return "its worker cannot be reached"
    if isinstance(error, ActorDiedError):
        return "its worker has died"
    return f"Ray says {type(error).__name__}"


def end_with_parent() -> None:
    """End this process once Ray's own process of the node has ended: Ray's check takes half a minute, and may hang."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)  # the servers end with it


def list_cluster() -> Sequence[ClusterNode]:
    """All nodes of the cluster that live."""
    return [
        ClusterNode(
            id=row["NodeID"],
            name=f"{row['NodeManagerHostname']}/{row['NodeID'][:SHORT_ID]}",
            resources=dict(row["Resources"]),
            labels=dict(row.get("Labels") or {}),
        )
        for row in ray.nodes()
        if row["Alive"]
    ]


def find_own_node() -> str:
    """Id of the node of this process, which is connected."""
    return str(ray.get_runtime_context().get_node_id())


@contextlib.contextmanager
def connect_ray(address: str) -> Iterator[None]:
    """Connect to the cluster at ``HOST:PORT``, or to the one that `auto` finds on this machine. Raises ConfigError."""
    if "://" in address:
        raise ConfigError(f"--ray {address}: start gymcp on a node of the cluster, with --ray auto or HOST:PORT")
    _check_port(address)
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # pages of a dead node's own log; the loss is told in one line
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="gymcp")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"--ray {address}: {_describe_refusal(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _describe_refusal(error: Exception) -> str:
    """One sentence about a cluster that Ray does not connect to, with all lines of Ray's message."""
    says = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if "Version mismatch" in says:
        return f"{says}; driver and nodes need the same versions, that of Python also to the patch level"
    if isinstance(error, ConnectionError) and "multiple" not in says:
        return f"no cluster can be reached: {says}; start one: ray start --head"
    return f"Ray does not connect: {says}"


def _check_port(address: str) -> None:
    """Raise ConfigError if nothing listens at ``HOST:PORT``, which takes Ray minutes to find out."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray {address}: is no address; give HOST:PORT, as `ray start --head` prints it, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        why = f"no cluster there: {error.strerror or error}"
        raise ConfigError(f"--ray {address}: {why}; start one: ray start --head") from error
