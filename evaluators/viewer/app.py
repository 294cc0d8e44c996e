"""Routes of the viewer over one run, or two side by side. Each response is a page, or JSON made from the store."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from gymcp.evaluators.viewer.curves import curves_object
from gymcp.evaluators.viewer.episode import (
    Decode,
    anchor_objects,
    comparison_object,
    episode_object,
    whole_text,
)
from gymcp.evaluators.viewer.notes.note_objects import UNNAMED, notes_object
from gymcp.evaluators.viewer.notes.note_requests import note_endpoint
from gymcp.evaluators.viewer.pages import answer_file, json_endpoint, read_number, static_file
from gymcp.evaluators.viewer.runs import Runs
from gymcp.evaluators.viewer.summary import describe_runs
from gymcp.evaluators.viewer.task_facts import FindTasks, task_object
from gymcp.evaluators.viewer.trees.tree_object import tree_object
from gymcp.types import Json


def make_app(
    runs: Runs, *, decode: Decode | None = None, find_tasks: FindTasks | None = None, who: str = UNNAMED
) -> Starlette:
    """The viewer of these runs, without access control. `who`: the person who notes."""
    routes = [
        Route("/", show_run_page),
        Route("/static/{name}", static_file),
        Mount("/api", routes=run_routes(runs, decode=decode, find_tasks=find_tasks, who=who)),
    ]
    return Starlette(routes=routes)


def show_run_page(request: Request) -> Response:
    """The page of one run, or of two side by side."""
    return answer_file("index.html")


def run_routes(
    runs: Runs,
    *,
    decode: Decode | None = None,
    find_tasks: FindTasks | None = None,
    who: str = UNNAMED,
    listed: bool = False,
) -> list[Route]:
    """Routes for the requests of a run's page. `who`: the person who notes. `listed`: it was opened from a list."""

    def about(request: Request) -> Json:
        runs.refresh()
        version = runs.version()  # before the facts: what changes meanwhile is told with the next request
        told = {"version": version, **_searchable(runs)}
        if request.query_params.get("version") == version:
            return told
        return {**describe_runs(runs), "listed": listed, **told}

    def episodes(request: Request) -> Json:
        asked = request.query_params
        runs.refresh()
        rows = runs.index.page(
            read_number(asked.get("run", "0")),
            asked.get("q", ""),
            asked.get("sort", "recorded"),
            read_number(asked.get("offset", "0")),
        )
        return {**rows, **_searchable(runs)}

    def pairs(request: Request) -> Json:
        asked = request.query_params
        runs.refresh()
        rows = runs.index.pairs(asked.get("q", ""), asked.get("sort", "parted"), read_number(asked.get("offset", "0")))
        return {**rows, **_searchable(runs)}

    def curves(request: Request) -> Json:
        return curves_object(runs.find_run(read_number(request.query_params.get("run", "0"))).folder)

    return [
        Route("/about", json_endpoint(about)),
        Route("/episodes", json_endpoint(episodes)),
        Route("/pairs", json_endpoint(pairs)),
        Route("/curves", json_endpoint(curves)),
        *_episode_routes(runs, decode, find_tasks, who),
    ]


def _episode_routes(runs: Runs, decode: Decode | None, find_tasks: FindTasks | None, who: str) -> list[Route]:
    """Routes for the requests of an episode's page."""

    def episode(request: Request) -> Json:
        return episode_object(runs, _number(request, "n"), decode)

    def tree(request: Request) -> Json:
        return tree_object(runs, _number(request, "n"))

    def task(request: Request) -> Json:
        return task_object(runs, _number(request, "n"), find_tasks)

    def notes(request: Request) -> Json:
        runs.refresh()
        return notes_object(runs, _number(request, "n"), who)

    def anchor(request: Request) -> Json:
        at = _number(request, "at")
        return anchor_objects(runs, _number(request, "n"), [at])[at]

    def comparison(request: Request) -> Json:
        return comparison_object(runs, _number(request, "n"), _number(request, "other"), decode)

    def text(request: Request) -> Json:
        asked = request.query_params
        at, item = read_number(asked.get("at", "0")), read_number(asked.get("item", "0"))
        return {"text": whole_text(runs, _number(request, "n"), at, asked.get("part", ""), item)}

    return [
        Route("/episodes/{n}", json_endpoint(episode)),
        Route("/episodes/{n}/tree", json_endpoint(tree)),
        Route("/episodes/{n}/task", json_endpoint(task)),
        Route("/episodes/{n}/notes", json_endpoint(notes), methods=["GET"]),
        Route("/episodes/{n}/notes", note_endpoint(runs, who), methods=["POST"]),
        Route("/episodes/{n}/text", json_endpoint(text)),
        Route("/episodes/{n}/anchors/{at}", json_endpoint(anchor)),
        Route("/episodes/{n}/beside/{other}", json_endpoint(comparison)),
    ]


def _searchable(runs: Runs) -> dict[str, Json]:
    searchable, total = runs.index.searchable()
    return {"searchable": searchable, "indexed": total}


def _number(request: Request, name: str) -> int:
    return read_number(request.path_params[name])
