"""Tasks, run folders and options that ``gymcp eval`` cannot use."""

from __future__ import annotations

from case import Case, Given
from things import BANK, BOOM, SHOP, plan_bank_run, record_run

ENV: Given = {"bank.py": BANK}
GROWING: Given = {"bank.py": BANK, "run": plan_bank_run}
"""A run of two trials of two tasks that has just begun."""

CASES: tuple[Case, ...] = (
    Case(
        "an agent that is not there",
        "eval bank.py --agent wizard",
        "no agent 'wizard'; have oracle, null, mutated, random,",
        given=ENV,
    ),
    Case(
        "a sandbox that is not there",
        "eval bank.py --sandbox jail",
        "no sandbox 'jail'; have bwrap, docker, none",
        given=ENV,
    ),
    Case(
        "tasks that are not there",
        "eval bank.py --tasks 'x*'",
        "suite 'bank': no task matches 'x*'; the ids look like pay_back_5, pay_back_30, pay_back_100, ...",
        given=ENV,
    ),
    Case(
        "one task that is not there",
        "eval bank.py --tasks pay_back_5,pay_back_7",
        "suite 'bank': no task 'pay_back_7'; the ids look like pay_back_5, pay_back_30, pay_back_100, ...",
        given=ENV,
    ),
    Case(
        "a list of tasks that is not there",
        "eval bank.py --tasks @mine.txt",
        "--tasks @mine.txt: cannot be read: No such file or directory",
        given=ENV,
    ),
    Case(
        "a list of tasks that is no text",
        "eval bank.py --tasks @mine.txt",
        "--tasks @mine.txt: cannot be read: not UTF-8:",
        given={**ENV, "mine.txt": b"\xff\xfe\x00"},
    ),
    Case(
        "branches in one way",
        "eval bank.py --branch ways=1",
        "branches: ways=1 is no branch; give 2 or more",
        given=ENV,
    ),
    Case(
        "branches without a name",
        "eval bank.py --branch 3",
        "--branch '3': cannot read '3'; give numbers, such as 'ways=2'",
        given=ENV,
    ),
    Case(
        "a tree of no episodes",
        "eval bank.py --branch ways=2,episodes=0",
        "tree budget of episodes: must be 1 or more, not 0",
        given=ENV,
    ),
    Case(
        "branches of an agent that cannot go on from a record",
        "eval bank.py --agent adaptive --branch ways=2",
        "agent 'adaptive': cannot take a branch, because it has no method resume(steps)",
        given=ENV,
    ),
    Case(
        "a resumption of no run", "eval bank.py --resume", "--resume: which run? name its folder with --out", given=ENV
    ),
    Case(
        "a run folder that cannot be made",
        "eval bank.py --out /proc/nope",
        "run folder /proc/nope: cannot be written: No such file or directory",
        given=ENV,
    ),
    Case(
        "a run folder that is a file",
        "eval bank.py --out notes.txt",
        "run folder notes.txt: cannot be written: File exists",
        given={**ENV, "notes.txt": "mine"},
    ),
    Case(
        "a run folder with other files",
        "eval bank.py --out mine",
        "run folder mine: holds no run, but is not empty: thesis.txt",
        given={**ENV, "mine/thesis.txt": "years"},
    ),
    Case(
        "a run folder that holds a run",
        "eval bank.py --out run",
        "run folder run: already holds a run; resume it, or choose another folder",
        given={**ENV, "run": record_run},
    ),
    Case(
        "a resumption of another run",
        "eval bank.py --out run --resume",
        (
            'was started with another config: agent was "react", is now "oracle"; env was "shop", is now "bank"',
            'suite was "shop", is now "bank"',
        ),
        given={**ENV, "run": record_run},
    ),
    Case(
        "a grown run with another seed",
        "eval bank.py --out run --resume --limit 3 --trials 2 --seed 7",
        "run folder run: was started with another config: limit was 2, is now 3; seed was 0, is now 7",
        given=GROWING,
    ),
    Case(
        "a grown run with another agent",
        "eval bank.py --out run --resume --limit 3 --trials 3 --agent null",
        'was started with another config: agent was "oracle", is now "null"; limit was 2, is now 3',
        given=GROWING,
    ),
    Case(
        "a grown run with other tasks",
        "eval bank.py --out run --resume --limit 2 --trials 2 --tasks 'pay*'",
        'run folder run: was started with another config: tasks was "*", is now "pay*"',
        given=GROWING,
    ),
    Case(
        "a run that would shrink to fewer tasks",
        "eval bank.py --out run --resume --limit 1 --trials 2",
        "run folder run: was started with another config: limit was 2, is now 1; a run can grow but not shrink: its",
        given=GROWING,
    ),
    Case(
        "a run that would shrink to fewer trials",
        "eval bank.py --out run --resume --limit 2",
        "run folder run: was started with another config: trials was 2, is now 1; a run can grow but not shrink: its",
        given=GROWING,
    ),
    Case(
        "a grown run without its limit",
        "eval bank.py --out run --resume --trials 2",
        "run folder run: was started with another config: limit was 2, is now 0",
        given=GROWING,
    ),
    Case(
        "an edited suite of a run",
        "eval bank.py --out run --resume --limit 2 --trials 2",
        'was started with another config: suite_digest was "',
        given={**GROWING, "bank.py": BANK.replace("(5, 30, 100)", "(5, 30)")},
    ),
    Case(
        "an edited server of a run",
        "eval bank.py --out run --resume --limit 2 --trials 2",
        'run folder run: was started with another config: env_digest was "',
        given={**GROWING, "bank.py": BANK.replace('return "done"', 'return "paid"')},
    ),
    Case(
        "a resumption of a broken run",
        "eval bank.py --out run --resume",
        "run folder run: run.json is not JSON:",
        given={**ENV, "run/run.json": "{"},
    ),
    Case(
        "an attack that is not there",
        "eval bank.py --attack nope",
        "no attack 'nope'; have none, direct, ignore_previous,",
        given=ENV,
    ),
    Case(
        "an attack on an environment without a place for it",
        "eval bank.py --attack important_instructions",
        "environment 'bank': its tasks name no place where an attacker could write",
        given=ENV,
    ),
    Case(
        "a stressor that is not there",
        "eval bank.py --stress boredom",
        "no stressor 'boredom'; have latency, faults, truncated, noisy,",
        given=ENV,
    ),
    Case(
        "rules that are not there",
        "eval bank.py --privileges rules.toml",
        "privileges 'rules.toml': cannot be read: No such file or directory",
        given=ENV,
    ),
    Case(
        "rules that are not TOML",
        "eval bank.py --privileges rules.toml",
        "privileges 'rules.toml': is not TOML:",
        given={**ENV, "rules.toml": "["},
    ),
    Case(
        "rules that are no text",
        "check bank.py --privileges rules.toml",
        "privileges 'rules.toml': is not TOML:",
        given={**ENV, "rules.toml": b"\xff\xfe\x00"},
    ),
    Case(
        "a rule with a broken expression",
        "check bank.py --privileges rules.toml",
        "privileges 'rules.toml': rule 1: effect must be one of allow, forbid, not None",
        given={**ENV, "rules.toml": '[[rule]]\nsaid = "("\n'},
    ),
    Case(
        "a budget of tools without a search",
        "eval bank.py --tool-budget 5",
        "--tool-budget: of the tools that are retrieved; say how many with --retrieve",
        given=ENV,
    ),
    Case(
        "a cassette mode that is not there",
        "eval bank.py --cassette rewind",
        "--cassette rewind: have record, replay",
        given=ENV,
    ),
    Case(
        "a user's model without a scenario",
        "eval bank.py --agent null --user-policy openai:{model}#m",
        "environment 'bank': task 'pay_back_5' has no scenario, so no model can play its user; environments whose",
        given=ENV,
    ),
    Case(
        "an attacker's goal without an attacker",
        "eval backoffice --agent hijacked",
        "suite 'backoffice': agent 'hijacked' applies to none of the 560 tasks; it needs an attacker with gold:",
    ),
    Case("an environment named twice", "eval bank.py bank.py", "ENV: 'bank.py' is named twice", given=ENV),
    Case(
        "a policy named twice", "eval bank.py --policy tiny --policy tiny", "--policy: 'tiny' is named twice", given=ENV
    ),
    Case(
        "a matrix without its folder",
        "eval bank.py shop.py --resume",
        "--resume: which runs? name their folder with --out",
        given={**ENV, "shop.py": SHOP},
    ),
    Case(
        "a matrix into the folder of a run",
        "eval bank.py shop.py --out run",
        "--out run: holds a single run; several runs need a folder above them",
        given={**ENV, "shop.py": SHOP, "run": record_run},
    ),
    Case(
        "a matrix of nothing that can be run",
        "eval boom.py nope",
        (
            "boom by oracle: will be left out: environment file 'boom.py': boom.py:1: RuntimeError: boom",
            "nope by oracle: will be left out: no environment 'nope'; have agentdojo, backoffice, ",
        ),
        given={"boom.py": BOOM},
        lines=2,
    ),
)
