"""Errors of unusable servers: one line that names the server, the stage and the server's last words."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import gymcp
from stderr_lines import errors

from gymcp.mcp_servers.sessions.connection import START_LIMIT

ENV_FILE = """
import json
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import answer_equals
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import GoldTurn, Suite, Task

SERVER = '''
import json, sys
mode = sys.argv[1]
print("I am starting", file=sys.stderr, flush=True)
if mode == "dies": sys.exit("no API key was given")
if mode == "prints": print("Welcome!", flush=True)
tool = {"name": "add", "inputSchema": {"type": "object"}}
bad = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": {"type": "wholenumber"}}}}
tools = {"none": [], "two": [tool, tool], "schema": [bad]}.get(mode, [tool])
for line in sys.stdin:
    asked = json.loads(line)
    if mode == "silent" or "id" not in asked: continue
    if asked["method"] == "initialize":
        info = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        answer = info | {"serverInfo": {"name": "bad", "version": "1"}}
    else:
        answer = {"tools": tools}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
'''
server = ServerSpec(
    name="bad", argv=("python3", "-I", "-S", "-c", SERVER, MODE), image=IMAGE, wire="legacy", start_timeout_s=TIMEOUT_S
)
task = Task(id="t", prompts=("Say x.",), target="x", gold=(GoldTurn(final_text="x"),))
ENV = EnvSpec(name="bad", servers=(server,), suite=Suite(name="bad", version="1", tasks=(task,)), grade=answer_equals())
"""
STARTING = "; its last words: I am starting"


def env_file(folder: Path, mode: str, *, image: str | None = None, timeout_s: float = 20.0) -> Path:
    path = folder / "bad.py"
    path.write_text(f"MODE, IMAGE, TIMEOUT_S = {mode!r}, {image!r}, {timeout_s}\n{ENV_FILE}")
    return path


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("silent", f"handshake: no answer within 5 s, {START_LIMIT}" + STARTING),
        ("prints", "handshake: a line on standard output is not a JSON-RPC message: 'Welcome!\\n'" + STARTING),
        ("none", "list: it lists no tools" + STARTING),
        ("two", "list: it lists two tools named 'add'" + STARTING),
        ("schema", "list: tool 'add': its input schema is not valid JSON Schema"),
        ("dies", "start: the server ended (exit status 1)" + STARTING + "\nno API key was given"),
    ],
)
def test_check_names_the_server_the_stage_and_its_last_words_in_one_error(mode: str, says: str, tmp_path: Path) -> None:
    done = gymcp("check", env_file(tmp_path, mode, timeout_s=5.0 if mode == "silent" else 20.0), cwd=tmp_path)
    assert done.returncode == 1
    (at, *more) = [n for n, line in enumerate(done.stderr.splitlines()) if line.startswith("gymcp: server 'bad': ")]
    assert more == []
    assert f"gymcp: server 'bad': {says}" in "\n".join(done.stderr.splitlines()[at:])
    assert "Traceback" not in done.stderr


def test_eval_records_the_failure_and_prints_the_first(tmp_path: Path) -> None:
    done = gymcp("eval", env_file(tmp_path, "dies"), "--out", "run", cwd=tmp_path)
    assert done.returncode == 3
    assert "server 'bad': start: the server ended (exit status 1)" in done.stdout
    assert "no API key was given" in done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_an_image_that_does_not_exist_is_named(tmp_path: Path) -> None:
    file = env_file(tmp_path, "fine", image="gymcp-no-such-image:1")
    done = gymcp("eval", file, "--sandbox", "docker", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "gymcp-no-such-image:1" in done.stderr or "no engine answers" in done.stderr
    assert len(errors(done.stderr)) == 1
    done = gymcp("eval", file, "--out", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "gymcp: bwrap: servers from images (gymcp-no-such-image:1) need --sandbox docker\n",
    )


def test_a_package_that_does_not_exist_is_named(node: None, tmp_path: Path) -> None:
    done = gymcp("servers", "add", "npx -y gymcp-no-such-package@1.0.0", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("gymcp: server 'gymcp-no-such-package': resolve: ")
    assert "gymcp-no-such-package" in done.stderr.removeprefix("gymcp: server 'gymcp-no-such-package'")
    assert len(errors(done.stderr)) == 1
    assert list(tmp_path.iterdir()) == []
