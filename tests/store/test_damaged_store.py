"""A file that has lost its end: reading all of it is an error, and `salvage` returns the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import episode

from gymcp.errors import StoreError
from gymcp.store import TrajectoryStore
from gymcp.store.database import FILE_NAME


@pytest.mark.parametrize("share", [0.95, 0.5, 0.001])
def test_the_rest_of_a_truncated_file_can_be_read(tmp_path: Path, share: float) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        for n in range(200):
            store.append(episode(f"task{n:03}"), {})
        whole = store.summaries()
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(StoreError, match="is damaged"), TrajectoryStore.open(tmp_path) as store:
        store.summaries()
    with TrajectoryStore.open(tmp_path, damaged=True) as store:
        left = store.salvage()
        assert left == whole[: len(left)]
        assert (len(left) > 0, len(left) < 200) == (share > 0.01, True)


def test_an_error_that_quotes_text_of_the_file_is_one_line(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(episode("task"), {})
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes().replace(b"seq INTEGER", b"s\x80q INTEGER"))
    with pytest.raises(StoreError, match="Could not decode") as caught, TrajectoryStore.open(tmp_path) as store:
        store.summaries()
    assert "\n" not in str(caught.value)
