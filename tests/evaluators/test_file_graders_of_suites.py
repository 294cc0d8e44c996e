"""Graders of generated suites: what an agent can do to a file or a repository scores 0, and fails no grader."""

from __future__ import annotations

import pytest
from trajectories import verdict

from gymcp.envs.suites.generation.git_objects import repository_equals
from gymcp.envs.suites.generation.memory_graph import FILE, Graph, graph_equals, write_graph
from gymcp.types import Json

GRAPH: Graph = {"entities": {"tea": ["drink", ["is\u2028hot", "is\x85black"]]}, "relations": []}


def files(text: str | None) -> Json:
    return {"files": {} if text is None else {FILE: {"type": "file", "mode": "644", "text": text}}}


def test_a_graph_whose_texts_hold_ends_of_lines_is_read_as_the_server_wrote_it() -> None:
    written = write_graph(GRAPH).replace("\\u2028", "\u2028").replace("\\u0085", "\x85")  # as JavaScript writes JSON
    target = {"entities": {"tea": ["drink", sorted(GRAPH["entities"]["tea"][1])]}, "relations": []}
    assert verdict(graph_equals(), target, state=files(written)).value == 1.0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (files(None), "at the end memory.jsonl is missing, too large to be recorded, or no text"),
        (
            {"files": {FILE: {"type": "file", "mode": "644", "sha256": "00", "size": 9_000_000}}},
            "at the end memory.jsonl is missing, too large to be recorded, or no text",
        ),
        (files("{"), "at the end memory.jsonl is no graph: "),
        (files('{"type": "entity"}'), "at the end memory.jsonl is no graph: "),
        (files("[]"), "at the end memory.jsonl is no graph: "),
    ],
)
def test_a_file_that_holds_no_graph_scores_0(state: Json, reason: str) -> None:
    score = verdict(graph_equals(), GRAPH, state=state)
    assert (score.value, score.reason[: len(reason)]) == (0.0, reason)


def test_a_repository_that_is_gone_scores_0() -> None:
    score = verdict(repository_equals(), {}, state=files("text"))
    assert (score.value, score.reason) == (0.0, "at the end there is no repository")
