"""The viewer without a browser: access, search, damaged runs, and its end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from recorded_runs import write_run, write_training_run
from records import order_episode
from viewer_process import run_real_viewer, run_viewer

from gymcp.errors import StoreError
from gymcp.evaluators.viewer.divergence import align, first_divergence
from gymcp.evaluators.viewer.index import escape_surrogates, restore_surrogates
from gymcp.evaluators.viewer.query import QueryError, condition
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.store import TrajectoryStore, create_run
from gymcp.store.database import FILE_NAME
from gymcp.types import Json, Trajectory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "a", "steady", paying=5, tasks=10)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with run_viewer(folder) as address:
        yield address


def enter(browser: httpx.Client, answer: httpx.Response) -> str:
    """Path of the viewer's pages, to which the response to a token leads."""
    assert answer.status_code == 200
    (folder,) = re.findall(r'content="0; url=(/[\w-]{32}/)', answer.text)
    return str(folder)


def test_only_requests_with_token_and_loopback_host_are_served(address: str) -> None:
    base, token = address.split("/?token=")
    port = base.rpartition(":")[2]
    with httpx.Client(base_url=base, timeout=60) as browser:
        assert browser.get("/api/about").status_code == 403
        assert browser.get("/?token=wrong").status_code == 403
        assert browser.get("/?token=%ed%a0%80%ff").status_code == 403
        assert browser.get("/", params={"token": token}, headers={"host": "evil.example"}).status_code == 421
        assert browser.get("/api/about", headers={"host": "evil.example:" + port}).status_code == 421
        assert browser.head("/", params={"token": token}).status_code == 403
        answer = browser.get("/", params={"token": token})
        folder = enter(browser, answer)
        cookie = answer.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=strict", f"Path={folder}"} <= set(cookie)
        assert token not in answer.headers["set-cookie"]
        assert browser.get("/").status_code == 403
        assert browser.get("/api/about").status_code == 403
        shown = browser.get(folder)
        assert shown.status_code == 200
        assert "default-src 'none'" in shown.headers["content-security-policy"]
        assert "unsafe" not in shown.headers["content-security-policy"]
        browser.base_url = httpx.URL(base + folder)
        assert browser.get("api/about").json()["runs"][0]["episodes"] == 21
        assert browser.post("api/about").status_code == 405
        assert browser.get("static/..%2Fapp.py").status_code == 404
        assert browser.get("static/main.js").status_code == 200
        assert browser.get("api/episodes/99999").json() == {"error": "no episode 99999"}
        assert browser.get("api/episodes", params={"q": 'a"b* OR ('}).status_code == 200
        assert browser.get("api/episodes", params={"sort": "n; DROP TABLE episodes"}).status_code == 400
        several = f"a=b; {cookie[0].partition('=')[0]}=planted; {cookie[0]}"
        assert httpx.get(f"{base}{folder}api/about", headers={"cookie": several}, timeout=60).status_code == 200


def test_a_page_that_asks_again_is_told_only_what_is_new(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "train")
    with run_viewer(run) as address, httpx.Client(timeout=60) as browser:
        browser.base_url = httpx.URL(address.split("/?token=")[0] + enter(browser, browser.get(address)))

        def ask_again(known: Json) -> Json:
            return browser.get("api/about", params={"version": known["version"]}).json()

        first = browser.get("api/about").json()
        assert ask_again(first).keys() == {"version", "searchable", "indexed"}
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"iteration": 5, "test/seeds/success": 0.75}\n')
        trained = ask_again(first)
        assert trained["runs"][0]["held_out"]["success"] == 0.75
        with TrajectoryStore.open(run, write=True) as store:
            store.append(order_episode("task0", 90, pays=True, run="train", group="shop/task0/4"), {})
        grown = ask_again(trained)
        assert [each["runs"][0]["episodes"] for each in (first, grown)] == [16, 17]
        assert ask_again(grown).keys() == {"version", "searchable", "indexed"}


def test_a_token_lets_one_browser_in_once(folder: Path) -> None:
    with run_viewer(folder) as address:
        with httpx.Client(timeout=60) as browser:
            place = address.split("/?token=")[0] + enter(browser, browser.get(address))
            assert browser.get(place).status_code == 200
            again = browser.get(address)
        assert (again.status_code, "it lets one browser in, once" in again.text) == (403, True)
        assert httpx.get(place, timeout=60).status_code == 403


def test_the_cookie_is_not_sent_to_servers_on_other_ports(folder: Path) -> None:
    with run_viewer(folder) as mine, run_viewer(folder) as other, httpx.Client(timeout=60) as browser:
        enter(browser, browser.get(mine))
        elsewhere = browser.build_request("GET", other.split("?")[0])
        assert "cookie" not in elsewhere.headers


def test_the_browsers_command_line_has_no_token(folder: Path, tmp_path: Path) -> None:
    """A stand-in for the browser reports its arguments, and the content of the file that it was given, through a
    pipe."""
    told, browser = tmp_path / "told", tmp_path / "browser"
    os.mkfifo(told)
    browser.write_text(
        f"""#!/bin/sh\n{{ echo "$@"; stat -c %a-%u "${{1#file://}}"; cat "${{1#file://}}"; }} > {told}\n"""
    )
    browser.chmod(0o755)
    environment = {"BROWSER": f"{browser} %s", "DISPLAY": ":9"}
    with run_real_viewer(folder, environment=environment) as (address, process):
        called, mode, page = told.read_text().splitlines()
        (inside,) = re.findall(r'url=(http://127\.0\.0\.1:\d+/\?token=[\w-]+)"', page)
        assert (called.startswith("file:///"), "token" in called, mode) == (True, False, f"600-{os.getuid()}")
        assert inside != address
        for each in (inside, address):  # the printed address can still be pasted
            assert httpx.get(each, timeout=60).status_code == 200
        file = Path(called.removeprefix("file://"))
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out, errors) == (0, "stopped\n", "")
        assert not file.parent.exists()


