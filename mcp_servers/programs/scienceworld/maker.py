"""Writes ScienceWorld's tasks and splits, and plays upstream's own gold actions; it is no MCP server.

Standard input has one order per line. ``{"splits": true}`` is answered by ``{task: {split: [variations]}}``, any
``{"task": name, "variation": number}`` by what the task's record needs: its description, what is seen at the start, the
gold actions up to the one that solves it, and the score after each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gymcp.mcp_servers.programs.scienceworld.simulator import FULL_SCORE, Simulator

Json = Any

SPLITS = {"train": "Train", "dev": "Dev", "test": "Test"}


def main() -> None:
    simulator = Simulator()
    for line in sys.stdin:
        order = json.loads(line)
        answer = _list_splits(simulator) if "splits" in order else _play(simulator, order["task"], order["variation"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _list_splits(simulator: Simulator) -> Json:
    found = {}
    for task in simulator.list_tasks():
        simulator.load(task, 0)
        found[task] = {ours: simulator.list_variations(theirs) for ours, theirs in SPLITS.items()}
    return found


def _play(simulator: Simulator, task: str, variation: int) -> Json:
    simulator.load(task, variation, gold=True)
    gold = simulator.list_gold()
    simulator.load(task, variation)
    start = simulator.look()
    scores: list[int] = []
    for action in gold:
        simulator.act(action)
        scores.append(simulator.score())
        if simulator.is_over():
            break
    return {
        "description": simulator.describe_task(),
        "start": start,
        "gold": gold[: len(scores)],
        "scores": scores,
        "solved": bool(scores) and scores[-1] == FULL_SCORE,
    }
