"""Routes of the viewer. Each response is JSON made from the store, or one of the files in ``static/``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from gymcp.errors import StoreError
from gymcp.evaluators.viewer.episode import (
    Decode,
    NotFound,
    anchor_object,
    comparison_object,
    episode_object,
    whole_text,
)
from gymcp.evaluators.viewer.guard import AccessGuard
from gymcp.evaluators.viewer.query import QueryError
from gymcp.evaluators.viewer.runs import Runs, describe_runs
from gymcp.types import Json

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(runs: Runs, *, port: int, decode: Decode | None = None, first: str = "") -> AccessGuard:
    """The viewer of these runs, for a server on this port; `first` is the part of the address that is shown first."""

    def about(request: Request) -> Json:
        runs.refresh()
        searchable, total = runs.index.searchable()
        return {**describe_runs(runs), "searchable": searchable, "indexed": total}

    def episodes(request: Request) -> Json:
        asked = request.query_params
        runs.refresh()
        rows = runs.index.page(
            _number(asked.get("run", "0")),
            asked.get("q", ""),
            asked.get("sort", "recorded"),
            _number(asked.get("offset", "0")),
        )
        return {**rows, **_searchable()}

    def pairs(request: Request) -> Json:
        asked = request.query_params
        runs.refresh()
        rows = runs.index.pairs(asked.get("q", ""), asked.get("sort", "parted"), _number(asked.get("offset", "0")))
        return {**rows, **_searchable()}

    def episode(request: Request) -> Json:
        return episode_object(runs, _number(request.path_params["n"]), decode)

    def anchor(request: Request) -> Json:
        return anchor_object(runs, _number(request.path_params["n"]), _number(request.path_params["at"]))

    def comparison(request: Request) -> Json:
        return comparison_object(runs, _number(request.path_params["n"]), _number(request.path_params["other"]), decode)

    def text(request: Request) -> Json:
        asked = request.query_params
        at, item = _number(asked.get("at", "0")), _number(asked.get("item", "0"))
        return {"text": whole_text(runs, _number(request.path_params["n"]), at, asked.get("part", ""), item)}

    def _searchable() -> dict[str, Json]:
        searchable, total = runs.index.searchable()
        return {"searchable": searchable, "indexed": total}

    app = Starlette(
        routes=[
            Route("/", _static),
            Route("/static/{name}", _static),
            Route("/api/about", _json(about)),
            Route("/api/episodes", _json(episodes)),
            Route("/api/pairs", _json(pairs)),
            Route("/api/episodes/{n}", _json(episode)),
            Route("/api/episodes/{n}/text", _json(text)),
            Route("/api/episodes/{n}/anchors/{at}", _json(anchor)),
            Route("/api/episodes/{n}/beside/{other}", _json(comparison)),
        ]
    )
    return AccessGuard(app, port=port, first=first)


FILES = frozenset(path.name for path in STATIC.iterdir() if path.suffix in KINDS)


def _static(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in FILES:
        return _answer({"error": "there is no such page"}, 404)
    return FileResponse(STATIC / name, media_type=KINDS[Path(name).suffix])


def _json(make: Callable[[Request], Json]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            return _answer(make(request), 200)
        except QueryError as error:
            return _answer({"error": str(error)}, 400)
        except (NotFound, StoreError) as error:
            return _answer({"error": str(error)}, 404)

    return endpoint


def _answer(value: Json, status: int) -> Response:
    try:
        body = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        body = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return Response(body, status_code=status, media_type="application/json")


def _finite(value: Json) -> Json:
    """The value with NaN and infinities as text, since JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _number(text: str) -> int:
    try:
        return max(0, min(int(text[:18]), 2**60))
    except ValueError:
        raise NotFound(f"{text[:40]!r} is not a number") from None
