"""Lists of faulty tasks, checked against the installed suites: each fault is there, in the version that is listed."""

from __future__ import annotations

from gymcp.envs.suites.agentdojo.suite import load_suite as load_agentdojo
from gymcp.envs.suites.agentdojo.suite import read_suites
from gymcp.envs.suites.scienceworld.tasks import VERSION as SCIENCEWORLD_VERSION
from gymcp.envs.suites.tau2.suite import load_suite as load_tau2
from gymcp.envs.suites.textworld.tasks import VERSION as TEXTWORLD_VERSION
from gymcp.evaluators.faulty_tasks import LISTS, find_faulty, find_list
from gymcp.types import Suite, Task


def config_of(suite: Suite) -> dict[str, str]:
    return {"suite": suite.name, "suite_version": suite.version}


def test_the_gold_of_bfcl_posts_a_text_that_sorting_does_not_give(suite: Suite, tasks: dict[str, Task]) -> None:
    listed = find_list(config_of(suite))
    assert listed is LISTS["bfcl"]
    for fault in [fault for fault in listed.tasks if fault.source.endswith("#1367")]:
        task = tasks[fault.task]
        content = task.initial_state["config"]["GorillaFileSystem"]["root"]["tmp"]["contents"]["report.txt"]["content"]
        sorted_lines = "\n".join(sorted(content.splitlines()))
        (posted,) = [
            call.arguments["content"]
            for turn in task.gold
            for call in turn.calls
            if call.name == "post_tweet" and not isinstance(call.arguments, str)
        ]
        assert sorted_lines == content  # sorting changes nothing
        assert posted != content
        assert sorted(posted.split()) == sorted(content.split())  # the same words in another order


def test_the_gold_of_bfcl_sends_another_text_than_the_user_dictates(tasks: dict[str, Task]) -> None:
    faults = [fault.task for fault in LISTS["bfcl"].tasks if fault.source.endswith("#956")]
    assert len(faults) == 3
    for name, is_mended in [("multi_turn_base_143", True), *((name, False) for name in faults)]:
        task = tasks[name]
        (sent,) = [
            call.arguments["message"]
            for turn in task.gold
            for call in turn.calls
            if call.name == "send_message" and not isinstance(call.arguments, str)
        ]
        words = "\n".join(task.prompts)
        assert "Current balance in my account is $10000.'" in words
        assert (sent in words) is is_mended


def test_the_listed_tasks_of_agentdojo_are_those_that_pass_without_an_action() -> None:
    suite = load_agentdojo()
    listed = find_list(config_of(suite))
    assert listed is LISTS["agentdojo"]
    assert {fault.task for fault in listed.tasks} == suite.pass_at_once
    assert [row["passes_at_once"] for row in read_suites()["banking"]["user_tasks"]].count(True) == len(listed.tasks)


def test_the_lists_of_tau2_are_empty_and_no_task_of_it_passes_without_an_action() -> None:
    for dual in (False, True):
        suite = load_tau2(dual=dual)
        listed = find_list(config_of(suite))
        assert listed is LISTS[suite.name]
        assert (listed.tasks, suite.pass_at_once) == ((), frozenset())


def test_the_lists_of_suites_whose_gold_is_played_when_they_are_made_are_empty() -> None:
    versions = {"scienceworld": SCIENCEWORLD_VERSION, "textworld": TEXTWORLD_VERSION}
    for name, version in versions.items():
        listed = find_list({"suite": name, "suite_version": version})
        assert listed is LISTS[name]
        assert listed.tasks == ()


def test_a_list_says_nothing_about_another_version_or_suite() -> None:
    assert find_list({"suite": "bfcl", "suite_version": "2025.1.1+1"}) is None
    assert find_list({"suite": "workbench", "suite_version": "1"}) is None
    assert find_list({}) is None


def test_a_task_under_attack_has_the_fault_of_the_task() -> None:
    listed = find_list({"suite": "agentdojo-direct", "suite_version": "0.1.35+2"})
    assert listed is not None
    found = find_faulty(listed, ["banking_user_task_8.injection_task_1", "banking_user_task_80", "slack_user_task_8"])
    assert list(found) == ["banking_user_task_8.injection_task_1"]


def test_every_fault_has_a_reason_and_a_source() -> None:
    for listed in LISTS.values():
        assert listed.checked
        for fault in listed.tasks:
            assert fault.reason
            assert "#" in fault.source or ".py" in fault.source
