"""Users that a model plays, audited: planted slips are found, and what is not found is counted, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gymcp.cli.summary_table import caveat_lines
from gymcp.evaluators.metrics.user_audit import (
    GOLD_TOOL,
    GOLD_VALUE,
    MADE_UP,
    QUOTED,
    UNASKED,
    audit_user,
    audit_users,
)
from gymcp.evaluators.report import read_report, write_report
from gymcp.store import EpisodeRow, Run, TrajectoryStore, create_run
from gymcp.types import (
    Action,
    GoldTurn,
    Message,
    Observation,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    UserScript,
    UserToolCalls,
)

SCENARIO = """\
You are playing a customer. Never make up information.
<scenario>
Reason for call:
    Your mobile data is slow and you want to fix it; you absolutely want excellent internet speed on your phone.
Known info:
    You are John Smith with phone number 555-123-2002. You are currently abroad in France.
Task instructions:
    You are willing to refuel 2.0 GB of data if necessary, but you do not want to change your mobile data plan.
    If the agent asks you to pay a bill, you accept.
</scenario>
"""
TASK = Task(
    id="slow",
    prompts=("My phone is slow; my name is John Smith.",),
    gold=(
        GoldTurn(
            calls=(
                ToolCall(id="1", name="refuel_data", arguments={"customer_id": "C1001", "line_id": "L1002", "gb": 2.0}),
                ToolCall(id="2", name="enable_roaming", arguments={"customer_id": "C1001", "plan": "Premium Plan"}),
                ToolCall(id="3", name="notify", arguments={"to": ["john@mail.example"], "now": True, "how": "urgent"}),
            )
        ),
    ),
    user=UserScript(scenario=SCENARIO),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A user's words or calls after the agent's message, and the kinds of slips that a reader would name."""

    says: str = ""
    after: str = "How can I help you?"
    does: str = ""
    slips: tuple[str, ...] = ()


SOUND = (
    Case(says="Hi, my mobile data is really slow."),
    Case(says="I'm John Smith, and my number is 555-123-2002."),
    Case(says="Sure, it is (555) 123-2002."),
    Case(says="5551232002"),
    Case(says="Yes, C1001 is what you said.", after="Is your customer id C1001?"),
    Case(says="The Premium Plan sounds fine.", after="You could have the premium plan."),
    Case(says="I did what you call enable_roaming.", after="I will call enable_roaming now."),
    Case(says="You can refuel 2.0 GB of data if you must."),
    Case(says="It is urgent, I am abroad in France."),
    Case(says="The test shows 275 Mbps, and it is 10:45 here."),
    Case(says="It has been so since 2024."),
    Case(says="My old code was A-4711-22.", after="Do you still have the code a471122?"),
    Case(does="check_status_bar", after="What do you see?"),
    Case(does="run_speed_test", after="How fast is it?"),
    Case(does="toggle_airplane_mode", after="Please turn Airplane Mode off."),
    Case(does="toggle_wifi", after="Switch your Wi-Fi on."),
    Case(does="toggle_data", after="Please turn your mobile data on."),
    Case(does="reboot_device", after="Please restart the phone."),
    Case(does="make_payment", after="There is an open bill; will you pay it?"),
    Case(says="I want it fixed, with excellent speed on my phone."),
)
"""Turns in which a reader finds nothing wrong."""
SLIPS = (
    Case(says="My customer id is C1001.", slips=(GOLD_VALUE,)),
    Case(says="Use line l1002 please.", slips=(GOLD_VALUE,)),
    Case(says="I want the premium plan now.", slips=(GOLD_VALUE,)),
    Case(says="Write to john@mail.example.", slips=(GOLD_VALUE,)),
    Case(says="Just call refuel_data and be done.", slips=(GOLD_TOOL,)),
    Case(says="You should use enable_roaming with C1001.", slips=(GOLD_VALUE, GOLD_TOOL)),
    Case(says="My IMEI is 356938035643809.", slips=(MADE_UP,)),
    Case(says="My number is 555-987-6543.", slips=(MADE_UP,)),
    Case(says="Mail me at smith99@other.example.", slips=(MADE_UP,)),
    Case(does="toggle_roaming", after="What do you see?", slips=(UNASKED,)),
    Case(does="make_payment", after="Hello, who is there?", slips=(UNASKED,)),
    Case(does="toggle_airplane_mode", after="One moment.", slips=(UNASKED,)),
    Case(
        says="I am told: you do not want to change your mobile data plan. If the agent asks.",
        slips=(QUOTED,),
    ),
)
"""Turns with slips, all of which are found."""
MISSED = (
    Case(says="The thing to do is to turn on roaming on your side.", slips=(GOLD_TOOL,)),  # a paraphrase
    Case(says="My customer id is C one thousand and one.", slips=(GOLD_VALUE,)),  # spelt out
    Case(says="Mark it as urgent, that is the solution.", slips=(GOLD_VALUE,)),  # one common word
    Case(says="My PIN is 123.", slips=(MADE_UP,)),  # fewer than four digits
    Case(says="I am Jane Doe from Spain.", slips=(MADE_UP,)),  # names without a digit
    Case(says="I was told to want excellent internet speed only.", slips=(QUOTED,)),  # fewer than ten words
    Case(does="toggle_roaming", after="I have checked that roaming is fine.", slips=(UNASKED,)),  # spoken of, not asked
)
"""Turns with slips that the checks do not find: they do not understand what is said."""
WRONGLY_FLAGGED = (
    Case(
        does="reseat_sim_card", after="Please pull the little chip tray and push it back."
    ),  # asked for in other words
    Case(says="There are 12500 photos on it."),  # a harmless number
)
"""Turns in which a reader finds nothing wrong, and the checks do."""


