"""Environments, suites and files of environments that cannot be used."""

from __future__ import annotations

from case import Case, Given
from things import BANK, BOOM, make_fifo, make_folder

ENV: Given = {"bank.py": BANK}

CASES: tuple[Case, ...] = (
    Case(
        "an environment that is not in the catalog", "eval nope", "no environment 'nope'; have agentdojo, backoffice, "
    ),
    Case(
        "an environment file that is not there",
        "eval nope.py",
        "environment file 'nope.py': not found; have the catalog names agentdojo,",
    ),
    Case(
        "a folder as environment", "eval .", "environment file '.': is a folder; give the path of the Python file in it"
    ),
    Case(
        "a text file as environment",
        "eval env.txt",
        "environment file 'env.txt': not a Python file: its name must end in .py",
        given={"env.txt": BANK},
    ),
    Case(
        "a folder named like an environment file",
        "eval env.py",
        "environment file 'env.py': is a folder; give the path of the Python file in it",
        given={"env.py": make_folder},
    ),
    Case(
        "a pipe named like an environment file",
        "eval env.py",
        "environment file 'env.py': is a pipe or a device, not a Python file",
        given={"env.py": make_fifo},
    ),
    Case(
        "control characters in an environment's name",
        "eval '\x1b[2J\u202enope'",
        "no environment '\\u001b[2J\\u202enope'; have agentdojo, backoffice, ",
    ),
    Case("an empty name", "eval ''", "no environment ''; have agentdojo, backoffice, "),
    Case(
        "an environment file that is no Python",
        "eval env.py",
        "environment file 'env.py': env.py:1: SyntaxError:",
        given={"env.py": "ENV = "},
    ),
    Case(
        "a mask with a pattern that is none",
        "eval env.py",
        "environment file 'env.py': env.py:2: mask of '*.log': '(' is not a regular expression: missing )",
        given={"env.py": 'from gymcp.mcp_servers.spec import Mask\nMask(files="*.log", kind="regex", pattern="(")\n'},
    ),
    Case(
        "an environment file that is no text",
        "eval env.py",
        "environment file 'env.py': ",
        given={"env.py": b"\xff\xfe\x00ENV"},
    ),
    Case(
        "an environment file with a zero byte",
        "eval env.py",
        "environment file 'env.py': ",
        given={"env.py": b"ENV = 1\x00"},
    ),
    Case(
        "an environment file without ENV",
        "eval env.py",
        "environment 'env.py': defines no ENV; it must be a gymcp.envs.EnvSpec",
        given={"env.py": "x = 1\n"},
    ),
    Case(
        "an ENV of another kind",
        "eval env.py",
        "environment 'env.py': its ENV is a int; it must be a gymcp.envs.EnvSpec",
        given={"env.py": "ENV = 3\n"},
    ),
    Case(
        "an import that is not installed",
        "eval env.py",
        "environment file 'env.py': env.py:1: ModuleNotFoundError: No module named 'gymcp_no_such_package'; gymcp",
        given={"env.py": "import gymcp_no_such_package\n"},
    ),
    Case(
        "an environment file that raises",
        "eval env.py",
        "environment file 'env.py': env.py:1: RuntimeError: boom; gymcp --debug shows where",
        given={"env.py": BOOM},
    ),
    Case(
        "an environment file that exits",
        "eval env.py",
        "environment file 'env.py': env.py:2: SystemExit: 0; gymcp --debug shows where",
        given={"env.py": "import sys\nsys.exit(0)\n"},
    ),
    Case(
        "an error of several lines with control characters",
        "eval env.py",
        "environment file 'env.py': env.py:1: RuntimeError: \\u001b[2Jone two\\u202e; gymcp --debug shows where",
        given={"env.py": "raise RuntimeError('\\x1b[2Jone\\ntwo\\u202e')\n"},
    ),
    Case(
        "an error without words",
        "eval env.py",
        "environment file 'env.py': env.py:1: RuntimeError; gymcp --debug shows where",
        given={"env.py": "raise RuntimeError\n"},
    ),
    Case(
        "an error that cannot be written",
        "eval env.py",
        "environment file 'env.py': env.py:5: E: its text cannot be written: ZeroDivisionError; gymcp --debug shows",
        given={"env.py": "class E(Exception):\n    def __str__(self):\n        return 1 / 0\n\nraise E\n"},
    ),
    Case(
        "an error of 1 MB",
        "eval env.py",
        "environment file 'env.py': env.py:1: RuntimeError:",
        given={"env.py": "raise RuntimeError('x' * 1_000_000)\n"},
    ),
    Case(
        "an environment file that calls itself for ever",
        "eval env.py",
        "environment file 'env.py': env.py:2: RecursionError: maximum recursion depth exceeded; gymcp --debug shows",
        given={"env.py": "def f():\n    return f()\n\nf()\n"},
    ),
    Case(
        "a grader with a wrong signature",
        "eval env.py",
        "environment 'bank': its grade: env.py:50: takes (task); it is called with 3 arguments: def grade(task,",
        given={"env.py": BANK + "\nfrom dataclasses import replace\nENV = replace(ENV, grade=lambda task: 1)\n"},
    ),
    Case(
        "two tasks of one name",
        "check env.py",
        "environment 'bank': two tasks have the id 'pay_back_5'",
        given={"env.py": BANK.replace("(5, 30, 100)", "(5, 5)")},
    ),
    Case(
        "stress by an agent that is not there",
        "stress bank.py --agent wizard",
        "no agent 'wizard'; have oracle, null, mutated, random,",
        given=ENV,
    ),
    Case(
        "stress by a stressor that is not there",
        "stress bank.py --stressor faults+boredom",
        "no stressor 'boredom'; have latency, faults, truncated, noisy,",
        given=ENV,
    ),
    Case(
        "stress by no stressor",
        "stress bank.py --stressor ''",
        "no stressor ''; have latency, faults, truncated, noisy,",
        given=ENV,
    ),
    Case(
        "suites that are not there",
        "suites --only nope",
        "--only: no environment matches 'nope'; have agentdojo, backoffice, ",
    ),
    Case("all tasks of no check", "suites --full", "--full: says how many tasks --check plays; give both"),
    Case(
        "installing a suite that is not there",
        "suites install nope",
        "no environment 'nope'; have agentdojo, backoffice, ",
    ),
    Case(
        "tools of an environment that is not there", "tools nope", "no environment 'nope'; have agentdojo, backoffice, "
    ),
    Case("a search for no result", "tools bank.py --search pay --k 0", "--k: must be at least 1, not 0", given=ENV),
    Case(
        "a search and a measurement at once",
        "tools bank.py --search pay --recall",
        "--search, --recall: give one of them",
        given=ENV,
    ),
    Case(
        "a cache that cannot be written",
        "eval bank.py",
        "environment file 'bank.py': bank.py:44: cache /proc/x: cannot be used: No such file or directory; set",
        given=ENV,
        env={"GYMCP_HOME": "/proc/x"},
    ),
    Case(
        "a cache that is a file",
        "eval bank.py",
        (
            "environment file 'bank.py': bank.py:44: cache ",
            "/home: cannot be used: Not a directory; set GYMCP_HOME to a folder that can be written; gymcp --debug",
        ),
        given={**ENV, "home": "mine"},
        env={"GYMCP_HOME": "{here}/home"},
    ),
)
