"""Episodes of a real host: what they record, how they end, and what is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm_command
from hosting import BANK, TOKEN, Hosted, hosting

from gymcp.agents.runner.rollout import rollout
from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.proctree import find_roots, read_processes
from gymcp.scratch import scratch_folder
from gymcp.store import TrajectoryStore, open_run
from gymcp.types import Suite, Trajectory

assert isinstance(BANK.suite, Suite)
FIRST, SECOND, _ = BANK.suite.tasks
SILENCE = "nothing was heard of its client and its agent for"
PAY: dict[str, Any] = {"source": "ann", "target": "bob", "amount": 5}


def load(hosted: Hosted, name: str, id: str) -> Trajectory:
    with TrajectoryStore.open(hosted.out / name) as store:
        return store.load(id)


def list_own_processes() -> set[int]:
    """Processes that this one has started, and theirs; not those of the server of commands, which others ask, too."""
    of = find_roots(read_processes(), [os.getpid(), *warm_command.SERVERS], {})
    return {pid for pid, root in of.items() if root == os.getpid()} - {os.getpid()}


def list_what_is_there() -> frozenset[int | str]:
    """Own processes, and the files of their sandboxes."""
    return frozenset(list_own_processes()) | {path.name for path in scratch_folder().iterdir()}


# ----------------------------------------------------------------------------------------------------- what they record


def test_an_episode_is_recorded_as_eval_records_it(hosted: Hosted) -> None:
    """The same calls and words, once by the oracle in a run and once by a client of the host."""
    env, plan = load_env(BANK), Plan(agent="oracle", seed=0)
    job = next(make_jobs(plan, env.suite.tasks))
    wanted = asyncio.run(rollout(env, get_sandbox("bwrap"), SCRIPTED["oracle"], job, timeout_s=60)).trajectory

    episode = hosted.start("bank", FIRST.id, agent="gold")
    assert episode["messages"] == [{"role": "user", "content": FIRST.prompts[0]}]
    assert [tool["name"] for tool in episode["tools"]] == ["balance", "transfer"]
    called = hosted.ask(episode, "call", name="transfer", arguments=PAY)
    assert called == {"content": "done", "is_error": False, "over": False}
    reply = hosted.ask(episode, "say", text=FIRST.gold[0].final_text)
    assert (reply["over"], reply["messages"], reply["verdict"]["score"]) == (True, [], 1.0)
    assert hosted.ask(episode, "finish") == reply["verdict"] == hosted.status(episode)["verdict"]

    found = load(hosted, "bank-gold", episode["id"])
    assert found.usage.tools["transfer"]["calls"] == wanted.usage.tools["transfer"]["calls"]
    assert simplify(found) == simplify(wanted)
    config = dict(open_run(hosted.out / "bank-gold").config)
    assert config | {"agent": "oracle", "budget": None, "trials": 1} == plan.config(env, "bank") | {"budget": None}
    assert config["agent"] == "host:gold"


def simplify(trajectory: Trajectory) -> Trajectory:
    """The record without what is of this one try: id, times, and ids of calls."""
    steps = tuple(
        replace(
            step,
            agent_s=0.0,
            action=replace(step.action, tool_calls=tuple(replace(call, id="") for call in step.action.tool_calls)),
            results=tuple(replace(result, call_id="", seconds=0.0) for result in step.results),
            observation=replace(
                step.observation,
                messages=tuple(replace(message, tool_call_id=None) for message in step.observation.messages),
            ),
        )
        for step in trajectory.steps
    )
    return replace(trajectory, id="", steps=steps, usage=replace(trajectory.usage, **NO_TIMES))


TIMES = ("started_at", "wall_s", "reset_s", "agent_s", "tool_s", "user_s", "grading_s")
NO_TIMES: dict[str, Any] = {**dict.fromkeys(TIMES, 0.0), "tools": {}}


def test_seed_group_and_trials_are_those_of_the_request(hosted: Hosted) -> None:
    first = hosted.start("bank", SECOND.id, agent="seeds", seed=7, policy_version="3")
    second = hosted.start("bank", SECOND.id, agent="seeds")
    assert [(each["seed"], each["trial"]) for each in (first, second)] == [(7, 0), (second["seed"], 1)]
    assert second["seed"] != 7
    for episode, group in ((first, f"bank/{SECOND.id}/3"), (second, f"bank/{SECOND.id}")):
        hosted.ask(episode, "finish")
        assert load(hosted, "bank-seeds", episode["id"]).group == group


def test_wrappers_are_enforced_and_have_a_run_of_their_own(hosted: Hosted) -> None:
    rules = {"rule": [{"effect": "forbid", "tools": ["transfer"], "message": "Not today."}]}
    episode = hosted.start("bank", FIRST.id, agent="ruled", wrappers={"privileges": rules})
    called = hosted.ask(episode, "call", name="transfer", arguments=PAY)
    assert (called["is_error"], "Not today." in called["content"]) == (True, True)
    verdict = hosted.ask(episode, "finish")
    assert (verdict["score"], Path(verdict["run"]).name.startswith("bank-ruled-")) == (0.0, True)
    assert open_run(Path(verdict["run"])).config["privileges"]["rule"][0]["message"] == "Not today."


# ----------------------------------------------------------------------------------------------------------- their ends


def test_the_user_goes_on_until_it_leaves(hosted: Hosted) -> None:
    episode = hosted.start("two_turns", FIRST.id)
    hosted.ask(episode, "call", name="transfer", arguments=PAY)
    reply = hosted.ask(episode, "say", text="Done.")
    assert (reply["over"], reply["messages"]) == (False, [{"role": "user", "content": "Anything else?"}])
    assert hosted.ask(episode, "say", text="No.")["verdict"]["outcome"] == "scored"


def test_finish_before_the_user_has_left_grades_as_it_stands(hosted: Hosted) -> None:
    episode = hosted.start("two_turns", FIRST.id)
    hosted.ask(episode, "call", name="transfer", arguments=PAY)
    verdict = hosted.ask(episode, "finish", text="Done.")
    assert (verdict["outcome"], verdict["score"]) == ("budget_exhausted", 1.0)
    assert "its client finished the episode before the user had left" in verdict["reason"]
    assert verdict["metrics"]["tool_calls"] == 1


def test_a_wrong_call_is_an_observation(hosted: Hosted) -> None:
    episode = hosted.start("bank", FIRST.id)
    for name, arguments, words in (
        ("transfer", {**PAY, "amount": "much"}, "amount"),
        ("transfer", {**PAY, "amount": 1000}, "ann cannot pay 1000"),
        ("rob", {}, "rob"),
    ):
        called = hosted.ask(episode, "call", name=name, arguments=arguments)
        assert (called["is_error"], words in called["content"]) == (True, True), called
    assert hosted.ask(episode, "finish")["metrics"]["tool_errors"] == 3


def test_a_request_after_the_end_is_one_error(hosted: Hosted) -> None:
    episode, other = hosted.start("bank", FIRST.id), hosted.start("bank", FIRST.id)
    path = f"/v1/episodes/{episode['id']}"
    hosted.ask(episode, "finish")
    for what, body, words in (
        ("finish", {}, "has been finished already; its verdict stays"),
        ("say", {"text": "more"}, "is over (scored); its verdict: GET"),
        ("call", {"name": "balance"}, "is over (scored)"),
    ):
        answer = hosted.post(f"{path}/{what}", body)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (409, True), answer.text
    assert "is over, and keeps its verdict" in hosted.delete(path).text
    for token, words in ((episode["token"], "the token has expired: its episode"), (f"{episode['id']}.x", "neither")):
        answer = hosted.post(f"{path}/finish", {}, token=token)
        assert (answer.status_code, words in answer.text) == (401, True), answer.text
    assert hosted.ask(other, "call", name="balance", arguments={"owner": "ann"})["content"] == "100"
    hosted.ask(other, "finish")


def test_the_token_of_an_episode_is_for_that_episode_alone(hosted: Hosted) -> None:
    episode, other = hosted.start("bank", FIRST.id), hosted.start("bank", FIRST.id)
    own, token = f"/v1/episodes/{episode['id']}", episode["token"]
    assert hosted.get(own, token=token).status_code == 200
    assert hosted.post(f"{own}/call", {"name": "balance", "arguments": {"owner": "bob"}}, token).status_code == 200
    for answer in (
        hosted.get(f"/v1/episodes/{other['id']}", token),
        hosted.post(f"/v1/episodes/{other['id']}/finish", {}, token),
        hosted.post("/v1/episodes", {"environment": "bank", "task": FIRST.id}, token),
        hosted.delete(own, token),
    ):
        assert (answer.status_code, "for that episode alone" in answer.text) == (403, True), answer.text
    assert hosted.post(f"{own}/finish", {}, token).json()["outcome"] == "scored"
    hosted.ask(other, "finish")


def test_an_aborted_episode_has_no_score_and_is_tried_again(hosted: Hosted) -> None:
    episode = hosted.start("bank", FIRST.id, agent="quits")
    verdict = hosted.delete(f"/v1/episodes/{episode['id']}").json()
    assert (verdict["outcome"], verdict["score"], verdict["reason"]) == ("cancelled", None, "its client aborted it")
    again = hosted.start("bank", FIRST.id, agent="quits")
    assert (again["trial"], again["seed"]) == (episode["trial"], episode["seed"])
    hosted.ask(again, "finish")
    with TrajectoryStore.open(hosted.out / "bank-quits") as store:
        assert [str(outcome) for outcome in store.attempts()[FIRST.id, 0]] == ["cancelled", "scored"]


def test_a_world_that_does_not_open_is_one_error_and_is_recorded(hosted: Hosted) -> None:
    answer = hosted.post("/v1/episodes", {"environment": "closed", "task": "enter"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], "(env_infra)" in error["message"]) == (502, "environment_failed", True)
    with TrajectoryStore.open(hosted.out / "closed-agent") as store:
        assert [str(row.outcome) for row in store.summaries()] == ["env_infra"]
    assert hosted.get("/v1/episodes").json()["live"] == 0


def test_more_episodes_than_the_limit_are_refused_and_the_others_go_on(hosted: Hosted) -> None:
    episodes = [hosted.start("bank", FIRST.id) for _ in range(4)]
    answer = hosted.post("/v1/episodes", {"environment": "bank", "task": FIRST.id})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "4 episodes are live, and this host allows 4: finish one" in answer.json()["error"]["message"]
    assert [hosted.ask(episode, "finish")["outcome"] for episode in episodes] == ["scored"] * 4
    hosted.ask(hosted.start("bank", FIRST.id), "finish")


# ----------------------------------------------------------------------------------------------------- vanished clients


def test_a_client_that_does_not_wait_for_its_answer_ends_nothing(hosted: Hosted) -> None:
    episode = hosted.start("bank", FIRST.id)
    body = json.dumps({"name": "transfer", "arguments": PAY}).encode()
    host, _, port = hosted.address.removeprefix("http://").partition(":")
    head = f"POST /v1/episodes/{episode['id']}/call HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        balance = {"name": "balance", "arguments": {"owner": "ann"}}
        wait_for(lambda: hosted.ask(episode, "call", **balance)["content"] == "95")
    assert hosted.ask(episode, "finish")["score"] == 1.0


def test_nothing_is_left_of_an_episode_whose_client_vanished(tmp_path: Path) -> None:
    with hosting(BANK, out=tmp_path / "idle", idle_s=0.3, max_live=1) as hosted:

        def vanish() -> None:
            episode = hosted.start("bank", FIRST.id)
            wait_for(lambda: hosted.get("/v1/episodes").json()["live"] == 0)
            verdict = hosted.status(episode)["verdict"]
            assert (verdict["outcome"], verdict["reason"]) == ("cancelled", f"{SILENCE} 0.3 s")

        vanish()
        before = list_what_is_there()  # fork servers, which the host keeps
        vanish()
        wait_for(lambda: list_what_is_there() <= before)


def test_an_agent_cannot_lose_its_score_by_silence(tmp_path: Path) -> None:
    """It has done the wrong thing, and its client waits for it without a request."""
    with hosting(BANK, out=tmp_path, idle_s=0.5) as hosted:
        wrong = {"name": "transfer", "arguments": {**PAY, "amount": 6}}
        for _ in range(20):  # an episode whose agent was too late for its first call has no score, and is played again
            episode = hosted.start("bank", FIRST.id)
            if hosted.post(f"/v1/episodes/{episode['id']}/call", wrong, episode["token"]).status_code == 200:
                break
        wait_for(lambda: hosted.get("/v1/episodes").json()["live"] == 0)
        verdict = hosted.status(episode)["verdict"]
        assert (verdict["outcome"], verdict["score"], SILENCE in verdict["reason"]) == (
            "budget_exhausted",
            0,
            True,
        )
        assert hosted.start("bank", FIRST.id)["trial"] == episode["trial"] + 1


def wait_for(holds: Any) -> None:
    """Return once it holds; a minute at most."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until


def test_nothing_is_left_of_a_host_that_was_ended(tmp_path: Path) -> None:
    before = list_own_processes()
    with hosting(BANK, out=tmp_path) as hosted:
        episode = hosted.start("bank", FIRST.id)
        assert list_own_processes() - before
        address = hosted.address.removeprefix("http://").split(":")
    assert list_own_processes() <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])))
    with TrajectoryStore.open(tmp_path / "bank-agent") as store:
        found = store.load(episode["id"])
    assert (str(found.outcome), found.reason) == ("cancelled", "the host was ended")
    assert json.loads((tmp_path / "bank-agent" / "summary.json").read_text())["episodes"] == 1
    with hosting(BANK, out=tmp_path, resume=True) as hosted:
        again = hosted.start("bank", FIRST.id)
        assert again["trial"] == 0
        hosted.ask(again, "finish")
    summary = json.loads((tmp_path / "bank-agent" / "summary.json").read_text())
    assert (summary["scored"], summary["effort"]["cost/calls"]["mean"]) == (1, 0.0)