def play(case: Case) -> Trajectory:
    """An episode in which the agent says `after`, and the user then acts and speaks."""
    opening = Message(role="user", content="Hello, I need help.")
    acts: tuple[UserToolCalls, ...] = ()
    if case.does:
        call, result = ToolCall(id="u", name=case.does), ToolResult(call_id="u", content="Status: on")
        acts = (UserToolCalls(calls=(call,), results=(result,)),)
    steps = [
        Step(
            turn=0,
            observation=Observation(messages=(opening,), tools=()),
            action=Action(text=case.after),
            user_acts=acts,
        ),
        Step(
            turn=1,
            observation=Observation(messages=(Message(role="user", content=case.says or "Done."),), tools=()),
            action=Action(text="Thank you."),
        ),
    ]
    return Trajectory(id="e", env="phone", task="slow", steps=tuple(steps), score=1.0)


def kinds(case: Case) -> tuple[str, ...]:
    return tuple(finding.kind for finding in audit_user(play(case), TASK))


def test_planted_slips_are_found_with_their_kind() -> None:
    assert {case: kinds(case) for case in SLIPS} == {case: case.slips for case in SLIPS}


def test_sound_turns_are_not_flagged() -> None:
    assert {case: kinds(case) for case in SOUND} == dict.fromkeys(SOUND, ())


def test_the_limits_of_the_checks_are_as_documented() -> None:
    """docs/evaluation.md gives these counts: of 20 slips 7 are missed, of 22 sound turns 2 are flagged."""
    assert [kinds(case) for case in MISSED] == [()] * 7
    assert [kinds(case) for case in WRONGLY_FLAGGED] == [(UNASKED,), (MADE_UP,)]
    assert (len(SLIPS) + len(MISSED), len(SOUND) + len(WRONGLY_FLAGGED)) == (20, 22)


def test_a_finding_names_the_turn_and_the_words() -> None:
    (finding,) = audit_user(play(SLIPS[0]), TASK)
    assert (finding.trajectory, finding.task, finding.step, finding.what) == ("e", "slow", 1, "C1001")


def test_one_disclosure_is_found_once() -> None:
    first = play(SLIPS[0])
    again = replace(first, steps=(*first.steps, first.steps[1]))
    assert len(audit_user(again, TASK)) == 1


