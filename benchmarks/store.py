"""Writing and reading episodes of 10 steps x 300 sampled tokens, against JSON lines and parquet of the same records.

Every prompt extends the tokens before it, as an agent's does: an episode samples 3,000 tokens, reads 600 new ones, and
repeats 16,500 that it had read before. The store writes repeated tokens once. JSON lines and parquet write every prompt
whole, as training data does; "new tokens only" leaves repeated tokens out there, too, which needs a special reader.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report_table import Result, all_against, options, show

from gymcp.store import TrajectoryStore
from gymcp.store.record_json import dumps
from gymcp.types import (
    Action,
    Json,
    Message,
    Observation,
    Sampled,
    Step,
    Tool,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
)

STEPS, DRAWN, NEW = 10, 300, 60
VOCABULARY = 151_000
BATCH = 32
READS = 300
ROUNDS = 3
TOOLS = tuple(
    Tool(
        name=f"tool_{n}",
        description="Finds what is asked for and says where it was found.",
        input_schema={"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
    )
    for n in range(8)
)
WORDS = ("order", "customer", "shipped", "late", "refund", "store", "number", "before", "account", "paid", "open", "by")


def episode(number: int, chance: random.Random, ids: Sequence[int], logprobs: Sequence[float]) -> Trajectory:
    """One episode; its ids have the frequencies of a language, its logprobs are in single precision."""
    context: tuple[int, ...] = ()
    steps = []
    for index in range(STEPS):
        at = chance.randrange(len(ids) - NEW - DRAWN)
        prompt = context + tuple(ids[at : at + NEW])
        drawn = tuple(ids[at + NEW : at + NEW + DRAWN])
        context = prompt + drawn
        text = " ".join(chance.choices(WORDS, k=40))
        call = ToolCall(id=f"c{index}", name=f"tool_{index % 8}", arguments={"query": text[:30], "limit": index})
        steps.append(
            Step(
                turn=0,
                observation=Observation(messages=(Message(role="tool", content=text, tool_call_id="c0"),), tools=TOOLS),
                action=Action(text=text[:80], tool_calls=(call,)),
                results=(ToolResult(call_id=call.id, content=text, seconds=0.001 * index, content_bytes=len(text)),),
                state_key=f"{number:032x}{index:032x}",
                world_key=f"{number:032x}{index:032x}",
                sampled=Sampled(
                    prompt_ids=prompt,
                    ids=drawn,
                    logprobs=tuple(logprobs[at : at + DRAWN]),
                    versions=(("step-12", 0, DRAWN // 2), ("step-13", DRAWN // 2, DRAWN)),
                ),
                agent_s=0.5,
            )
        )
    usage = Usage(tool_calls=STEPS, prompt_tokens=STEPS * NEW, completion_tokens=STEPS * DRAWN, wall_s=5.0)
    return Trajectory(
        id=f"episode-{number}", env="shop", task=f"task-{number}", steps=tuple(steps), score=1.0, usage=usage
    )


def episodes(count: int) -> list[Trajectory]:
    chance = random.Random(0)
    ids = [min(VOCABULARY - 1, int(chance.paretovariate(0.6))) for _ in range(50_000)]
    logprobs = np.array([-chance.expovariate(2.0) for _ in range(50_000)], dtype=np.float32).tolist()
    return [episode(number, chance, ids, logprobs) for number in range(count)]


def compact(trajectory: Trajectory) -> Trajectory:
    """The trajectory with new tokens only."""
    steps = []
    seen = 0
    for step in trajectory.steps:
        if step.sampled is not None:
            prompt = step.sampled.prompt_ids
            steps.append(replace(step, sampled=replace(step.sampled, prompt_ids=prompt[seen:])))
            seen = len(prompt) + len(step.sampled.ids)
    return replace(trajectory, steps=tuple(steps))


def write_store(records: Sequence[Trajectory], folder: Path, *, batch: int) -> None:
    folder.mkdir()
    with TrajectoryStore.open(folder, write=True) as store:
        for start in range(0, len(records), batch):
            if batch == 1:
                store.append(records[start], {})
            else:
                store.append_many((record, {}, ()) for record in records[start : start + batch])


def write_lines(records: Iterable[Trajectory], file: Path) -> None:
    with file.open("w") as lines:
        for record in records:
            lines.write(dumps(record) + "\n")
            lines.flush()


def write_parquet(records: Sequence[Trajectory], file: Path) -> None:
    """Write tokens and logprobs in columns and everything else as JSON, in row groups of `BATCH` episodes."""
    numbers = pa.list_(pa.list_(pa.int32()))
    schema = pa.schema(
        {"prompt_ids": numbers, "ids": numbers, "logprobs": pa.list_(pa.list_(pa.float32())), "rest": pa.string()}
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start in range(0, len(records), BATCH):
            writer.write_table(pa.Table.from_pylist([columns(r) for r in records[start : start + BATCH]], schema))


def columns(record: Trajectory) -> dict[str, Json]:
    drawn = [step.sampled for step in record.steps if step.sampled is not None]
    rest = replace(record, steps=tuple(replace(step, sampled=None) for step in record.steps))
    return {
        "prompt_ids": [sampled.prompt_ids for sampled in drawn],
        "ids": [sampled.ids for sampled in drawn],
        "logprobs": [sampled.logprobs for sampled in drawn],
        "rest": dumps([rest, [sampled.versions for sampled in drawn]]),
    }


def lines_reader(file: Path) -> Callable[[int], Json]:
    """A reader of one episode by its number, with an index of the lines."""
    with file.open("rb") as lines:
        starts = [0, *np.cumsum([len(line) for line in lines]).tolist()]

    def read(number: int) -> Json:
        with file.open("rb") as lines:
            lines.seek(starts[number])
            return json.loads(lines.readline())

    return read


def parquet_reader(file: Path) -> Callable[[int], Json]:
    opened = pq.ParquetFile(file)

    def read(number: int) -> Json:
        row = opened.read_row_group(number // BATCH).slice(number % BATCH, 1).to_pylist()[0]
        return row, json.loads(row["rest"])

    return read


def size(path: Path) -> int:
    files = [path] if path.is_file() else [*path.iterdir()]
    return sum(file.stat().st_size for file in files)


def rate(write: Callable[[Path], None], count: int, folder: Path) -> tuple[float, float, Path]:
    """Episodes a second and a CPU-second, of the fastest round each, and the path of the last round's file."""
    best = cpu = 0.0
    for number in range(ROUNDS):
        target = folder / f"{number}"
        began, used = time.perf_counter(), time.process_time()
        write(target)
        best = max(best, count / (time.perf_counter() - began))
        cpu = max(cpu, count / (time.process_time() - used))
    return best, cpu, target


