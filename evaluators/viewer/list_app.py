"""Routes of the viewer over a list of runs. Addresses name a run by its number in the list, never by a path."""

from __future__ import annotations

import re
from contextlib import ExitStack

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from gymcp.errors import StoreError
from gymcp.evaluators.viewer.app import run_routes, show_run_page
from gymcp.evaluators.viewer.episode import Decode
from gymcp.evaluators.viewer.notes.note_objects import UNNAMED
from gymcp.evaluators.viewer.pages import answer_file, answer_json, json_endpoint, read_number, static_file
from gymcp.evaluators.viewer.run_list import RunList
from gymcp.evaluators.viewer.task_facts import FindTasks
from gymcp.types import Json

_NUMBERS = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?")
"""The part of an address that names one run, or two to be put side by side."""


def make_list_app(
    runs: RunList, *, decode: Decode | None = None, find_tasks: FindTasks | None = None, who: str = UNNAMED
) -> Starlette:
    """The viewer of a list of runs, without access control. `who`: the person who notes."""

    def list_runs(request: Request) -> Json:
        known = read_number(request.query_params.get("version", "0"))
        listing = runs.object()
        return {"version": known} if known == listing["version"] else listing

    def matrix(request: Request) -> Json:
        return runs.matrix()

    def suites(request: Request) -> Json:
        return runs.suites()

    async def run_api(scope: Scope, receive: Receive, send: Send) -> None:
        named = scope["path_params"]["numbers"]
        numbers = tuple(map(int, named.split("-"))) if _NUMBERS.fullmatch(named) else ()
        with ExitStack() as stack:
            try:
                opened = await run_in_threadpool(stack.enter_context, runs.open_numbers(numbers)) if numbers else None
            except KeyError:
                opened = None
            except StoreError as error:
                await answer_json({"error": str(error)}, 404)(scope, receive, send)
                return
            if opened is None:
                await answer_json({"error": f"there is no run {named[:40]!r} in the list"}, 404)(scope, receive, send)
                return
            routes = run_routes(opened, decode=decode, find_tasks=find_tasks, who=who, listed=True)
            await Router(routes, redirect_slashes=False)(scope, receive, send)

    app = Starlette(
        routes=[
            Route("/", _show_list_page),
            Route("/static/{name}", static_file),
            Route("/api/runs", json_endpoint(list_runs)),
            Route("/api/matrix", json_endpoint(matrix)),
            Route("/api/suites", json_endpoint(suites)),
            Route("/runs/{numbers}/", show_run_page),
            Route("/runs/{numbers}/static/{name}", static_file),
            Mount("/runs/{numbers}/api", app=run_api),
        ]
    )
    app.router.redirect_slashes = False
    return app


def _show_list_page(request: Request) -> Response:
    return answer_file("runs.html")
