"""Programs as agents, in real sandboxes: what they reach, what is recorded of them, and how they can fail."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from generate_policy import load
from gold_policy import GoldPolicy
from program_killer import Killer
from programs_engine import Noting, count_differences
from spelled_policy import PAY, RandomPayer, Spelled

from gymcp.agents.policies.models import ChatModel, Model, TokenModel
from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.programs.agent import ProgramAgent, open_program_agents
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.aio import find_deadline
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.suites.backoffice import make_tasks
from gymcp.errors import PolicyInfraError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.scratch import scratch_folder
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.types import Action, Decision, Message, Observation, Sampling, Suite, Task, Tool, Trajectory

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
PLAYER = str(Path(__file__).parent / "players" / "chat.py")


def chat_model(policy: object) -> ChatModel:
    return ChatModel(name="stub", policy=policy)  # type: ignore[arg-type]


GOLD = chat_model(GoldPolicy(BANK.suite.tasks))


def settings(*argv: str, **changed: object) -> ProgramSettings:
    return replace(ProgramSettings(argv=argv), **changed)  # type: ignore[arg-type]


def play(
    model: Model,
    program: ProgramSettings,
    env: LoadedEnv = BANK,
    *,
    tasks: Sequence[Task] = (),
    seed: int = 1,
    agent_s: float = 120,
) -> list[Trajectory]:
    """Episodes of the tasks, all at once; the first task's only if none are named."""
    return asyncio.run(play_at_once(model, program, env, tasks or env.suite.tasks[:1], seed=seed, agent_s=agent_s))


async def play_at_once(
    model: Model, program: ProgramSettings, env: LoadedEnv, tasks: Sequence[Task], *, seed: int, agent_s: float = 120
) -> list[Trajectory]:
    async with open_program_agents(model, program) as agents:
        sandbox = get_sandbox("bwrap")
        jobs = [Job(task=task, trial=0, seed=seed) for task in tasks]
        ended = await asyncio.gather(
            *(rollout(env, sandbox, agents, job, timeout_s=120, agent_s=agent_s) for job in jobs)
        )
        return [each.trajectory for each in ended]


@pytest.mark.parametrize("words", [(), ("stream",), ("quiet",), ("stdio",)], ids=["whole", "stream", "quiet", "stdio"])
@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_a_program_solves_a_task(words: tuple[str, ...], sandbox: str) -> None:
    program = settings("python3", PLAYER, *words, sandbox=sandbox)
    (episode,) = play(GOLD, program)
    assert (episode.outcome, episode.score) == (Outcome.SCORED, 1.0), episode.reason
    pay, end = episode.steps
    assert [call.arguments for call in pay.action.tool_calls] == [{"source": "ann", "target": "bob", "amount": 5}]
    assert end.action.text == "Bob has his money."
    assert (episode.usage.prompt_tokens, episode.usage.completion_tokens) == (20, 10)


def test_many_programs_at_once_have_episodes_of_their_own() -> None:
    tasks = BANK.suite.tasks * 4
    episodes = play(GOLD, settings("python3", PLAYER), tasks=tasks)
    assert [(episode.task, episode.score) for episode in episodes] == [(task.id, 1.0) for task in tasks]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TokenModel:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"), "qwen", size=TinySize(hidden=64, layers=2))
    return load(folder)


def test_the_rows_of_a_program_are_those_of_react_over_several_answers(tiny: TokenModel) -> None:
    """Calls that are answered, calls that fail, and a last text."""
    payer, seed = replace(tiny, policy=RandomPayer(tiny)), 9

    async def react_plays() -> Trajectory:
        job = Job(task=BANK.suite.tasks[0], trial=0, seed=seed)
        return (await rollout(BANK, get_sandbox("bwrap"), react(payer, ReactSettings()), job, timeout_s=120)).trajectory

    wanted = asyncio.run(react_plays())
    (found,) = play(payer, settings("python3", PLAYER), seed=seed)
    assert len(wanted.steps) >= 5
    assert {result.is_error for step in wanted.steps for result in step.results} == {False, True}
    assert [step.sampled for step in found.steps] == [step.sampled for step in wanted.steps]
    assert rows_of(found) == rows_of(wanted)
    assert len(rows_of(found)) == 1
    assert found.steps[-1].action.text == wanted.steps[-1].action.text


