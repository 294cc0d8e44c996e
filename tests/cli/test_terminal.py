"""Untrusted text reaches a terminal as text: it neither acts on the terminal nor counts as markup."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runner import GYMCP
from records import order_episode
from rich.live import Live
from rich.text import Text
from stderr_lines import ACTS

from gymcp.cli.app import app, run
from gymcp.cli.output import CleanStream, OutputConsole, console
from gymcp.cli.progress import Progress
from gymcp.mcp_servers.packages.lockfile import LockedServer, write_lock
from gymcp.mcp_servers.tools.hashes import hash_tools
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Tool
from gymcp.visible_text import visible

MARKUP = "[/nope] [link=http://evil.invalid]CLICK[/link] :warning:"
STEERING = (
    "\x1b[31mred \x1b[2J\x1b]0;title\x07 \x1b]8;;http://evil.invalid\x1b\\link\x1b]8;;\x1b\\ \x9b31m \x9d0;t\x9c"
    " \r \x7f \u202eesrever\u202c \u2066i\u2069 \u200bzero\u200d \ufeff \U000e0041\U000e0042 \U000e0101"
)
LONE = "\ud800 \udcff"
BAD = f"{MARKUP} {STEERING}"
WORST = f"{BAD} {LONE}"

ENV_FILE = '''
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import answer_equals
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import GoldTurn, Suite, Task

SERVER = """
import json, sys
print("starting " + BAD, file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    if asked["method"] == "initialize":
        info = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        answer = info | {"serverInfo": {"name": "bad", "version": "1"}}
    elif asked["method"] == "tools/list":
        names = ["[/nope]", "[link=http://evil.invalid]CLICK[/link]"]
        answer = {"tools": [{"name": n, "description": BAD, "inputSchema": {"type": "object"}} for n in names]}
    else:
        sys.exit(BAD)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""
server = ServerSpec(
    name="bad[/nope]", argv=("python3", "-I", "-S", "-c", "BAD = " + repr(BAD) + SERVER), wire="legacy"
)
task = Task(
    id=BAD, prompts=("Say x.",), target="x", gold=(GoldTurn(final_text="x"),), tags=("[/nope]" + BAD,),
)
suite = Suite(name="bad", version="1" + BAD, tasks=(task,), source=BAD)
ENV = EnvSpec(name="bad", servers=(server,), suite=suite, grade=answer_equals(), description=BAD)
'''

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Function from words to (exit code, standard output, standard error), in this process, which imports once."""

    def type(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gymcp", *map(str, words)])
        code = 0
        try:
            run()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, errors = capsys.readouterr()
        return code, out, errors

    return type


def hostile_run(folder: Path, bad: str, **config: str) -> Path:
    """A hostile run folder in which every text would act on a terminal."""
    said = {"env": bad, "suite": bad, "suite_version": bad, "suite_digest": bad, "agent": bad, "policy": bad, bad: bad}
    with create_run(folder, {**said, "source": bad, **config}), TrajectoryStore.open(folder, write=True) as store:
        one = order_episode(bad, 0, pays=True, run="1", words=bad, reason=bad, components={bad: 1.0})
        store.append(one, {"state-0": {}, "state-1": {bad: bad}}, tags=(bad,))
        lost = order_episode(
            bad, 1, pays=False, run="1", score=None, outcome=Outcome.ENV_INFRA, reason=f"server died {bad}"
        )
        store.append(lost, {"state-0": {}}, tags=(bad,))
    return folder


def hostile_lock(path: Path) -> Path:
    tool = Tool(name=f"t{BAD}", description=BAD, input_schema={"type": "object"})
    server = LockedServer(
        name="calc", runtime="remote", package=BAD, version=BAD, command=(f"http://127.0.0.1:1/{BAD}",),
        tools=hash_tools([tool]), headers={"X-Bad": BAD}, python=BAD,
    )  # fmt: skip
    write_lock(path, {"calc": server})
    return path


def hostile_files(folder: Path, bad: str) -> dict[str, str]:
    """Labels, lines of an export and a recipe with hostile text."""
    labels, lines, recipe = folder / "labels.csv", folder / "lines.jsonl", folder / "recipe.toml"
    quoted = bad.replace('"', "").replace("\r", "").encode(errors="replace").decode()
    labels.write_text(f'task,trial,label,{quoted}\n"{quoted}",0,pass,x\n"{quoted}",1,fail,x\n', encoding="utf-8")
    lines.write_text(json.dumps({"schema_version": bad, bad: bad}) + "\n")
    recipe.write_text(
        "env = " + json.dumps(BAD, ensure_ascii=True).replace("\\ud", "\\\\ud").replace("\x7f", "") + "\n"
    )
    return {"LABELS": str(labels), "LINES": str(lines), "RECIPE": str(recipe)}


def assert_plain(*texts: str) -> None:
    """Fail if one of the outputs acts on a terminal or is a traceback."""
    for text in texts:
        assert ACTS.search(text) is None, repr(text)
        assert "Traceback" not in text, text


RUN_VERBS: list[list[str]] = [
    ["report", "RUN"],
    ["report", "RUN", "--json"],
    ["report", "RUN", "--format", "md"],
    ["report", "RUN", "--format", "json"],
    ["report", "RUN", "OTHER", "--format", "md"],
    ["report", "RUN", "OTHER"],
    ["report", "RUN", f"nowhere{BAD}"],
    ["compare", "RUN", "OTHER"],
    ["compare", "RUN", "OTHER", "--metric", BAD],
    ["compare", "RUN", "OTHER", "--json"],
    ["grade", "RUN"],
    ["grade", "RUN", "--grader", BAD],
    ["grade", "BANK"],
    ["export", "RUN", "--format", "csv"],
    ["export", "RUN", "--format", "jsonl"],
    ["export", "RUN", "--format", "atif"],
    ["export", "RUN", "--format", "parquet"],
    ["export", "RUN", "--format", BAD],
    ["export", "RUN", "--format", "csv", "--out", f"out{BAD.replace('/', '')}.csv"],
    ["credit", "RUN"],
    ["credit", "RUN", "--preset", BAD],
    ["credit", "RUN", "--set", f"{BAD}=1"],
    ["credit", "RUN", "--preset", "matchtir"],
    ["learn", "RUN"],
    ["learn", "RUN", "--policy", BAD],
    ["train", BAD],
    ["judge", "RUN"],
    ["judge", "run", "RUN"],
    ["judge", "RUN", "--policy", BAD, "--rubric", "LABELS"],
    ["judge", "RUN", "--policy", "tiny", "--rubric", f"nowhere{BAD}"],
    ["judge", "agreement", "LABELS", "--run", "RUN"],
    ["judge", "agreement", "LABELS"],
    ["view", f"nowhere{BAD}"],
    ["view", "RUN", "--tokenizer", BAD],
    ["import", "RUN/run.json", "--out", f"made{BAD.replace('/', '')}"],
    ["import", "LINES", "--out", "made"],
    ["train", "RECIPE"],
    ["doctor"],
    ["eval", BAD],
    ["eval", f"{BAD}.py"],
    ["stress", BAD],
    ["check", BAD],
    ["tools", BAD],
    ["new", BAD],
    ["suites", "--only", BAD],
    ["suites", "install", BAD],
    ["servers", "list", "--lock", "LOCK"],
    ["servers", "list", "--lock", "LOCK", "--json"],
    ["servers", "check", "--lock", "LOCK"],
    ["servers", "sync", "--lock", "LOCK"],
    ["servers", "lock", "--lock", "LOCK"],
    ["servers", "check", BAD, "--lock", "LOCK"],
    ["servers", "add", BAD, "--lock", "LOCK"],
    ["servers", "add", f"http://127.0.0.1:1/{BAD}", "--lock", "LOCK"],
    ["serve", f"/nowhere{BAD}"],
    ["sandbox", "build", f"/nowhere{BAD}"],
    ["clean", "--dry-run", "--lock", "LOCK"],
    [BAD],
    ["report", f"--{BAD}"],
]


def test_every_verb_is_tried() -> None:
    groups = {group.name: group.typer_instance for group in app.registered_groups if group.typer_instance}
    verbs: set[tuple[str | None, ...]] = {(command.name,) for command in app.registered_commands}
    verbs |= {(name, command.name) for name, group in groups.items() for command in group.registered_commands}
    tried = {tuple(words[: 2 if words[0] in groups else 1]) for words in RUN_VERBS}
    assert verbs - tried == set()


@pytest.mark.parametrize("lone", [False, True], ids=["", "with-surrogates"])
@pytest.mark.parametrize("words", RUN_VERBS, ids=lambda words: ascii(" ".join(words))[1:40])
def test_no_verb_lets_untrusted_text_act_on_the_terminal(
    words: list[str], lone: bool, tmp_path: Path, type_command: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = WORST if lone else BAD
    named = {
        "RUN": str(hostile_run(tmp_path / "run[i]", bad)),
        "OTHER": str(hostile_run(tmp_path / "other", bad)),
        "BANK": str(hostile_run(tmp_path / "bank", bad, source="workbench")),
        "LOCK": str(hostile_lock(tmp_path / "servers.lock")),
        **hostile_files(tmp_path, bad),
    }
    typed_words = [re.sub(f"^({'|'.join(named)})", lambda found: named[found[1]], word) for word in words]
    _, out, errors = type_command(*typed_words)
    assert out or errors
    assert_plain(out, errors)


def test_tools_named_like_markup_are_shown_unchanged(tmp_path: Path, type_command: Typed) -> None:
    file = tmp_path / "bad.py"
    file.write_text(f"BAD = {BAD!r}\n{ENV_FILE}")
    code, out, errors = type_command("tools", file, "--sandbox", "none")
    assert (code, "[/nope], [link=" in out) == (0, True)
    assert_plain(out, errors)
    code, out, errors = type_command("tools", file, "--sandbox", "none", "--search", "CLICK")
    assert (code, "[link=http://evil.invalid]CLICK[/link]" in out) == (0, True)
    assert_plain(out, errors)
    for words in (["check", file], ["eval", file, "--out", tmp_path / "run"], ["stress", file]):
        _, out, errors = type_command(*words, "--sandbox", "none")
        assert_plain(out, errors)


def test_an_untrusted_title_is_shown_unchanged(tmp_path: Path, type_command: Typed) -> None:
    code, out, _ = type_command("report", hostile_run(tmp_path / "run", "[/nope][link=x]:warning:"))
    assert (code, out.count("[/nope][link=x]:warning:") > 3) == (0, True)


EVERYTHING = """
import logging, sys, warnings
from gymcp.cli.output import clean_output
clean_output()
clean_output()
text = ast.literal_eval(sys.argv[1])
logging.getLogger("gymcp.somewhere").warning("said %s", text)
logging.basicConfig()
logging.getLogger("gymcp.somewhere").warning("said %s", text)
warnings.warn(text)
print(text)
sys.stdout.writelines([text])
raise ValueError(text)
"""


def test_logs_warnings_prints_and_tracebacks_are_cleaned() -> None:
    command = [sys.executable, "-c", f"import ast{EVERYTHING}", ascii(WORST)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    out, errors = done.stdout.decode(), done.stderr.decode()
    assert (ACTS.search(out), ACTS.search(errors)) == (None, None)
    assert (out.count(MARKUP), errors.count(MARKUP)) == (2, 4)


def test_text_objects_and_live_lines_are_cleaned_and_keep_their_colours() -> None:
    file = io.StringIO()
    told = OutputConsole(force_terminal=True, color_system="standard", width=400, file=file)
    told.print(Text(WORST, style="red"))
    with Live(Text(WORST), console=told, transient=True):
        pass
    with told.status(Text(WORST)):
        pass
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "")
    assert "\x1b[31m" in file.getvalue()
    assert_plain(said)
    assert MARKUP in said
    assert console.file is not None
    Progress(WORST)._line()


def test_output_of_another_library_keeps_its_colours_and_nothing_else() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    under = Terminal()
    stream = CleanStream(under)
    stream.rich_proxied_file.write("\x1b[1;31mred\x1b[0m \x1b[2J \x1b]0;t\x07")
    stream.write("\x1b[31m")
    assert under.getvalue() == "\x1b[1;31mred\x1b[0m \\u001b[2J \\u001b]0;t\\u0007\\u001b[31m"


def on_a_terminal(*words: object) -> str:
    """Output of the installed command, as bytes, if both its streams are a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([GYMCP, *map(str, words)], stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the other end was closed
        while piece := os.read(ours, 65536):
            said += piece
    process.wait(timeout=60)
    os.close(ours)
    return said.decode()


@pytest.mark.parametrize("words", [["report", "RUN"], ["--help"]], ids=["run", "help"])
def test_a_terminal_gets_colours_and_nothing_else(words: list[str], tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run", BAD)
    said = on_a_terminal(*(run if word == "RUN" else word for word in words))
    assert "\x1b[1m" in said
    assert_plain(re.sub(r"\x1b\[[0-9;]*m", "", said).replace("\r\n", "\n"))


def test_json_on_standard_output_is_json_whatever_it_holds(tmp_path: Path, type_command: Typed) -> None:
    _, out, _ = type_command("report", hostile_run(tmp_path / "run", WORST), "--json")
    assert json.loads(out)["env"] == WORST


def test_a_stream_that_holds_only_ascii_is_written_to() -> None:
    under = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    CleanStream(under).write("95 % interval · ü\ud800")
    under.seek(0)
    assert under.read() == "95 % interval \\xb7 \\xfc\\ud800"


def test_visible_text_stays_unchanged() -> None:
    assert visible("ümlaut\n\t漢字 🎉 ❤️ é") == "ümlaut\n\t漢字 🎉 ❤️ é"
