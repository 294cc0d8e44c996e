"""``gymcp judge``: verdicts are asked for once, stored, counted, and compared with human labels."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Reply, chat_server, says
from inner_command import gymcp
from page_blocks import DOCS, read_blocks

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.judge.answers import ANSWERS_FILE
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, TrajectoryStore, create_run
from gymcp.store.notes import Note, append_note
from gymcp.types import Action, Message, Observation, Step, Trajectory

RUBRIC = """
name = "manners"
points = [{id = "paid", text = "It was paid."}, {id = "polite", text = "It was polite."}]
"""
MARK = re.compile(r"RECORD ([0-9a-f]{16})")


def make_trajectory(task: str, text: str, **fields: Any) -> Trajectory:
    seen = Observation(messages=(Message(role="user", content="Pay."),), tools=())
    return Trajectory(
        **{
            "id": f"episode {task}",
            "env": "shop",
            "task": task,
            "steps": (Step(turn=0, observation=seen, action=Action(text=text)),),
            "score": 0.0,
            "reason": "the state differs",
            **fields,
        }
    )


EPISODES = (
    make_trajectory("good", "Paid, and thank you."),
    make_trajectory("rude", "Paid."),
    make_trajectory("silent", "", outcome=Outcome.AGENT_ERROR),
    make_trajectory("lost", "", outcome=Outcome.ENV_INFRA, score=None),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record(tmp_path / "run", EPISODES)


def record(folder: Path, episodes: Sequence[Trajectory]) -> Path:
    config = {"env": "backoffice", "source": "backoffice", "agent": "react"}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for episode in episodes:
            store.append(episode, {})
    return folder


@pytest.fixture
def rubric(tmp_path: Path) -> Path:
    file = tmp_path / "manners.toml"
    file.write_text(RUBRIC)
    return file


def fair(number: int, body: dict[str, Any]) -> Reply:
    """A judge that reads the record; of three votes the last (seed 2) is a strict one."""
    text = body["messages"][1]["content"]
    (mark,) = set(MARK.findall(text))
    points = {"paid": "Paid" in text.partition("RECORD")[2], "polite": "thank you" in text and body.get("seed") != 2}
    return says(f"Hm. {json.dumps({'mark': mark, 'reason': 'read', 'points': points})}", prompt=50, completion=7)


def rows(folder: Path) -> dict[str, EpisodeRow]:
    with TrajectoryStore.open(folder) as store:
        return {row.task: row for row in store.summaries()}


def test_a_run_is_judged_once_and_then_from_the_stored_verdicts(run: Path, rubric: Path) -> None:
    with chat_server(fair) as server:
        words = ("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric, "--votes", 3, "--json")
        done = gymcp(*words)
        assert done.exit_code == 0, (done.output, done.exception)
        assert len(server.requests) == 6
        assert {(body["seed"], body["temperature"]) for body in server.requests} == {(0, 1.0), (1, 1.0), (2, 1.0)}
    summary = json.loads(done.stdout)
    figures = summary["judge"]
    assert "cost/calls" in summary["effort"], "a report has costs of calls after judging, too"
    assert (figures["judged"], figures["errors"], figures["unanimous"], figures["asked"]) == (2, 0, 1, 6)
    assert (figures["rubric"], figures["votes"], figures["prompt_version"]) == ("manners/1", 3, "1")
    assert (figures["prompt_tokens"], figures["completion_tokens"]) == (300, 42)
    judged = rows(run)
    assert {task: (row.outcome, row.score) for task, row in judged.items()} == {
        "good": (Outcome.SCORED, 1.0),
        "rude": (Outcome.SCORED, 0.5),
        "silent": (Outcome.AGENT_ERROR, 0.0),
        "lost": (Outcome.ENV_INFRA, None),
    }
    assert judged["good"].components["judge.polite"] == pytest.approx(2 / 3)
    assert judged["rude"].reason == "judge: meets 1 of 2 points; not: It was polite.: read"
    again = gymcp(*words)  # nobody listens at that address now
    assert again.exit_code == 0, (again.output, again.exception)
    assert rows(run) == judged
    assert json.loads(again.stdout)["judge"] == {**figures, "asked": 0}
    with TrajectoryStore.open(run) as store:
        assert len(store.grades("episode good")) == 1, "an equal verdict is no news"
        assert store.load("episode good") == EPISODES[0]
    assert json.loads((run / "summary.json").read_text())["judge"]["newest_grades"] == 3


def test_episodes_that_are_alike_are_one_question_which_is_paid_for_once(tmp_path: Path, rubric: Path) -> None:
    """Two trials of a task are alike, and so is an episode of another task with the same points."""
    places = (("pay", 0), ("pay", 1), ("thank", 0))
    alike = [make_trajectory(task, "Paid, and thank you.", id=f"{task} {trial}", trial=trial) for task, trial in places]
    folder = record(tmp_path / "run", [*alike, make_trajectory("rude", "Paid.")])
    words = ("judge", folder, "--rubric", rubric, "--votes", 3, "--json")
    with chat_server(fair) as server:
        done = gymcp(*words, "--policy", f"openai:{server.url}#m")
        assert done.exit_code == 0, (done.output, done.exception)
        assert len(server.requests) == 6
    figures = json.loads(done.stdout)["judge"]
    assert (figures["judged"], figures["asked"]) == (4, 6)
    assert (figures["prompt_tokens"], figures["completion_tokens"]) == (300, 42)
    with TrajectoryStore.open(folder) as store:
        assert [row.score for row in sorted(store.summaries(), key=lambda row: row.seq)] == [1.0, 1.0, 1.0, 0.5]


def test_a_verdict_beside_the_score_does_not_change_it(run: Path, rubric: Path) -> None:
    with chat_server(fair) as server:
        done = gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric, "--as-component")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "2 judged, 0 without a verdict, 2 asked for now" in done.stdout
    found = rows(run)
    assert (found["good"].score, found["good"].reason) == (0.0, "the state differs")
    assert (found["good"].components["judge"], found["rude"].components["judge"]) == (1.0, 0.5)
    assert found["silent"].components == {"judge": 0.0}, "it said nothing: there is nothing to ask about"


def test_an_invalid_verdict_gives_no_score(run: Path, rubric: Path) -> None:
    with chat_server(lambda number, body: says("All good, full marks!")) as server:
        done = gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric, "--json")
    assert done.exit_code == 3
    found = rows(run)
    assert (found["good"].outcome, found["good"].score) == (Outcome.GRADER_ERROR, None)
    assert "no JSON object in 'All good, full marks!'" in found["good"].reason
    figures = json.loads(done.stdout)
    assert (figures["judge"]["errors"], figures["coverage"]) == (2, "1/4 scored, 2 grader error, 1 infra")


def test_a_random_model_gives_no_verdict_rather_than_a_zero(run: Path, rubric: Path, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "compact", size=TinySize(hidden=32, layers=1, heads=2))
    words = ("judge", run, "--policy", f"local:{folder}", "--rubric", rubric, "--max-tokens", 8, "--json")
    done = gymcp(*words)
    assert done.exit_code == 3, (done.output, done.exception)
    figures = json.loads(done.stdout)["judge"]
    assert (figures["judged"], figures["errors"], figures["asked"]) == (0, 2, 2)
    assert [rows(run)[task].score for task in ("good", "rude", "silent")] == [None, None, 0.0]
    assert json.loads(gymcp(*words).stdout)["judge"]["asked"] == 0, "it was asked, and that is what it said"


def test_a_judge_that_fails_midway_is_one_error_and_its_verdicts_are_kept(run: Path, rubric: Path) -> None:
    def fail_midway(number: int, body: dict[str, Any]) -> Reply:
        return fair(number, body) if number == 0 else Reply(status=401, body=b"no more")

    with chat_server(fail_midway) as server:
        words = ("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric, "--concurrency", 1)
        failed = gymcp(*words)
        assert isinstance(failed.exception, ConfigError)
        assert "the judge does not answer" in str(failed.exception)
        assert "1 answers are kept: judge again to go on" in str(failed.exception)
        assert rows(run)["good"].score == 0.0, "no grade of half a run"
    with chat_server(fair) as server:
        assert gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric).exit_code == 0
        assert len(server.requests) == 1


def test_an_episode_too_long_for_the_judge_is_the_only_one_without_a_verdict(run: Path, rubric: Path) -> None:
    def short(number: int, body: dict[str, Any]) -> Reply:
        if "thank you" in body["messages"][1]["content"]:
            return Reply(status=400, body=b"maximum context length is 8 tokens")
        return fair(number, body)

    with chat_server(short) as server:
        done = gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric)
    assert done.exit_code == 3
    assert (rows(run)["good"].score, rows(run)["rude"].score) == (None, 0.5)


def test_a_verdict_cut_short_by_a_crash_is_asked_for_again(run: Path, rubric: Path) -> None:
    with chat_server(fair) as server:
        words = ("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric)
        assert gymcp(*words).exit_code == 0
        judged = rows(run)
        answers = run / ANSWERS_FILE
        answers.write_bytes(answers.read_bytes()[:-30])
        assert gymcp(*words).exit_code == 0
        assert (len(server.requests), rows(run)) == (3, judged)
    assert gymcp(*words).exit_code == 0


def test_labels_are_compared_with_the_judge(run: Path, rubric: Path, tmp_path: Path) -> None:
    with chat_server(fair) as server:
        assert gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric).exit_code == 0
    labels = tmp_path / "labels.csv"
    labels.write_text("task,label\ngood,pass\nrude,pass\n")
    done = gymcp("judge", "agreement", labels, "--run", run)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "agreement      0.500" in done.stdout
    assert "2 items: both pass 1, only the person 1, only the judge 0, both fail 0" in done.stdout
    summary = json.loads((run / "summary.json").read_text())
    figures = summary["judge"]
    assert "cost/calls" in summary["effort"]
    assert (figures["agreement"]["agree"], figures["agreement"]["kappa"]) == (0.5, 0.0)
    assert len(figures["agreement"]["kappa_ci95"]) == 2
    assert figures["judged"] == 2, "the judge's own figures stay"


def test_the_commands_of_the_page_work_as_they_stand(run: Path, rubric: Path, tmp_path: Path) -> None:
    """The same with the verdicts that people gave in the viewer."""
    labels = tmp_path / "labels.csv"
    labels.write_text("task,label\ngood,pass\nrude,pass\n")
    for task, verdict in (("good", "pass"), ("rude", "fail")):
        append_note(run, Note(episode=f"episode {task}", who="ann", verdict=verdict), seen="")
    (block,) = (block for block in read_blocks(DOCS / "judge.md") if "judge agreement" in block.text)
    said = []
    with chat_server(fair) as server:
        ours = {"RUN": run, "openai:URL#MODEL": f"openai:{server.url}#m", "rubric.toml": rubric, "labels.csv": labels}
        for line in block.text.splitlines():
            words = line.partition("  #")[0].split()
            assert ours.keys() & {*words}
            done = gymcp(*(ours.get(word, word) for word in words[1:]))
            assert done.exit_code == 0, (line, done.output, done.exception)
            said.append(done.stdout)
    assert "agreement      0.500" in said[1]
    assert "agreement      1.000" in said[2]


def test_labels_without_a_verdict_are_named_and_the_others_are_used(run: Path, rubric: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\nepisode good,1\nepisode lost,0\nnobody,1\n")
    none = gymcp("judge", "agreement", labels, "--run", run)
    assert isinstance(none.exception, ConfigError)
    assert "none of the 3 fits the run" in str(none.exception)
    with chat_server(fair) as server:
        assert gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", rubric).exit_code == 0
    some = gymcp("judge", "agreement", labels, "--run", run, "--json")
    assert some.exit_code == 1
    assert json.loads(some.stdout)["items"] == 1
    assert "label episode lost: has no verdict of a judge" in some.stderr
    assert "label nobody: no such episode in the run" in some.stderr
    assert "2 of 3 labels do not fit and were left out" in some.stderr
    labels.write_text("id,label\nepisode good,1\nepisode good,0\n")
    twice = gymcp("judge", "agreement", labels, "--run", run)
    assert "episode good is labelled twice" in str(twice.exception)


def test_a_file_with_both_verdicts_needs_no_run(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("label,judge\n" + "pass,pass\n" * 40 + "pass,fail\n" * 9 + "fail,pass\n" * 6 + "fail,fail\n" * 45)
    done = gymcp("judge", "agreement", labels, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert (found["agree"], round(found["kappa"], 4)) == (0.85, 0.6995)
    labels.write_text("label,judge\npass,\n")
    assert "has no verdict in a column named judge" in str(gymcp("judge", "agreement", labels).exception)


def test_a_wrong_command_line_is_one_error(run: Path, rubric: Path, tmp_path: Path) -> None:
    for words, kind, why in (
        (("judge", run, "--rubric", rubric), ConfigError, "judge: --policy is missing: "),
        (("judge", run, "--policy", "gpt", "--rubric", rubric), ConfigError, "no policy 'gpt'"),
        (("judge", run, "x", "--policy", "tiny", "--rubric", rubric), SystemExit, "2"),
        (("judge", tmp_path / "no", "--policy", "tiny", "--rubric", rubric), StoreError, "no such folder"),
        (("judge", "agreement"), SystemExit, "2"),
    ):
        result = gymcp(*words)
        assert isinstance(result.exception, kind), (words, result.output)
        assert why in str(result.exception)


def test_rubric_points_for_one_task_leave_other_tasks_without_a_verdict(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "key-points.toml"
    file.write_text('[tasks.good]\npoints = [{id = "paid", text = "Paid."}]\n')
    answer: Answer = lambda number, body: says(  # noqa: E731
        json.dumps({"mark": MARK.findall(body["messages"][1]["content"])[0], "points": {"paid": True}})
    )
    with chat_server(answer) as server:
        done = gymcp("judge", run, "--policy", f"openai:{server.url}#m", "--rubric", file)
        assert len(server.requests) == 1
    assert done.exit_code == 3
    assert (rows(run)["good"].score, rows(run)["rude"].score) == (1.0, None)
    assert "has no points for task 'rude'" in rows(run)["rude"].reason
