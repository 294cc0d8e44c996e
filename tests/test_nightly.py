"""`make nightly` runs everything that is long: what fails is named at the end, and stops no other."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from parts import Part, keep_part, list_left, make_part, read_parts
from report_table import Result

from gymcp.envs import catalog

ROOT = Path(__file__).parents[1]


def nightly(folder: Path, names: str) -> subprocess.CompletedProcess[str]:
    words = [f"NIGHTLY={names}", f"NIGHTLY_FOLDER={folder}", f"NIGHTLY_PYTHON={sys.executable}"]
    command = ["make", "--silent", "-o", "setup", "-o", "bwrap", "nightly", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_one_that_fails_is_named_and_keeps_its_old_result(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("print('{}')")
    (tmp_path / "broken.py").write_text("print('half'); raise SystemExit('broken on purpose')")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "broken.json").write_text("old")
    done = nightly(tmp_path, "broken fine")
    assert done.returncode != 0
    assert "nightly: failed: broken\n" in done.stderr
    assert [line.split(" after")[0] for line in done.stdout.splitlines()] == [
        "nightly 1/2: broken",
        "nightly 1/2: broken: FAILED",
        "nightly 2/2: fine",
        "nightly 2/2: fine: done",
    ]
    results = {path.name: path.read_text() for path in (tmp_path / "results").iterdir()}
    assert results == {"broken.json": "old", "fine.json": "{}\n"}


def test_it_ends_well_if_all_end_well(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("print('{}')")
    done = nightly(tmp_path, "fine")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nightly: all 1 are done\n")


def test_the_load_of_a_result_is_that_before_its_own_work() -> None:
    program = (
        "import os; os.getloadavg = lambda: (1.5, 0, 0); from report_table import machine; "
        "os.getloadavg = lambda: (9.5, 0, 0); print(machine())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip().endswith(", load 1.5 before")


def test_its_list_names_benchmarks_that_print_json() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("NIGHTLY :=")]
    names = line.partition(":=")[2].split()
    assert "chaos" in names
    assert len(set(names)) == len(names)
    texts = {name: (ROOT / "benchmarks" / f"{name}.py").read_text() for name in names}
    assert [name for name, text in texts.items() if "options(__doc__" not in text and '"--json"' not in text] == []


NOT_NIGHTLY = {
    "async_training": "compares two ways of training, while nothing else runs",
    "before_after": "compares two commits, while nothing else runs",
    "http_client": "compares with a package that gymcp does not need",
    "pretrained": "trains and plays for half an hour, in parts",
    "tiny": "trains for hours",
}
"""Benchmarks with a committed result that are run by hand -> the reason."""


def test_its_list_has_every_benchmark_with_a_committed_result() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("NIGHTLY :=")]
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    printing = {name for name, text in texts.items() if "options(__doc__" in text or '"--json"' in text}
    committed = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert committed & printing - {*line.split()} == NOT_NIGHTLY.keys()


def test_every_file_that_a_machine_plays_exists() -> None:
    script = (ROOT / "tests" / "machines" / "run_machines.py").read_text(encoding="utf-8")
    files = re.findall(r'"(tests/[\w/]+\.py)(?:::(\w+).*?)?"', script)
    assert any(test for _, test in files)
    for path, test in files:
        assert f"def {test}" in (ROOT / path).read_text(encoding="utf-8")


def test_ci_plays_the_gates_of_every_suite_but_the_longest() -> None:
    patterns = re.findall(r"suites --check --only '(.*?)'", (ROOT / ".ci" / "guarded").read_text(encoding="utf-8"))
    played = [name for pattern in patterns for name in fnmatch.filter(catalog.names(), pattern)]
    assert sorted([*played, "scienceworld"]) == sorted(catalog.names())


def test_parts_of_a_result_file_are_kept_until_they_are_measured_again(tmp_path: Path) -> None:
    def part(commit: str, value: float) -> Part:
        result = Result(metric="time", value=value, unit="s")
        return Part(commit=commit, date="2026-01-02", machine="one core", results=(result,))

    for name, commit, value in (("busy", "aaaa", 3.0), ("bare", "bbbb", 1.5), ("busy", "cccc", 2.0)):
        keep_part("machines", name, part(commit, value), tmp_path)
    assert read_parts(tmp_path / "machines.json") == {"bare": part("bbbb", 1.5), "busy": part("cccc", 2.0)}
    assert [path.name for path in tmp_path.iterdir()] == ["machines.json"]


def test_a_benchmark_in_parts_goes_on_with_those_that_are_left(tmp_path: Path) -> None:
    now = make_part([])
    keep_part("machines", "busy", replace(now, commit="0" * 8), tmp_path)
    keep_part("machines", "bare", now, tmp_path)
    is_exact = re.fullmatch("[0-9a-f]+", now.commit) is not None
    assert list_left("machines", ["busy", "bare", "user"], tmp_path) == [
        "busy",
        *([] if is_exact else ["bare"]),
        "user",
    ]


def test_a_result_file_of_one_run_has_no_parts(tmp_path: Path) -> None:
    (tmp_path / "flood.json").write_text('{"name": "flood", "machine": "one core", "results": []}')
    assert read_parts(tmp_path / "flood.json") == {}
    assert read_parts(tmp_path / "none.json") == {}


def test_a_part_tells_its_commit_and_its_day() -> None:
    part = make_part([])
    assert re.fullmatch(r"[0-9a-f]{8,}(-dirty)?|unknown", part.commit)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", part.date)