def test_every_answer_of_the_embedded_engine_is_recorded_as_it_was_drawn() -> None:
    env, tasks = load_env(load_spec("backoffice")), list(make_tasks("seeds", levels=[2], count=1))[:3]
    program = settings("python3", PLAYER, sampling=Sampling(max_tokens=32, temperature=0.8))

    async def main() -> tuple[list[Trajectory], Noting]:
        async with open_model(parse_policy("tiny"), ModelOptions(slots=2, device="cpu")) as model:
            assert isinstance(model, TokenModel)
            noting = Noting(model.policy)
            return await play_at_once(replace(model, policy=noting), program, env, tasks, seed=1), noting

    episodes, noting = asyncio.run(main())
    assert max(len(episode.steps) for episode in episodes) > 1
    assert all(step.sampled is not None for episode in episodes for step in episode.steps)
    assert count_differences(noting.drawn, episodes) == 0


def test_the_name_of_the_model_has_no_slash_in_a_program() -> None:
    (episode,) = play(replace(GOLD, name="org/folder/small"), settings("sh", "-c", "echo $GYMCP_MODEL"))
    assert episode.steps[-1].action.text == "small"


@pytest.mark.parametrize(("sandbox", "status"), [("bwrap", 403), ("none", 200)])
def test_a_key_is_refused_outside_the_sandbox_of_its_program(sandbox: str, status: int) -> None:
    async def ask_from_outside() -> httpx.Response:
        async with open_program_agents(GOLD, settings("true", sandbox=sandbox)) as agents:
            agent = agents(BANK.suite.tasks[0], 1)
            assert isinstance(agent, ProgramAgent)
            try:
                await agent.act(Observation(messages=(Message(role="user", content="Pay Bob."),), tools=()))
                address = f"http://127.0.0.1:{agent._gateway.port}/v1/models"
                async with httpx.AsyncClient(trust_env=False) as client:
                    return await client.get(address, headers={"authorization": f"Bearer {agent._exchange.token}"})
            finally:
                await agent.close()

    answer = asyncio.run(ask_from_outside())
    assert (answer.status_code, "a second agent needs an episode of its own" in answer.text) == (status, status == 403)


# ------------------------------------------------------------------------------------------------------------- contexts

CREW = str(Path(__file__).parent / "players" / "crew.py")
ASK_HELPER = '<tool_call>\n{"name": "ask_helper", "arguments": {}}\n</tool_call>'


def play_by_crew(tiny: TokenModel, *words: str, texts: Sequence[str]) -> tuple[Trajectory, list[tuple[int, ...]]]:
    """The episode of a program with several contexts, and what the model read and wrote in each request."""
    policy = Spelled(tiny, texts)
    (episode,) = play(replace(tiny, policy=policy), settings("python3", CREW, *words))
    assert (episode.outcome, episode.score) == (Outcome.SCORED, 1.0), episode.reason
    return episode, policy.contexts


def test_a_sub_agent_and_a_title_have_contexts_of_their_own(tiny: TokenModel) -> None:
    texts = ("Money for Bob", ASK_HELPER, PAY["qwen"], "I paid.", "Bob has his money.")
    episode, contexts = play_by_crew(tiny, "title", "helper", texts=texts)
    _, delegates, pays, reports, ends = contexts
    assert [step.context for step in episode.steps] == [2, 1]
    assert [(answer.step, answer.context, answer.action.text) for answer in episode.side_answers] == [
        (0, 0, "Money for Bob"),
        (0, 1, ""),
        (1, 2, "I paid."),
    ]
    assert [answer.context for answer in episode.own_side_answers] == [1, 2]
    assert ends[: len(delegates)] == delegates
    assert reports[: len(pays)] == pays
    rows = rows_of(episode)
    assert [row.token_ids for row in rows] == [ends, reports]  # the title is in no row
    assert [(len(row.steps), len(row.inner)) for row in rows] == [(1, 1), (1, 1)]
    recorded = [step.sampled for step in episode.steps] + [answer.sampled for answer in episode.side_answers]
    assert sorted(each.prompt_ids + each.ids for each in recorded if each) == sorted(contexts)
    assert episode.usage.models["tiny"]["requests"] == 5
    assert episode.usage.completion_tokens == sum(len(each.ids) for each in recorded if each)


def test_a_program_that_compacts_its_history_opens_a_row(tiny: TokenModel) -> None:
    texts = (PAY["qwen"], "Ann has paid 5 to Bob.", "Bob has his money.")
    episode, (pays, sums_up, ends) = play_by_crew(tiny, "compact", texts=texts)
    assert [step.context for step in episode.steps] == [0, 2]
    (summary,) = episode.side_answers
    assert (summary.context, summary.action.text, summary.asked[:7]) == (1, texts[1], "Sum up:")
    assert summary.sampled is not None
    assert summary.sampled.prompt_ids + summary.sampled.ids == sums_up
    assert episode.own_side_answers == ()
    assert [row.token_ids for row in rows_of(episode)] == [pays, ends]


