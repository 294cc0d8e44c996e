"""``gymcp doctor --ray``: check every node of a Ray cluster."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict

from gymcp.cli.machine.doctor import Finding, check_machine, passes, print_findings
from gymcp.cli.output import console, print_json
from gymcp.errors import GymcpError
from gymcp.scale.agreement import compare_facts, describe_machine
from gymcp.scale.ray_calls import connect_ray
from gymcp.scale.ray_cluster import RayNode, list_nodes


def execute(address: str, *, as_json: bool) -> None:
    """Check all nodes that would play episodes. Exit code 1 if one lacks a requirement or differs from this machine."""
    with connect_ray(address):
        nodes = list_nodes()
        checked = asyncio.run(_check_all(nodes))
    findings = {node.name: found for node, found in zip(nodes, checked, strict=True)}
    if as_json:
        print_json({"nodes": {name: [asdict(finding) for finding in found] for name, found in findings.items()}})
    else:
        for name, found in findings.items():
            console.print(f"node {name}", markup=False, highlight=False)
            print_findings(found)
    if not findings or not all(map(passes, findings.values())):
        if not findings and not as_json:
            console.print("the cluster has no node with a CPU")
        sys.exit(1)


async def _check_all(nodes: list[RayNode]) -> list[list[Finding]]:
    return await asyncio.gather(*map(_check, nodes))


async def _check(node: RayNode) -> list[Finding]:
    """Findings of the node itself, after its agreement with this machine."""
    try:
        facts = await node.describe()
        different = compare_facts(describe_machine(), facts)
        detail = "; ".join(different) or "the same gymcp and Python as on this machine"
        agreement = Finding(what="agreement", works=not different, detail=detail)
        return [agreement, *await node.call(check_machine)]
    except GymcpError as error:
        return [Finding(what="worker", works=False, detail=str(error))]
