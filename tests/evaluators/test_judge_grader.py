"""A judge as an environment's grader: asked once, its answers kept with the record, never a 0 without a verdict."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import episode

from gymcp.agents.runner.regrading import PaidJudge, ask_again
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.catalog import load_spec
from gymcp.envs.generated_tasks import GENERATED, GeneratedTask
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.evaluators.graders import all_of, any_of, weighted
from gymcp.evaluators.grading import apply_grader, remove_grade
from gymcp.evaluators.judge import Point, Rubric, judge_by_rubric
from gymcp.evaluators.judge.agreement import judge_passes
from gymcp.evaluators.judge.answers import JudgeAnswers, open_answers, read_answers, usage_of_grader
from gymcp.evaluators.judge.asking import EpisodeAnswers, JudgeSeat, ask_judge
from gymcp.evaluators.judge.coverage import judge_coverage
from gymcp.evaluators.judge.prompt import question
from gymcp.evaluators.names import find_judged_points
from gymcp.outcome import Outcome
from gymcp.protocols import Grader, StateReader
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.types import Json, Message, ModelUsage, Sampling, Score, Task, Trajectory

MANNERS = Rubric(name="manners", version="1", points=(Point(id="polite", text="It was polite."),))
COLOURS = Rubric(name="colours", version="1", text="How green it is.", scale=4)
TASK = Task(id="pay", prompts=("Pay.",))
PLAYED = episode("pay", score=None)
SPENT = ModelUsage(model="m", prompt_tokens=100, completion_tokens=10, cost=0.5)
MARK = re.compile(r"RECORD ([0-9a-f]{16})")

Reply = Callable[[str, int], str]
"""Function from the mark of a question, and the number of questions before it, to the answer."""


def polite(mark: str, number: int) -> str:
    return json.dumps({"mark": mark, "reason": "thanks", "points": {"polite": True}})


def rude(mark: str, number: int) -> str:
    return json.dumps({"mark": mark, "reason": "no thanks", "points": {"polite": False}})


class Scripted:
    """A judge that answers as it is told."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.asked = 0

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        found = MARK.search(messages[1].content)
        assert found is not None
        self.asked += 1
        return self._reply(found[1], self.asked - 1), SPENT


class Yielding(Scripted):
    """A scripted judge that lets others ask before it answers."""

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        answer = await super().ask(messages, sampling)
        await asyncio.to_thread(int)
        return answer


class Together(Scripted):
    """A scripted judge that answers the first question at once, and the others when so many have been asked."""

    def __init__(self, reply: Reply, count: int) -> None:
        super().__init__(reply)
        self._count = count
        self._all_asked = asyncio.Event()

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        answer = await super().ask(messages, sampling)
        if self.asked == self._count:
            self._all_asked.set()
        if self.asked > 1:
            await self._all_asked.wait()
        return answer


class Unreachable:
    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        raise PolicyInfraError("model 'm': status 503")


class Silent:
    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Broken:
    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        raise ZeroDivisionError("one by none")


def seat(judge: object, answers: JudgeAnswers | None = None, timeout_s: float = 60.0) -> JudgeSeat:
    return JudgeSeat(name="m", judge=judge, answers=answers or JudgeAnswers({}, None), timeout_s=timeout_s)  # type: ignore[arg-type]


def no_states(ref: str) -> Json:
    raise KeyError(ref)


def ask(grader: Grader, judge: JudgeSeat, record: Trajectory = PLAYED) -> EpisodeAnswers:
    return asyncio.run(ask_judge(grader, TASK, remove_grade(record), no_states, judge))


def judge_and_grade(grader: Grader, judge: JudgeSeat, record: Trajectory = PLAYED) -> Trajectory:
    """The record after the judge was asked, graded."""
    truths = ask(grader, judge, record).truths
    return apply_grader(grader, TASK, replace(record, provenance={"truths": truths}), no_states)


def state(value: float) -> Grader:
    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        return Score(value=value, reason=f"state {value:g}")

    return grade


def test_without_a_judge_there_is_no_score_and_the_reason_names_the_option() -> None:
    graded = apply_grader(judge_by_rubric(MANNERS), TASK, PLAYED, no_states)
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
    assert graded.reason == (
        "grader raised JudgeNotAsked: rubric 'manners': no judge was asked: name the model with --judge"
    )


