"""A program that knows nothing of gymcp: it asks an OpenAI endpoint and calls the tools of an MCP server.

Words of its command line change what it does: ``stream`` reads answers as events, ``quiet`` prints nothing, ``lines``
serves several turns on standard input, ``stdio`` starts the MCP server as a command and speaks with it over pipes.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

OPENAI, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
SERVER = json.loads(Path(os.environ["GYMCP_MCP_CONFIG"]).read_text())["mcpServers"]["gymcp"]


def post(url, body, headers):
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def start(config):
    """The process of the MCP server in a configuration as Claude Desktop reads it, after the handshake."""
    server = json.loads(Path(config).read_text())["mcpServers"]["gymcp"]
    command, env = [server["command"], *server["args"]], {**os.environ, **server["env"]}
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "chat", "version": "1"}}
    tell(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
    assert "serverInfo" in json.loads(process.stdout.readline())["result"]
    tell(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    return process


def tell(process, message):
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


PIPED = start(os.environ["GYMCP_MCP_STDIO_CONFIG"]) if "stdio" in sys.argv else None


def mcp(method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    if PIPED is not None:
        tell(PIPED, body)
        return json.loads(PIPED.stdout.readline())["result"]
    headers = {**SERVER["headers"], "MCP-Protocol-Version": "2025-06-18"}
    return json.loads(post(SERVER["url"], body, headers))["result"]


def ask(messages, tools):
    body = {"model": "any", "messages": messages, "tools": tools, "stream": "stream" in sys.argv}
    text = post(f"{OPENAI}/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    if "stream" not in sys.argv:
        return json.loads(text)["choices"][0]["message"]
    message = {}
    for event in text.split("\n\n"):
        data = event.removeprefix("data: ").strip()
        if data and data != "[DONE]":
            for choice in json.loads(data)["choices"]:
                message.update(choice["delta"])
    for call in message.get("tool_calls", ()):
        del call["index"]
    return message


def play(prompt, messages):
    messages.append({"role": "user", "content": prompt})
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool["inputSchema"],
            },
        }
        for tool in mcp("tools/list")["tools"]
    ]
    while True:
        message = ask(messages, tools)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            function = call["function"]
            result = mcp("tools/call", name=function["name"], arguments=json.loads(function["arguments"]))
            content = "".join(part["text"] for part in result["content"])
            content = f"error: {content}" if result.get("isError") else content
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def main():
    messages = []
    if "lines" in sys.argv:
        for line in sys.stdin:
            print(json.dumps({"text": play(json.loads(line)["prompt"], messages)}), flush=True)
        return
    text = play(sys.stdin.read(), messages)
    if "quiet" not in sys.argv:
        print(text)


main()
