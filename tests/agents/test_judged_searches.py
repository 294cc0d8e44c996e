"""Searches whose values come from a judge: a scripted one on live worlds, and its failures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from test_search_worlds import noisy, read_paths
from tree_play import count_env, following

from gymcp.agents.runner.run import Plan, RunEnd, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.evaluators.judge.answers import JudgeAnswers
from gymcp.evaluators.judge.asking import JudgeSeat
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.types import Message, ModelUsage, Sampling

SEARCHES = (
    "best_of_n,width=12,value=judge",
    "beam,width=1,ways=8,depth=3,value=judge",
    "dfsdt,width=4,value=judge",
    "mcts,width=3,rollouts=16,value=judge",
    "lookahead,width=4,value=judge",
)
MARK = re.compile(r"RECORD ([0-9a-f]{16})")


@dataclass(slots=True)
class Scripted:
    """A judge that finds an episode good if the last count that it reads is 3."""

    says: str = ""
    """Answer to every question; empty: a verdict."""
    fails: bool = False
    asked: list[str] = field(default_factory=list)

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        text = messages[-1].content
        self.asked.append(text)
        if self.fails:
            raise PolicyInfraError("the endpoint is gone")
        mark = MARK.search(text)
        assert mark is not None
        counts = re.findall(r'"failed": false, "text": "(\d+)"', text)
        verdict = {"mark": mark[1], "reason": "r", "points": {"three": counts[-1:] == ["3"]}}
        return self.says or json.dumps(verdict), ModelUsage(model="m", prompt_tokens=10, completion_tokens=1, cost=0.5)


def play_judged(folder: Path, text: str, judge: Scripted | None, max_cost: float | None = None, **plan: Any) -> RunEnd:
    folder.mkdir(exist_ok=True)
    rubric = folder / "rubric.toml"
    rubric.write_text('points = [{id = "three", text = "The count is 3."}]\n')
    search, tree = parse_search(f"{text},rubric={rubric}")
    schedule = Schedule(max_attempts=1, search=search, tree=tree, max_cost=max_cost)
    seat = None if judge is None else JudgeSeat(name="scripted", judge=judge, answers=JudgeAnswers({}, None))
    env: LoadedEnv = replace(count_env(), judge=seat)
    with TrajectoryStore.open(folder, write=True) as store:
        settings = Plan(agent="mine", **plan)
        return run_plan(env, get_sandbox("bwrap"), settings, store, schedule, make_agent=following(noisy))


@pytest.mark.parametrize("text", SEARCHES, ids=lambda text: text.partition(",")[0])
def test_every_search_finds_the_one_way_in_eight_by_its_judge(text: str, tmp_path: Path) -> None:
    """The judge is asked about each episode that it could not know yet, and reads no verdict of the environment."""
    judge = Scripted()
    assert play_judged(tmp_path, text, judge, seed=7) is RunEnd.FINISHED
    chosen, *others = read_paths(tmp_path)
    assert chosen.score == 1.0
    notes = [path.provenance["search"] for path in (chosen, *others)]
    assert {note["value"] for note in notes} == {"judge"}
    assert all(note["judged"] == path.score for note, path in zip(notes, (chosen, *others), strict=True))
    assert len(judge.asked) == len(set(judge.asked)) <= len(notes)  # the same record is one question
    assert not any("wanted" in text or "score" in text for text in judge.asked)
    assert chosen.usage.cost == 0.0  # the judge's cost is no part of the agent's


def test_depth_first_search_ends_with_the_first_episode_of_full_value(tmp_path: Path) -> None:
    judge = Scripted()
    play_judged(tmp_path, "dfsdt,width=4,value=judge", judge, seed=7)
    notes = sorted((path.provenance["search"] for path in read_paths(tmp_path)), key=lambda note: note["episode"])
    assert [note["judged"] for note in notes] == [0.0] * (len(notes) - 1) + [1.0]


@pytest.mark.parametrize("judge", [Scripted(says="I like it."), Scripted(fails=True)], ids=["no verdict", "no answer"])
def test_a_judge_without_a_verdict_leaves_the_search_going(judge: Scripted, tmp_path: Path) -> None:
    """All episodes are worth as little, so the first is chosen; it is asked again about none that has an answer."""
    assert play_judged(tmp_path, "best_of_n,width=3,value=judge", judge, seed=7) is RunEnd.FINISHED
    paths = read_paths(tmp_path)
    assert [path.provenance["search"]["judged"] for path in paths] == [None] * 3
    assert paths[0].provenance["search"]["episode"] == 0
    assert judge.asked


def test_the_judge_is_paid_by_the_run(tmp_path: Path) -> None:
    judge = Scripted()
    assert play_judged(tmp_path, "best_of_n,width=12,value=judge", judge, max_cost=1.0, seed=7) is RunEnd.OUT_OF_MONEY
    assert len(judge.asked) == 2


def test_several_votes_are_asked_for_with_seeds_of_their_own(tmp_path: Path) -> None:
    judge = Scripted()
    play_judged(tmp_path, "best_of_n,width=1,value=judge,votes=3", judge, seed=7)
    assert (len(judge.asked), len(set(judge.asked))) == (3, 1)


def test_a_search_by_a_judge_without_one_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="search mcts: value=judge asks a model, and none is named; give one: --judge"
    ):
        play_judged(tmp_path, "mcts,value=judge", None)
    with TrajectoryStore.open(tmp_path) as store:
        assert store.summaries() == []