def test_the_viewer_listens_on_the_loopback_alone(address: str) -> None:
    port = int(re.findall(r":(\d+)/", address)[0])
    rows = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {row for row in rows if row.endswith(f":{port:04X}")} >= {f"0100007F:{port:04X}"}
    assert f"00000000:{port:04X}" not in rows


def test_the_viewer_ends_at_once_on_a_signal(folder: Path) -> None:
    """SIGTERM here; SIGINT ends the viewer of the test above."""
    with run_real_viewer("--no-open", folder) as (_, process):
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out, errors) == (0, "stopped\n", "")


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 21),
        ("is:solved", 10),
        ("is:failed", 10),
        ("is:unscored", 1),
        ("outcome:env_infra", 1),
        ("task:task00* trial:0", 10),
        ("task=task003", 2),
        ("tag:refund -is:solved", 4),
        ("tool:pay_order", 10),
        ("score<1 errors>0", 10),
        ('"order 7 is open"', 10),
        ("-died", 20),
    ],
)
def test_queries_find_the_expected_episodes(folder: Path, query: str, count: int) -> None:
    with open_runs([folder]) as runs:
        assert runs.index.page(0, query, "recorded", 0)["total"] == count


@pytest.mark.parametrize("query", ["is:red", "colour:red", "steps>many", "task>3", "x" * 2000])
def test_an_invalid_query_is_explained(query: str) -> None:
    with pytest.raises(QueryError, match=r"have|not a number|only numbers|longer than"):
        condition(query)


def test_episodes_recorded_while_the_viewer_is_open_appear(tmp_path: Path) -> None:
    write_run(tmp_path, "steady", paying=1, tasks=1, trials=1)
    with open_runs([tmp_path]) as runs:
        with TrajectoryStore.open(tmp_path, write=True) as store:
            store.append(order_episode("new", 0, pays=True, run="steady"), {})
            store.append(order_episode("lost", 0, pays=True, run="again"), {})
            store.add_grade(order_episode("new", 0, pays=False, run="steady"), grader="v2")
        runs.refresh()
        assert runs.index.page(0, "", "recorded", 0)["total"] == 3
        assert [row["score"] for row in runs.index.page(0, "task:new", "recorded", 0)["rows"]] == [0.0]
        assert [row["attempt"] for row in runs.index.page(0, "lost", "recorded", 0)["rows"]] == [1]


def test_the_first_divergence_of_two_episodes() -> None:
    pays, refunds = (order_episode("t", 0, pays=pays, run="r") for pays in (True, False))
    assert first_divergence(pays, pays) is None
    assert first_divergence(pays, refunds) == (1, "they call different tools")


def test_steps_side_by_side_are_those_of_the_same_user_turn() -> None:
    def episode(*turns: int) -> Trajectory:
        one = order_episode("t", 0, pays=True, run="r")
        return replace(one, steps=tuple(replace(one.steps[0], turn=turn) for turn in turns))

    long, short = episode(0, 0, 0, 1, 2), episode(0, 1, 1)
    assert align(long, short, 0) == [(0, 0, 0), (0, 1, None), (0, 2, None), (1, 3, 1), (1, None, 2), (2, 4, None)]
    assert align(long, short, 1) == [(0, 1, None), (0, 2, None), (1, 3, 1), (1, None, 2), (2, 4, None)]
    assert align(long, long, 5) == []


def test_text_that_sqlite_refuses_is_restored() -> None:
    assert restore_surrogates(escape_surrogates("a\ud800b\udfff\U0001f600")) == "a\ud800b\udfff\U0001f600"


def test_a_damaged_run_is_reported_and_the_rest_is_shown(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", "steady", paying=5, tasks=40)
    cut = write_run(tmp_path / "cut", "hasty", paying=5, tasks=40)
    file = cut / FILE_NAME
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with open_runs([whole, cut]) as runs:
        assert runs.problems == ()
        assert "is damaged: the first" in runs.opened[1].problems[0]
        assert 0 < runs.index.page(1, "", "recorded", 0)["total"] < 81
    (tmp_path / "empty").mkdir()
    with open_runs([tmp_path / "empty", whole]) as runs:
        assert "holds no trajectories.sqlite" in runs.problems[0]
        assert runs.index.page(0, "", "recorded", 0)["total"] == 81
    with pytest.raises(StoreError, match="no such folder"), open_runs([tmp_path / "nothing"]):
        pass


def test_runs_of_different_tasks_are_reported(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", "steady", paying=1, tasks=1)
    with create_run(tmp_path / "other", {"suite": "bank"}), TrajectoryStore.open(tmp_path / "other", write=True):
        pass
    with open_runs([one, tmp_path / "other"]) as runs:
        assert "the runs are of different tasks (suite: shop and bank)" in runs.problems[0]
