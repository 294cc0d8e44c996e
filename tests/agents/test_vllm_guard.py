"""The guard of the vLLM server: every path requires the key. These tests do not need vLLM itself."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gymcp.agents.policies.vllm import guard as vllm_guard
from gymcp.agents.policies.vllm.client import open_vllm
from gymcp.agents.policies.vllm.guard import KEY_VARIABLE, KeyOnEveryPath
from gymcp.agents.policies.vllm.keys import choose_key, find_key, publish_key
from gymcp.agents.policies.vllm.server import VllmServerOptions, _arguments, _environment
from gymcp.errors import ConfigError
from gymcp.types import Sampling

KEY = "the key of this test"
MODEL = {"id": "tiny", "root": "/nowhere", "max_model_len": 64}
CHOICE = {"token_ids": [7], "logprobs": {"content": [{"logprob": -0.5}]}, "finish_reason": "stop"}


async def answer(request: Request) -> JSONResponse:
    if request.url.path == "/v1/models":
        return JSONResponse({"data": [MODEL]})
    return JSONResponse({"choices": [CHOICE]})


PATHS = ("/v1/models", "/inference/v1/generate", "/collective_rpc", "/pause", "/tokenize", "/metrics", "/health")


@contextmanager
def serving(*, guarded: bool, origins: list[str]) -> Iterator[str]:
    """An application with vLLM's paths, assembled as vLLM does: its CORS rule, and the guard around everything."""
    layers = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])]
    app = Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path in PATHS], middleware=layers)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(KeyOnEveryPath(app) if guarded else app, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))


def statuses(url: str, headers: dict[str, str]) -> dict[str, int]:
    with httpx.Client(base_url=url, trust_env=False, headers=headers, timeout=60) as client:
        return {path: client.post(path).status_code for path in PATHS if path != "/health"}


def test_every_path_requires_the_key() -> None:
    with serving(guarded=True, origins=[]) as url:
        assert set(statuses(url, {}).values()) == {401}
        assert set(statuses(url, {"authorization": "Bearer other"}).values()) == {401}
        assert set(statuses(url, {"authorization": f"Bearer {KEY}"}).values()) == {200}
        assert httpx.get(f"{url}/health", trust_env=False, timeout=60).status_code == 200
        assert httpx.post(f"{url}/health", trust_env=False, timeout=60).status_code == 401


def test_without_the_guard_requests_without_a_key_are_answered() -> None:
    """Control: the application without the guard answers requests without a key."""
    with serving(guarded=False, origins=["*"]) as url:
        assert set(statuses(url, {}).values()) == {200}
        read = httpx.get(f"{url}/v1/models", headers={"origin": "https://evil.invalid"}, trust_env=False, timeout=60)
        assert read.headers["access-control-allow-origin"] == "*"


def test_browser_pages_may_neither_read_answers_nor_send_preflight_requests() -> None:
    with serving(guarded=True, origins=[]) as url:
        asked = {"origin": "https://evil.invalid", "access-control-request-method": "POST"}
        ahead = httpx.options(f"{url}/collective_rpc", headers=asked, trust_env=False, timeout=60)
        read = httpx.get(
            f"{url}/v1/models", headers={**asked, "authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60
        )
    assert ahead.status_code == 401
    assert "access-control-allow-origin" not in {*ahead.headers, *read.headers}


def test_the_guard_refuses_to_start_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(RuntimeError, match="refusing to serve without one"):
        KeyOnEveryPath(lambda scope, receive, send: asyncio.sleep(0))


def test_the_guard_imports_only_the_standard_library(tmp_path: Path) -> None:
    copy = tmp_path / "copy_of_guard.py"
    copy.write_text(Path(vllm_guard.__file__).read_text())
    assert "gymcp" not in [line.split()[1] for line in copy.read_text().splitlines() if line.startswith("from ")]
    spec = importlib.util.spec_from_file_location("copy_of_guard", copy)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_vllm_is_started_with_the_guard_and_the_key_in_its_environment(tmp_path: Path) -> None:
    plan = VllmServerOptions(model=tmp_path)
    words, settings = _arguments(plan, tmp_path, "tiny", 7), _environment(plan, tmp_path / "guard", KEY)
    given = dict(pairwise(words))
    assert (given["--host"], given["--port"]) == ("127.0.0.1", "7")
    assert json.loads(given["--allowed-origins"]) == []
    assert given["--middleware"] == "gymcp_vllm_guard.KeyOnEveryPath"
    assert KEY not in words
    assert settings[KEY_VARIABLE] == KEY
    assert settings["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "guard")
    assert settings["PYTHONDONTWRITEBYTECODE"] == "", "else every start compiles for half a minute"
    assert (settings["VLLM_SERVER_DEV_MODE"], settings["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]) == ("0", "0")


def test_endpoints_for_weights_exist_only_if_requested(tmp_path: Path) -> None:
    settings = _environment(VllmServerOptions(model=tmp_path, takes_weights=True, lora_rank=8), tmp_path, KEY)
    assert (settings["VLLM_SERVER_DEV_MODE"], settings["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]) == ("1", "1")


def test_only_the_users_own_client_finds_the_key() -> None:
    async def sample(url: str) -> tuple[int, ...]:
        async with open_vllm(url, "tiny") as policy:
            return (await policy.sample([1], Sampling(max_tokens=1))).ids

    with serving(guarded=True, origins=[]) as url:
        with pytest.raises(ConfigError, match="asks for a key"):
            asyncio.run(sample(url))
        with publish_key(int(url.rpartition(":")[2]), KEY) as file:
            assert asyncio.run(sample(url)) == (7,)
            assert file.stat().st_mode & 0o777 == 0o600
            assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_key_is_found_while_its_server_runs_and_reused_by_the_next() -> None:
    key = choose_key(4711)
    assert len(key) > 40
    assert find_key("http://127.0.0.1:4711") is None
    with publish_key(4711, key):
        assert find_key("http://127.0.0.1:4711/v1") == find_key("http://localhost:4711") == key
        assert find_key("http://127.0.0.1:4712") is None
        assert find_key("http://192.0.2.1:4711") is None
    assert find_key("http://127.0.0.1:4711") is None
    assert choose_key(4711) == key != choose_key(4712)
