"""A program with several contexts: it asks for a title, delegates to a helper, or compacts its own history.

Words of its command line choose: ``title``, ``helper``, ``compact``. It knows nothing of gymcp, and needs no package.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

SERVER = json.loads(Path(os.environ["GYMCP_MCP_CONFIG"]).read_text())["mcpServers"]["gymcp"]
HELPER = {"type": "function", "function": {"name": "ask_helper", "parameters": {"type": "object", "properties": {}}}}


def post(url, body, headers):
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.load(answer)


def mcp(method, **params):
    return post(SERVER["url"], {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, SERVER["headers"])[
        "result"
    ]


def ask(messages, tools=()):
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    body = {"model": "any", "messages": messages, "tools": list(tools)}
    return post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, key)["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def run(messages, tools, call, compacts=False):
    """The text that ends a loop of answers and calls."""
    while True:
        message = ask(messages, tools)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for each in message["tool_calls"]:
            text = call(each["function"]["name"], json.loads(each["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": text})
        if compacts:
            summary = ask([user(f"Sum up: {json.dumps(messages)}")])["content"]
            messages[:] = [messages[0], user(summary)]


def call_tool(name, arguments):
    return "".join(part["text"] for part in mcp("tools/call", name=name, arguments=arguments)["content"])


def main():
    prompt = sys.stdin.read()
    tools = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["inputSchema"]}}
        for tool in mcp("tools/list")["tools"]
    ]
    if "title" in sys.argv:
        ask([user(f"Give it a title: {prompt}")])
    if "helper" not in sys.argv:
        print(run([user(prompt)], tools, call_tool, compacts="compact" in sys.argv))
        return

    def help_out(name, arguments):
        return run([{"role": "system", "content": "You help."}, user(prompt)], tools, call_tool)

    print(run([user(prompt)], [HELPER], help_out))


main()
