"""The file of the memory server: a graph as lines of JSON."""

from __future__ import annotations

import json
from typing import Any

from gymcp.evaluators.graders import final_files
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Score, Task, Trajectory

FILE = "memory.jsonl"
Graph = dict[str, Any]
"""``{"entities": {name: [type, [observation]]}, "relations": [[from, relation, to]]}``."""


def copy_graph(graph: Graph) -> Graph:
    copied: Graph = json.loads(json.dumps(graph))
    return copied


def write_graph(graph: Graph) -> str:
    """The text of the file, as the server writes it."""
    rows = [
        {"type": "entity", "name": name, "entityType": kind, "observations": observations}
        for name, (kind, observations) in graph["entities"].items()
    ]
    rows += [
        {"type": "relation", "from": source, "to": target, "relationType": kind}
        for source, kind, target in graph["relations"]
    ]
    return "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)


def read_graph(text: str) -> Graph:
    """The graph in the file, sorted: neither the order of lines nor that of observations means anything.

    Raises ValueError, KeyError or TypeError if the text is no graph.
    """
    graph: Graph = {"entities": {}, "relations": []}
    for line in filter(None, text.split("\n")):  # not by splitlines: JSON may hold other ends of lines in its texts
        row = json.loads(line)
        if row["type"] == "entity":
            graph["entities"][row["name"]] = [row["entityType"], sorted(row["observations"])]
        else:
            graph["relations"].append([row["from"], row["relationType"], row["to"]])
    graph["relations"].sort()
    return graph


def graph_equals(*, target_key: str | None = None) -> Grader:
    """A grader that gives 1 if the graph in the server's file is the target, in any order of lines and observations."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        text = final_files(trajectory, states).get(FILE)
        if not isinstance(text, str):
            return Score(value=0.0, reason=f"at the end {FILE} is missing, too large to be recorded, or no text")
        try:
            graph = read_graph(text)
        except (ValueError, KeyError, TypeError) as error:
            return Score(value=0.0, reason=f"at the end {FILE} is no graph: {error}")
        difference = first_difference(graph, target_of(task, target_key))
        return Score(value=float(difference is None), reason=f"in the graph {difference or 'all is right'}")

    return grade
