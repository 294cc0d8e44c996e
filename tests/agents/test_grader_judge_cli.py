"""A judge as an environment's grader, through the command line: a scripted model behind a real endpoint."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Reply, chat_server, says
from cli_runner import gymcp
from page_blocks import DOCS, read_blocks
from page_player import play_page
from stderr_lines import errors

from gymcp.evaluators.judge.answers import ANSWERS_FILE
from gymcp.evaluators.viewer.notes.note_objects import notes_object
from gymcp.evaluators.viewer.notes.note_requests import save_note
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.store import TrajectoryStore

MARK = re.compile(r"RECORD ([0-9a-f]{16})")


def polite_if_greeted(number: int, body: dict[str, Any]) -> Reply:
    """The customer was told politely if the agent wished a good day."""
    text = body["messages"][1]["content"]
    found = MARK.search(text)
    assert found is not None
    met = "Have a good day" in text
    return says(json.dumps({"mark": found[1], "reason": "r", "points": {"polite": met}}), prompt=1000, completion=100)


def write_manners(folder: Path) -> Path:
    """The environment of docs/judge.md."""
    (block,) = (block for block in read_blocks(DOCS / "judge.md") if block.file == "manners.py")
    (folder / "manners.py").write_text(block.text, encoding="utf-8")
    return folder


@pytest.fixture
def manners(tmp_path: Path) -> Path:
    return write_manners(tmp_path)


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def play(folder: Path, judge: str, *words: object) -> Any:
    return gymcp("eval", "manners.py", "--agent", "oracle", "--out", "run", *words, "--judge", judge, cwd=folder)


def test_the_documentation_works_as_it_is_written(tmp_path: Path) -> None:
    """Check with its gates, a run, and grading it again, after the endpoint is gone."""
    with chat_server(polite_if_greeted) as server:
        assert play_page(DOCS / "judge.md", tmp_path, replace={"URL#MODEL": f"{server.url}#m"}) == 3
        assert len(server.requests) >= 3 * 3  # three votes on the episodes of three gates; the run asks for its own
    again = gymcp("grade", "runs/judged", "--json", cwd=tmp_path)
    assert (again.returncode, json.loads(again.stdout)["success"]) == (0, 1.0), again.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """Folder of the environment and of its finished run; the judge's address, and what the command printed."""

    folder: Path
    judge: str
    printed: str


@pytest.fixture(scope="module")
def judged_run(tmp_path_factory: pytest.TempPathFactory) -> JudgedRun:
    folder = write_manners(tmp_path_factory.mktemp("judged"))
    with chat_server(polite_if_greeted) as server:
        judge = f"openai:{server.url}#m"
        done = play(folder, judge, "--trials", "2")
    assert done.returncode == 0, done.stderr
    return JudgedRun(folder=folder, judge=judge, printed=done.stdout)


of_one_run = pytest.mark.xdist_group("judged")


@of_one_run
def test_the_coverage_of_the_judge_stands_beside_the_score(judged_run: JudgedRun) -> None:
    """Two trials with the same record are one question: three votes are asked for, not six."""
    assert "judge: 2/2 judged · 3,000 tokens read, 300 written by the judge" in judged_run.printed
    found = summary_of(judged_run.folder / "run")
    assert found["judge"]["grader"] == {
        "policy": judged_run.judge, "judged": 2, "episodes": 2, "lost": {}, "words": "2/2 judged",
        "answers": 3, "prompt_tokens": 3000, "completion_tokens": 300, "cost": 0.0,
    }  # fmt: skip
    assert (found["prompt_tokens"], found["models"]) == (0, {})  # the oracle has no model: the judge is no part of it
    assert found["components"]["manners.judge.verdicts"] == 3.0
    assert "2/2 judged" in (judged_run.folder / "run" / "report.html").read_text()


def nonsense(number: int, body: dict[str, Any]) -> Reply:
    return says("I like it very much.")


def refuses(number: int, body: dict[str, Any]) -> Reply:
    return Reply(status=400, body=b'{"error": "no such model"}')


@pytest.mark.parametrize(
    ("answer", "words", "reason"),
    [
        (nonsense, "0/1 judged, 1 no verdict in the answer", "NoVerdict: judge: 0 of 3 answers are verdicts"),
        (refuses, "0/1 judged, 1 no answer", "JudgeSilent: rubric 'manners': the judge gave no answer"),
        (None, "0/1 judged, 1 not asked", "JudgeNotAsked: rubric 'manners': no judge was asked"),
    ],
)
def test_an_episode_without_a_verdict_has_no_score_and_is_judged_later(
    answer: Answer | None, words: str, reason: str, manners: Path
) -> None:
    if answer is None:
        done = gymcp("eval", "manners.py", "--agent", "oracle", "--out", "run", cwd=manners)
    else:
        with chat_server(answer) as server:
            done = play(manners, f"openai:{server.url}#m")
    assert done.returncode == 3, done.stderr
    assert words in done.stdout
    assert f"grader raised {reason}" in " ".join(done.stdout.split())
    found = summary_of(manners / "run")
    assert (found["success"], found["scored"], found["outcomes"]) == (None, 0, {"grader_error": 1})
    assert found["judge"]["grader"]["words"] == words
    if answer is nonsense:
        return  # the judge has answered: grading again gives the same
    with chat_server(polite_if_greeted) as server:
        graded = gymcp("grade", "run", "--judge", f"openai:{server.url}#m", "--json", cwd=manners)
    assert graded.returncode == 1, graded.stderr  # a score has changed
    assert json.loads(graded.stdout)["success"] == 1.0
    offline = gymcp("grade", "run", "--json", cwd=manners)
    assert (offline.returncode, json.loads(offline.stdout)["success"]) == (0, 1.0), offline.stderr


