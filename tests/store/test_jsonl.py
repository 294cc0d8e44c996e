"""JSON lines carry every record there can be."""

from __future__ import annotations

import json
import re

from hypothesis import assume, given, settings
from random_records import trajectories

from gymcp.exchange.json_lines import from_line, to_line
from gymcp.exchange.source import Episode
from gymcp.store import EpisodeRow
from gymcp.types import Trajectory

PAIR = re.compile(r"\\ud[89ab]..\\ud[c-f]")


@settings(max_examples=80, deadline=None)
@given(trajectory=trajectories)
def test_a_line_is_the_whole_record(trajectory: Trajectory) -> None:
    assume(not PAIR.search(repr(trajectory)))  # a high and a low surrogate that stand together become one character
    row = EpisodeRow(id=trajectory.id, env=trajectory.env, task=trajectory.task, tags=("a",))
    line = to_line(Episode(trajectory=trajectory, row=row))
    assert "\n" not in line
    found, tags = from_line(json.loads(line), "line 1")
    assert (repr(found), tags) == (repr(trajectory), ("a",))
