"""The verbs of ``gymcp``: one line of help, the group in ``--help``, examples, and the place of the command.

The first page of the help is made from this table alone; a verb's module is imported when the verb is typed.
"""

from __future__ import annotations

from dataclasses import dataclass

EVALUATE = "Evaluate"
LOOK_AT_RUNS = "Look at runs"
TRAIN = "Train"
SERVERS = "Servers and environments"
MACHINE = "Machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    name: str
    group: str
    """Heading of the verb's group in ``gymcp --help``."""
    help: str
    """First line of the verb's own help."""
    place: str
    """``MODULE:NAME`` below ``gymcp.cli``, of a function or a `typer.Typer`."""
    examples: tuple[str, ...] = ()
    """Commands at the end of the verb's help."""


VERBS: tuple[Verb, ...] = (
    Verb(
        name="eval",
        group=EVALUATE,
        help="Run an agent on the tasks of an environment, or of several.",
        place="evaluation.eval:command",
        examples=(
            "gymcp eval backoffice --limit 20",
            "gymcp eval bfcl --policy openai:http://127.0.0.1:8000/v1#my-model --limit 50 --trials 3",
            "gymcp eval bfcl tau2 --policy tiny --policy local:models/mine --limit 20 --out runs/both",
            "gymcp eval bfcl --tasks 'multi_turn_base_1*,multi_turn_base_20' --tasks @mine.txt",
            "gymcp eval bfcl --limit 100 --out runs/bfcl --resume",
        ),
    ),
    Verb(
        name="suites",
        group=EVALUATE,
        help="List the environments, or install their files.",
        place="evaluation.commands:suites",
        examples=("gymcp suites", "gymcp suites install bfcl", "gymcp suites --check --only 'workbench*'"),
    ),
    Verb(
        name="grade",
        group=EVALUATE,
        help="Grade a recorded run again, offline.",
        place="evaluation.commands:grade",
        examples=(
            "gymcp grade runs/mine",
            "gymcp grade runs/mine --env bank.py",
            "gymcp grade runs/mine --grader number --grader mine.py",
        ),
    ),
    Verb(
        name="judge",
        group=EVALUATE,
        help="Let a model judge a recorded run, or compare it with people.",
        place="evaluation.judge:app",
        examples=(
            "gymcp judge runs/mine --policy openai:http://127.0.0.1:8000/v1#judge --rubric rubric.toml",
            "gymcp judge runs/mine --policy tiny --rubric rubric.toml --votes 5 --as-component",
            "gymcp judge agreement labels.csv --run runs/mine",
        ),
    ),
    Verb(
        name="stress",
        group=EVALUATE,
        help="Measure how far a score falls when the tools get worse.",
        place="evaluation.commands:stress",
        examples=(
            "gymcp stress backoffice",
            "gymcp stress backoffice --stressor faults --stressor latency+noisy",
            "gymcp stress bank.py --agent oracle --limit 10 --json",
            "gymcp stress backoffice --policy local:models/mine --limit 10",
        ),
    ),
    Verb(
        name="report",
        group=LOOK_AT_RUNS,
        help="Write the report of a run, or one report on several runs.",
        place="runs.commands:report",
        examples=(
            "gymcp report runs/mine",
            "gymcp report runs/a runs/b --out both.html",
            "gymcp report runs/mine --format md",
        ),
    ),
    Verb(
        name="compare",
        group=LOOK_AT_RUNS,
        help="Compare runs of the same tasks, pair by pair.",
        place="runs.commands:compare",
        examples=(
            "gymcp compare runs/a runs/b",
            "gymcp compare runs/a runs/b runs/c --metric success --metric cost",
            "gymcp compare runs/a runs/b --resolution 0.02 --json",
        ),
    ),
    Verb(
        name="view",
        group=LOOK_AT_RUNS,
        help="Show a run, two side by side, or a list of runs, in a browser.",
        place="runs.commands:view",
        examples=(
            "gymcp view runs/mine",
            "gymcp view runs/a runs/b",
            "gymcp view runs",
            "gymcp view runs/mine --find 'is:failed tag:refund' --no-open --port 8080",
            "gymcp view runs --export pages",
        ),
    ),
    Verb(
        name="watch",
        group=LOOK_AT_RUNS,
        help="Follow a run in the terminal until it ends.",
        place="runs.commands:watch",
        examples=("gymcp watch runs/mine", "gymcp watch runs/mine --every 10", "gymcp watch runs/train-tiny"),
    ),
    Verb(
        name="export",
        group=LOOK_AT_RUNS,
        help="Write a run as JSON lines, Parquet, ATIF documents or CSV.",
        place="training.commands:export",
        examples=(
            "gymcp export runs/mine --format csv",
            "gymcp export runs/mine --format parquet --preset gigpo --set gamma=0.9",
            "gymcp export runs/mine --format atif --out documents",
        ),
    ),
    Verb(
        name="import",
        group=LOOK_AT_RUNS,
        help="Create a run folder from episodes that were recorded elsewhere.",
        place="training.commands:import_run",
        examples=("gymcp import episodes.jsonl --out runs/theirs", "gymcp import documents --out runs/theirs --json"),
    ),
    Verb(
        name="train",
        group=TRAIN,
        help="Train a policy by a recipe.",
        place="training.train:command",
        examples=(
            "gymcp train recipes/tiny.toml --check",
            "gymcp train recipes/tiny.toml --explain",
            "gymcp train recipes/tiny.toml",
            "gymcp train recipes/tiny.toml --set learn.iterations=5 --out runs/mine",
            "gymcp train recipes/tiny.toml --out runs/mine --resume",
        ),
    ),
    Verb(
        name="credit",
        group=TRAIN,
        help="Print the advantages that a preset gives to a run's steps.",
        place="training.train:credit_command",
        examples=(
            "gymcp credit runs/mine",
            "gymcp credit runs/mine --preset grpo --save",
            "gymcp credit runs/mine --preset gigpo --set gamma=0.9",
            "gymcp credit runs/mine --diagnose",
        ),
    ),
    Verb(
        name="learn",
        group=TRAIN,
        help="Train a head that values the steps of a search on a run.",
        place="training.train:learn_command",
        examples=(
            "gymcp learn runs/mine",
            "gymcp learn runs/mine --policy local:models/mine --out runs/q",
            "gymcp learn runs/mine --json",
        ),
    ),
    Verb(
        name="serve",
        group=TRAIN,
        help="Serve a model with vLLM on 127.0.0.1 until Ctrl-C.",
        place="training.commands:serve",
        examples=(
            "gymcp serve models/qwen3",
            "gymcp serve models/qwen3 --port 8000 --max-context 32768",
            "gymcp serve models/qwen3 --lora-rank 16 --training",
        ),
    ),
    Verb(
        name="new",
        group=SERVERS,
        help="Write an environment file for a server, ready to run.",
        place="servers.commands:new",
        examples=(
            "gymcp new todo",
            "gymcp new kv --server 'python kv_server.py' --check",
            "gymcp new thinking --config claude_desktop_config.json:thinking",
            "gymcp new clock --server 'uvx mcp-server-time==2025.9.25'",
            'gymcp new weather --server https://example.com/mcp --header "Authorization=Bearer ${TOKEN}"',
        ),
    ),
    Verb(
        name="check",
        group=SERVERS,
        help="Check that an environment can be trusted.",
        place="servers.commands:check",
        examples=(
            "gymcp check bank.py",
            "gymcp check backoffice --limit 20",
            "gymcp check bank.py --privileges rules.toml --json",
        ),
    ),
    Verb(
        name="tools",
        group=SERVERS,
        help="List the tools of an environment, or search them.",
        place="servers.commands:tools",
        examples=(
            "gymcp tools toolshelf",
            "gymcp tools toolshelf --search 'convert a date'",
            "gymcp tools toolshelf --recall --k 5 --k 10",
        ),
    ),
    Verb(
        name="servers",
        group=SERVERS,
        help="Lock, install and check third-party MCP servers.",
        place="servers.commands:servers",
        examples=(
            "gymcp servers add 'uvx mcp-server-time==2025.9.25'",
            "gymcp servers add --dev 'python kv_server.py'",
            "gymcp servers add --config claude_desktop_config.json:thinking",
            "gymcp servers sync",
            "gymcp servers check --json",
        ),
    ),
    Verb(
        name="host",
        group=SERVERS,
        help="Serve the episodes of environments over HTTP until Ctrl-C.",
        place="evaluation.commands:host",
        examples=(
            "gymcp host backoffice",
            "gymcp host backoffice bank.py --port 0 --max-live 500 --out runs/hosted",
            "gymcp host backoffice --listen 0.0.0.0 --token-file token.txt",
            "gymcp host --openapi",
        ),
    ),
    Verb(
        name="connect",
        group=SERVERS,
        help="Relay standard input and output to an MCP server over HTTP.",
        place="servers.commands:connect",
        examples=(
            "gymcp connect",
            "gymcp connect http://127.0.0.1:8600/mcp",
            "gymcp connect http://127.0.0.1:8600/mcp --token token.txt",
        ),
    ),
    Verb(
        name="demo",
        group=MACHINE,
        help="Show what gymcp does, in three parts.",
        place="demo.commands:demo",
        examples=("gymcp demo", "gymcp demo --only bfcl --limit 20", "gymcp demo --out runs/mine"),
    ),
    Verb(
        name="doctor",
        group=MACHINE,
        help="Check this machine; print the command that fixes each failure.",
        place="machine.commands:doctor",
        examples=("gymcp doctor", "gymcp doctor --json"),
    ),
    Verb(
        name="clean",
        group=MACHINE,
        help="Remove what killed gymcp processes left on this machine.",
        place="machine.commands:clean",
        examples=("gymcp clean --dry-run", "gymcp clean --servers --lock servers.lock"),
    ),
    Verb(
        name="sandbox",
        group=MACHINE,
        help="Prepare this machine for the sandboxes.",
        place="machine.commands:sandbox",
        examples=("gymcp sandbox build", "gymcp sandbox build Dockerfile"),
    ),
)
