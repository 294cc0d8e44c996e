"""Policies, price lists and budgets that ``gymcp eval`` cannot use."""

from __future__ import annotations

from case import Case, Given
from things import BANK, PRICES

ENV: Given = {"bank.py": BANK}

CASES: tuple[Case, ...] = (
    Case(
        "a model for an agent without one",
        "eval bank.py --agent oracle --policy tiny",
        "--policy: agent 'oracle' has no model; --agent react has",
        given=ENV,
    ),
    Case(
        "an agent without its model",
        "eval bank.py --agent react",
        "agent 'react' needs a model: --policy tiny | smollm2 | local:PATH | vllm:URL#MODEL | openai:URL#MODEL",
        given=ENV,
    ),
    Case(
        "a policy that is not there",
        "eval bank.py --policy anthropic:claude",
        "no policy 'anthropic:claude'; write tiny | smollm2 | local:PATH | vllm:URL#MODEL | openai:URL#MODEL",
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
        "policy 'local:model': its config.json cannot be read:",
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
        "no tool format 'xml'; have hermes, llama, mistral, pythonic,",
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
        "prices prices.toml: not TOML:",
        given={**ENV, "prices.toml": "["},
    ),
    Case(
        "a price list that is no text",
        "eval bank.py --policy openai:{model}#m --prices prices.toml",
        "prices prices.toml: not TOML:",
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
        "--system prompt.txt: cannot be read: 'utf-8",
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
)
