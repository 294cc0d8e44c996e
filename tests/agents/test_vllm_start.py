"""The start of a vLLM server that fails, with a program in place of vLLM's interpreter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gymcp.agents.policies.vllm.drafts import DraftOptions
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


LISTING = """#!/bin/sh
ls "${PYTHONPATH%%:*}"
echo "plugins: $VLLM_PLUGINS"
exit 3
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model, and a cache without vLLM."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def start(plan: VllmServerOptions, program: str) -> str:
    """The error of a server whose interpreter is this program, which fails."""
    python = vllm_folder(CPU) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(program)
    python.chmod(0o755)
    (vllm_folder(CPU) / "complete").touch()
    with (
        pytest.raises(UsageError, match="the server ended with code 3; its ") as caught,
        run_vllm_server(plan, lambda text: None),
    ):
        pass
    return str(caught.value)


def test_a_server_that_fails_is_quoted_as_every_program_without_its_key(model: Path) -> None:
    said = start(VllmServerOptions(model=model), FAILING)
    assert said.endswith(f"\napi_key: ${{{KEY_VARIABLE}}}\nOSError: no weights")
    log = re.search(r"; its log: (\S+); its last words: loading shard \d+ of 99\n", said)
    assert log is not None
    assert Path(log[1]).read_text().startswith("loading shard ")
    assert KEY not in said + Path(log[1]).read_text()


@pytest.mark.parametrize(
    ("draft", "extra", "config", "is_repaired"),
    [
        (None, (), "{}", False),
        (None, ("--seed", "3"), "{}", False),
        (DraftOptions(method="ngram"), (), "{}", True),
        (None, ("-sc", '{"method": "ngram"}'), "{}", True),
        (None, ("--speculative-config.method=ngram",), "{}", True),
        (None, ("--spec-method", "ngram"), "{}", True),
        (None, ("--config", "vllm.yaml"), "{}", True),
        (None, (), '{"speculators_config": {}}', True),
    ],
)
def test_the_repair_of_drafts_is_loaded_only_if_the_server_may_draft(
    draft: DraftOptions | None,
    extra: tuple[str, ...],
    config: str,
    is_repaired: bool,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    (model / "config.json").write_text(config)
    said = start(VllmServerOptions(model=model, draft=draft, extra=extra), LISTING)
    assert "gymcp_vllm_guard.py" in said
    assert ("gymcp_vllm_draft_repair.py" in said, "plugins: mine,gymcp_vllm_draft_repair" in said) == (is_repaired,) * 2