def test_a_resumed_run_asks_only_for_answers_that_it_lacks(manners: Path) -> None:
    """Two requests are answered before the endpoint refuses: the third vote, and nothing else, is asked for later."""
    open_to = [2]

    def answer(number: int, body: dict[str, Any]) -> Reply:
        return polite_if_greeted(number, body) if number < open_to[0] else refuses(number, body)

    with chat_server(answer) as server:
        judge = f"openai:{server.url}#m"
        first = play(manners, judge)
        asked = len(server.requests)
        open_to[0] = 100
        second = play(manners, judge, "--resume")
        later = len(server.requests) - asked
    assert (first.returncode, second.returncode) == (3, 0), second.stderr
    assert (asked, later) == (3, 1)
    assert len((manners / "run" / ANSWERS_FILE).read_text().splitlines()) == 3


def test_the_money_of_a_run_is_that_of_agent_and_judge_together(manners: Path) -> None:
    (manners / "prices.toml").write_text('[models."m"]\nprompt = 1000.0\ncompletion = 0.0\n')
    with chat_server(polite_if_greeted) as server:
        words = ("--prices", "prices.toml", "--max-cost", "2.5", "--trials", "3", "--concurrency", "1")
        done = play(manners, f"openai:{server.url}#m", *words)
        assert len(server.requests) == 3  # three votes cost 3; the second and third trial are not begun
    assert done.returncode == 4, done.stderr
    found = summary_of(manners / "run")
    assert (found["judge"]["grader"]["cost"], found["cost"]) == (3.0, 0.0)


def test_the_questions_of_a_resumed_run_are_paid_from_its_money(manners: Path) -> None:
    """The first run gets no answer. Each vote costs 1: of 1.5 the second one is still asked for, but not the third."""
    (manners / "prices.toml").write_text('[models."m"]\nprompt = 1000.0\ncompletion = 0.0\n')
    is_open = [False]

    def answer(number: int, body: dict[str, Any]) -> Reply:
        return polite_if_greeted(number, body) if is_open[0] else refuses(number, body)

    with chat_server(answer) as server:
        judge, counts = f"openai:{server.url}#m", []
        assert play(manners, judge, "--prices", "prices.toml").returncode == 3
        is_open[0] = True
        for money, code in (("1.5", 4), ("1.5", 4), ("9", 0)):
            before = len(server.requests)
            done = play(manners, judge, "--prices", "prices.toml", "--resume", "--max-cost", money)
            assert done.returncode == code, done.stderr
            counts.append(len(server.requests) - before)
            assert (code == 0) != ("the money of the run (--max-cost) is spent" in " ".join(done.stdout.split()))
    assert counts == [2, 0, 1]
    with TrajectoryStore.open(manners / "run") as store:
        (row,) = store.summaries()
        assert [grade.score for grade in store.grades(row.id)] == [None, 1.0]  # nothing for the second resumption


def test_the_money_of_a_matrix_is_that_of_agents_and_judges_together(manners: Path) -> None:
    """The judge of the first pair spends 3, so that nothing of 2.5 is left for the second."""
    (manners / "prices.toml").write_text('[models."m"]\nprompt = 1000.0\ncompletion = 0.0\n')
    (manners / "others.py").write_text(
        (manners / "manners.py").read_text().replace('name="manners",\n', 'name="others",\n')
    )
    with chat_server(polite_if_greeted) as server:
        words = ("--agent", "oracle", "--judge", f"openai:{server.url}#m", "--prices", "prices.toml", "--out", "all")
        done = gymcp("eval", "manners.py", "others.py", *words, "--max-cost", "2.5", "--json", cwd=manners)
        assert len(server.requests) == 3
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert (len(found["runs"]), found["ended"]) == (1, "out of money")
    assert "--max-cost 2.5 is spent" in done.stderr


