"""The start of a vLLM server that fails, with a program in place of vLLM's interpreter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gymcp.agents.policies.vllm.guard import KEY_VARIABLE
from gymcp.agents.policies.vllm.install import CPU, vllm_folder
from gymcp.agents.policies.vllm.server import VllmServerOptions, run_vllm_server
from gymcp.errors import UsageError

KEY = "key-of-the-server"
FAILING = f"""#!/bin/sh
for at in $(seq 99); do echo "loading shard $at of 99"; done
echo "api_key: ${KEY_VARIABLE}"
echo "OSError: no weights"
exit 3
"""


def test_a_server_that_fails_is_quoted_as_every_program_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    python = vllm_folder(CPU) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAILING)
    python.chmod(0o755)
    (vllm_folder(CPU) / "complete").touch()
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    with (
        pytest.raises(UsageError, match="the server ended with code 3; its log: ") as caught,
        run_vllm_server(VllmServerOptions(model=model), lambda text: None),
    ):
        pass
    said = str(caught.value)
    assert said.endswith(f"\napi_key: ${{{KEY_VARIABLE}}}\nOSError: no weights")
    log = re.search(r"; its log: (\S+); its last words: loading shard \d+ of 99\n", said)
    assert log is not None
    assert Path(log[1]).read_text().startswith("loading shard ")
    assert KEY not in said + Path(log[1]).read_text()