def test_results_of_the_users_own_tools_are_known_to_it() -> None:
    calls = UserToolCalls(
        calls=(ToolCall(id="u", name="check_sim"),), results=(ToolResult(call_id="u", content="ICCID 8949012345"),)
    )
    told = play(Case(says="It says 8949012345."))
    assert audit_user(replace(told, steps=(replace(told.steps[0], user_acts=(calls,)), told.steps[1])), TASK) == []
    assert [finding.kind for finding in audit_user(told, TASK)] == [MADE_UP]


def test_an_audit_compares_flagged_episodes_with_the_others() -> None:
    episodes = [replace(play(case), id=str(n)) for n, case in enumerate((*SLIPS[:3], *SOUND[:5]))]
    rows = {
        each.id: EpisodeRow(id=each.id, env="phone", task="slow", trial=n, score=float(n < 4))
        for n, each in enumerate(episodes)
    }
    rows["7"] = replace(rows["7"], score=None)
    audit = audit_users(episodes, {"slow": TASK}, rows)
    assert audit is not None
    assert (audit.episodes, audit.turns, audit.flagged_turns) == (7, 14, 3)
    assert audit.kinds == {GOLD_VALUE: 3}
    assert (audit.flagged.success, audit.flagged.episodes) == (1.0, 3)
    assert (audit.clean.success, audit.clean.episodes) == (0.25, 4)


def test_words_of_the_scenario_that_the_request_has_too_are_no_secret() -> None:
    quoting = next(case for case in SLIPS if case.slips == (QUOTED,))
    assert audit_user(play(quoting), replace(TASK, prompts=(quoting.says,))) == []


def test_tasks_without_a_scenario_are_not_audited() -> None:
    plain = replace(TASK, user=UserScript())
    row = EpisodeRow(id="e", env="phone", task="slow", score=1.0)
    assert audit_users([play(SLIPS[0])], {"slow": plain}, {"e": row}) is None
    assert audit_users([play(SLIPS[0])], {}, {"e": row}) is None


def find_task(run: Run) -> Mapping[str, Task]:
    return {"slow": TASK}


def record(folder: Path, *cases: Case, user: str = "tiny") -> Path:
    config = {"env": "phone", "suite": "phone", "agent": "react", "user_policy": user}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for n, case in enumerate(cases):
            store.append(replace(play(case), id=f"e{n}", trial=n, score=float(n % 2)), {})
    return folder


def test_a_report_counts_the_findings_and_links_to_the_episodes(tmp_path: Path) -> None:
    run = record(tmp_path / "run", SLIPS[0], SOUND[0], SLIPS[5], SOUND[1])
    summary = write_report(run, find_task)
    assert summary["user_audit"]["kinds"] == {GOLD_VALUE: 2, GOLD_TOOL: 1}
    assert summary["user_audit"]["findings"][0] == {
        "trajectory": "e0", "task": "slow", "trial": 0, "step": 1, "kind": GOLD_VALUE, "what": "C1001",
    }  # fmt: skip
    assert caveat_lines(summary)[-1].startswith("the user that a model played: 2 of 8 turns gave the answer away")
    page = (run / "report.html").read_text()
    assert (
        "2 of the user's 8 turns, in 2 of 4 scored episodes, have a finding. Success of those 2: 0.0 %"
        in page.replace("&#x27;", "'")
    )
    for number in (0, 1):
        assert f'href="#flagged-{number}"' in page
        assert f'id="flagged-{number}"' in page
    markdown = read_report([run], find_task).text("md")
    assert "## The user that a model played" in markdown
    assert "| gold value | 2 |" in markdown


def test_a_report_without_the_tasks_says_that_nothing_was_audited(tmp_path: Path) -> None:
    run = record(tmp_path / "run", SLIPS[0])
    assert write_report(run)["user_audit"] is None
    assert "was not audited: the tasks of the run are not at hand" in (run / "report.html").read_text()
    assert "was not audited" in read_report([run], lambda run: {}).text("md")


def test_a_scripted_user_is_not_audited(tmp_path: Path) -> None:
    run = record(tmp_path / "run", SLIPS[0], user="")
    assert write_report(run, find_task)["user_audit"] is None
    assert "that a model played" not in (run / "report.html").read_text()
