"""A process that appends for ever (or COUNT episodes) and prints the id of each after `append` has returned.

Usage: store_writer.py FOLDER NAME [COUNT]. Tasks named ``shared-N`` are tried by every writer, ``NAME-N`` by one.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

from records import episode

from gymcp.errors import StoreError
from gymcp.store import TrajectoryStore


def main(folder: str, name: str, count: int | None) -> None:
    numbers = itertools.count() if count is None else range(count)
    with TrajectoryStore.open(Path(folder), write=True) as store:
        for n in numbers:
            for task in (f"{name}-{n}", f"shared-{n}"):
                states = {f"{task}/state-{i}": {"rows": ["x" * 500] * i, "of": task} for i in range(3)}
                trajectory = replace(episode(task, steps=10), id=f"{task} by {name}", final_state=f"{task}/state-2")
                try:
                    store.append(trajectory, states)
                except StoreError as error:
                    if "already recorded as scored" not in str(error):
                        raise
                    print(f"refused {task}", flush=True)
                else:
                    print(trajectory.id, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