def milliseconds(read: Callable[[int], object], count: int) -> tuple[float, float]:
    """The median time of one read, and the mean CPU time."""
    chance = random.Random(1)
    times = []
    used = time.process_time()
    for _ in range(READS):
        number = chance.randrange(count)
        began = time.perf_counter()
        read(number)
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e3, (time.process_time() - used) / READS * 1e3


def measure(count: int, folder: Path) -> list[Result]:
    records = episodes(count)
    small = [compact(record) for record in records]
    ways: dict[str, Callable[[Path], None]] = {
        "JSON lines": lambda path: write_lines(records, path),
        "JSON lines, new tokens only": lambda path: write_lines(small, path),
        "parquet": lambda path: write_parquet(records, path),
        "parquet, new tokens only": lambda path: write_parquet(small, path),
        "store, one by one": lambda path: write_store(records, path, batch=1),
        f"store, {BATCH} at a time": lambda path: write_store(records, path, batch=BATCH),
    }
    rates: dict[str, tuple[float, float]] = {}
    paths: dict[str, Path] = {}
    for name, write in ways.items():
        inside = folder / name
        inside.mkdir()
        wall, cpu, paths[name] = rate(write, count, inside)
        rates[name] = (wall, cpu)
    with TrajectoryStore.open(paths["store, one by one"]) as store:
        times = {
            "JSON lines": milliseconds(lines_reader(paths["JSON lines"]), count),
            "parquet": milliseconds(parquet_reader(paths["parquet"]), count),
            "store": milliseconds(lambda number: store.load(records[number].id), count),
        }
    return [
        *against_json_lines("write: ", {name: wall for name, (wall, _) in rates.items()}, "episodes/s"),
        *against_json_lines("write: ", {name: cpu for name, (_, cpu) in rates.items()}, "episodes/CPU-s"),
        *against_json_lines("read one: ", {name: wall for name, (wall, _) in times.items()}, "ms, median"),
        *against_json_lines("read one: ", {name: cpu for name, (_, cpu) in times.items()}, "CPU-ms, mean"),
        *against_json_lines("size: ", {name: size(path) / count for name, path in paths.items()}, "bytes/episode"),
    ]


def against_json_lines(what: str, values: Mapping[str, float], unit: str) -> list[Result]:
    """Every value with its ratio to that of JSON lines, which comes first."""
    return all_against({what + name: value for name, value in values.items()}, unit, f"{what}JSON lines")


def main() -> None:
    arguments = options(__doc__, "a tenth of the episodes").parse_args()
    with tempfile.TemporaryDirectory(prefix="gymcp-bench-") as folder:
        results = measure(200 if arguments.quick else 2_000, Path(folder))
    show("store", results, as_json=arguments.json, title="Episodes of 10 steps x 300 drawn tokens")


if __name__ == "__main__":
    main()
