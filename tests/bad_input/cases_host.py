"""Words and tokens with which `gymcp host` does not begin to serve."""

from __future__ import annotations

from case import Case
from things import BANK, record_run

_BANK = {"bank.py": BANK}

CASES: tuple[Case, ...] = (
    Case("a host of nothing", "host", "gymcp: host: name an environment to serve; gymcp suites lists those"),
    Case("a host of an environment that is not there", "host bnk", "gymcp: no environment 'bnk'; have agentdojo"),
    Case(
        "a host of one environment twice",
        "host bank.py ./bank.py",
        "gymcp: host: two environments are called 'bank': bank.py and ./bank.py",
        given=_BANK,
    ),
    Case(
        "a host that others can reach, without a token",
        "host bank.py --listen 0.0.0.0",
        "host: --listen 0.0.0.0: others can reach it, so clients need a token: set $GYMCP_HOST_TOKEN, or name a file",
        given=_BANK,
    ),
    Case(
        "a host that records servers of this machine",
        "host bank.py --port 0 --cassette record",
        "gymcp: --cassette record: no server has a cassette; give one: ServerSpec(cassette=Path(...))",
        given=_BANK,
    ),
    Case(
        "a host with a model as the user of tasks without a scenario",
        "host bank.py --port 0 --user-policy tiny",
        "gymcp: environment 'bank': task 'pay_back_5' has no scenario, so no model can play its user",
        given=_BANK,
    ),
    Case(
        "a host with a judge that is no policy",
        "host bank.py --port 0 --judge nobody",
        "gymcp: no policy 'nobody'; write tiny | smollm2 | local:PATH",
        given=_BANK,
    ),
    Case(
        "a host with a short token",
        "host bank.py",
        "host: $GYMCP_HOST_TOKEN: holds a token of 6 characters; 16 are the least: make one with `openssl rand",
        given=_BANK,
        env={"GYMCP_HOST_TOKEN": "secret"},
    ),
    Case(
        "a host whose token file is not there",
        "host bank.py --token-file none.txt",
        "host: --token-file none.txt: cannot be read: [Errno 2] No such file or directory",
        given=_BANK,
    ),
    Case(
        "a host whose time for agents is nothing",
        "host bank.py --max-episode-seconds 0",
        "--max-episode-seconds: must be more than 0, not 0",
        given=_BANK,
    ),
    Case(
        "a host whose folder holds a run",
        "host bank.py --out run",
        "--out run: is not empty; to add to the runs in it, use --resume, or choose another folder",
        given={**_BANK, "run": record_run},
    ),
    Case(
        "a host whose port is taken",
        "host bank.py --port {port} --out new",
        "cannot be had: Address already in use; try --port 0, or another --listen",
        given=_BANK,
    ),
)
