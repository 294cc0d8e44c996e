"""The kit that measures a GPU, at toy size on the CPU: every kind of part runs, and what it compares agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


PARTS = (
    "learner-0.6b-full",
    "learner-0.6b-lora",
    "engine",
    "agreement",
    "credit",
    "memory-qwen3-4b-lora",
    "processes",
    "train",
)


def test_every_kind_of_part_runs_at_toy_size(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--quick", "--json", "--out", str(tmp_path), "--only", ",".join(PARTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)["parts"]
    assert sorted(parts) == sorted(PARTS)
    assert all("CPU, toy sizes" in part["machine"] for part in parts.values())
    values = {row["metric"]: row["value"] for part in parts.values() for row in part["results"]}
    for name, value in values.items():
        # bfloat16 has 8 bits: the engine's words and the learner's differ in the third digit
        assert (value < 0.05) if "difference" in name else (value > 0.0), name
    assert {name.partition(" in one")[0] for name in values if "bare learner" in name} == {"DDP", "FSDP2"}
