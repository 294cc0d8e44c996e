from __future__ import annotations

import json
import subprocess
from collections import Counter

import jsonschema
from bfcl_replay import ToolsByClass, gold_calls, play, tools_of
from length import take_spread

from gymcp.envs.suites.bfcl.suite import grade, load_suite
from gymcp.envs.suites.bfcl.tasks import CATEGORIES
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.mcp_servers.programs.bfcl import MODULES, RELAXED, json_schema
from gymcp.types import Action, Json, Observation, Step, Suite, Task, Trajectory

DISTANCES = (450, 750, 780, 980)
"""Distances that upstream's vehicle answers, and gold then passes on: they belong to the world, not to the gold."""


def test_there_are_800_tasks_in_four_categories(suite: Suite) -> None:
    assert Counter(task.tags[0] for task in suite.tasks) == dict.fromkeys(CATEGORIES, 200)
    assert len({task.id for task in suite.tasks}) == 800
    assert sum(len(turn.calls) for task in suite.tasks for turn in task.gold) == 4625
    assert sum(not turn.calls for task in suite.tasks if "miss_func" in task.tags for turn in task.gold) == 203


def test_every_turn_has_a_prompt(suite: Suite) -> None:
    assert all(len(task.prompts) == len(task.gold) and all(task.prompts) for task in suite.tasks)


def test_a_missed_function_is_announced_and_then_on_offer(tasks: dict[str, Task]) -> None:
    task = tasks["multi_turn_miss_func_0"]
    assert task.offer.withheld == (*[frozenset({"sort", "cp"})] * 3, frozenset({"cp"}), frozenset({"cp"}))
    assert "updated some more functions" in task.prompts[3]


def test_a_function_that_gold_calls_too_early_is_on_offer_in_that_turn(tasks: dict[str, Task]) -> None:
    task = tasks["multi_turn_miss_func_49"]
    for turn, withheld in zip(task.gold, task.offer.withheld, strict=True):
        assert withheld.isdisjoint(call.name for call in turn.calls)
    assert any("tail" in withheld for withheld in task.offer.withheld)


def test_excluded_functions_can_be_offered_as_upstreams_harness_does(suite: Suite) -> None:
    open_suite = load_suite(withhold_excluded=False)
    assert open_suite.version != suite.version
    assert open_suite.tasks[0].offer.withheld == ()
    assert suite.tasks[0].offer.withheld == (frozenset({"cp"}),) * len(suite.tasks[0].prompts)


def test_a_turn_may_have_one_step_more_than_upstreams_limit(suite: Suite) -> None:
    assert {task.limits.steps_per_turn for task in suite.tasks if task.limits} == {21}


def test_128_tools_accept_every_gold_call(suite: Suite, tools: ToolsByClass) -> None:
    checks = {t.name: jsonschema.Draft202012Validator(dict(t.input_schema)) for ts in tools.values() for t in ts}
    assert len(checks) == 128
    for check in checks.values():
        check.check_schema(check.schema)
    refused = [
        call
        for task in suite.tasks
        for turn in task.gold
        for call in turn.calls
        if not checks[call.name].is_valid(call.arguments)
    ]
    assert refused == []


def test_schemas_are_relaxed_only_if_gold_needs_it(suite: Suite, files: SuiteFiles) -> None:
    documents = files.server / "bfcl_eval" / "data" / "multi_turn_func_doc"
    schemas = {}
    for module in MODULES.values():
        for line in (documents / f"{module}.json").read_text().splitlines():
            document = json.loads(line)
            schemas[document["name"]] = json_schema(document["parameters"])
    wrong = {
        (call.name, str(error.absolute_path[0]))
        for task in suite.tasks
        for turn in task.gold
        for call in turn.calls
        for error in jsonschema.Draft202012Validator(schemas[call.name]).iter_errors(call.arguments)
    }
    assert wrong == set(RELAXED) == {("close_ticket", "ticket_id")}


def test_saying_nothing_fails_all_800(suite: Suite) -> None:
    scores = [grade(task, _silent(task), dict[str, Json]().__getitem__) for task in suite.tasks]
    assert {score.value for score in scores} == {0.0}
    assert {score.components.get("did_not_act", 1.0) for score in scores} == {1.0}


def test_leaving_out_the_last_necessary_call_fails_every_task(
    suite: Suite, files: SuiteFiles, tools: ToolsByClass
) -> None:
    """Checked on 100 of the 800, and in `benchmarks/full_tests.py` on all."""
    cases = []
    for task in take_spread(suite.tasks, 100):
        calls = gold_calls(task)
        assert task.last_necessary is not None
        turn, call = task.last_necessary
        del calls[turn][call]
        cases.append((task, calls))
    trajectories, states = play(files, cases, tools)
    passed = [
        t.task for (task, _), t in zip(cases, trajectories, strict=True) if grade(task, t, states.__getitem__).value
    ]
    assert passed == []


def test_only_classes_their_documents_and_mpmath_are_mounted(files: SuiteFiles) -> None:
    found = {path.relative_to(files.server) for path in files.server.rglob("*") if path.suffix not in ("", ".pyc")}
    of_upstream = {str(path) for path in found if path.parts[0] != "mpmath"}
    assert {path.parts[0] for path in found} == {"bfcl_eval", "mpmath"}
    assert Counter(name.rsplit(".", 1)[1] for name in of_upstream) == {"py": 13, "json": 8}
    assert not any("answer" in name or "BFCL" in name for name in of_upstream)


def test_no_mounted_file_holds_gold(suite: Suite, files: SuiteFiles) -> None:
    wanted = set()
    for path in (files.private / "gold").iterdir():
        for line in path.read_text().splitlines():
            wanted |= {call for turn in json.loads(line)["ground_truth"] for call in turn if not call.endswith("()")}
    for task in suite.tasks:
        wanted |= _arguments(task)
    wanted = {needle for needle in wanted if len(needle) >= 16 and "\n" not in needle}
    argv = ["grep", "-raohF", "-f", "-", str(files.server)]
    found = subprocess.run(argv, input="\n".join(wanted), capture_output=True, text=True, check=False)
    assert len(wanted) > 1000
    assert sorted(found.stdout.splitlines()) == [f'{{"distance": {answer}.0}}' for answer in DISTANCES]


def test_no_gold_is_in_the_initial_state(suite: Suite) -> None:
    leaks = {
        task.id
        for task in suite.tasks
        for needle in _arguments(task)
        if len(needle) >= 16 and needle in json.dumps(task.initial_state)
    }
    assert leaks == {f"multi_turn_{category}_181" for category in CATEGORIES}  # upstream's queue holds the ticket


def test_tools_of_two_classes_do_not_collide(suite: Suite, tools: ToolsByClass) -> None:
    for task in suite.tasks:
        names = [tool.name for tool in tools_of(task, tools)]
        assert len(set(names)) == len(names)


def _arguments(task: Task) -> set[str]:
    return {json.dumps(call.arguments) for turn in task.gold for call in turn.calls}


def _silent(task: Task) -> Trajectory:
    steps = tuple(
        Step(turn=turn, observation=Observation(messages=(), tools=()), action=Action(text="No."))
        for turn in range(len(task.prompts))
    )
    return Trajectory(id="silent", env="bfcl", task=task.id, steps=steps)
