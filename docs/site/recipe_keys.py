"""The keys of a recipe as Markdown, from the records that read them."""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from gymcp.trainers.recipe import recipe as records


def describe_recipe() -> str:
    """A page with a table for each section of a recipe."""
    described = _describe_fields()
    hints = get_type_hints(records.Recipe)
    sections = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    top = _table(records.Recipe, described, leave_out=frozenset(sections))
    parts = [
        "# Recipe keys",
        "Made from the code. [Training](../training.md) says how a recipe is used.",
        "## Top level",
        top,
    ]
    for name, kind in sections.items():
        parts += [f"## [{name}]", _table(kind, described)]
        nested = {key: inner for key, inner in get_type_hints(kind).items() if is_dataclass(inner)}
        for key, inner in nested.items():
            parts += [f"## [{name}.{key}]", _table(inner, described)]
    return "\n\n".join(parts) + "\n"


def _table(record: Any, described: dict[tuple[str, str], str], *, leave_out: frozenset[str] = frozenset()) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in fields(record):
        if field.name in leave_out:
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        shown = "required" if default is MISSING else f"`{default!r}`"
        meaning = described.get((record.__name__, field.name), "")
        rows.append("| " + " | ".join(map(_cell, (f"`{field.name}`", f"`{field.type}`", shown, meaning))) + " |")
    return "\n".join(rows)


def _describe_fields() -> dict[tuple[str, str], str]:
    """(record, field) -> the text that follows the field in the source."""
    found = {}
    for record in ast.parse(inspect.getsource(records)).body:
        if not isinstance(record, ast.ClassDef):
            continue
        for field, text in zip(record.body, record.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                found[record.name, field.target.id] = " ".join(str(text.value.value).split()).replace("``", "`")
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
