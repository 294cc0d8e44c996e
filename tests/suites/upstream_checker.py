"""A program in upstream's virtualenv: one trajectory a line of standard input, one verdict a line of its output."""

import importlib
import json
import os
import sys

from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING  # type: ignore[import-not-found]
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as upstream  # type: ignore[import-not-found]

NOT_MULTI_TURN = ("MemoryAPI", "WebSearchAPI")


def check(line: str) -> dict[str, object]:
    case = json.loads(line)
    if len(case["turns"]) != len(case["gold"]):  # upstream's runner decides this before it calls the checker
        return {"valid": False, "error_type": "multi_turn:force_terminated"}
    verdict = upstream.multi_turn_checker(case["turns"], case["gold"], case["entry"], "", "m")
    return {"valid": verdict["valid"], "error_type": verdict.get("error_type", "")}


for name, module in CLASS_FILE_PATH_MAPPING.items():
    if not name.startswith(NOT_MULTI_TURN):
        importlib.import_module(module)  # before the forks, for speed
for text in sys.stdin:
    sys.stdout.flush()
    child = os.fork()  # upstream keeps instances in module globals: one process per trajectory
    if child == 0:
        sys.stdout.write(json.dumps(check(text)) + "\n")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
