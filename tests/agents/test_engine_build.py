"""The library of the engine's forward pass: built once, and whatever goes wrong is one line and is not tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.agents.policies.engine.cpp_forward import CppLibrary
from gymcp.agents.policies.engine.cpp_library import Build, Found, find_library, look_up, plan_build

Compiler = Callable[[str], Build]


@pytest.fixture
def with_compiler(tmp_path: Path) -> Compiler:
    """Plans a build with a compiler that is this shell script; its arguments end in ``-o OUTPUT``."""

    def plan(script: str) -> Build:
        program = tmp_path / "compiler"
        program.write_text(f"#!/bin/sh\nfor output; do :; done\necho ran >>{tmp_path}/runs\n{script}\n")
        program.chmod(0o755)
        return Build(folder=tmp_path / "engine", source=b"source", compiler=(str(program),), timeout_s=60)

    return plan


def count_runs(build: Build) -> int:
    """The number of times that the compiler ran."""
    return (build.folder.parent / "runs").read_text().count("ran")


def copy_library() -> str:
    """Script of a compiler whose library is that of this machine."""
    found = find_library(plan_build())
    assert found.path
    return f'cp "{found.path}" "$output"'


def test_a_library_is_built_once_by_processes_that_ask_at_the_same_time(
    with_compiler: Compiler, cpp_library: CppLibrary
) -> None:
    build = with_compiler(copy_library())
    found: list[Found] = []
    threads = [threading.Thread(target=lambda: found.append(find_library(build))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.path for each in found] == [build.shared_object] * 3
    assert count_runs(build) == 1
    assert sorted(path.suffix for path in build.folder.iterdir()) == [".lock", ".so"]


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("echo 'x.cpp:1: error: no such thing' >&2; exit 1", "compiler failed: x.cpp:1: error: no such thing"),
        ("exit 3", "compiler failed: exit code 3"),
        ("kill -SEGV $$", "compiler failed: signal 11"),
        ('echo nonsense >"$output"', "the check of its numbers failed: OSError: "),
    ],
    ids=["error", "silent", "crash", "nonsense"],
)
def test_a_failed_build_is_one_line_and_is_not_repeated(with_compiler: Compiler, script: str, detail: str) -> None:
    build = with_compiler(script)
    first = find_library(build)
    assert first.path is None
    assert first.detail.startswith(detail)
    assert first.detail.endswith(f"; to try again: rm {build.failure}")
    assert "\n" not in first.detail
    assert find_library(build) == look_up(build) == first
    assert count_runs(build) == 1


def test_a_compiler_that_hangs_is_ended(with_compiler: Compiler) -> None:
    build = replace(with_compiler("sleep 600 & wait"), timeout_s=0.3)
    assert find_library(build).detail.startswith("compiler has not ended within 0.3 s")


def test_another_version_of_the_compiler_builds_again(with_compiler: Compiler) -> None:
    assert "exit code 1" in find_library(with_compiler("exit 1")).detail
    build = with_compiler("exit 22")
    assert "exit code 22" in find_library(build).detail
    assert count_runs(build) == 2


def test_a_library_with_other_numbers_than_torch_is_not_used(tmp_path: Path, cpp_library: CppLibrary) -> None:
    build = replace(plan_build(), folder=tmp_path)
    wrong = build.source.replace(b"second * sine[i]", b"second * cosine[i]")
    assert wrong != build.source
    found = find_library(replace(build, source=wrong))
    assert found.path is None
    assert found.detail.startswith("the check of its numbers failed: a logit differs from torch's by")


def test_an_unwritable_cache_is_one_line(with_compiler: Compiler) -> None:
    build = replace(with_compiler("exit 1"), folder=Path("/proc/nothing"))
    assert find_library(build).detail == "the cache /proc/nothing cannot be written: No such file or directory"
