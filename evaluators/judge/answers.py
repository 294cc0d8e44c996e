"""Answers of judges, kept in the run folder, so that grading again sends no requests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.evaluators.judge.prompt import PROMPT_VERSION, Question
from gymcp.store.untrusted_files import MAX_LINES_BYTES, open_foreign, read_foreign
from gymcp.store.validation import build_record, require_text
from gymcp.types import Json, ModelUsage, Sampling

ANSWERS_FILE = "judge-answers.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    spent: ModelUsage | None = None
    grader: str = ""
    """Key of the `JudgeRequest` that an environment's grader made; empty for an answer to ``gymcp judge``."""


def answer_key(asked: Question, judge: str, sampling: Sampling) -> str:
    """Key of one vote: equal if the same model is asked the same words with the same sampling."""
    messages = [[message.role, message.content] for message in asked.messages]
    content = json.dumps([PROMPT_VERSION, judge, asdict(sampling), messages], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class JudgeAnswers:
    """Recorded answers by `answer_key`, from `open_answers`. An answer is in the file when `add` returns."""

    def __init__(self, recorded: dict[str, Answer], descriptor: int | None) -> None:
        self._found = recorded
        self._descriptor = descriptor

    def get(self, key: str) -> Answer | None:
        return self._found.get(key)

    def all(self) -> tuple[Answer, ...]:
        """Every recorded answer."""
        return tuple(self._found.values())

    def add(self, key: str, answer: Answer, about: Mapping[str, Json]) -> None:
        """Record an answer, with facts for people who read the file."""
        grader = {"grader": answer.grader} if answer.grader else {}
        line = json.dumps({"key": key, **about, **grader, "answer": answer.text, "spent": _usage_object(answer)})
        if self._descriptor is not None:
            os.write(self._descriptor, line.encode() + b"\n")  # one atomic append, also beside other processes
        self._found[key] = answer


@contextmanager
def open_answers(folder: Path) -> Iterator[JudgeAnswers]:
    """The answers in a run folder. A line that a crash cut short is skipped. Raises StoreError if the file cannot be
    opened."""
    try:
        descriptor = open_foreign(folder, ANSWERS_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    except OSError as error:
        raise StoreError(f"run folder {folder}: {ANSWERS_FILE} cannot be opened: {error.strerror}") from error
    try:
        lines = read_foreign(folder, ANSWERS_FILE, most_bytes=MAX_LINES_BYTES)
        if lines and not lines.endswith(b"\n"):
            os.write(descriptor, b"\n")
        yield JudgeAnswers(dict(_read(lines)), descriptor)
    finally:
        os.close(descriptor)


def read_answers(folder: Path) -> tuple[Answer, ...]:
    """The answers in a run folder, which is left as it is; none if it has no file of answers, or an unreadable one."""
    try:
        return tuple(dict(_read(read_foreign(folder, ANSWERS_FILE, most_bytes=MAX_LINES_BYTES))).values())
    except (OSError, ValueError):
        return ()


def usage_of_grader(answers: Iterable[Answer]) -> dict[str, Json]:
    """Number, tokens and cost of the answers to an environment's grader, which are no part of the agent's usage."""
    asked = [answer for answer in answers if answer.grader]
    spent = [answer.spent for answer in asked if answer.spent is not None]
    return {
        "answers": len(asked),
        "prompt_tokens": sum(each.prompt_tokens for each in spent),
        "completion_tokens": sum(each.completion_tokens for each in spent),
        "cost": math.fsum(each.cost for each in spent),
    }


def _read(lines: bytes) -> Iterator[tuple[str, Answer]]:
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            entry = json.loads(line)
            spent = build_record(ModelUsage, entry["spent"]) if entry["spent"] else None
            text, grader = require_text(entry["answer"], "answer"), require_text(entry.get("grader", ""), "grader")
            yield require_text(entry["key"], "key"), Answer(text=text, spent=spent, grader=grader)


def _usage_object(answer: Answer) -> Json:
    return None if answer.spent is None else asdict(answer.spent)
