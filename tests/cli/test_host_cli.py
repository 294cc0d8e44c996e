"""``gymcp host`` on the command line, and the verbs that read what it records."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from chat_server import Reply, chat_server, says
from cli_runner import BANK, GYMCP, TIMEOUT_S, gymcp
from page_blocks import DOCS, ROOT, read_blocks
from page_player import play_page

from gymcp.evaluators.judge.answers import ANSWERS_FILE
from gymcp.host.openapi import describe_api
from gymcp.store import TrajectoryStore, open_run

MARK = re.compile(r"RECORD ([0-9a-f]{16})")


def test_the_page_plays_and_its_run_is_read_as_any(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    assert play_page(DOCS / "host.md", tmp_path) == 2
    run = tmp_path / "runs" / "hosted" / "bank-payer"
    gold = tmp_path / "runs" / "gold"
    assert gymcp("eval", BANK, "--out", gold).returncode == 0
    for words in (("grade", run), ("compare", run, gold)):
        done = gymcp(*words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, gold)]
    assert [(each["episodes"], each["success"]) for each in summaries] == [(3, 1.0), (3, 1.0)]
    assert [path.name for path in (tmp_path / "runs" / "hosted").iterdir()] == ["bank-payer"]
    tasks = []
    for folder in ("first", "second"):
        with TrajectoryStore.open(tmp_path / "runs" / folder / "bank-payer") as store:
            tasks += [(row.task, row.score) for row in store.summaries()]
    assert sorted(tasks) == [("pay_back_100", 1.0), ("pay_back_30", 1.0), ("pay_back_5", 1.0)]


def test_the_openapi_document_needs_no_environment() -> None:
    done = gymcp("host", "--openapi")
    assert (done.returncode, json.loads(done.stdout)) == (0, describe_api())


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[httpx.Client]:
    """A client of a host with runs in ``runs``, which Ctrl-C ends."""
    command = [str(GYMCP), "host", *words, "--port", "0", "--out", "runs"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            with httpx.Client(base_url=host.stdout.readline().strip(), timeout=TIMEOUT_S) as client:
                yield client
        finally:
            host.send_signal(signal.SIGINT)
            host.wait(TIMEOUT_S)
    assert host.returncode == 0


def play_user_and_judge(number: int, body: dict[str, Any]) -> Reply:
    """A user who leaves when the agent has spoken, and a judge who likes a good day."""
    messages = [str(message["content"]) for message in body["messages"]]
    if mark := MARK.search(messages[1]):
        points = {"polite": "Have a good day" in messages[1]}
        return says(json.dumps({"mark": mark[1], "reason": "r", "points": points}))
    return says("My 5 euros, please." if len(messages) == 2 else "###STOP###")


def test_models_play_the_user_and_judge_as_in_eval(tmp_path: Path) -> None:
    (block,) = (block for block in read_blocks(DOCS / "judge.md") if block.file == "manners.py")
    text = block.text.replace('id="pay_5",', 'id="pay_5", user=UserScript(scenario="You want 5 euros back."),')
    (tmp_path / "manners.py").write_text(text.replace("import GoldTurn,", "import UserScript, GoldTurn,"))
    with chat_server(play_user_and_judge) as server:
        model = f"openai:{server.url}#m"
        with serving(tmp_path, "manners.py", "--user-policy", model, "--judge", model) as client:
            episode = client.post("/v1/episodes", json={"environment": "manners", "task": "pay_5"}).json()
            assert [message["content"] for message in episode["messages"]] == ["My 5 euros, please."]
            path = f"/v1/episodes/{episode['id']}"
            client.post(f"{path}/call", json={"name": "pay", "arguments": {"euros": 5}})
            said = client.post(f"{path}/say", json={"text": "Here you are. Have a good day."}).json()
    assert (said["over"], said["verdict"]["score"]) == (True, 1.0), said
    config = open_run(tmp_path / "runs" / "manners-agent").config
    assert (config["user_policy"], config["judge"], config["user_sampling"]["temperature"]) == (model, model, 0.0)
    assert len((tmp_path / "runs" / "manners-agent" / ANSWERS_FILE).read_text().splitlines()) == 3
    assert gymcp("grade", "runs/manners-agent", cwd=tmp_path).returncode == 0