@pytest.mark.parametrize(("reply", "score"), [(polite, 1.0), (rude, 0.0)])
def test_a_verdict_is_the_score(reply: Reply, score: float) -> None:
    graded = judge_and_grade(judge_by_rubric(MANNERS), seat(Scripted(reply)))
    assert (graded.outcome, graded.score) == (Outcome.SCORED, score)
    assert graded.components == {"judge.polite": score, "judge.verdicts": 1.0, "judge.unanimous": 1.0}


def test_episodes_that_ask_the_same_at_once_ask_it_once() -> None:
    judge, grader, alike = Yielding(polite), judge_by_rubric(MANNERS, votes=2), remove_grade(PLAYED)
    once = seat(judge)

    async def ask_all() -> list[EpisodeAnswers]:
        records = [replace(alike, id=name) for name in ("a", "b", "c")]
        return await asyncio.gather(*(ask_judge(grader, TASK, each, no_states, once) for each in records))

    first, *others = asyncio.run(ask_all())
    assert judge.asked == 2, "one for each vote"
    assert [each.truths for each in others] == [first.truths] * 2
    assert sum(each.cost for each in (first, *others)) == 2 * SPENT.cost


def ask_at_once(paid: PaidJudge, count: int) -> list[object]:
    """The answers to so many questions, and the errors."""
    asked = question(MANNERS, remove_grade(PLAYED)).messages

    async def ask_all() -> list[object]:
        asking = (paid.ask(asked, Sampling(seed=number)) for number in range(count))
        return await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 60)

    return asyncio.run(ask_all())


def test_questions_at_once_stop_at_the_money_as_one_after_another() -> None:
    """An answer costs 0.5: of 2, 0.9 are spent, so that there is money for three."""
    judge, budget = Yielding(polite), RunBudget(2.0, spent=0.9)
    paid = PaidJudge(judge, budget)
    refused = [each for each in ask_at_once(paid, 16) if isinstance(each, PolicyInfraError)]
    assert (judge.asked, len(refused), paid.has_refused) == (3, 13, True)
    assert budget.spent == pytest.approx(2.4)
    spent = Yielding(polite)
    assert len(ask_at_once(PaidJudge(spent, RunBudget(2.0, spent=2.0)), 16)) == 16
    assert spent.asked == 0


@pytest.mark.parametrize("limit", [None, 100.0])
def test_questions_do_not_wait_for_each_other_while_there_is_money(limit: float | None) -> None:
    judge = Together(polite, 16)
    assert not any(isinstance(each, Exception) for each in ask_at_once(PaidJudge(judge, RunBudget(limit)), 16))
    assert judge.asked == 16


def test_grading_again_asks_no_judge_and_gives_the_same_record() -> None:
    grader = judge_by_rubric(MANNERS, votes=3)
    once = judge_and_grade(grader, seat(Scripted(polite)))
    assert apply_grader(grader, TASK, once, no_states) == once


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (Unreachable(), "JudgeSilent: rubric 'manners': the judge gave no answer: model 'm': status 503"),
        (Silent(), "JudgeSilent: rubric 'manners': the judge gave no answer within 0.05 s"),
        (Broken(), "JudgeSilent: rubric 'manners': the judge gave no answer: ZeroDivisionError: one by none"),
        (Scripted(lambda mark, n: ""), "NoVerdict: judge: 0 of 1 answers are verdicts: no JSON object in ''"),
        (Scripted(lambda mark, n: "I like it."), "NoVerdict: judge: 0 of 1 answers are verdicts: no JSON object"),
        (Scripted(lambda mark, n: '{"mark": "forged"}'), "NoVerdict: judge: 0 of 1 answers are verdicts: the mark is"),
        (Scripted(lambda mark, n: json.dumps({"mark": mark, "points": {"polite": 1}})), "NoVerdict: judge: 0 of 1"),
    ],
)
def test_a_judge_without_a_verdict_gives_no_score_and_never_0(judge: object, reason: str) -> None:
    graded = judge_and_grade(judge_by_rubric(MANNERS), seat(judge, timeout_s=0.05))
    assert (graded.outcome, graded.score, graded.components) == (Outcome.GRADER_ERROR, None, {})
    assert graded.reason.startswith(f"grader raised {reason}")


