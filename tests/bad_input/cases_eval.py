"""Environments, tasks, folders and policies that ``gymcp eval`` and its like cannot use."""

from __future__ import annotations

from case import Case
from things import BANK, BOOM, PRICES, SHOP, make_fifo, make_folder, plan_bank_run, record_run

ENV = {"bank.py": BANK}
GROWING = {"bank.py": BANK, "run": plan_bank_run}
"""A run of two trials of two tasks that has just begun."""

CASES: tuple[Case, ...] = (
    Case(
        "an environment that is not in the catalog", "eval nope", "no environment 'nope'; have agentdojo, backoffice, "
    ),
    Case(
        "an environment file that is not there",
        "eval nope.py",
        "environment file 'nope.py': not found; have the catalog names agentdojo, backoffice, backoffice_asking,",
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
        "environment file 'env.py': env.py:1: SyntaxError: invalid syntax",
        given={"env.py": "ENV = "},
    ),
    Case(
        "an environment file that is no text",
        "eval env.py",
        "environment file 'env.py': SyntaxError: source code string cannot contain null bytes",
        given={"env.py": b"\xff\xfe\x00ENV"},
    ),
    Case(
        "an environment file with a zero byte",
        "eval env.py",
        "environment file 'env.py': SyntaxError: source code string cannot contain null bytes",
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
        "environment 'bank': its grade: env.py:51: takes (task); it is called with 3 arguments: def grade(task,",
        given={"env.py": BANK + "\nfrom dataclasses import replace\nENV = replace(ENV, grade=lambda task: 1)\n"},
    ),
    Case(
        "two tasks of one name",
        "check env.py",
        "environment 'bank': two tasks have the id 'pay_back_5'",
        given={"env.py": BANK.replace("(5, 30, 100)", "(5, 5)")},
    ),
    Case(
        "an agent that is not there",
        "eval bank.py --agent wizard",
        "no agent 'wizard'; have oracle, null, mutated, random, hijacked, adaptive, never_asks, asks_late,",
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
        "--tasks @mine.txt: cannot be read: not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid",
        given={**ENV, "mine.txt": b"\xff\xfe\x00"},
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
        'run folder run: was started with another config: env_digest was "152ae86c30b38d3b", is now "9890d7a0f0f9f702"',
        given={**GROWING, "bank.py": BANK.replace('return "done"', 'return "paid"')},
    ),
    Case(
        "a resumption of a broken run",
        "eval bank.py --out run --resume",
        "run folder run: run.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2",
        given={**ENV, "run/run.json": "{"},
    ),
    Case(
        "a model for an agent without one",
        "eval bank.py --agent oracle --policy tiny",
        "--policy: agent 'oracle' has no model; --agent react has",
        given=ENV,
    ),
    Case(
        "an agent without its model",
        "eval bank.py --agent react",
        "agent 'react' needs a model: --policy tiny | local:PATH | vllm:URL#MODEL | openai:URL#MODEL",
        given=ENV,
    ),
    Case(
        "a policy that is not there",
        "eval bank.py --policy anthropic:claude",
        "no policy 'anthropic:claude'; write tiny | local:PATH | vllm:URL#MODEL | openai:URL#MODEL",
        given=ENV,
    ),
    Case(
        "an endpoint without a model",
        "eval bank.py --policy openai:http://127.0.0.1:9/v1",
        ("policy 'openai:http://", "/v1': needs an address and a model: openai:http://HOST:PORT/v1#MODEL"),
        given=ENV,
    ),
    Case(
        "an endpoint that is no address",
        "eval bank.py --policy 'openai:http://[::1#m'",
        "policy 'openai:http://[::1#m': needs an address and a model: openai:http://HOST:PORT/v1#MODEL",
        given=ENV,
    ),
    Case(
        "a model folder that is not there",
        "eval bank.py --policy local:nowhere",
        "policy 'local:nowhere': nowhere is no model's folder: it has no config.json",
        given=ENV,
    ),
    Case(
        "a model folder whose config is broken",
        "eval bank.py --policy local:model",
        "policy 'local:model': its config.json cannot be read: It looks like the config file at 'model/config.json'",
        given={**ENV, "model/config.json": "{"},
    ),
    Case(
        "a temperature that is no number",
        "eval bank.py --policy tiny --temperature nan",
        "--temperature: must be from 0 to 100, not nan",
        given=ENV,
    ),
    Case(
        "a temperature below 0",
        "eval bank.py --policy tiny --temperature -1",
        "--temperature: must be from 0 to 100, not -1.0",
        given=ENV,
    ),
    Case(
        "a mass of 0",
        "eval bank.py --policy tiny --top-p 0",
        "--top-p: must be more than 0 and at most 1, not 0.0",
        given=ENV,
    ),
    Case(
        "fewer than no likeliest tokens",
        "eval bank.py --policy tiny --top-k -1",
        "--top-k: must be 0 (no limit) or more, not -1",
        given=ENV,
    ),
    Case(
        "no tokens for an answer",
        "eval bank.py --policy tiny --max-tokens 0",
        "--max-tokens: must be at least 1, not 0",
        given=ENV,
    ),
    Case(
        "no turns", "eval bank.py --policy tiny --max-turns 0", "budget of turns: must be more than 0, not 0", given=ENV
    ),
    Case(
        "a reaction that is not there",
        "eval bank.py --policy tiny --overflow hope",
        "--overflow: no 'hope'; have stop, drop",
        given=ENV,
    ),
    Case(
        "tool calls as text of a model with a template",
        "eval bank.py --policy tiny --tool-calls text",
        "--tool-calls text: only for openai: policies; others are spoken to in their chat template",
        given=ENV,
    ),
    Case(
        "a system prompt that is not there",
        "eval bank.py --policy tiny --system nowhere.txt",
        "--system nowhere.txt: cannot be read: [Errno 2] No such file or directory: 'nowhere.txt'",
        given=ENV,
    ),
    Case(
        "a tiny model in a style that is not there",
        "eval bank.py --policy tiny:mistral",
        "no tiny model in style 'mistral'; have qwen, llama, compact, terse",
        given=ENV,
    ),
    Case(
        "a tool format that is not there",
        "eval bank.py --policy tiny --tool-format xml",
        "no tool format 'xml'; have hermes, llama, mistral, pythonic, compact, transformers",
        given=ENV,
    ),
    Case(
        "a budget of an episode without a price",
        "eval bank.py --policy tiny --max-episode-cost 1",
        "--max-episode-cost: model 'tiny' has no price, so it would never be spent; see --prices",
        given=ENV,
    ),
    Case(
        "a vLLM server without its address",
        "eval bank.py --policy vllm:x#m",
        "policy 'vllm:x#m': needs an address and a model: vllm:http://HOST:PORT#MODEL",
        given=ENV,
    ),
    Case(
        "an empty stop text",
        "eval bank.py --policy tiny --stop ''",
        "--stop: must not be empty: an empty text ends every answer before it begins",
        given=ENV,
    ),
    Case(
        "a timeout of 0 s",
        "eval bank.py --policy openai:{model}#m --request-timeout 0",
        "--request-timeout: must be more than 0, not 0.0",
        given=ENV,
    ),
    Case(
        "a budget of 0 USD",
        "eval bank.py --policy tiny --max-cost 0",
        "--max-cost: must be more than 0, not 0.0",
        given=ENV,
    ),
    Case(
        "a budget without a price",
        "eval bank.py --policy openai:{model}#m --max-cost 1",
        "--max-cost: model 'm' has no price, so it would never be spent; see --prices",
        given=ENV,
    ),
    Case(
        "a price list that is not there",
        "eval bank.py --policy openai:{model}#m --prices prices.toml",
        "prices prices.toml: cannot be read: No such file or directory",
        given=ENV,
    ),
    Case(
        "a price list that is not TOML",
        "eval bank.py --policy openai:{model}#m --prices prices.toml",
        "prices prices.toml: not TOML: Invalid initial character for a key part (at end of document)",
        given={**ENV, "prices.toml": "["},
    ),
    Case(
        "a price list that is no text",
        "eval bank.py --policy openai:{model}#m --prices prices.toml",
        "prices prices.toml: not TOML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        given={**ENV, "prices.toml": b"\xff\xfe\x00"},
    ),
    Case(
        "a price list of other models",
        "eval bank.py --policy openai:{model}#n --prices prices.toml",
        "--prices: none for model 'n'; the file has m",
        given={**ENV, "prices.toml": PRICES},
    ),
    Case(
        "a price below 0",
        "eval bank.py --policy openai:{model}#m --prices prices.toml",
        "prices prices.toml: model 'm': prompt must be a number from 0, not -1",
        given={**ENV, "prices.toml": PRICES.replace("1", "-1")},
    ),
    Case(
        "a price that is a text",
        "eval bank.py --policy openai:{model}#m --prices prices.toml",
        "prices prices.toml: model 'm': prompt must be a number from 0, not '1'",
        given={**ENV, "prices.toml": PRICES.replace("1", '"1"')},
    ),
    Case(
        "a system prompt that is no text",
        "eval bank.py --policy tiny --system prompt.txt",
        "--system prompt.txt: cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        given={**ENV, "prompt.txt": b"\xff\xfe\x00"},
    ),
    Case(
        "a key that no header can hold",
        "eval bank.py --policy openai:{model}#m",
        "--key-env: $OPENAI_API_KEY holds no key: it has characters that no header can carry",
        given=ENV,
        env={"OPENAI_API_KEY": "sk-table-0123\n456789abcdef"},
    ),
    Case(
        "a form of tool calls that is not there",
        "eval bank.py --policy openai:{model}#m --tool-calls xml",
        "--tool-calls: no 'xml'; have native, text",
        given=ENV,
    ),
    Case(
        "an attack that is not there",
        "eval bank.py --attack nope",
        "no attack 'nope'; have none, direct, ignore_previous, system_message, important_instructions",
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
        "no stressor 'boredom'; have latency, faults, truncated, noisy, renamed, reordered, distractors, changed,",
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
        "privileges 'rules.toml': is not TOML: Invalid initial character for a key part (at end of document)",
        given={**ENV, "rules.toml": "["},
    ),
    Case(
        "rules that are no text",
        "check bank.py --privileges rules.toml",
        "privileges 'rules.toml': is not TOML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
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
            "boom by oracle: environment file 'boom.py': boom.py:1: RuntimeError: boom",
            "nope by oracle: no environment 'nope'; have agentdojo, backoffice, ",
        ),
        given={"boom.py": BOOM},
        lines=2,
    ),
    Case(
        "stress by an agent that is not there",
        "stress bank.py --agent wizard",
        "no agent 'wizard'; have oracle, null, mutated, random, hijacked, adaptive, never_asks, asks_late, always_asks",
        given=ENV,
    ),
    Case(
        "stress by a stressor that is not there",
        "stress bank.py --stressor faults+boredom",
        "no stressor 'boredom'; have latency, faults, truncated, noisy, renamed, reordered, distractors, changed,",
        given=ENV,
    ),
    Case(
        "stress by no stressor",
        "stress bank.py --stressor ''",
        "no stressor ''; have latency, faults, truncated, noisy, renamed, reordered, distractors, changed, stale,",
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
        "environment file 'bank.py': bank.py:45: cache /proc/x: cannot be used: No such file or directory; set",
        given=ENV,
        env={"GYMCP_HOME": "/proc/x"},
    ),
    Case(
        "a cache that is a file",
        "eval bank.py",
        (
            "environment file 'bank.py': bank.py:45: cache ",
            "/home: cannot be used: Not a directory; set GYMCP_HOME to a folder that can be written; gymcp --debug",
        ),
        given={**ENV, "home": "mine"},
        env={"GYMCP_HOME": "{here}/home"},
    ),
)
