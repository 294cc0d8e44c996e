"""The command of an agent program: its words, its script, and what is refused before the first episode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gymcp.agents.programs.agent import check_program
from gymcp.agents.programs.launch import find_program, find_script
from gymcp.agents.programs.settings import ProgramSettings, parse_command
from gymcp.errors import ConfigError


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("cmd:", "no program; write cmd:PROGRAM ARGS"),
        ("cmd:'' agent.py", "no program; write cmd:PROGRAM ARGS"),
        ("cmd:python 'x", "cannot be split into words: No closing quotation"),
        ("cmd:a {prompt} {prompt}", "stands in it more than once"),
        ("cmd:a {prompt} {prompt_file}", "stands in it more than once"),
    ],
)
def test_an_invalid_command_is_refused(agent: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_command(agent)


def test_an_empty_word_is_not_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argv, mounts = find_program(ProgramSettings(argv=("sh", "-c", "echo $1", "sh", "")))
    assert argv[1:] == ("-c", "echo $1", "sh", "")
    assert not any(str(tmp_path) in str(mount) for mount in mounts)
    with pytest.raises(ConfigError, match="no such program"):
        find_program(ProgramSettings(argv=("",)))


def test_a_word_that_is_longer_than_any_path_is_a_word() -> None:
    program = ProgramSettings(argv=("sh", "-c", "x" * 5_000))
    assert find_program(program)[0][-1] == "x" * 5_000
    assert program.digest == ProgramSettings(argv=("sh", "-c", "y")).digest


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python3.12 -u agent.py --verbose", "agent.py"),
        ("/usr/bin/node --import tsx agent.ts", "agent.ts"),
        ("uv run --with openai agent.py", "agent.py"),
        ("uv run python agent.py", "agent.py"),
        ("python3 -m agent.py", None),
        ("python3 -uc agent.py", None),
        ("node -e agent.js", None),
        ("bash {prompt_file}.sh", None),
        ("uv run tool agent.py", None),
        ("uv sync agent.py", None),
        ("agent.py other.py", None),
        ("node", None),
    ],
)
def test_the_script_of_an_interpreter_is_known(command: str, script: str | None) -> None:
    assert find_script(command.split()) == script


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("./agent.py", "'cmd:./agent.py': it may not be executed: chmod +x ./agent.py, or write its interpreter"),
        ("agent.py", "'cmd:agent.py': no such program; to run the file of that name in this folder: cmd:./agent.py"),
        ("./tools", "'cmd:./tools': it is a folder: name the program in it"),
    ],
)
def test_an_unusable_file_is_refused_with_the_remedy(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("print('done')")
    (tmp_path / "tools").mkdir()
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_program(ProgramSettings(argv=(program,)))


@pytest.mark.parametrize(
    ("argv", "mounts", "words"),
    [
        (("no-such-program",), (), "agent 'cmd:no-such-program': no such program"),
        (("sh",), (Path("/no/such/folder"),), "'cmd:sh': it cannot be shown /no/such/folder: no such"),
        (("sh", "/home"), (), "/home is too much to show to a program"),
        (("python3", "-X", "dev", "gone.py", "{prompt}"), (), "gone.py {prompt}': no such file: gone.py \\(in /"),
        (("bash", "-e", "/no/such.sh"), (), "no such file: /no/such.sh"),
    ],
)
def test_a_missing_or_unmountable_program_is_refused(
    argv: tuple[str, ...], mounts: tuple[Path, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_program(ProgramSettings(argv=argv, mounts=mounts))
