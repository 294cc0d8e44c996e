"""A hundred episodes of forked servers, every tenth with a server that breaks; `make nightly` plays five thousand."""

from __future__ import annotations

from collections.abc import Callable

from chaos import QUICK_EPISODES, at_rest, run_in_own_process
from leftovers import mounts


def test_every_episode_ends_as_planned_and_nothing_is_left(require: Callable[[str], None]) -> None:
    require("bwrap")
    findings = run_in_own_process("forked", QUICK_EPISODES)
    assert findings.wrong == []
    found = {row.metric: row.value for row in findings.results}
    assert found["forked: episodes"] == QUICK_EPISODES
    assert found["forked: ended otherwise than planned"] == 0
    left = {name: value for name, value in found.items() if "more than before" in name or "left after" in name}
    assert (len(left), set(left.values())) == (7, {0})


def test_mounts_of_containers_elsewhere_are_not_counted() -> None:
    here = "22 1 0:21 / /proc rw - proc proc rw\n40 1 0:33 / /tmp/gymcp-1/world rw - tmpfs tmpfs rw\n"
    theirs = "90 1 0:50 / /var/lib/docker/overlay2/ab/merged rw - overlay overlay rw\n"
    theirs += "91 1 0:4 net:[1] /run/docker/netns/a rw - nsfs nsfs rw"
    assert mounts(here + theirs) == ["/proc", "/tmp/gymcp-1/world"]


def test_memory_that_stays_is_told_from_a_line_that_is_being_read() -> None:
    quiet, busy, grown = [100] * 8, [100, 160, 160, 160, 160, 160, 100, 100], [110] * 8
    assert [at_rest(quiet + busy, place, 8) for place in (0.5, 1.0)] == [100, 100]
    assert [at_rest(quiet + grown, place, 8) for place in (0.5, 1.0)] == [100, 110]
