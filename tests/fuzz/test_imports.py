"""Documents of others with random parts: a run, or one line; and what is exported comes back."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st
from random_records import trajectories
from records import PAID, SPOKEN

from gymcp.errors import GymcpError
from gymcp.exchange.atif import to_atif
from gymcp.exchange.export import export
from gymcp.exchange.importing import import_run
from gymcp.exchange.json_lines import to_line
from gymcp.exchange.source import Episode, open_source
from gymcp.store import EpisodeRow, Run, TrajectoryStore, create_run
from gymcp.types import Json, Trajectory

values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 9) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
FOREIGN: dict[str, Json] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "a", "version": "1", "model_name": "m", "tool_definitions": [{"function": {"name": "t"}}]},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Hello"},
        {
            "step_id": 2,
            "source": "agent",
            "message": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {"path": "x.png"}}],
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": "1", "function_name": "t", "arguments": {}}],
            "observation": {"results": [{"source_call_id": "1", "content": "done"}]},
            "metrics": {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-0.5]},
        },
    ],
    "final_metrics": {"total_prompt_tokens": 1, "total_completion_tokens": 1, "total_cost_usd": 0.5},
    "extra": {"reward": 0.5},
}


@functools.cache
def documents() -> dict[str, Json]:
    """One of each kind, with all that it can hold."""
    run = Run(folder=Path("run"), created="", config={}, seeds=(), versions={}, git=None)
    row = EpisodeRow(id=PAID.id, env=PAID.env, task=PAID.task, tags=("a",))
    episode = Episode(trajectory=PAID, row=row)
    return {"line": json.loads(to_line(episode)), "atif": to_atif(episode, run), "foreign": FOREIGN}


def places(found: Json) -> list[tuple[str | int, ...]]:
    """Paths to the parts of a document, inner ones included."""
    pairs = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [place for key, part in pairs for place in ((key,), *((key, *inner) for inner in places(part)))]


def replace_at(found: Json, place: tuple[str | int, ...], value: Json) -> Json:
    if not place:
        return value
    copy = found.copy()
    copy[place[0]] = replace_at(found[place[0]], place[1:], value)
    return copy


def import_text(text: str, suffix: str = ".jsonl") -> None:
    """A run that can be read, or one line."""
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = (Path(folder) / "in").with_suffix(suffix)
        file.write_text(text, encoding="utf-8")
        try:
            import_run(file, Path(folder) / "run")
        except GymcpError as error:
            assert "\n" not in str(error)  # noqa: PT017
            return
        with TrajectoryStore.open(Path(folder) / "run") as store:
            assert len(store.summaries()) == len(list(store.iter_trajectories())) > 0


@given(st.sampled_from(("line", "atif", "foreign")), st.data())
def test_a_part_of_another_kind(kind: str, data: st.DataObject) -> None:
    document = documents()[kind]
    place = data.draw(st.sampled_from(places(document)))
    import_text(json.dumps(replace_at(document, place, data.draw(values))) + "\n")


@given(st.dictionaries(st.sampled_from(("format", "schema_version", "steps", "agent", "extra", "tools")), values))
@example({"schema_version": "ATIF-v1.0", "steps": [1], "agent": {}})
def test_documents_of_any_shape(document: dict[str, Json]) -> None:
    import_text(json.dumps(document))


@given(st.text(max_size=60), st.sampled_from((".json", ".jsonl")))
@example("[" * 100_000, ".json")
def test_any_text(text: str, suffix: str) -> None:
    import_text(text.encode(errors="replace").decode(), suffix)


@given(trajectories, st.sampled_from(("jsonl", "atif", "parquet", "csv")))
@example(SPOKEN, "parquet")
def test_any_episode_is_exported_and_comes_back(trajectory: Trajectory, format: str) -> None:
    whole = replace(trajectory, id=trajectory.id or "x")  # an import names what has no name
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        run, out = Path(folder) / "run", Path(folder) / f"out.{format}"
        with create_run(run, {"env": "x"}), TrajectoryStore.open(run, write=True) as store:
            store.append(whole, {})
        try:
            with open_source(run) as source:
                count = export(source, format, out)
        except GymcpError as error:
            assert "\n" not in str(error)  # noqa: PT017
            return
        if format == "parquet":
            assert pq.read_table(out).num_rows == count
        elif format == "jsonl":
            import_run(out, Path(folder) / "again")
            with TrajectoryStore.open(Path(folder) / "again") as store:
                assert [repr(each) for each in store.iter_trajectories()] == [repr(whole)]
