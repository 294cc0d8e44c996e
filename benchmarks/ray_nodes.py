"""A Ray cluster on loopback, as a program: a head that plays nothing, and nodes of one CPU each.

``ray_nodes.py NODES``: a JSON list with the settings of each node, such as its resources and environment variables.
Prints the address and the process ids of the nodes, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymcp.mcp_servers.sandbox.proctree import find_roots, read_processes

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment variables with which Ray calls this machine 127.0.0.1, and tells its makers nothing."""
STORE_BYTES = 80 << 20
"""Size of a node's object store: Ray accepts no less than 75 MB."""
END_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A cluster that runs."""

    address: str
    pids: tuple[int, ...]
    """Ray's own process on each node."""
    environment: Mapping[str, str]
    """Environment variables of programs that talk to the cluster."""

    def kill(self, node: int) -> None:
        """End the node as a power cut does: Ray's process, its worker, and everything that they have started."""
        for pid in (self.pids[node], *descendants(self.pids[node])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The process's children and theirs."""
    return [other for other in find_roots(read_processes(), [pid], {}) if other != pid]


@contextlib.contextmanager
def run_cluster(
    environments: Sequence[Mapping[str, str]], settings: Sequence[Mapping[str, object]] = ()
) -> Iterator[RayCluster]:
    """A cluster with a node for each of the environments; ends with everything that it has started.

    `settings`: further settings of each node, such as ``{"resources": {"policy": 1}, "labels": {"zone": "a"}}``.
    """
    more = settings or [{}] * len(environments)
    nodes = [{"env_vars": dict(variables), **own} for variables, own in zip(environments, more, strict=True)]
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as folder:  # sockets have short paths
        environment = {**os.environ, **LOOPBACK, "RAY_TMPDIR": folder}
        command = [sys.executable, __file__, json.dumps(nodes)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the cluster did not start"
            told = json.loads(line)
            yield RayCluster(address=told["address"], pids=tuple(told["pids"]), environment=environment)
        finally:
            left = descendants(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_S)
            process.kill()
            process.wait()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def main() -> None:
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - other programs import this module without Ray

    settings = json.loads(sys.argv[1])
    common = {"object_store_memory": STORE_BYTES, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    output, sys.stdout = sys.stdout, sys.stderr
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    nodes = [cluster.add_node(**{"num_cpus": 1, **common, **own}) for own in settings]
    pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "pids": pids}), file=output, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
