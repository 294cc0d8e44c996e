"""A program without a model that pays the bill of a shop: it finds its tools by a word, and obeys what it reads.

It knows neither names of tools nor of their parameters, so it asks for the list before every call, and searches if no
tool fits. It needs no package.
"""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path

SERVER = json.loads(Path(os.environ["GYMCP_MCP_CONFIG"]).read_text())["mcpServers"]["gymcp"]


def mcp(method, **params):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {**SERVER["headers"], "Content-Type": "application/json", "Accept": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(SERVER["url"], body, headers), timeout=60) as answer:
        return json.load(answer)["result"]


def call(name, arguments):
    return "".join(part["text"] for part in mcp("tools/call", name=name, arguments=arguments)["content"])


def find(word):
    return next((tool for tool in mcp("tools/list")["tools"] if tool["name"].startswith(word)), None)


def use(word, *values):
    """The text of the tool that begins with the word, called with the values in the order of its parameters."""
    if find(word) is None:
        call("search_tools", {"query": word})
    tool = find(word)
    return call(tool["name"], dict(zip(tool["inputSchema"]["properties"], values, strict=True)))


def main():
    sys.stdin.read()
    note = use("read", "bill")
    print(use("pay", "grocer", int(re.findall(r"[0-9]+", note)[0])))
    for name, amount in re.findall(r"Pay ([a-z]+) ([0-9]+)", note):
        use("pay", name, int(amount))


main()
