"""Searches on a tree that is enumerated by hand: the episodes that each plays, their order, and the chosen one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest

from gymcp.agents.runner.search.moves import End, Leaf, Move
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.search.searches import Search
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.errors import ConfigError
from gymcp.types import Action, Observation, Step, ToolCall, ToolResult, Trajectory

LENGTH = 2


def play_by_hand(
    search: Search,
    scores: Mapping[str, float],
    fails: str = "",
    *,
    length: int = LENGTH,
    letters: str = "ab",
    ends: str = "",
) -> tuple[list[str], str]:
    """The paths that the search plays, and the one that it chooses, in a world of `length` steps, each a letter.

    An episode that goes on from a point does what has not been done there: first a, then b, then a again. After that it
    goes on with a. A call on one of the paths in `fails` fails, and one of those in `ends` is the agent's last. The
    path is the state of the world.
    """
    moves, tried = search.moves(), Counter[str]()
    played: list[str] = []
    path_of: dict[Leaf, str] = {}
    move = next(moves)
    for number in itertools.count():
        path = path_of[move.start][: move.at] if move.start is not None else ""
        assert len(path) == move.at
        tried[path] += 1
        path += letters[(tried[path] - 1) % len(letters)]
        end: End | None = None
        while end is None:
            is_over = len(path) == length or path in ends.split()
            if move.until_failure and path in fails.split():
                end = End.FAILED
            elif is_over:
                end = End.FINISHED
            elif move.steps is not None and len(path) - move.at >= move.steps:
                end = End.PAUSED
            else:
                tried[path] += 1
                path += "a"
        record = make_record(path, fails.split(), scores.get(path, 0.0))
        leaf = Leaf(number=number, move=move, end=end, record=record)
        path_of[leaf] = path
        played.append(path)
        try:
            move = moves.send(leaf)
        except StopIteration as ended:
            return played, path_of[ended.value]
    raise AssertionError("unreachable")


def make_record(path: str, fails: list[str], score: float) -> Trajectory:
    steps = tuple(
        Step(
            turn=0,
            observation=Observation(messages=(), tools=()),
            action=Action(tool_calls=(ToolCall(id=path[:n], name="go", arguments={}),)),
            results=(ToolResult(call_id=path[:n], content="", is_error=path[:n] in fails),),
        )
        for n in range(1, len(path) + 1)
    )
    return Trajectory(id=path, env="", task="", steps=steps, score=score, final_key=path)


BEST = {"ab": 0.5, "bb": 1.0}


@pytest.mark.parametrize(
    ("text", "played", "chosen"),
    [
        # every episode from the start goes on with a: bb cannot be found
        ("best_of_n,width=3,value=verdict", "aa ba aa", "aa"),
        ("beam,width=2,ways=2,value=verdict", "a b aa ab ba bb", "bb"),
        # as it stands, neither a nor b has a score, and the earlier one is kept
        ("beam,width=1,ways=2,value=verdict", "a b aa ab", "ab"),
        ("dfsdt,width=2,value=verdict", "aa ab ba bb", "bb"),
        ("dfsdt,width=1,value=verdict", "aa", "aa"),
        ("mcts,width=2,rollouts=9,value=verdict", "aa ba ab bb", "bb"),
        # the first candidates are worth nothing, so a is taken; aa goes on as a candidate beside ab
        ("lookahead,width=2,value=verdict", "aa ba ab", "ab"),
        # a second episode from each candidate shows that b is worth more
        ("lookahead,width=2,rollouts=2,value=verdict", "aa ab ba bb", "bb"),
        ("lookahead,width=2,rollouts=1,depth=1,value=verdict", "a b aa ab", "ab"),
    ],
)
def test_each_search_plays_its_own_episodes_and_takes_the_best(text: str, played: str, chosen: str) -> None:
    assert play_by_hand(parse_search(text)[0], BEST) == (played.split(), chosen)


@pytest.mark.parametrize(
    ("rollouts", "letters", "length", "scores", "played", "chosen"),
    [
        # a is taken for its third episode, which is a candidate for the next step though two others came first
        (3, "abc", 2, {"ac": 1.0}, "aa ab ac ba bb bc", "ac"),
        # both candidates for the second step are episodes of a, and a second one shows that ab is worth more than aa
        (2, "ab", 3, {"aaa": 0.8, "aba": 0.6, "abb": 1.0}, "aaa aba baa bba aab abb", "abb"),
        # b is taken for its mean, and leads to less than what was found beside it
        (2, "ab", 2, {"aa": 1.0, "ba": 0.6, "bb": 0.6}, "aa ab ba bb", "aa"),
    ],
    ids=["best carried", "carried ones judged alike", "mean hides the best"],
)
def test_looking_ahead_loses_no_episode_that_it_knows(
    rollouts: int, letters: str, length: int, scores: dict[str, float], played: str, chosen: str
) -> None:
    search, _ = parse_search(f"lookahead,width=2,rollouts={rollouts},value=verdict")
    assert play_by_hand(search, scores, length=length, letters=letters) == (played.split(), chosen)


@pytest.mark.parametrize(
    ("width", "value", "played", "chosen"),
    [
        # a comes before b, which is worth the same, and both of its continuations are worth less than b, which ended
        (1, "clean", "a b aa ab", "b"),
        # c does not end, and is worth less than both
        (2, "clean", "a b c aa ab ac", "b"),
        # as it stands, a is solved, and what follows undoes it
        (1, "verdict", "a b aa ab", "a"),
    ],
)
def test_a_beam_takes_an_episode_that_it_did_not_keep_if_it_is_the_best(
    width: int, value: str, played: str, chosen: str
) -> None:
    search, _ = parse_search(f"beam,width={width},ways={width + 1},value={value}")
    found = play_by_hand(search, {"a": 1.0, "b": 0.8}, "aa ab ac c", letters="abc"[: width + 1], ends="b")
    assert found == (played.split(), chosen)


def test_depth_first_search_goes_back_from_a_call_that_failed_to_the_deepest_other_way() -> None:
    search, _ = parse_search("dfsdt,width=2")
    assert play_by_hand(search, {}, "aa ab") == (["aa", "ab", "ba"], "ba")
    assert play_by_hand(search, {}, "a") == (["a", "ba"], "ba")
    # nothing is left to try: the first of those that failed alike
    assert play_by_hand(search, {}, "a b") == (["a", "b"], "a")


def test_without_verdicts_the_end_that_most_episodes_reach_is_the_answer() -> None:
    search, _ = parse_search("best_of_n,width=3")
    assert play_by_hand(search, BEST) == (["aa", "ba", "aa"], "aa")
    # two of four end as aa and two others as ba: the first of them is taken
    assert play_by_hand(parse_search("best_of_n,width=4")[0], {"ba": 1.0})[1] == "aa"
    clean, _ = parse_search("best_of_n,width=2,value=clean")
    assert play_by_hand(clean, {}, "a aa")[1] == "ba"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        # an episode that has come to its end goes before any that is paused, whatever they are worth
        ("beam,value=clean", "ba"),
        ("beam,value=agreement", "ba"),
        # a verdict is of the episode as it stands
        ("beam,value=verdict", "aab"),
    ],
)
def test_of_a_search_that_is_cut_the_best_that_came_furthest_is_taken(text: str, chosen: str) -> None:
    search, _ = parse_search(text)
    ends = {"a": End.PAUSED, "aa": End.PAUSED, "ba": End.FINISHED, "aab": End.PAUSED, "aaa": End.PAUSED, "b": End.LOST}
    leaves = [
        Leaf(number=n, move=Move(), end=end, record=make_record(path, ["ba", "aaa"], float(path == "aab")))
        for n, (path, end) in enumerate(ends.items())
    ]
    assert search.find_best_so_far(leaves).record.id == chosen
    # without one that has ended: the deepest, and of those the one without a failed call or the first
    paused = [leaf for leaf in leaves if leaf.end is not End.FINISHED]
    assert search.find_best_so_far(paused).record.id == "aab"
    assert search.find_best_so_far(leaves[:2]).record.id == "aa"
    assert search.find_best_so_far(leaves[-1:]).record.id == "b"


def test_a_search_and_its_budget_are_read_from_their_text() -> None:
    assert parse_search("mcts, width=4, calls=50") == (
        Search(name="mcts", width=4, rollouts=8),
        TreeBudget(episodes=64, calls=50),
    )
    assert parse_search("dfsdt,episodes=9,tokens=100,value=verdict")[1] == TreeBudget(episodes=9, tokens=100)
    assert not parse_search("dfsdt")[0].sees_verdicts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("astar", "no search 'astar'; have best_of_n, beam, dfsdt, mcts, lookahead"),
        ("", "no search ''"),
        ("dfsdt,depth=2", "cannot read 'depth=2'; dfsdt takes width, episodes, tokens, calls, cost, value"),
        ("beam,width", "width='' is no whole number"),
        ("beam,width=2,width=3", "cannot read 'width=3'"),
        ("beam,width=0", "width must be 1 or more, not 0"),
        ("beam,episodes=0", "tree budget of episodes: must be 1 or more, not 0"),
        ("dfsdt,value=agreement", "no value 'agreement'; have clean, judge, verdict"),
        ("best_of_n,width=70", "width=70 needs episodes=70 or more"),
        ("lookahead,rollouts=2,depth=1", "with depth=1 nothing is left to roll out"),
        ("mcts,value=judge", "value=judge and a rubric go together; give both, or neither"),
        ("mcts,rubric=none.toml", "rubric none.toml: cannot be read"),
        ("mcts,votes=3", "votes=3 are of a judge; give value=judge, too"),
    ],
)
def test_unknown_names_and_numbers_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        parse_search(text)
