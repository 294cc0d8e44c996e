"""The whole table."""

from __future__ import annotations

import cases_environments
import cases_eval
import cases_host
import cases_models
import cases_played
import cases_policies
import cases_records
import cases_runs
import cases_servers
import cases_training
import cases_usage
from case import Case

CASES: tuple[Case, ...] = (
    *cases_usage.CASES,
    *cases_environments.CASES,
    *cases_eval.CASES,
    *cases_host.CASES,
    *cases_policies.CASES,
    *cases_models.CASES,
    *cases_played.CASES,
    *cases_runs.CASES,
    *cases_records.CASES,
    *cases_training.CASES,
    *cases_servers.CASES,
)

ELSEWHERE = {
    "a server that dies, prints, is silent, or lists wrong tools": (
        "cli/test_bad_input.py::test_check_names_the_server_the_stage_and_its_last_words_in_one_error"
    ),
    "a server that dies in every episode": "cli/test_bad_input.py::test_eval_records_the_failure_and_prints_the_first",
    "an image that no engine has": "cli/test_bad_input.py::test_an_image_that_does_not_exist_is_named",
    "a package that no index has": "cli/test_bad_input.py::test_a_package_that_does_not_exist_is_named",
    "a grader of the user that is broken": (
        "cli/test_broken_graders.py::test_a_broken_grader_is_one_line_and_changes_nothing"
    ),
    "a grader that fails on some episodes": (
        "cli/test_broken_graders.py::test_a_grader_that_fails_on_some_episodes_leaves_their_verdicts"
    ),
    "a machine without bubblewrap": "cli/test_cli.py::test_missing_bubblewrap_names_the_package_to_install",
    "an installed server that was edited": (
        "cli/test_servers_cli.py::test_a_run_refuses_changed_files_and_sync_installs_them_again"
    ),
    "markdown with a script": "evaluators/test_run_list_page.py::test_hostile_markdown_stays_text",
    "a broken run in the viewer": "evaluators/test_viewer.py::test_a_damaged_run_is_reported_and_the_rest_is_shown",
    "reasoning of 1 MB": "store/test_reasoning.py::test_a_megabyte_of_reasoning_is_cut_with_a_note",
    "an endpoint that fails in mid-episode": (
        "agents/test_policy_outages.py::test_a_failing_policy_server_affects_only_its_own_episode"
    ),
    "a malformed part of an environment": "cli/test_cli.py::test_a_malformed_environment_is_one_line",
    "a value of a recipe that cannot be": "trainers/test_recipe.py::test_an_invalid_recipe_is_refused",
    "a package that does not resolve": "cli/test_servers_cli.py::test_bad_input_is_one_line_and_exit_code_2",
    "a run that is killed": "cli/test_resume.py::test_kill_9_at_random_moments_then_resume_loses_nothing",
}
"""Bad input -> the test of it, if it needs equipment of its own: scripted servers, a browser, an engine, a network."""
