"""Help texts of all verbs: what they begin with, their units, their defaults, and their examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from gymcp.cli.app import app
from gymcp.cli.lazy_verbs import load_command
from gymcp.cli.verbs import EVALUATE, LOOK_AT_RUNS, MACHINE, SERVERS, TRAIN, VERBS, Verb
from gymcp.paths import find_page

BAD_FIRST_WORD = re.compile(r"(Of|What|Who|Whose|Whether|Which|How|Where|When|With|To|In|Also|Only|Those|For|Its)\b")
MAX_HELP = 150
"""Characters of an option's help."""
MAX_SUMMARY = 64
"""Characters of a verb's first line: more do not fit into a line of ``gymcp --help`` in 80 columns."""
UNITS = {
    re.compile(r"second|timeout"): re.compile(r"\bseconds\b", re.IGNORECASE),
    re.compile(r"cost|price"): re.compile(r"\(USD\)"),
    re.compile(r"token(s|_budget)|max_context"): re.compile(r"\btokens\b"),
    re.compile(r"tool_budget|characters"): re.compile(r"\bcharacters\b"),
    re.compile(r"concurrency|trials|slots|limit|turns|votes|retrieve"): re.compile(
        r"\b(episodes|answers|tasks|tools)\b", re.IGNORECASE
    ),
    re.compile(r"\bport$"): re.compile(r"\b127\.0\.0\.1\b"),
}
"""Name of an option -> what its help must say."""


def commands() -> Iterator[tuple[str, Any]]:
    """(words, command) of each verb and of each of its own verbs."""
    for verb in VERBS:
        yield from commands_of(verb)


def commands_of(verb: Verb) -> Iterator[tuple[str, Any]]:
    """(words, command) of the verb and of each of its own verbs."""
    command = load_command(verb)
    yield verb.name, command
    for name, sub_command in getattr(command, "commands", {}).items():
        yield f"{verb.name} {name}", sub_command


def printed_help(words: str, columns: int) -> str:
    """The help in a terminal of this width."""
    result = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.output


def parameters() -> Iterator[tuple[str, Any]]:
    """(words, parameter) of each option and argument that the help shows."""
    for words, command in commands():
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                yield f"{words} {parameter.opts[0]}", parameter


PARAMETERS = dict(parameters())


def test_every_help_text_begins_with_a_verb_or_a_noun_and_ends_with_a_full_stop() -> None:
    texts = {words: command.help or "" for words, command in commands()}
    texts |= {words: parameter.help or "" for words, parameter in PARAMETERS.items()}
    assert [words for words, text in texts.items() if not text or BAD_FIRST_WORD.match(text)] == []
    assert [words for words, text in texts.items() if not text[0].isupper() and not text.startswith("claude")] == []
    assert [words for words, text in texts.items() if not text.rstrip().endswith((".", ")"))] == []


def test_the_help_of_an_option_is_one_line() -> None:
    assert [words for words, each in PARAMETERS.items() if "\n" in each.help or len(each.help) > MAX_HELP] == []


def test_the_help_of_an_option_without_a_default_says_what_happens_without_it() -> None:
    optional = {words: each for words, each in PARAMETERS.items() if each.default is None and not each.required}
    assert len(optional) > 40
    said = re.compile(r"default:|required\.|; with --image|; or --image")
    assert [words for words, each in optional.items() if not said.search(each.help)] == []


@pytest.mark.parametrize("columns", [400, 80])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_terminal_shows_every_word_of_a_help_text(verb: Any, columns: int) -> None:
    for words, command in commands_of(verb):
        page = printed_help(words, columns)
        shown = "".join(page.split())
        texts = [command.help, *(each.help for each in command.params if not getattr(each, "hidden", False))]
        assert [text for text in texts if "".join((text or "").split()) not in shown] == []
        lines = [line for line in page.splitlines() if line.strip() != str(find_page("index.md").parent)]
        assert [line for line in lines if len(line) > min(columns, 100) or "…" in line] == []


PYTHON_TYPE = re.compile(r"<\w+( range)?>|list\[|\bbool\b|INTEGER|FLOAT|[{}]\.\.\.|x[<>]=")
MAX_PAGE, MAX_OPTION = 140, 3
"""Lines of a verb's page, and of an option on it, in 80 columns."""


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_page_in_80_columns_is_short_and_has_plain_words_for_values(verb: Any) -> None:
    for words, _ in commands_of(verb):
        lines = printed_help(words, 80).splitlines()
        assert [line for line in lines if PYTHON_TYPE.search(line)] == []
        assert len(lines) < MAX_PAGE
        of_each = ["".join(line) for line in re.findall(r"(?m)^(  -.*\n)((?:   .*\n)*)", "\n".join([*lines, ""]))]
        assert [option for option in of_each if option.count("\n") > MAX_OPTION] == []
        assert len(of_each) > 0


def test_a_page_names_arguments_and_values_and_a_switch_has_no_value() -> None:
    page = printed_help("eval", 80)
    assert page.startswith("Usage: gymcp eval [OPTIONS] ENV...\n")
    assert "\n  --limit, -n N  " in page
    assert "\n  --resume  " in page
    assert "\n  --out, -o PATH  " in page
    assert "ways=2,steps=1+4,depth=1,episodes=8;" in page
    assert "[default: 1; at least 1]" in page
    assert printed_help("servers add", 80).startswith("Usage: gymcp servers add [OPTIONS] [COMMAND...]\n")


def test_a_long_example_goes_on_behind_a_backslash() -> None:
    page = printed_help("eval", 80)
    example = "gymcp eval bfcl --policy openai:http://127.0.0.1:8000/v1#my-model --limit 50 --trials 3"
    assert " ".join(page.partition("Examples:")[2].replace(" \\\n", " ").split()).count(example) == 1


def test_durations_sizes_and_money_have_units() -> None:
    named = [
        (words, unit)
        for words, each in PARAMETERS.items()
        for name, unit in UNITS.items()
        if name.search(each.name) and not getattr(each, "is_flag", False)
    ]
    assert len(named) > 15
    assert [words for words, unit in named if not unit.search(PARAMETERS[words].help)] == []


def test_the_table_of_verbs_says_what_the_commands_say() -> None:
    first_lines = {verb.name: (load_command(verb).help or "").partition("\n")[0] for verb in VERBS}
    assert {verb.name: verb.help for verb in VERBS} == first_lines
    assert [verb.name for verb in VERBS if len(verb.help) > MAX_SUMMARY] == []
    assert {verb.group for verb in VERBS} == {EVALUATE, LOOK_AT_RUNS, TRAIN, SERVERS, MACHINE}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_examples_of_a_verb_can_be_typed(verb: Any) -> None:
    command = load_command(verb)
    assert command.epilog.split("\n\n") == ["Examples:", *verb.examples]
    for example in verb.examples:
        program, name, *words = shlex.split(example)
        assert (program, name) == ("gymcp", verb.name)
        with command.make_context(name, words) as context:  # raises for an unknown option and for a missing argument
            if context._protected_args:
                _, sub_command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
                sub_command.make_context(example, rest, parent=context).close()


def test_main_verbs_have_three_to_five_examples() -> None:
    counts = {verb.name: len(verb.examples) for verb in VERBS if verb.group != MACHINE and verb.name != "import"}
    assert {name for name, count in counts.items() if not 3 <= count <= 5} == set()
