"""The request that saves a note. The guard lets it in from the viewer's own pages only."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gymcp.errors import StoreError
from gymcp.evaluators.names import find_judged_points
from gymcp.evaluators.viewer.episode import find, load
from gymcp.evaluators.viewer.notes.note_objects import notes_object
from gymcp.evaluators.viewer.pages import answer_json, read_number
from gymcp.evaluators.viewer.runs import NotFound, Runs
from gymcp.store.notes import InvalidNote, Note, NoteChanged, append_note
from gymcp.types import Json

MAX_BODY_BYTES = 4_000_000
"""Bytes of the longest request that is read; a note of a megabyte is still refused by its own message."""


def note_endpoint(runs: Runs, who: str) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that saves what `who` says of an episode; its answer is that of `notes_object`."""

    async def endpoint(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return answer_json({"error": f"the note is longer than {MAX_BODY_BYTES:,} bytes: shorten it"}, 413)
        return await run_in_threadpool(_answer, runs, who, request.path_params["n"], body)

    return endpoint


def _answer(runs: Runs, who: str, number: str, body: bytes) -> Response:
    try:
        return answer_json(save_note(runs, who, read_number(number), body), 200)
    except InvalidNote as error:
        return answer_json({"error": str(error)}, 400)
    except NoteChanged as error:
        return answer_json({"error": str(error)}, 409)
    except (NotFound, StoreError) as error:
        return answer_json({"error": str(error)}, 404)


def save_note(runs: Runs, who: str, n: int, body: bytes) -> dict[str, Json]:
    """Keep the note in the body of a request. Raises InvalidNote, NoteChanged, NotFound or StoreError."""
    opened, id = find(runs, n)
    note, seen = _read_body(body, id, who)
    known = find_judged_points(load(opened, id).components)
    if unknown := sorted(set(note.criteria) - set(known)):
        raise InvalidNote(f"the episode has no criterion {unknown[0][:60]!r}; have {', '.join(known) or 'none'}")
    append_note(opened.folder, note, seen=seen)
    runs.refresh()
    return notes_object(runs, n, who)


def _read_body(body: bytes, episode: str, who: str) -> tuple[Note, str]:
    """The note, and the time of the one that was shown. Raises InvalidNote if it is not what the page sends."""
    try:
        asked = json.loads(body)
        note, verdict, seen = (asked.get(name, "") for name in ("note", "verdict", "seen"))
        labels, criteria = asked.get("labels", []), asked.get("criteria", {})
        if not isinstance(labels, list) or not isinstance(criteria, dict):
            raise TypeError
        if not all(isinstance(each, str) for each in (note, verdict, seen, *labels, *criteria.values())):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidNote(
            "a note is an object with note, labels, verdict, criteria and seen, all of them texts"
        ) from error
    parsed = Note(episode=episode, who=who, note=note, labels=tuple(labels), verdict=verdict, criteria=criteria)
    return parsed, seen
