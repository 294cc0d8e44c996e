"""Random instances of a tool's JSON Schema, with words from the conversation as a model might use them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from gymcp.types import Json

MAX_DEPTH = 6
"""Depth from which on objects have only required members and arrays are empty."""
MAX_ITEMS = 3
"""Maximum number of array items beyond the schema's minimum."""
MAX_CHARS = 1_000
"""Maximum length of a text, whatever the schema demands: this bounds what an untrusted schema can cost the harness."""
MAX_NUMBER = 10**15
"""Maximum absolute value of a number."""
MAX_WORDS = 2000
"""Maximum number of words of one message that are used."""


def find_words(text: str) -> list[str]:
    """The quoted phrases, words and numbers of a text, of which arguments usually consist."""
    quoted = re.findall(r"'([^'\n]{1,60})'|\"([^\"\n]{1,60})\"", text[:100_000])
    phrases = [a or b for a, b in quoted]
    return (phrases + re.findall(r"[A-Za-z0-9_.@#-]{2,40}", text[:100_000]))[:MAX_WORDS]


def sample_instance(schema: Mapping[str, Json], rng: random.Random, words: Sequence[str], depth: int = 0) -> Json:
    """A value that the schema allows, for the keywords that tools commonly use; other keywords are ignored."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            return sample_instance(rng.choice(schema[keyword]), rng, words, depth)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "object":
        return _object(schema, rng, words, depth)
    if kind == "array":
        return _array(schema, rng, words, depth)
    return _scalar(kind, schema, rng, words)


def _object(schema: Mapping[str, Json], rng: random.Random, words: Sequence[str], depth: int) -> dict[str, Json]:
    required = set(schema.get("required", ()))
    properties: Mapping[str, Mapping[str, Json]] = schema.get("properties", {})
    chosen = [name for name in properties if name in required or (depth < MAX_DEPTH and rng.random() < 0.5)]
    return {name: sample_instance(properties[name], rng, words, depth + 1) for name in chosen}


def _array(schema: Mapping[str, Json], rng: random.Random, words: Sequence[str], depth: int) -> list[Json]:
    if depth >= MAX_DEPTH:
        return []
    low = int(min(schema.get("minItems", 1), max(1, 64 >> 2 * depth)))
    high = max(low, int(min(schema.get("maxItems", low + MAX_ITEMS), low + MAX_ITEMS)))
    return [sample_instance(schema.get("items", {}), rng, words, depth + 1) for _ in range(rng.randint(low, high))]


def _scalar(kind: str, schema: Mapping[str, Json], rng: random.Random, words: Sequence[str]) -> Json:
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        low, high = (
            max(-MAX_NUMBER, min(MAX_NUMBER, schema.get(name, default)))
            for name, default in (("minimum", 0), ("maximum", 100))
        )
        if kind == "integer":
            return rng.randint(int(low), max(int(low), int(high)))
        return round(rng.uniform(low, max(low, high)), 2)
    text = rng.choice(words) if words else rng.choice("abcdefgh")
    text = text.ljust(min(int(schema.get("minLength", 0)), MAX_CHARS), "x")
    return text[: int(min(schema.get("maxLength", MAX_CHARS), MAX_CHARS))]
