"""The attempts that need a session of their own, and how each must be reported: in the words of the harness."""

from __future__ import annotations

from dataclasses import dataclass, field

from gymcp.mcp_servers.sandbox import Limits

_MEMORY = r"Server(Died|LimitExceeded): .*memory: the process tree used more than \d+ MB"
_KERNEL_MEMORY = _MEMORY + r"|result: \d+ MB, then (Function not implemented|Cannot allocate memory)"
_PROCESSES = (
    r"result: \d+ (processes|threads), then |Server(Died|LimitExceeded): .*processes: the tree had more than \d+"
)
_PROTOCOL = "ProtocolError: server 'rogue': "
_NOT_JSON = _PROTOCOL + ".* is not a JSON-RPC message"
_GREW = r"ServerLimitExceeded: .*disk: "
_FULL = r"result: \d+ MB, then (No space left on device|Disk quota exceeded)"
_FINE = r"^result: first; then: result: honest$"
_DIGEST = "^key [0-9a-f]{64}$"
_NONE = r"^Undigestible: server 'rogue': its state has no digest: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Greed:
    reported: str
    gets: str
    """Unconfined."""
    limits: Limits = field(default_factory=lambda: Limits(memory_mb=120, processes=30, disk_mb=20))
    on_disk: bool = False
    """In a workspace of the host's if the start path has one; else in one that has a size."""
    gives_back: bool = False
    """True if it holds nothing once it has answered: others of this kind go on with the same server."""


GREED = {
    "fork_bomb": Greed(reported=_PROCESSES, gets="300 processes", gives_back=True),
    "thread_bomb": Greed(reported=_PROCESSES, gets="300 threads", gives_back=True),
    "heap": Greed(reported=_MEMORY, gets="400 MB"),
    "heap_of_children": Greed(reported=_MEMORY, gets="400 MB"),
    "small_maps": Greed(reported=_MEMORY, gets="393 MB"),
    "page_tables": Greed(reported=_MEMORY, gets="more than 200 MB"),
    "hidden_memory": Greed(
        reported=_MEMORY + r"|result: \d+ MB, then (Function not implemented|File too large)", gets="400 MB"
    ),
    "paged_out_memory": Greed(reported=_MEMORY, gets="400 MB"),
    "memory_in_semaphores": Greed(reported=_KERNEL_MEMORY, gets="200 MB"),
    "memory_in_messages": Greed(reported=_KERNEL_MEMORY, gets="200 MB"),
    "fill_the_workspace": Greed(reported=f"{_FULL}|{_GREW}", gets="100 MB", gives_back=True),
    "fill_temporary_files": Greed(reported=_FULL, gets="100 MB", gives_back=True),
    "fill_shared_memory": Greed(reported=_FULL + "|" + _MEMORY, gets="100 MB", gives_back=True),
    "one_large_file": Greed(reported="result: nothing: File too large", gets="1 TB, sparse", gives_back=True),
    **{
        f"hide_disk_{where}": Greed(reported=f"{_GREW}|{_FULL}", gets="60 MB", on_disk=True)
        for where in (
            "in_unlinked_files",
            "in_unnamed_files",
            "from_all_who_trace",
            "below_a_long_path",
            "in_a_closed_folder",
            "in_flight",
            "in_memory",
        )
    },
    "use_up_inodes": Greed(
        reported=_MEMORY + r"|Server(Died|LimitExceeded): .*disk: more than \d+ files in folders of its own",
        gets="200000 files",
    ),
    "use_up_descriptors": Greed(
        reported=r"result: \d+ files, then Too many open files", gets="3000 files", gives_back=True
    ),
    "spin": Greed(
        reported=r"Server(Died|LimitExceeded): .*cpu: the process tree used more than 0.5 s of CPU time",
        gets="1.0 s of CPU time",
        limits=Limits(cpu_s=0.5),
    ),
    "flood_of_errors": Greed(reported=r"^result: 200 MB; then: result: honest$", gets="200 MB", gives_back=True),
    "leave_a_daemon": Greed(
        reported="^result: left; alive before the end: True, after: False$", gets="True, after: True"
    ),
}

