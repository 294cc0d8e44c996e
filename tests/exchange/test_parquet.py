"""Parquet for trainers: its columns, token columns of equal length, a row for every context."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from inner_command import gymcp
from recorded_runs import make_run
from records import HOSTILE, LOST, PAID, SPOKEN
from test_round_trips import export_run

from gymcp.errors import UsageError
from gymcp.exchange.parquet import SCHEMA
from gymcp.types import Json


def rows(file: Path) -> list[dict[str, Json]]:
    table = pq.read_table(file)
    assert table.schema.equals(SCHEMA)
    found: list[dict[str, Json]] = table.to_pylist()
    return found


def test_a_row_holds_a_context_as_the_model_saw_it(tmp_path: Path) -> None:
    first, edited, spoken = rows(export_run(make_run(tmp_path / "run"), "parquet"))
    assert (first["id"], first["row"], first["data_source"], first["uid"]) == ("episode 1", 0, "shop", "pay/bob v1")
    assert (first["reward"], first["tags"], first["advantages"]) == (0.5, ["refunds", "long"], None)
    assert first["prompt_ids"] == [1, 2, 3]
    assert first["completion_ids"] == [4, 5, 6, 7]
    assert first["env_mask"] == [1, 1, 0, 1], "what a tool said was not drawn"
    assert first["logprobs"] == [-0.1, -0.5, 0.0, -0.25]
    assert [(v["version"], v["start"], v["end"]) for v in first["policy_versions"]] == [
        ("v0", 0, 1),
        ("v1", 1, 2),
        ("v1", 2, 3),
    ]
    assert [(s["step"], s["start"], s["end"], s["state_key"]) for s in first["steps"]] == [
        (0, 0, 2, "s0"),
        (1, 3, 4, "s1"),
    ]
    assert (edited["row"], edited["prompt_ids"], edited["completion_ids"]) == (1, [1, 9], [8, 8])
    assert (spoken["prompt_ids"], spoken["completion_ids"], spoken["reward"]) == (None, None, 1.0)


def test_messages_are_a_conversation(tmp_path: Path) -> None:
    first, edited, spoken = rows(export_run(make_run(tmp_path / "run"), "parquet"))
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert [message["role"] for message in first["completion"]] == ["assistant", "tool", "tool", "assistant"]
    assert first["messages"] == first["prompt"] + first["completion"]
    (paid, broken) = first["completion"][0]["tool_calls"]
    assert paid["function"]["name"] == "pay"
    assert paid["function"]["arguments"] == '{"to":"bob <script>alert(1)</script>","amounts":[1,2.5,null]}'
    assert broken["function"]["arguments"] == '{"to": '
    assert [message["content"] for message in edited["completion"]] == [""]
    assert len(edited["prompt"]) == 7
    assert [message["content"] for message in spoken["messages"]] == ["Hello", "Hello to you."]


def test_advantages_are_those_of_the_preset(tmp_path: Path) -> None:
    first, edited, spoken = rows(export_run(make_run(tmp_path / "run"), "parquet", "--preset", "reinforce_pp"))
    assert len(first["advantages"]) == len(first["completion_ids"])
    assert [bool(value) for value in first["advantages"]] == [True, True, False, True]
    assert {step["advantage"] for step in first["steps"]} == {first["advantages"][0]}
    assert edited["advantages"] == [first["advantages"][0]] * 2
    assert spoken["advantages"] is None


def test_hostile_texts_and_lost_episodes_are_written(tmp_path: Path) -> None:
    (hostile,) = rows(export_run(make_run(tmp_path / "run", (LOST, HOSTILE)), "parquet"))
    assert (hostile["id"], hostile["task"]) == ("? episode", "../../etc/x?\0")


def test_a_run_without_a_step_is_a_file_without_a_row(tmp_path: Path) -> None:
    assert rows(export_run(make_run(tmp_path / "run", (LOST,)), "parquet")) == []


@pytest.mark.parametrize("episodes", [(PAID,), (SPOKEN,)])
def test_missing_pyarrow_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes: tuple[Json, ...]
) -> None:
    run = make_run(tmp_path / "run", episodes)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "gymcp.exchange.parquet")
    result = gymcp("export", run, "--format", "parquet")
    assert isinstance(result.exception, UsageError)
    needs = "export: parquet needs 'pyarrow', which is not installed: pip install 'gymcp[export]'"
    assert str(result.exception) == needs
    assert not (run / "export.parquet").exists()
