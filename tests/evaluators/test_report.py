from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from recorded_runs import write_hostile
from records import order_episode

from gymcp.errors import StoreError
from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.report.formatting import percent, seconds
from gymcp.evaluators.report.html import element
from gymcp.evaluators.statistics import wilson
from gymcp.evaluators.viewer.pages import STATIC
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Json, Trajectory, Usage
from gymcp.visible_text import visible

CONFIG = {"env": "shop", "suite": "shop-2", "agent": "react", "limits": {"steps": 9}}


def episode(task: str, score: float | None, **fields: Json) -> Trajectory:
    usage = Usage(tool_calls=2, wall_s=0.25)
    return Trajectory(**{"id": task, "env": "shop", "task": task, "score": score, "usage": usage, **fields})


def record(folder: Path, episodes: list[Trajectory], **config: Json) -> None:
    with (
        create_run(folder, {**CONFIG, **config}, seeds=[5]),
        TrajectoryStore.open(folder, write=True) as store,
    ):
        for episode in episodes:
            store.append(episode, {}, tags=("refund" if episode.task < "c" else "order",))


class Page(HTMLParser):
    """Parser that checks the nesting of tags, and collects what the page would load and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.within: list[str] = []
        self.ids: set[str | None] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert set(self.within) <= self.ids

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids |= {value for name, value in attrs if name == "id"}
        self.within += [value[1:] for name, value in attrs if name == "href" and value and value.startswith("#")]
        self.links += [
            name
            for name, value in attrs
            if name == "src" or name.startswith("on") or (name == "href" and not str(value).startswith("#"))
        ]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def test_the_summary_has_the_documented_keys(tmp_path: Path) -> None:
    record(
        tmp_path,
        [
            episode("a", 1.0, components={"did": 1.0}),
            episode("b", 0.0, components={"did": 0.0}),
            episode("c", 1.0),
            episode("d", None, outcome=Outcome.ENV_INFRA),
        ],
    )
    overall, refund, order = wilson(2, 3), wilson(1, 2), wilson(1, 1)
    assert overall is not None
    assert refund is not None
    assert order is not None
    expected = {
        "env": "shop",
        "suite": "shop-2",
        "agent": "react",
        "episodes": 4,
        "scored": 3,
        "success": 2 / 3,
        "ci95": [overall.low, overall.high],
        "outcomes": {"scored": 3, "env_infra": 1},
        "tool_calls": 8,
        "attempts": 4,
        "wall_s": 0.25,
        "run": str(tmp_path),
        "breakdown": [
            {
                "axis": "category",
                "tag": tag,
                "episodes": 2,
                "scored": scored,
                "success": success,
                "ci95": [found.low, found.high],
            }
            for tag, scored, success, found in (("order", 1, 1.0, order), ("refund", 2, 0.5, refund))
        ],
        "components": {"did": 0.5},
        "pass_k": [],
        "noise_floor": None,
        "effort": {
            "steps": {"mean": 0.0, "ci95": [0.0, 0.0], "per_pass": 0.0},
            "tool_calls": {"mean": 2.0, "ci95": [2.0, 2.0], "per_pass": 3.0},
            "prompt_tokens": {"mean": 0.0, "ci95": [0.0, 0.0], "per_pass": 0.0},
            "completion_tokens": {"mean": 0.0, "ci95": [0.0, 0.0], "per_pass": 0.0},
            "seconds": {"mean": 0.0, "ci95": [0.0, 0.0], "per_pass": 0.0},
            "cost": {"mean": 0.0, "ci95": [0.0, 0.0], "per_pass": 0.0},
        },
        "calls": {"made": 0, "error_rate": None, "invalid_rate": None, "redundant_rate": None},
        "radar": None,
        "latency": {"model": None, "request": None, "first_token": None, "tool": None},
        "tokens_per_s": None,
        "coverage": "3/4 scored, 1 infra",
        "lost": {"env_infra": "d trial 0: "},
        "agent_errors": {},
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cost": 0.0,
        "tools": {},
        "models": {},
        "seconds": {"policy": 0.0, "tool": 0.0, "reset": 0.0, "grading": 0.0, "harness": 1.0},
        "utilisation": {
            "policy_share": 0.0,
            "tool_share": 0.0,
            "reset_share": 0.0,
            "grading_share": 0.0,
            "harness_share": 1.0,
            "policy_requests": 0.0,
            "tool_calls": 0.0,
        },
        "covered": 0.75,
        "min_coverage": 0.95,
        "refused": "3 of 4 episodes (75 %) have a score, below the floor of 95 %: over all episodes, success is between"
        " 50 % (all lost ones failed) and 75 % (all succeeded); to score the lost ones: repeat its command with --out"
        f" {tmp_path} --resume; to accept this coverage: --min-coverage 0.75",
        "success_bounds": [0.5, 0.75],
        "score": 2 / 3,
        "score_bounds": [0.5, 0.75],
        "tasks": 4,
        "tasks_without_score": 1,
        "retries": None,
        "trials": None,
        "faulty": None,
        "user_audit": None,
    }
    written = write_report(tmp_path)
    assert written == json.loads((tmp_path / "summary.json").read_text()) == expected
    assert list(written) == list(expected)


def test_the_page_is_self_contained_and_complete(tmp_path: Path) -> None:
    record(
        tmp_path,
        [
            episode("a", 1.0),
            episode("b", 0.25, reason="orders.7 is open"),
            episode("c", None, outcome=Outcome.ENV_INFRA, reason="server died"),
        ],
    )
    write_report(tmp_path)
    shown = page(tmp_path)
    assert shown.links == []
    assert shown.tags.isdisjoint({"script", "link", "img", "iframe"})
    for text in (
        "50.0 %",
        "2/3 scored, 1 infra",
        "9.5 to 90.5 %",
        "refund",
        "orders.7 is open",
        "server died",
        "shop-2",
    ):
        assert text in shown.text
    assert "prefers-color-scheme: dark" in shown.text


def test_everything_from_a_record_is_text(tmp_path: Path) -> None:
    hostile = "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e\ud800&amp;\"'"
    record(tmp_path, [episode("a" + hostile, 0.0, reason=hostile, components={hostile: 1.0})], agent=hostile)
    write_report(tmp_path)
    shown = page(tmp_path)
    assert shown.links == []
    assert shown.tags.isdisjoint({"script", "img"})
    spelt = hostile.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e").replace("\ud800", "\\ud800")
    assert shown.text.count(spelt) >= 4


def test_only_the_worst_are_listed_and_the_rest_is_counted(tmp_path: Path) -> None:
    record(tmp_path, [episode(f"task{n:02}", n / 100, reason="x" * 5000) for n in range(30)])
    write_report(tmp_path)
    text = page(tmp_path).text
    assert "Tasks it fails, worst first (20 of 30)" in text
    assert "task19" in text
    assert "task20" not in text
    assert "x" * 600 + " ..." in text
    assert "x" * 601 not in text


def test_of_many_tools_those_with_the_most_calls_are_listed(tmp_path: Path) -> None:
    tools = {f"tool{n:02}": {"calls": n, "seconds": 1.0} for n in range(70)}
    record(tmp_path, [episode("a", 1.0, usage=Usage(tool_calls=9, tools=tools))])
    write_report(tmp_path)
    listed = re.findall(r"<code[^>]*>(tool\d+)</code>", (tmp_path / "report.html").read_text())
    assert listed == [f"tool{n}" for n in range(69, 9, -1)]
    assert "Tools, most calls first (60 of 70)" in page(tmp_path).text


@pytest.mark.parametrize(
    ("agent", "scores", "said"),
    [
        ("oracle", [1.0, 1.0], "Gate held: this agent should score 100.0 % in every episode, and did in all 2"),
        ("oracle", [1.0, 0.5], "Gate broken: this agent should score 100.0 % in every episode, and did not in 1 of 2"),
        ("null", [0.0], "Gate held: this agent should score 0.0 % in every episode"),
        ("mutated", [0.0, 1.0], "and did not in 1 of 2"),
        ("mutated", [None], "but nothing was scored"),
    ],
)
def test_a_gate_says_whether_it_held(tmp_path: Path, agent: str, scores: list[float | None], said: str) -> None:
    outcomes = [Outcome.TIMEOUT if score is None else Outcome.SCORED for score in scores]
    episodes = [episode(f"t{n}", scores[n], outcome=outcome) for n, outcome in enumerate(outcomes)]
    record(tmp_path, episodes, agent=agent)
    write_report(tmp_path)
    text = page(tmp_path).text
    assert said in text
    assert ("Broke the gate" in text) == ("did not" in said)
    assert "Failed" not in text


def test_a_run_without_episodes_has_a_report_without_numbers(tmp_path: Path) -> None:
    record(tmp_path, [])
    summary = write_report(tmp_path)
    assert (summary["episodes"], summary["success"], summary["ci95"]) == (0, None, None)
    assert "nothing was scored" in page(tmp_path).text


def test_the_newest_grade_is_reported(tmp_path: Path) -> None:
    record(tmp_path, [episode("a", 0.0)])
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.add_grade(episode("a", 1.0), grader="v2")
    assert write_report(tmp_path)["success"] == 1.0


def test_a_folder_without_a_run_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run\.json"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rounding_never_turns_a_share_into_0_or_100_percent() -> None:
    assert [percent(share) for share in (None, 0.0, 0.0001, 0.8125, 0.9999, 1.0)] == [
        "–",
        "0.0 %",
        "< 0.1 %",
        "81.2 %",
        "> 99.9 %",
        "100.0 %",
    ]
    assert [seconds(value) for value in (0.314, 42, 200, 7500)] == ["0.31 s", "42.0 s", "3 min 20 s", "2 h 05 min"]


def test_markup_is_escaped_in_texts_and_attributes() -> None:
    assert element("p", "<b>", title='"x"').text == '<p title="&quot;x&quot;">&lt;b&gt;</p>'


def test_report_and_viewer_spell_out_the_same_characters() -> None:
    (listed,) = re.findall(r"^const UNSEEN =\n  /\[(.*)\]/gu;$", (STATIC / "dom.js").read_text(), re.MULTILINE)
    in_page = re.compile("[" + re.sub(r"\\u\{(\w+)\}", lambda code: f"\\U{int(code[1], 16):08x}", listed) + "]")
    every = map(chr, range(sys.maxunicode + 1))
    assert [char for char in every if (visible(char) == char) == bool(in_page.match(char))] == []


def test_invisible_characters_are_spelt_out_in_report_and_markdown(tmp_path: Path) -> None:
    hidden = "".join(map(chr, (0x200B, 0x202E, 0x2066, 0xFEFF, 0xAD, 0x3164, 0xE0041, 0xE0101, 0x1B, 0x9B, 0xD800)))
    write_hostile(tmp_path / "run")
    with TrajectoryStore.open(tmp_path / "run", write=True) as store:
        store.append(order_episode(hidden, 0, pays=False, run=hidden, reason=hidden), {"state-0": {}}, tags=(hidden,))
    write_report(tmp_path / "run")
    markdown = read_report([tmp_path / "run"], lambda run: {}).text("md")
    for text in ((tmp_path / "run" / "report.html").read_text(), markdown):
        assert [char for char in text if visible(char) != char] == []
        assert "u200b" in text
        assert "U000e0041" in text