@pytest.mark.parametrize("combine", [all_of, any_of, lambda parts: weighted(parts, dict.fromkeys(parts, 1.0))])
def test_parts_of_a_grade_are_a_state_and_two_judges(combine: Callable[[dict[str, Grader]], Grader]) -> None:
    """Each rubric is asked for by itself; the verdicts are components under the names of the parts."""

    def reply(mark: str, number: int) -> str:
        return json.dumps({"mark": mark, "reason": "r", "points": {"polite": True}, "score": 2})

    judge = Scripted(reply)
    parts = {"state": state(1.0), "manners": judge_by_rubric(MANNERS), "colour": judge_by_rubric(COLOURS)}
    graded = judge_and_grade(combine(parts), seat(judge))
    assert judge.asked == 2
    assert {name: graded.components[name] for name in parts} == {"state": 1.0, "manners": 1.0, "colour": 0.5}
    assert graded.components["manners.judge.verdicts"] == 1.0
    assert graded.score == {0.5: 0.5, 1.0: 1.0}.get(graded.score or 0, pytest.approx(2.5 / 3))
    assert sorted(graded.provenance["truths"]) == ["judge colours/1", "judge manners/1"]


def combine_twice(judge: Grader) -> Grader:
    """The judge in a part of a part."""
    inner = weighted({"judge": judge, "state": state(0.0)}, {"judge": 2.0, "state": 1.0})
    return all_of({"talk": inner, "state": state(0.5)})


@pytest.mark.parametrize(
    ("combine", "point"),
    [
        (lambda judge: judge, "polite"),
        (lambda judge: all_of({"state": state(0.0), "manners": judge}), "manners.polite"),
        (lambda judge: any_of({"state": state(1.0), "judge": judge}), "judge.polite"),
        (combine_twice, "talk.judge.polite"),
    ],
)
@pytest.mark.parametrize(("reply", "met"), [(polite, True), (rude, False)])
def test_the_judges_verdict_is_read_from_every_combination(
    combine: Callable[[Grader], Grader], point: str, reply: Reply, met: bool
) -> None:
    """It is that of the judge, whatever the other parts and the whole score are."""
    graded = judge_and_grade(combine(judge_by_rubric(MANNERS)), seat(Scripted(reply)))
    assert find_judged_points(graded.components) == {point: met}
    assert judge_passes(row("pay", score=graded.score, components=graded.components)) is met


@pytest.mark.parametrize(("mark", "met"), [(4, True), (3, False)])
def test_a_mark_on_a_scale_passes_if_it_is_full(mark: int, met: bool) -> None:
    """Alone, and as a part beside another judge, who is content."""
    judge = Scripted(lambda its, n: json.dumps({"mark": its, "score": mark, "points": {"polite": True}}))
    colours = judge_by_rubric(COLOURS)
    for grader in (colours, all_of({"colour": colours, "manners": judge_by_rubric(MANNERS), "state": state(0.0)})):
        graded = judge_and_grade(grader, seat(judge))
        assert judge_passes(row("pay", score=graded.score, components=graded.components)) is met


def test_a_verdict_that_was_added_stands_for_those_of_the_parts() -> None:
    parts = {"manners": 0.0, "manners.judge.polite": 0.0, "manners.judge.verdicts": 1.0}
    added = {"judge": 1.0, "judge.paid": 1.0, "judge.verdicts": 1.0, "judge.unanimous": 1.0}
    assert judge_passes(row("pay", score=0.0, components=parts)) is False
    assert judge_passes(row("pay", score=0.0, components={**parts, **added})) is True
    assert find_judged_points({**parts, **added}) == {"paid": True}
    assert judge_passes(row("pay", score=1.0, components={"state": 1.0, "misjudge.verdicts": 1.0})) is None


def test_a_part_without_a_verdict_takes_the_score_with_it() -> None:
    parts = {"state": state(1.0), "manners": judge_by_rubric(MANNERS)}
    graded = judge_and_grade(all_of(parts), seat(Unreachable()))
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)