# ----------------------------------------------------------------------------------------------------------- user turns


def two_turns() -> LoadedEnv:
    """The bank with a task of two user turns: pay 5, then pay 30."""
    first, second, _ = BANK.suite.tasks
    task = replace(
        first,
        prompts=(first.prompts[0], second.prompts[0]),
        gold=(first.gold[0], second.gold[0]),
        target={"accounts": {"ann": 65, "bob": 55}},
        last_necessary=(1, 0),
    )
    return load_env(replace(BANK.spec, suite=Suite(name="bank", version="1", tasks=(task,))))


@pytest.mark.parametrize("turns", ["restart", "stdin"])
def test_a_program_serves_every_turn_of_the_user(turns: str) -> None:
    env = two_turns()
    gold = GoldPolicy(env.suite.tasks)
    words = ("lines",) if turns == "stdin" else ()
    (episode,) = play(chat_model(gold), settings("python3", PLAYER, *words, turns=turns), env)
    assert episode.score == 1.0
    assert [step.turn for step in episode.steps] == [0, 0, 1, 1]
    # a process that is started again knows its own turn only
    assert len({messages[0].content for messages in gold.asked}) == (1 if turns == "stdin" else 2)


# ------------------------------------------------------------------------------------------------------------- failures

BAR = r"printf '\r%3d%%|######    | %s/999 requests' $i $i"
RAISES = f"echo \"KeyError: 'key'\" >&2; for i in $(seq 90); do {BAR}; done >&2; exit 1"


