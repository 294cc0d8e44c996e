"""Chat templates of the tiny models, in four styles.

``QWEN`` is ChatML with calls as JSON between tags. ``LLAMA`` has headers and a bare JSON object as a call. ``COMPACT``
uses as few tokens as possible: one control token for each role, tool, call and value, and arguments by position.
``TERSE`` is ``COMPACT`` without the list of tools: for a policy of one environment, which learns the tools by using
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStyle:
    """A chat template and the tokens it needs."""

    template: str
    """Jinja source for `apply_chat_template`."""
    start_token: str | None
    """First token of every text, written by the template; None if there is none."""
    end_tokens: tuple[str, ...]
    """Tokens that end the assistant's turn; the first is the usual one."""
    pad_token: str
    special_tokens: tuple[str, ...]
    """Control tokens, in the order of their ids."""
    tags: tuple[str, ...] = ()
    """Texts that are single tokens, but not control tokens."""
    spells: bool = False
    """True if digits, ids and names are spelt with one token per character, so that copying any of them is one skill;
    other words are pieces."""


_QWEN_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nCall tools as JSON between tags. They are:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\nA call:\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{{- '\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

QWEN = ChatStyle(
    template=_QWEN_TEMPLATE,
    start_token=None,
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    pad_token="<|endoftext|>",
    special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    tags=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)

_LLAMA_TEMPLATE = """\
{{- '<|begin_of_text|>' }}
{%- if messages[0].role == 'system' %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + messages[0].content | trim + '<|eot_id|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
{%- if loop.first and tools %}
{{- 'To call a function, answer with {"name": function name, "parameters": object of arguments}.\\n\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- message.content | trim + '<|eot_id|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- generation %}
{{- message.content | trim }}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first %}{{- '; ' }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "parameters": ' }}{{- call.function.arguments | tojson }}{{- '}' }}
{%- endfor %}
{{- '<|eot_id|>' }}
{%- endgeneration %}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

LLAMA = ChatStyle(
    template=_LLAMA_TEMPLATE,
    start_token="<|begin_of_text|>",
    end_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    pad_token="<|end_of_text|>",
    special_tokens=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ),
)

# An empty value is an argument left out, and so is every value behind the last one written.
_MACROS = """\
{%- macro ordered(parameters) -%}
{%- set properties = parameters.properties or {} -%}
{%- set required = parameters.required or [] -%}
{%- for key in properties if key in required %}{{- key ~ '\\n' }}{%- endfor -%}
{%- for key in properties if key not in required %}{{- key ~ '\\n' }}{%- endfor -%}
{%- endmacro -%}
{%- macro value(given) -%}
{%- if given is string %}{{- given or '""' }}{%- else %}{{- given | tojson }}{%- endif %}
{%- endmacro -%}
"""
_TOOLS = """\
{%- for tool in tools or [] %}
{{- '<|t|>' + tool.function.name }}
{%- for key in ordered(tool.function.parameters).split('\\n') if key %}{{- '<|v|>' + key }}{%- endfor %}
{%- endfor %}
"""
_MESSAGES = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{- '<|s|>' + message.content }}
{%- elif message.role == 'user' %}{{- '<|u|>' + message.content }}
{%- elif message.role == 'tool' %}{{- '<|r|>' + message.content }}
{%- else %}
{{- '<|a|>' }}
{%- generation %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<|c|>' + call.function.name }}
{%- set found = namespace(pending='') %}
{%- for tool in tools or [] if tool.function.name == call.function.name %}
{%- for key in ordered(tool.function.parameters).split('\\n') if key %}
{%- set found.pending = found.pending + '<|v|>' %}
{%- if key in call.function.arguments %}
{{- found.pending + value(call.function.arguments[key]) }}
{%- set found.pending = '' %}
{%- endif %}
{%- endfor %}
{%- endfor %}
{%- endfor %}
{{- '<|e|>' }}
{%- endgeneration %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|a|>' }}{%- endif %}
"""

COMPACT = ChatStyle(
    template=_MACROS + _TOOLS + _MESSAGES,
    start_token=None,
    end_tokens=("<|e|>",),
    pad_token="<|pad|>",
    special_tokens=("<|pad|>", "<|e|>", "<|a|>", "<|u|>", "<|r|>", "<|s|>", "<|t|>", "<|c|>", "<|v|>"),
)

TERSE = replace(COMPACT, template=_MACROS + _MESSAGES, spells=True)
