"""Names that help texts and completion show, kept apart from the code behind them, which takes seconds to import.

`tests/cli/test_known_names.py` holds each list equal to that of the code.
"""

from __future__ import annotations

from collections.abc import Mapping

AGENTS = (
    "oracle", "null", "mutated", "random", "hijacked", "adaptive", "never_asks", "asks_late", "always_asks", "react",
)  # fmt: skip
AGENT_FORMS = "FILE.py:NAME, MODULE:NAME"
"""Forms of an agent of the user."""
ATTACKS = ("none", "direct", "ignore_previous", "system_message", "important_instructions")
STRESSORS = (
    "latency", "faults", "truncated", "noisy", "renamed", "reordered", "distractors", "changed", "stale", "missing",
)  # fmt: skip
SEARCHES = ("best_of_n", "beam", "dfsdt", "mcts", "lookahead")
SANDBOXES = ("bwrap", "docker", "none")
POLICY_FORMS = "tiny | smollm2 | local:PATH | vllm:URL#MODEL | openai:URL#MODEL"
TOOL_FORMATS = ("hermes", "llama", "mistral", "pythonic", "compact")
"""Formats of tool calls in a chat template."""
METRICS = (
    "success", "score", "steps", "tool_calls", "prompt_tokens", "completion_tokens", "seconds", "agent_seconds",
    "tool_seconds", "cost",
)  # fmt: skip
RESOLUTION = 0.05
"""Difference that ``gymcp compare`` is to detect by default, as a share."""
MIN_COVERAGE = 0.95
"""Share of a run's episodes that must have a score for a headline figure and a rank, by default."""
EXPORT_LIMIT = 1_000
"""Most episodes of a run in ``gymcp view --export``, by default."""
GRADERS = (
    "answer", "exact", "number", "pattern", "json", "state", "changes", "files", "file-values", "calls",
    "calls-any-order", "calls-alike", "milestones",
)  # fmt: skip
REPORT_FORMATS = ("html", "md", "json")
EXPORT_FORMATS = ("jsonl", "parquet", "atif", "csv")
PRESETS = (
    "reinforce_pp", "rloo", "grpo", "dr_grpo", "loop", "rebn", "gigpo", "otc", "hdpo", "matchtir", "san", "eapo",
    "gdpo", "bnpo", "aspo", "empg", "flow_grpo", "ppo", "hgpo", "graphgpo", "g2po", "gagpo", "tigpo",
    "epo", "igpo", "infopo", "capo", "poad", "spa", "hiper", "seeupo", "spo", "dapo", "tapo", "gspo", "cispo", "dart",
    "decoupled_ppo", "opmd", "asymre", "expert_iteration", "r3", "xrpo",
)  # fmt: skip
LOCK_FILE = "servers.lock"
"""Lock file of servers, in the working folder."""

_POLICY, _TASKS, _CONCURRENCY = ("--policy",), ("--tasks",), ("--concurrency",)
FOREIGN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("--model", "--models", "--model-name", "--model-id", "--llm", "--agent-llm", "-m"), _POLICY),
    **dict.fromkeys(("--base-url", "--api-base-url", "--api-base", "--model-base-url", "--provider"), _POLICY),
    **dict.fromkeys(("--user-llm", "--user-model"), ("--user-policy",)),
    **dict.fromkeys(("--api-key", "--api-key-var", "--api-key-env"), ("--key-env",)),
    **dict.fromkeys(("--task-ids", "--task-id", "--sample-id", "--include", "--filter"), _TASKS),
    **dict.fromkeys(("--num-tasks", "--num-examples", "--num-samples", "--n-tasks"), ("--limit",)),
    **dict.fromkeys(("--epochs", "--num-trials", "--rollouts-per-example", "--n-trials", "-r"), ("--trials",)),
    **dict.fromkeys(("--max-connections", "--max-samples", "--max-concurrent", "--max-concurrency"), _CONCURRENCY),
    **dict.fromkeys(("--workers", "--num-workers", "--num-threads", "--n-concurrent", "--batch-size"), _CONCURRENCY),
    **dict.fromkeys(("--message-limit", "--max-steps", "--max-messages"), ("--max-turns",)),
    **dict.fromkeys(("--token-limit", "--max-total-tokens"), ("--max-episode-tokens",)),
    **dict.fromkeys(("--time-limit", "--timeout"), ("--max-episode-seconds", "--request-timeout")),
    **dict.fromkeys(("--cost-limit", "--budget"), ("--max-cost", "--max-episode-cost")),
    **dict.fromkeys(("--output-dir", "--output-path", "--log-dir", "--save-to", "--results-dir"), ("--out",)),
    "--auto-resume": ("--resume",),
}
"""Options of other frameworks -> options of gymcp in their place; an error about one names those that the verb has."""