REPLIES = {
    "answer_twice": _FINE,
    "answer_the_next_request": _FINE,
    "answer_an_old_request": _FINE,
    "answer_under_other_ids": _FINE,
    "flood_of_notifications": _FINE,
    "flood_of_progress": _FINE,
    "cancel_the_request": _FINE,
    "ask_for_sampling": "^result: denied: .*; then: result: honest$",
    "ask_the_user": "^result: denied: .*; then: result: honest$",
    "ask_for_roots": "^result: denied: .*; then: result: honest$",
    "escapes_in_a_result": "^result: red; then: result: honest$",
    "escapes_in_an_error": "^failed: red; then: result: honest$",
    "escapes_in_last_words": r"^ServerDied: .*the server ended \(exit status (3|-1)\); its last words: red$",
    "garbage": _NOT_JSON,
    "garbage_without_end": _PROTOCOL + ".* is longer than any message may be",
    "deep_answer": _NOT_JSON,
    "huge_number": _NOT_JSON + "|^failed: ",
    "half_an_answer": _NOT_JSON + "|ServerDied: ",
    "many_blocks": "^failed: its answer is longer than any message may be; then: result: honest$",
    "many_kinds_of_blocks": "^failed: its answer has more than 250 blocks of content; then: result: honest$",
    "many_floats": "^failed: its answer has more than 100000 values; then: result: honest$",
    "text_of_escapes": "^result: red; then: result: honest$",
    "long_text": r"^result: x{1000000}\n\[cut: 2000000 more characters\]; then: result: honest$",
    "long_error": r"^failed: x{1000000}\n\[cut: 2000000 more characters\]; then: result: honest$",
    "many_names": "^failed: its answer has more than 100000 values; then: result: honest$",
    "ask_under_a_long_id": _PROTOCOL + ".*the id of its request has more than 256 characters$",
    "flood_of_pings": _FINE,
    "flood_of_requests": _PROTOCOL + ".*it sends more than 100 requests before it answers$",
    "flood_of_blank_lines": _PROTOCOL + ".*it sends more than 100000 messages before it answers$",
    "answer_of_another_kind": "^failed: .*invalid result.*; then: result: honest$|" + _PROTOCOL,
}

LISTS = {
    "remote_reference": "^tools: echo; asked for: 0$|" + _PROTOCOL + ".*not valid JSON Schema",
    "catastrophic_pattern": "^tools: echo; asked for: 0$",
    "slow_pattern_of_results": "^tools: echo; asked for: 0$",
    "doubling_schema_of_results": "^tools: echo; asked for: 0$",
    "deep_schema": _PROTOCOL,
    "huge_schema": _PROTOCOL + "list: tool 'echo': its input schema has 10000\\d\\d characters; at most",
    "schema_of_many_parts": _PROTOCOL + "list: its input schemas hold 3100\\d values; at most",
    "many_large_tools": _PROTOCOL + "list: its tool list has 300\\d{4} characters; at most",
    "endless_pages": _PROTOCOL + "list: its list has more than 100 pages$",
    "endless_tools": _PROTOCOL + "list: it lists more than 10000 tools",
    "escape_in_a_name": _PROTOCOL + "list: it lists a tool with the name",
    "escape_in_a_description": "^tools: echo red red; asked for: 0$",
    "two_of_one_name": _PROTOCOL + "list: it lists two tools named 'echo'",
    "garbage_before_the_list": _NOT_JSON,
}

LIES = {
    "claim_another_state": "(ProtocolError|CannotFork): server 'rogue': "
    "gymcp/state: it claims the key 0{64} for a state with [0-9a-f]{64}",
    "claim_another_list": _PROTOCOL + "list: it claims the key 0{64} for a tool list with [0-9a-f]{64}",
}
"""Attempts of a server that declares its state, and the error of each."""

WORLDS = {
    "fifo": _DIGEST,
    "unix_socket": _DIGEST,
    "link_to_a_secret": _DIGEST,
    "link_to_a_folder": _DIGEST,
    "link_to_an_endless_file": _DIGEST,
    "link_to_itself": _DIGEST,
    "folder_that_becomes_a_link": _DIGEST + "|" + _NONE,
    "sparse_files": _NONE + "too large",
    "huge_folder": _NONE + "too large",
    "deep_nesting": _NONE + "too large",
    "unreadable_files": _DIGEST,
    "names_of_any_bytes": _DIGEST,
    "set_id_file": _DIGEST,  # and the harness looks for the bit
    "corrupt_database": _DIGEST,
    "endless_view_as_a_table": _DIGEST + "|" + _NONE + "too large|" + _NONE + ".*long",
    "endless_view": _DIGEST,
    "generated_column_of_many_bytes": _DIGEST + "|" + _NONE,
    "row_of_many_bytes": _DIGEST + "|" + _NONE,
    "virtual_table_in_disguise": _DIGEST,
    "schema_that_makes_no_sense": _DIGEST,
    "journal_that_names_another_file": _DIGEST,
    "log_of_another_database": _DIGEST,
    "database_behind_a_link": _DIGEST,
}
ENDLESS = "endless_view_as_a_table"
"""It is read until the limit on time, of which it gets less than others."""
DATABASES = tuple(list(WORLDS)[list(WORLDS).index("corrupt_database") :])
"""Digested as what they are, not as files."""
