"""``gymcp eval --agent react``: a policy named on the command line, the checks before the first episode, and costs."""

from __future__ import annotations

import json
import math
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Reply, as_stream, chat_server, says
from inner_command import gymcp
from typer.testing import Result

from gymcp.agents.policies.prices import Price, load_prices
from gymcp.agents.policies.specs import PolicySpec, parse_policy
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.errors import ConfigError, StoreError
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore

BANK = Path(__file__).parents[2] / "examples" / "bank.py"


def evaluate(*options: object) -> Result:
    return gymcp("eval", BANK, "--agent", "react", *options)


def why(result: Result) -> str:
    """The text of the one error; nothing may have been run."""
    assert isinstance(result.exception, ConfigError), (result.output, result.exception)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def pays(number: int, body: dict[str, Any]) -> Reply:
    """A model that does each task of the bank: the debt is the number in the prompt."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return says("Paid.", prompt=100, completion=10)
    debt = next(word for word in body["messages"][0]["content"].split() if word.isdigit())
    call = ("transfer", json.dumps({"source": "ann", "target": "bob", "amount": int(debt)}))
    return says("", call, prompt=100, completion=10)


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text('[models."m"]\nprompt = 1000\ncompletion = 10000\n')
    return file


def test_an_endpoint_is_evaluated_and_its_cost_counted(tmp_path: Path, prices: Path) -> None:
    with chat_server(pays) as server:
        policy = f"openai:{server.url}#m"
        done = evaluate("--policy", policy, "--prices", prices, "--temperature", 0, "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["success"], found["outcomes"]) == (1.0, {"scored": 3})
    assert found["models"] == {"m": {"requests": 6, "prompt_tokens": 600, "completion_tokens": 60, "cost": 1.2}}
    assert found["cost"] == 1.2
    assert {name: use["calls"] for name, use in found["tools"].items()} == {"transfer": 3}
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["policy"], config["sampling"]["temperature"]) == (policy, 0)
    assert len(server.requests) == 7, "six in episodes, one before them"


@pytest.mark.parametrize("streams", [True, False])
def test_requests_of_a_run_are_timed_and_streams_tell_the_first_token(streams: bool, tmp_path: Path) -> None:
    """The record is the same but for the times, and the summary has their quantiles."""

    def answer(number: int, body: dict[str, Any]) -> Reply:
        return as_stream(pays(number, body)) if "stream" in body else pays(number, body)

    with chat_server(answer) as server:
        words = ["--policy", f"openai:{server.url}#m", "--out", tmp_path / "run", "--json"]
        done = evaluate(*words, *(["--stream"] if streams else []))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["success"], found["completion_tokens"]) == (1.0, 60)
    assert found["latency"]["request"]["count"] == 6
    assert (found["latency"]["first_token"] or {}).get("count") == (6 if streams else None)
    with TrajectoryStore.open(tmp_path / "run") as store:
        steps = [step for row in store.summaries() for step in store.load(row.id).steps]
    times = [step.request_times for step in steps]
    assert len(times) == 6
    for step, each in zip(steps, times, strict=True):
        assert each is not None
        assert 0 < each.request_s <= step.agent_s
        assert (each.first_token_s is not None) == streams
        assert (each.first_token_s or 0) <= each.request_s


SHARED_BANK = """
from dataclasses import replace
from gymcp.envs import load_spec
from gymcp.types import UserScript
BANK = load_spec({bank!r})
TASKS = tuple(replace(task, user=UserScript(scenario=task.prompts[0])) for task in BANK.suite.tasks)
ENV = replace(BANK, suite=replace(BANK.suite, tasks=TASKS), user_tools=frozenset(["transfer"]))
"""


def is_served(number: int, body: dict[str, Any]) -> Reply:
    """A model that plays the user: it says hello, then pays and leaves whatever the agent says."""
    if "tools" not in body:
        return says("Hello.")
    if any(message["role"] == "tool" for message in body["messages"]):
        return says("###STOP###")
    return pays(number, body)


def test_a_model_plays_the_user(tmp_path: Path, prices: Path) -> None:
    file = tmp_path / "shared_bank.py"
    file.write_text(SHARED_BANK.format(bank=str(BANK)))
    with chat_server(is_served) as server:
        policy = f"openai:{server.url}#m"
        options = ["--user-policy", policy, "--prices", str(prices), "--out", str(tmp_path / "run"), "--json"]
        done = gymcp("eval", file, "--agent", "null", *options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["success"], found["outcomes"], found["tool_calls"]) == (1.0, {"scored": 3}, 0)
    assert found["cost"] > 0
    assert {body["temperature"] for body in server.requests} == {0.0}
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["user_policy"], config["user_sampling"]["temperature"]) == (policy, 0.0)


def test_a_run_out_of_money_stops_and_can_be_resumed(tmp_path: Path, prices: Path) -> None:
    out = tmp_path / "run"
    with chat_server(pays) as server:
        options = ("--policy", f"openai:{server.url}#m", "--prices", prices, "--out", out, "--concurrency", 1)
        first = evaluate(*options, "--max-cost", 0.5)
        assert first.exit_code == 4
        assert "--max-cost 0.5 is spent" in first.stderr
        with TrajectoryStore.open(out) as store:
            rows = store.summaries()
        assert [row.outcome for row in rows] == [Outcome.SCORED, Outcome.CANCELLED], "each answer costs 0.2"
        assert math.fsum(row.usage.cost for row in rows) == pytest.approx(0.6)
        again = evaluate(*options, "--max-cost", 0.5, "--resume")
        assert again.exit_code == 4
        with TrajectoryStore.open(out) as store:
            assert len(store.summaries()) == 2
        last = evaluate(*options, "--max-cost", 5, "--resume", "--json")
        assert last.exit_code == 0, last.output
    found = json.loads(last.stdout)
    assert found["outcomes"] == {"scored": 3}
    assert found["cost"] == pytest.approx(7 * 0.2), "what the cancelled one had spent is spent"


def test_a_run_exceeds_its_budget_by_at_most_one_answer_per_episode_under_way(tmp_path: Path, prices: Path) -> None:
    """No episode ends by itself, and all have begun before the first answer is given."""
    everybody, out = threading.Barrier(3), tmp_path / "run"

    def never_done(number: int, body: dict[str, Any]) -> Reply:
        if 1 <= number <= 3:  # 0 comes before the first episode
            everybody.wait(60)
        return says("", ("balance", '{"owner": "ann"}'), prompt=100, completion=10)

    with chat_server(never_done) as server:
        options = ("--policy", f"openai:{server.url}#m", "--prices", prices, "--out", out, "--concurrency", 3)
        done = evaluate(*options, "--max-cost", 0.5)
    assert done.exit_code == 4, done.output
    with TrajectoryStore.open(out) as store:
        rows = store.summaries()
    assert {row.outcome for row in rows} == {Outcome.CANCELLED}
    assert {row.score for row in rows} == {None}
    assert 0.5 <= math.fsum(row.usage.cost for row in rows) < 0.5 + 3 * 0.2


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(status=401, body=b"invalid api key"), "refuses the key .status 401.: invalid api key"),
        (Reply(status=404, body=b"the model does not exist"), "status 404: the model does not exist"),
        (
            Reply(status=400, body=b"this model does not support tools"),
            "does not support tools; if it cannot call tools itself: --tool-calls text",
        ),
        (
            Reply(status=400, body=b"maximum context length is 8 tokens"),
            r"the first prompt, with 512 tokens for an answer \(--max-tokens\), is longer than",
        ),
        (Reply(body=b"<html>"), "the policy does not answer: .*not JSON"),
    ],
)
def test_an_endpoint_that_refuses_is_one_error(reply: Reply, error: str, tmp_path: Path) -> None:
    answer: Answer = lambda number, body: reply  # noqa: E731
    with chat_server(answer) as server:
        found = why(evaluate("--policy", f"openai:{server.url}#m", "--out", tmp_path / "run"))
    assert_matches(error, found)
    assert len(server.requests) == 1
    assert not (tmp_path / "run").exists(), "a run that never began leaves nothing to resume"


def test_a_silent_endpoint_is_given_up_after_one_short_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # connections are made, and nobody reads
        policy = f"openai:http://127.0.0.1:{listening.getsockname()[1]}/v1#m"
        found = why(evaluate("--policy", policy, "--request-timeout", 0.3, "--out", tmp_path / "run"))
        listening.settimeout(0)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()  # nobody has tried again
    assert_matches(r"the policy does not answer: model 'm' at .*: says nothing: .* within 0\.3 s", found)


def test_a_key_that_a_header_cannot_contain_is_one_error_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("sk-\nsecret", "sk-sécret"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        found = why(evaluate("--policy", "openai:http://127.0.0.1:9/v1#m"))
        assert_matches(r"\$OPENAI_API_KEY holds no key", found)
        assert "cret" not in found


def test_a_trailing_newline_is_not_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret\n")
    with chat_server(pays) as server:
        done = evaluate("--policy", f"openai:{server.url}#m", "--limit", 1, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert set(server.keys) == {"Bearer secret"}


def test_a_budget_is_refused_if_the_endpoint_does_not_count_tokens(tmp_path: Path) -> None:
    silent = Reply(body=json.dumps({"choices": [{"message": {"content": "Paid."}}]}).encode())
    with chat_server(lambda number, body: silent) as server:
        options = ("--policy", f"openai:{server.url}#m", "--out", tmp_path / "run")
        found = why(evaluate(*options, "--max-episode-tokens", 100))
        assert evaluate(*options).exit_code == 0, "without a budget there is nothing to keep"
    assert_matches("does not say how many tokens an answer took", found)


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        raise ConfigError(text)


def test_an_incomplete_model_folder_is_refused_with_the_missing_part(tmp_path: Path) -> None:
    size = TinySize(hidden=32, layers=1, heads=2)
    for file, error in (("tokenizer.json", "has no tokenizer"), ("chat_template.jinja", "has no chat template")):
        folder = make_tiny_model(tmp_path / file, "qwen", size=size)
        (folder / file).unlink()
        assert_matches(error, why(evaluate("--policy", f"local:{folder}")))
    shutil.rmtree(tmp_path / "tokenizer.json")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert_matches("takes no tools", why(evaluate("--policy", f"local:{folder}")))
    (folder / "config.json").write_text("{")
    assert_matches("config.json cannot be read", why(evaluate("--policy", f"local:{folder}")))


def test_a_local_model_is_evaluated_and_a_prompt_that_does_not_fit_is_one_error(tmp_path: Path) -> None:
    size = TinySize(hidden=32, layers=1, heads=2)
    folder = make_tiny_model(tmp_path / "model", "compact", size=size)
    options = ("--max-tokens", 8, "--max-turns", 3, "--out", tmp_path / "run", "--json")
    done = evaluate("--policy", f"local:{folder}", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert found["scored"] == 3
    assert found["completion_tokens"] > 0
    with TrajectoryStore.open(tmp_path / "run") as store:
        assert all(step.sampled for trajectory in store.iter_trajectories() for step in trajectory.steps)
    make_tiny_model(folder, "compact", size=size, seed=1)
    other = evaluate("--policy", f"local:{folder}", *options, "--resume")
    assert isinstance(other.exception, StoreError), "the same folder with other weights is another policy"
    assert_matches("another config: weights", str(other.exception))
    small = make_tiny_model(tmp_path / "small", "compact", size=TinySize(hidden=32, layers=1, heads=2, context=40))
    error = why(evaluate("--policy", f"local:{small}", "--out", tmp_path / "none"))
    assert_matches(r"the first prompt of task 'pay_back_5' has \d+ tokens with its 2 tools; the context is 40", error)
    assert not (tmp_path / "none").exists()


def test_the_timeout_of_a_request_holds_for_a_model_in_this_process(tmp_path: Path) -> None:
    options = ("--request-timeout", 0.000001, "--max-tokens", 8, "--out", tmp_path / "run", "--json")
    done = evaluate("--policy", "tiny:compact", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert (found["outcomes"], found["scored"], found["retries"]) == ({"budget_exhausted": 3}, 3, None)


def test_policy_names_are_parsed() -> None:
    assert (parse_policy("tiny").model, parse_policy("tiny:qwen").model) == ("", "qwen")
    url = "http://127.0.0.1:8000/v1"
    wanted = PolicySpec(text=f"openai:{url}/#a/b:c", kind="openai", model="a/b:c", url=url)
    assert parse_policy(f"openai:{url}/#a/b:c") == wanted


def test_prices_are_per_million_tokens(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text("[models.a]\nprompt = 1\ncompletion = 2.5\ncached = 0.1\n")
    (price,) = load_prices(file).values()
    assert price == Price(prompt=1, completion=2.5, cached=0.1)
    assert price.of(1_000_000, 1_000_000, 500_000) == pytest.approx(0.5 + 0.05 + 2.5)
    for text, error in (
        ("models = 5", "has no prices"),
        ("[models.a]\nprompt = 1", "model 'a': needs prompt and completion"),
        ("[models.a]\nprompt = -1\ncompletion = 1", "prompt must be a number from 0, not -1"),
        ("[models.a]\nprompt = nan\ncompletion = 1", "must be a number from 0"),
        ("[", "not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=error):
            load_prices(file)
