"""Ask the verbs that read run folders about a folder that somebody else has made."""

from __future__ import annotations

import json
from pathlib import Path

from inner_command import gymcp

from gymcp.errors import GymcpError
from gymcp.evaluators.viewer.runs import open_runs

BANK = Path(__file__).parents[2] / "examples" / "bank.py"
VERBS_THAT_READ = ("report", "compare", "export", "view", "grade", "credit", "learn")


def read_refusal(verb: str, run: Path, other: Path) -> str:
    """The verb's error line if it refuses the run folder; empty if it reads the folder. Else the test fails."""
    words: dict[str, tuple[object, ...]] = {
        "report": ("report", run),
        "compare": ("compare", run, other),
        "export": ("export", run, "--format", "jsonl", "--out", run.parent / "out.jsonl"),
        "grade": ("grade", run, "--env", BANK),
        "credit": ("credit", run),
        "learn": ("learn", run, "--policy", "tiny"),
    }
    try:
        if verb == "view":
            with open_runs([run]):
                return ""
        result = gymcp(*words[verb])
    except GymcpError as error:
        return str(error)
    if isinstance(result.exception, GymcpError):
        assert "\n" not in str(result.exception)
        return str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return ""


def name_environment(run: Path, source: str) -> Path:
    """The run folder, whose record names this environment."""
    record = json.loads((run / "run.json").read_bytes())
    record["config"] |= {"source": source, "suite_version": "1", "suite_digest": "0" * 16}
    (run / "run.json").write_text(json.dumps(record))
    return run
