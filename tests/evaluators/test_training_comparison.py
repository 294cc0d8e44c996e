"""`gymcp compare` of training runs: paired by task after the last common test, or an error that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from inner_command import gymcp

from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.training_comparison import TrainingComparison, compare_training, read_training_run
from gymcp.evaluators.training_conditions import DIGESTS_KEY
from gymcp.store.heldout import HELDOUT_FILE, HeldoutResult, read_heldout, record_heldout
from gymcp.store.run_folder import record_start
from gymcp.types import Json


def outcomes(passed: int, tasks: int = 40) -> dict[str, bool]:
    """The first `passed` of the tasks are solved."""
    return {f"t{number}": number < passed for number in range(tasks)}


SUITE = {"env": "bank", "env_version": "0", "suite": "bank", "suite_version": "1"}


def training(
    folder: Path, passed: Mapping[int, int], *, env: str = "bank", split: str = "seeds", **columns: Json
) -> Path:
    """A training run that was tested after some iterations: iteration -> tasks that were solved."""
    folder.mkdir()
    write_recipe(folder, env=env)
    rows = [{"iteration": number, "success": number / 100, **columns} for number in range(max(passed) + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number, solved in passed.items():
        record_heldout(folder, [HeldoutResult(iteration=number, split=split, success=outcomes(solved))])
    return folder


def write_recipe(folder: Path, **recipe: Json) -> None:
    (folder / "training.json").write_text(json.dumps({"iteration": 8, "recipe": {"env": "bank", **recipe}}))


def record_tasks(folder: Path, suite_digest: str, env_digest: str = "e0", **config: Json) -> None:
    digests = {"env_digest": env_digest, "suite_digest": suite_digest}
    record_start(folder, {**SUITE, DIGESTS_KEY: digests, **config})


def compare(*folders: Path) -> TrainingComparison:
    return compare_training([read_training_run(folder, folder.name) for folder in folders])


def test_results_of_a_repeated_iteration_replace_it_and_what_came_after(tmp_path: Path) -> None:
    run = training(tmp_path / "run", {0: 1, 2: 2, 4: 3})
    record_heldout(run, [HeldoutResult(iteration=2, split="seeds", success={"t0": True})])
    assert [(each.iteration, sum(each.success.values())) for each in read_heldout(run)] == [(0, 1), (2, 1)]
    with (run / HELDOUT_FILE).open("a") as file:
        file.write('[]\nnothing\n{"iteration": true, "split": "s", "success": {}}\n{"iteration": 5, "spl')
    assert len(read_heldout(run)) == 2


def test_runs_are_paired_by_task_after_the_last_common_iteration(tmp_path: Path) -> None:
    a = training(tmp_path / "a", {0: 10, 10: 12, 20: 14, 30: 40}, entropy=0.5)
    b = training(tmp_path / "b", {0: 10, 20: 30, 40: 1}, kl=0.25)
    found = compare_training([read_training_run(a, "a"), read_training_run(b, "b")])
    assert found.iteration == 20
    assert [(each.name, each.tasks, each.success) for each in found.standings] == [("a", 40, 0.35), ("b", 40, 0.75)]
    (pair,) = found.pairs
    assert (pair.better, pair.paired.tasks, pair.paired.better, pair.paired.worse) == ("b", 40, 16, 0)
    assert pair.paired.difference == pytest.approx(0.4)
    assert pair.words.startswith("seeds: b is better than a by 40.0 points (95 % interval ")
    assert found.columns == {"success": (0.2, 0.2), "entropy": (0.5, None), "kl": (None, 0.25)}
    backwards = compare_training([read_training_run(b, "b"), read_training_run(a, "a")])
    assert backwards.pairs[0].words.startswith("seeds: b is better than a by 40.0 points (95 % interval ")
    assert backwards.pairs[0].better == "b"


def test_a_difference_that_chance_may_explain_is_not_ranked(tmp_path: Path) -> None:
    runs = [training(tmp_path / name, {5: passed}) for name, passed in (("a", 20), ("b", 21))]
    found = compare_training([read_training_run(run, run.name) for run in runs])
    assert found.pairs[0].better is None
    assert "b against a is +2.5 points" in found.pairs[0].words
    assert found.pairs[0].words.endswith("chance alone may explain that.")


def test_the_command_prints_success_the_pair_and_the_columns(tmp_path: Path) -> None:
    a, b = training(tmp_path / "a", {0: 10, 8: 14}), training(tmp_path / "b", {0: 10, 8: 30})
    done = gymcp("compare", a, b)
    assert done.exit_code == 0, done.output
    assert "held-out success after iteration 8" in done.output
    assert "seeds: b is better than a by 40.0 points" in done.output
    assert "columns of iteration 8" in done.output
    found = json.loads(gymcp("compare", a, b, "--json").output)
    assert (found["names"], found["iteration"], found["pairs"][0]["better"]) == (["a", "b"], 8, "b")


def test_the_same_tasks_are_paired_whatever_the_path_of_their_file(tmp_path: Path) -> None:
    here, there = training(tmp_path / "here", {8: 10}, env="/a/bank.py"), training(tmp_path / "b", {8: 30}, env="/b.py")
    for folder in (here, there):
        record_tasks(folder, "5a")
    found = compare(here, there)
    assert (found.pairs[0].better, found.caveats) == ("b", ())
    record_tasks(there, "77")
    with pytest.raises(ConfigError, match="suite_digest is 5a in here, and 77 in b: their tasks are others; compare"):
        compare(here, there)


def test_runs_without_a_digest_are_compared_by_the_name_of_their_environment(tmp_path: Path) -> None:
    a, b = training(tmp_path / "a", {8: 10}), training(tmp_path / "b", {8: 30})
    record_tasks(b, "5a")
    (caveat,) = compare(a, b).caveats
    assert caveat.startswith("a recorded no digest of the tasks, as runs of an earlier version: tasks of one name")


def test_all_pairs_are_checked_if_the_first_run_recorded_no_digest(tmp_path: Path) -> None:
    old, a, b = (training(tmp_path / name, {8: passed}) for name, passed in (("old", 10), ("a", 20), ("b", 30)))
    record_tasks(a, "5a", "e0")
    record_tasks(b, "5a", "e1")
    assert 'not played alike (env_digest is "e0" in a, "e1" in b): a difference' in compare(old, a, b).caveats[1]
    record_tasks(b, "77")
    with pytest.raises(ConfigError, match="suite_digest is 5a in a, and 77 in b: their tasks are others"):
        compare(old, a, b)


def test_other_conditions_of_the_evaluation_are_named(tmp_path: Path) -> None:
    a, b = training(tmp_path / "a", {8: 10}), training(tmp_path / "b", {8: 30})
    play = {"rollout": {"max_turns": 12}, "wrappers": {"stress": []}}
    write_recipe(a, **play, evaluation={"temperature": 0.0})
    write_recipe(b, **play, evaluation={"temperature": 1.0})
    record_tasks(a, "5a", "e0")
    record_tasks(b, "5a", "e1")
    done = gymcp("compare", a, b)
    assert done.exit_code == 0, done.output
    assert (
        'But held-out tasks were not played alike (evaluation.temperature is 0.0 in a, 1.0 in b; env_digest is "e0" in'
        ' a, "e1" in b): a difference may be due to that alone.'
    ) in done.output


AGENTS = {
    ("cmd:python3 /here/agent.py --k 1", "cmd:python3 /there/agent.py --k 1"): "",
    ("cmd:/here/play", "cmd:/there/play"): "",
    ("/here/agents.py:A", "/there/my files/agents.py:A"): "",
    ("cmd:python3 agent.py --k 1", "cmd:python3 /b/agent.py --k 8"): '"cmd:python3 agent.py --k 1" in a, ',
    ("/here/agents.py:A", "/here/agents.py:B"): '"agents.py:A" in a, "agents.py:B" in b',
    ("cmd:ask http://one/v1.0", "cmd:ask http://two/v1.0"): '"cmd:ask http://one/v1.0" in a, ',
    ("cmd:ask /data/hard", "cmd:ask /easy/hard"): '"cmd:ask /data/hard" in a, "cmd:ask /easy/hard" in b',
    ("cmd:sh -c '/one/a.sh 2'", "cmd:sh -c '/two/a.sh 2'"): "in a, ",
    ("react", "terse"): '"react" in a, "terse" in b',
}
"""Agents of two runs, whose files have one digest -> part of the sentence that they differ; empty: there is none."""


def test_agents_are_told_apart_by_name_and_digest_and_not_by_the_folder_of_their_file(tmp_path: Path) -> None:
    a, b = training(tmp_path / "a", {8: 10}), training(tmp_path / "b", {8: 30})
    for names, told in AGENTS.items():
        for folder, name in zip((a, b), names, strict=True):
            write_recipe(folder, rollout={"agent": name})
            record_tasks(folder, "5a", agent_digest="d0")
        caveats = " ".join(compare(a, b).caveats)
        assert (bool(caveats), told in caveats, "rollout.agent is " in caveats) == (bool(told), True, bool(told)), names
    for folder, digest in ((a, "d0"), (b, "d1")):
        write_recipe(folder, rollout={"agent": "agents.py:A"})
        record_tasks(folder, "5a", agent_digest=digest)
    assert 'not played alike (agent_digest is "d0" in a, "d1" in b)' in compare(a, b).caveats[0]


def test_a_run_that_lost_too_many_held_out_tasks_is_listed_with_bounds_and_not_ranked(tmp_path: Path) -> None:
    a, b, c = (training(tmp_path / name, {8: passed}) for name, passed in (("a", 10), ("b", 20), ("c", 30)))
    record_heldout(b, [HeldoutResult(iteration=8, split="seeds", success=outcomes(20, tasks=20))])
    for folder, scored in ((a, 40), (b, 20), (c, 39)):
        with (folder / "metrics.jsonl").open("a") as file:
            row = {"iteration": 8, "test/seeds/success": 0.5, "test/seeds/scored": scored, "test/seeds/tasks": 40}
            file.write(json.dumps(row) + "\n")
    done = gymcp("compare", a, b)
    assert done.exit_code == 1
    assert "is better than" not in done.output
    assert "25.0 .. 75.0 %" in done.output
    assert "seeds: no ranking: too few held-out tasks have a score in b." in done.output
    assert "gymcp: not compared: b, seeds: 20 of 40 tasks (50 %) have a score, below the floor" in done.stderr
    assert [(each.a, each.b) for each in compare(a, b, c).pairs] == [("a", "c")]
    accepted = gymcp("compare", a, b, "--min-coverage", "0.5")
    assert "on the 20 tasks that both have a score for, 10 of them better" in accepted.output
    assert (accepted.exit_code, accepted.stderr) == (0, "")
    assert "seeds: b is better than a by" in accepted.output


def test_the_tasks_are_counted_that_the_resolution_would_take(tmp_path: Path) -> None:
    """20 of 40 tasks differ by 1 and 20 by 0: the variance is 10/39, and 0.1 takes (1.96 + 0.84)^2 * 10/39 / 0.1^2."""
    a, b = training(tmp_path / "a", {8: 10}), training(tmp_path / "b", {8: 30})
    done = gymcp("compare", a, b, "--resolution", "0.1")
    assert "sees differences from 22.4 points on; for 10 points it takes 202 held-out tasks" in done.output
    assert "for 5 points it takes" in gymcp("compare", a, b).output


Break = Callable[[Path], object]
REFUSED: Mapping[str, tuple[Break, tuple[str, ...], str]] = {
    "one run": (lambda b: None, ("a",), "compare: 1 run; it takes two or more"),
    "one run twice": (lambda b: None, ("a", "a"), "is named twice"),
    "a folder that is not there": (lambda b: None, ("a", "c"), "no such folder; compare training runs with training"),
    "an evaluation": (lambda b: (b / "training.json").unlink(), ("a", "b"), "holds no training run; compare training"),
    "a metric": (lambda b: None, ("a", "b", "--metric", "score"), "compare: --metric is for evaluations"),
    "an earlier version": (
        lambda b: (b / HELDOUT_FILE).unlink(),
        ("a", "b"),
        "has no heldout.jsonl, the held-out success by task, which earlier versions of gymcp did not write; let each",
    ),
    "a damaged record": (lambda b: (b / "training.json").write_text("{"), ("a", "b"), "training.json cannot be read"),
    "another environment": (
        lambda b: (b / "training.json").write_text('{"recipe": {"env": "kv"}}'),
        ("a", "b"),
        "a was trained on bank, b on kv: as far as they recorded, they share no tasks",
    ),
    "no test in common": (
        lambda b: (b / HELDOUT_FILE).write_text('{"iteration": 3, "split": "seeds", "success": {"t0": true}}\n'),
        ("a", "b"),
        "no test in common (a: after 0, 8 on seeds; b: after 3 on seeds); give their recipes the same evaluation.every",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_incomparable_training_runs_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words, says = REFUSED[name]
    training(tmp_path / "a", {0: 10, 8: 14})
    change(training(tmp_path / "b", {0: 10, 8: 30}))
    monkeypatch.chdir(tmp_path)
    done = gymcp("compare", *words)
    assert isinstance(done.exception, ConfigError | StoreError), done.output
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.output == ""