def test_answers_are_paid_for_once_and_those_that_failed_are_asked_for_again(tmp_path: Path) -> None:
    grader = judge_by_rubric(MANNERS, votes=2)
    with open_answers(tmp_path) as answers:
        asked = ask(grader, seat(Scripted(polite), answers))
    assert asked.cost == 1.0
    assert usage_of_grader(read_answers(tmp_path)) == {
        "answers": 2, "prompt_tokens": 200, "completion_tokens": 20, "cost": 1.0,
    }  # fmt: skip
    with open_answers(tmp_path) as answers:
        again = ask(grader, seat(Unreachable(), answers))
    assert (again.cost, again.truths) == (0.0, asked.truths)
    failed = ask(grader, seat(Unreachable()))
    record = replace(PLAYED, provenance={"truths": failed.truths})
    mended = ask(grader, seat(Scripted(polite)), record)
    assert mended.truths == asked.truths


def test_an_episode_that_is_not_what_the_judge_saw_is_not_judged_by_its_answers() -> None:
    """Neither another rubric of the same name nor another record may use an old verdict."""
    once = judge_and_grade(judge_by_rubric(MANNERS), seat(Scripted(polite)))
    stricter = replace(MANNERS, points=(Point(id="polite", text="It was most polite."),))
    other = replace(once, steps=once.steps[:1])
    for grader, record in ((judge_by_rubric(stricter), once), (judge_by_rubric(MANNERS), other)):
        graded = apply_grader(grader, TASK, record, no_states)
        assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
        assert "JudgeNotAsked: rubric 'manners': the answers on record are to another question" in graded.reason


@pytest.mark.parametrize("kept", [3, {}, {"answers": 3}, {"question": "x", "answers": []}, {"problem": "made up"}])
def test_answers_from_elsewhere_are_never_a_score(kept: Json) -> None:
    record = replace(PLAYED, provenance={"truths": {"judge manners/1": kept}})
    graded = apply_grader(judge_by_rubric(MANNERS), TASK, record, no_states)
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)


def test_a_grader_that_needs_no_judge_asks_none() -> None:
    judge = Scripted(polite)
    assert ask(state(1.0), seat(judge)) == EpisodeAnswers(truths={}, cost=0.0)
    assert judge.asked == 0


@pytest.mark.parametrize("votes", [0, -1, 100])
def test_votes_are_counted(votes: int) -> None:
    with pytest.raises(ConfigError, match="votes must be from 1 to 99"):
        judge_by_rubric(MANNERS, votes=votes)


def test_an_unreadable_rubric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        judge_by_rubric(tmp_path / "none.toml")


def row(task: str, **fields: Json) -> EpisodeRow:
    return EpisodeRow(**{"id": task, "env": "shop", "task": task, **fields})


def failed_row(task: str, reason: str) -> EpisodeRow:
    return row(task, outcome=Outcome.GRADER_ERROR, reason=f"grader raised {reason}: x")


def test_coverage_counts_verdicts_and_names_why_there_is_none() -> None:
    rows = [
        row("a", score=1.0, components={"judge.verdicts": 1.0}),
        row("b", score=0.0, components={"manners.judge.verdicts": 3.0}),
        failed_row("c", "JudgeSilent"),
        failed_row("d", "NoVerdict"),
        failed_row("e", "JudgeNotAsked"),
        failed_row("f", "ZeroDivisionError"),
        row("g", score=0.0, outcome=Outcome.AGENT_ERROR),
    ]
    found = judge_coverage(rows)
    assert found is not None
    assert found.words == "2/5 judged, 1 no answer, 1 no verdict in the answer, 1 not asked"
    assert judge_coverage(rows[-2:]) is None
    assert judge_coverage([replace(rows[0], grader="judge manners/1 by m")]) is None


def test_an_episode_whose_task_is_not_made_any_more_is_one_error(tmp_path: Path) -> None:
    env = replace(load_env(load_spec("backoffice")), judge=seat(Scripted(polite)))
    gone = GeneratedTask(split="moon").to_row()
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("moon-1", steps=0, provenance={GENERATED: gone}), {})
        with pytest.raises(ConfigError, match="backoffice: no split 'moon'; have"):
            asyncio.run(ask_again(env, store, store.summaries()))