@pytest.mark.parametrize("combined", [True, False])
def test_people_are_compared_with_the_judge_of_a_grader(combined: bool, tmp_path: Path) -> None:
    """By notes that the viewer offers and takes, and by a file; before and after grading again."""
    source = (write_manners(tmp_path) / "manners.py").read_text()
    alone = re.sub(r"grade=all_of.*", "grade=judge_by_rubric(RUBRIC, votes=3),", source)
    (tmp_path / "manners.py").write_text(source if combined else alone)
    with chat_server(polite_if_greeted) as server:
        done = play(tmp_path, f"openai:{server.url}#m", "--trials", "2")
    assert done.returncode == 0, done.stderr
    point = "manners.polite" if combined else "polite"
    with open_runs([tmp_path / "run"], follow=False) as runs:
        assert notes_object(runs, 1, "ann")["criteria"] == [point]
        save_note(runs, "ann", 1, json.dumps({"verdict": "pass", "criteria": {point: "pass"}}).encode())
        save_note(runs, "ann", 2, json.dumps({"criteria": {point: "fail"}}).encode())
    (tmp_path / "labels.csv").write_text("task,trial,label\npay_5,0,pass\npay_5,1,fail\n")
    table = {"both pass": 1, "only person": 0, "only judge": 1, "both fail": 0}
    for _ in range(2):
        own = gymcp("judge", "agreement", "run", "--json", cwd=tmp_path)
        assert own.returncode == 0, own.stderr
        figures = json.loads(own.stdout)
        assert (figures["table"], figures["points"][point]["agree"]) == (table, 0.5)
        by_file = gymcp("judge", "agreement", "labels.csv", "--run", "run", "--json", cwd=tmp_path)
        assert (by_file.returncode, json.loads(by_file.stdout)["table"]) == (0, table), by_file.stderr
        assert gymcp("grade", "run", cwd=tmp_path).returncode == 0


def test_grading_again_is_not_refused_for_an_episode_that_never_had_a_verdict(manners: Path) -> None:
    """The judge fails on the first of three; the two others are graded, and keep what they have."""
    with chat_server(lambda number, body: (polite_if_greeted if number else refuses)(number, body)) as server:
        judge = f"openai:{server.url}#m"
        done = play(manners, judge, "--trials", "3", "--concurrency", "1")
        assert (done.returncode, "2/3 judged, 1 no answer" in done.stdout) == (3, True), done.stderr
        with TrajectoryStore.open(manners / "run") as store:
            assert [row.score for row in sorted(store.summaries(), key=lambda row: row.seq)] == [None, 1.0, 1.0]
        again = gymcp("grade", "run", "--json", cwd=manners)
        assert again.returncode == 3, again.stderr
        figures = json.loads(again.stdout)
        assert (figures["changed"], figures["failed"], figures["scored"], figures["success"]) == (0, 1, 2, 1.0)
        assert "failed on 1 of 3 episodes; 0 of these keep" in again.stderr
        # another judge gives all three a score; the environment's own grade is made the newest again
        (manners / "rubric.toml").write_text('points = [{id = "polite", text = "It was polite."}]\n')
        assert gymcp("judge", "./run", "--policy", judge, "--rubric", "rubric.toml", cwd=manners).returncode == 0
        own = gymcp("grade", "run", cwd=manners)
    assert own.returncode == 3, own.stderr
    assert "failed on 1 of 3 episodes; 1 of these keep" in own.stderr
    with TrajectoryStore.open(manners / "run") as store:
        assert sorted((row.grader or "")[:6] for row in store.summaries()) == ["judge ", "manner", "manner"]


def test_grading_again_without_any_verdict_counts_the_failures(manners: Path) -> None:
    assert gymcp("eval", "manners.py", "--agent", "oracle", "--out", "run", cwd=manners).returncode == 3
    again = gymcp("grade", "run", cwd=manners)
    assert (again.returncode, len(errors(again.stderr))) == (3, 1), again.stderr
    assert "failed on 1 of 1 episodes" in again.stderr
    assert "name the model with --judge" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("eval", "--judge", "gpt"), "no policy 'gpt'; write tiny"),
        (("eval", "--judge", "openai:nowhere"), "needs an address and a model"),
        (("eval", "--judge", "openai:http://127.0.0.1:9/v1#m", "--max-cost", "1"), "has no price"),
        (("eval", "--judge", "local:none"), "none"),
        (("check", "--judge", "gpt"), "no policy 'gpt'; write tiny"),
        (("eval", "--stream", "--policy", "tiny"), "--stream: only for openai: policies"),
    ],
)
def test_a_wrong_option_is_one_line_and_leaves_no_run(words: tuple[str, ...], said: str, manners: Path) -> None:
    verb, *options = words
    done = gymcp(verb, "manners.py", *options, *(("--out", "run") if verb == "eval" else ()), cwd=manners)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert said in done.stderr
    assert not (manners / "run").exists()


@of_one_run
def test_a_judge_and_another_grader_exclude_each_other(judged_run: JudgedRun) -> None:
    done = gymcp("grade", "run", "--judge", "tiny", "--grader", "answer", cwd=judged_run.folder)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1)
    assert "--judge: is for the environment's own grader" in done.stderr


@of_one_run
def test_a_recorded_verdict_is_graded_without_the_answers_file(judged_run: JudgedRun, tmp_path: Path) -> None:
    """The record alone decides: the file of answers is a log, and saves paying twice."""
    folder = shutil.copytree(judged_run.folder, tmp_path / "copy")
    (folder / "run" / ANSWERS_FILE).unlink()
    done = gymcp("grade", "run", "--json", cwd=folder)
    assert (done.returncode, json.loads(done.stdout)["success"]) == (0, 1.0), done.stderr