@pytest.mark.parametrize(
    ("command", "outcome", "words"),
    [
        (
            "echo first >&2; echo the last words >&2; exit 3",
            Outcome.AGENT_ERROR,
            "status 3; its last words: first\nthe last words",
        ),
        (RAISES, Outcome.AGENT_ERROR, "; its last words: KeyError: 'key'"),
        ("echo $OPENAI_API_KEY >&2; exit 1", Outcome.AGENT_ERROR, "; its last words: <key of the episode>"),
        ("kill -9 $$", Outcome.AGENT_ERROR, "status 137"),
        ("sleep 1000", Outcome.BUDGET_EXHAUSTED, "1 s of the agent's time"),
        ("yes", Outcome.BUDGET_EXHAUSTED, "1 s of the agent's time"),
        ("yes | head -c 3000000; sleep 1000", Outcome.BUDGET_EXHAUSTED, "1 s of the agent's time"),
    ],
)
def test_a_program_that_fails_has_a_typed_outcome(
    command: str, outcome: Outcome, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    agent_s = 1 if outcome is Outcome.BUDGET_EXHAUSTED else 120
    (episode,) = play(GOLD, settings("sh", "-c", command), agent_s=agent_s)
    assert (episode.outcome, episode.score) == (outcome, 0.0)
    assert words in episode.reason


def test_a_program_that_ignores_its_tools_is_graded_by_what_it_did() -> None:
    (episode,) = play(GOLD, settings("sh", "-c", "cat >prompt; echo done: $(wc -c <prompt)"))
    assert (episode.outcome, episode.score) == (Outcome.SCORED, 0.0)
    assert episode.steps[-1].action.text == f"done: {len(BANK.suite.tasks[0].prompts[0])}"


def test_an_answer_that_is_too_long_is_cut() -> None:
    (episode,) = play(GOLD, settings("sh", "-c", "yes | head -c 900000"))
    assert episode.outcome is Outcome.SCORED
    assert episode.steps[-1].action.text.endswith("[cut: the first 100,000 of 899,999 characters]")


def test_a_program_killed_after_its_first_result_harms_no_other() -> None:
    victim = BANK.suite.tasks[1]
    killer = Killer(GOLD.policy, [PLAYER], victim.prompts)
    episodes = play(chat_model(killer), settings("python3", PLAYER), tasks=BANK.suite.tasks)
    assert [episode.outcome for episode in episodes] == [Outcome.SCORED, Outcome.AGENT_ERROR, Outcome.SCORED]
    assert [episode.score for episode in episodes] == [1.0, 0.0, 1.0]
    assert "status 137" in episodes[1].reason
    assert [result.content for step in episodes[1].steps for result in step.results] == ["done"]


def test_a_failure_of_the_model_is_not_the_programs() -> None:
    class Down:
        async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
            raise PolicyInfraError("the engine is down")

    (episode,) = play(chat_model(Down()), settings("python3", PLAYER))
    assert (episode.outcome, episode.score, episode.reason) == (Outcome.POLICY_INFRA, None, "the engine is down")


def test_the_model_of_a_program_can_find_the_end_of_the_episodes_time() -> None:
    class Looks:
        async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
            return Decision(action=Action(text="some" if find_deadline() < math.inf else "none"))

    (episode,) = play(chat_model(Looks()), settings("python3", PLAYER))
    assert [step.action.text for step in episode.steps] == ["some"]


def test_the_answer_to_a_program_that_then_hangs_is_recorded() -> None:
    class Thinks:
        async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
            return Decision(action=Action(text="Hm."))

    asks = """import json, os, time, urllib.request as web
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Pay."}]}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
web.urlopen(web.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
time.sleep(1000)"""
    (episode,) = play(chat_model(Thinks()), settings("python3", "-c", asks), agent_s=12)
    assert episode.outcome is Outcome.BUDGET_EXHAUSTED
    assert [answer.action.text for answer in episode.side_answers] == ["Hm."]


def test_a_budget_of_answers_holds_at_the_gateway() -> None:
    (episode,) = play(GOLD, settings("python3", PLAYER, budget=Budget(turns=1)))
    assert (episode.outcome, episode.score, len(episode.steps)) == (Outcome.BUDGET_EXHAUSTED, 1.0, 1)
    assert episode.reason.startswith("out of budget (1 answers)")


# ------------------------------------------------------------------------------------------------------------ isolation

PROBE = """
import json, os, socket, subprocess, sys, urllib.request
found = {}
def attempt(name, act):
    try: found[name] = str(act())[:200]
    except Exception as error: found[name] = f"{type(error).__name__}"
def get(port, key):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {key}"})
    return urllib.request.urlopen(request, timeout=60).read()
GOLD, PORT = sys.argv[1], int(sys.argv[2])
attempt("gold", lambda: "transfer" in open(GOLD).read())
attempt("gymcp", lambda: __import__("gymcp"))
attempt("beside", lambda: open(sys.argv[3].removeprefix("at:")).read())
attempt("host port", lambda: get(PORT, os.environ["OPENAI_API_KEY"]))
attempt("network", lambda: socket.create_connection(("127.0.0.1", PORT), timeout=5))
attempt("outside", lambda: socket.create_connection(("192.0.2.1", 80), timeout=5))
attempt("other key", lambda: get(8642, "x" * 32))
attempt("processes", lambda: len([pid for pid in os.listdir("/proc") if pid.isdigit()]) > 20)
attempt("socket folder", lambda: open("/srv/gateway/x", "w"))
attempt("own model", lambda: get(8642, os.environ["OPENAI_API_KEY"]))
print(json.dumps(found))
"""


def test_a_program_reaches_its_gateway_and_nothing_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    secret, beside = tmp_path / "solutions.py", tmp_path / "beside.py"
    secret.write_text("transfer 5")
    beside.write_text("transfer 5")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = ("python3", str(probe), str(secret), str(listener.getsockname()[1]), f"at:{beside}")
        (episode,) = play(GOLD, settings(*words, hidden=(secret,)))
    found = json.loads(episode.steps[-1].action.text)
    assert found.pop("own model").startswith("b'{"), found
    assert found.pop("processes") == "False"
    assert found.pop("gold") == "False"  # an empty file lies over it
    assert {name: found[name] for name in ("beside", "other key", "socket folder")} == {
        "beside": "FileNotFoundError",
        "other key": "HTTPError",
        "socket folder": "OSError",
    }
    assert found["gymcp"] == "ModuleNotFoundError"
    assert {found[name] for name in ("host port", "network", "outside")} <= {
        "URLError",
        "ConnectionRefusedError",
        "OSError",
        "TimeoutError",
    }


def test_nothing_of_a_program_is_left(tmp_path: Path) -> None:
    before = set(scratch_folder().iterdir())
    program = settings("sh", "-c", "echo mine >file; (sleep 1000 &) ; sleep 1000")
    (episode,) = play(GOLD, program, agent_s=2)
    assert episode.outcome is Outcome.BUDGET_EXHAUSTED
    left = {path.name.rstrip("0123456789") for path in set(scratch_folder().iterdir()) - before}
    assert not left & {"program-", "gateway-"}
