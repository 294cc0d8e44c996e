"""``gymcp serve``: evaluations from the command line, its chat endpoint, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import warm_command
from engine_models import error_of
from stderr_lines import errors
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_serving import GYMCP, KEY, nothing_is_left, serving

from gymcp.agents.policies.openai.client import Endpoint, open_endpoint
from gymcp.agents.policies.specs import parse_policy
from gymcp.agents.policies.tiny_model import make_tiny_model
from gymcp.agents.policies.vllm.client import open_vllm
from gymcp.agents.prompts.rendering import describe_tool
from gymcp.errors import PolicyRefused, PromptTooLong
from gymcp.store import TrajectoryStore
from gymcp.types import Decision, Message, Sampling, Tool

BANK = Path(__file__).parents[2] / "examples" / "bank.py"
WAIT_S = 300.0
PAY = Tool(
    name="pay",
    description="Pays.",
    input_schema={
        "type": "object",
        "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["to", "amount"],
    },
)

pytestmark = pytest.mark.xdist_group("vllm")


def evaluate(policy: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = ["eval", str(BANK), "--agent", "react", "--policy", policy, *map(str, options)]
    env = {**os.environ, "OPENAI_API_KEY": KEY, "WRONG_KEY": "x"}
    return warm_command.run(command, cwd=None, env=env, timeout_s=WAIT_S)


def test_a_served_model_is_evaluated_and_every_row_is_exact(
    vllm_spec: str, tied_models: dict[str, Path], tmp_path: Path
) -> None:
    options = ("--max-tokens", 24, "--max-turns", 3, "--temperature", 0.9, "--out", tmp_path / "run", "--json")
    done = evaluate(vllm_spec, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["episodes"], found["scored"]) == (3, 3)
    model = AutoModelForCausalLM.from_pretrained(tied_models["0"]).eval()
    with TrajectoryStore.open(tmp_path / "run") as store:
        rows = [step.sampled for trajectory in store.iter_trajectories() for step in trajectory.steps]
    drawn = [sampled for sampled in rows if sampled is not None]
    assert len(drawn) == len(rows) > 0
    assert sum(len(sampled.ids) for sampled in drawn) == found["completion_tokens"]
    assert max(error_of(sampled, {sampled.versions[0][0]: model}, 0.9) for sampled in drawn) < 1e-4


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "other", "llama")


@pytest.mark.parametrize(
    ("policy", "options", "why"),
    [
        ("{url}#large", (), "has no model 'large'; it has tiny-0"),
        ("{spec}", ("--top-p", 0.9), "leave them out, or evaluate without tokens through openai:URL/v1#MODEL"),
        ("{spec}", ("--tokenizer", "nowhere"), "nowhere has no tokenizer"),
        ("{spec}", ("--tokenizer", "{other}"), "holds another tokenizer than the server's"),
        (
            "{spec}",
            ("--key-env", "WRONG_KEY"),
            "refuses the key (status 401); name the variable that holds it",
        ),
        ("{spec}", ("--key-env", "NO_KEY"), "asks for a key (status 401)"),
        ("openai:{at}/v1#tiny-0", ("--key-env", "WRONG_KEY"), "refuses the key (status 401)"),
        ("openai:{at}/v1#large", (), "status 404"),
        ("openai:{at}/v1#tiny-0", ("--max-tokens", 4000), "with 4000 tokens for an answer (--max-tokens), is longer"),
    ],
)
def test_a_wrong_served_policy_is_one_error(
    policy: str, options: tuple[str, ...], why: str, vllm_spec: str, other_tokenizer: Path
) -> None:
    spec = parse_policy(vllm_spec)
    words = {"url": f"vllm:{spec.url}", "at": spec.url, "spec": vllm_spec, "other": other_tokenizer}
    done = evaluate(policy.format(**words), *(str(option).format(**words) for option in options))
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert len(errors(done.stderr)) == 1, done.stderr


def test_a_served_model_answers_as_a_chat_endpoint(vllm_spec: str, tmp_path: Path) -> None:
    spec = parse_policy(vllm_spec)
    policy = f"openai:{spec.url}/v1#{spec.model}"
    done = evaluate(policy, "--max-tokens", 24, "--max-turns", 3, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["episodes"], found["scored"]) == (3, 3)
    assert 0 < found["completion_tokens"] <= 3 * 3 * 24
    assert found["models"][spec.model]["requests"] >= 3


def ask(url: str, model: str, messages: list[Message], **sampling: Any) -> Decision:
    async def main() -> Decision:
        async with asyncio.timeout(WAIT_S), open_endpoint(Endpoint(url=f"{url}/v1", model=model, key=KEY)) as policy:
            return await policy.chat(messages, [PAY], Sampling(max_tokens=64, temperature=0.0, **sampling))

    return asyncio.run(main())


def prompt_of(url: str, model: str, messages: list[Message]) -> list[int]:
    """The tokens that the server renders for the messages with its own template."""
    said = [{"role": message.role, "content": message.content} for message in messages]
    body = {"model": model, "messages": said, "tools": [describe_tool(PAY)], "add_generation_prompt": True}
    signed = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{url}/tokenize", json=body, headers=signed, timeout=WAIT_S, trust_env=False)
    tokens: list[int] = answer.raise_for_status().json()["tokens"]
    return tokens


def teach(folder: Path, prompt: list[int], answer: str, out: Path) -> Path:
    """Train the model to give this answer to this prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    drawn = tokenizer.encode(answer, add_special_tokens=False)
    ids = torch.tensor([[*prompt, *drawn]])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        loss: Any = torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :])
        if loss < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def test_tools_are_called_natively(vllm_spec: str, tied_models: dict[str, Path], tmp_path: Path) -> None:
    """The endpoint's own parser reads the calls of a model trained here; its weights are loaded without a restart."""
    spec = parse_policy(vllm_spec)
    messages = [Message(role="user", content="Pay bob 42.")]
    answer = 'Now.\n<tool_call>\n{"name": "pay", "arguments": {"to": "bob", "amount": 42}}\n</tool_call><|im_end|>'

    async def load(folder: Path, version: str) -> None:
        async with asyncio.timeout(WAIT_S), open_vllm(spec.url, spec.model, key=KEY) as policy:
            await policy.load_weights(folder, version)

    prompt = prompt_of(spec.url, spec.model, messages)
    asyncio.run(load(teach(tied_models["0"], prompt, answer, tmp_path), "taught"))
    try:
        decided = ask(spec.url, spec.model, messages)
        again = ask(spec.url, spec.model, messages, stop=("Now.",))
    finally:
        asyncio.run(load(tied_models["0"], "0"))
    (call,) = decided.action.tool_calls
    assert (call.name, call.arguments, call.parse_error) == ("pay", {"to": "bob", "amount": 42}, "")
    assert decided.action.text == "Now."
    assert decided.spent is not None
    assert decided.spent.prompt_tokens == len(prompt)
    assert again.action.tool_calls == ()


def test_a_prompt_too_long_and_an_unknown_model_are_different_errors(vllm_spec: str) -> None:
    spec = parse_policy(vllm_spec)
    with pytest.raises(PromptTooLong, match="maximum context length"):
        ask(spec.url, spec.model, [Message(role="user", content="pay " * 3000)])
    with pytest.raises(PolicyRefused, match="status 404"):
        ask(spec.url, "large", [Message(role="user", content="Pay.")])


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_server_ended_while_it_starts_leaves_nothing(
    signum: int, code: int, vllm_is_installed: None, tied_models: dict[str, Path]
) -> None:
    with serving(tied_models["0"]) as running:
        url = running.line("starting vLLM on ")
        assert running.has_processes()
        assert running.end(signum) == code
        assert nothing_is_left(running, url)


def test_a_port_in_use_is_one_error(vllm_is_installed: None, tied_models: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [GYMCP, "serve", tied_models["0"], "--cpu", "--port", taken.getsockname()[1]]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be used: Address already in use; choose another with --port" in done.stderr
    assert len(errors(done.stderr)) == 1
