"""An agent program with bad intentions. Standard library only; it runs inside.

Told ``attack``, it plays the attempts and prints how they went. Told the name of an attempt with the word ``greed``, it
makes that one. Told anything else, it is the other episode: it leaves what others want, calls a tool, and waits.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
inside = importlib.import_module("inside")
PARTS = ("inside_files", "inside_mounts", "inside_kernel", "inside_network", "inside_processes")


def attack(path: str, words: list[str]) -> None:
    with open(path) as file:
        given = json.load(file)
    table = dict(importlib.import_module("inside_programs").ATTEMPTS_OF_PROGRAMS)
    if "all" in words:
        for part in PARTS:
            importlib.import_module(part)
        del inside.ATTEMPTS["signal_everyone"]  # it wants a witness outside
        table |= inside.ATTEMPTS
    print(json.dumps({name: inside._make_attempt(what, given) for name, what in table.items()}))


def settle(token: str) -> None:
    with open("token", "w") as file:
        file.write(token)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0other-{token}")
    listener.listen()
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "settled", "arguments": {}}}
    headers = {"Authorization": f"Bearer {os.environ['GYMCP_MCP_KEY']}", "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"
    request = urllib.request.Request(os.environ["GYMCP_MCP_URL"], json.dumps(call).encode(), headers)
    urllib.request.urlopen(request).read()  # is never answered


if __name__ == "__main__":
    if sys.argv[1] == "attack":
        attack(sys.argv[2], sys.argv[3:])
    elif sys.argv[2] == "greed":
        print(getattr(importlib.import_module("rogue_greed"), sys.argv[1])(json.loads(sys.argv[3])))
    else:
        settle(sys.argv[1])
