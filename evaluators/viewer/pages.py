"""Responses of the viewer: files of ``static/``, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from gymcp.errors import StoreError
from gymcp.evaluators.viewer.query import QueryError
from gymcp.evaluators.viewer.runs import NotFound
from gymcp.types import Json

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = frozenset(path.name for path in STATIC.iterdir() if path.suffix in KINDS)


def static_file(request: Request) -> Response:
    """The file that the address names; 404 for any other name than those in ``static/``."""
    return answer_file(request.path_params["name"])


def answer_file(name: str) -> Response:
    """The file of that name; 404 for any other name than those in ``static/``."""
    if name not in FILES:
        return answer_json({"error": "there is no such page"}, 404)
    return FileResponse(STATIC / name, media_type=KINDS[Path(name).suffix])


def json_endpoint(make: Callable[[Request], Json]) -> Callable[[Request], Response]:
    """The endpoint that answers with what `make` returns, or with its error as ``{"error": TEXT}``."""

    def endpoint(request: Request) -> Response:
        try:
            return answer_json(make(request), 200)
        except QueryError as error:
            return answer_json({"error": str(error)}, 400)
        except (NotFound, StoreError) as error:
            return answer_json({"error": str(error)}, 404)

    return endpoint


def answer_json(value: Json, status: int) -> Response:
    """The response that holds the value as JSON."""
    return Response(encode_json(value), status_code=status, media_type="application/json")


def encode_json(value: Json) -> str:
    """The value as JSON in ASCII; NaN and infinities are text in it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def read_number(text: str) -> int:
    """The number in an address, from 0. Raises NotFound for anything else."""
    try:
        return max(0, min(int(text[:18]), 2**60))
    except ValueError:
        raise NotFound(f"{text[:40]!r} is not a number") from None


def _finite(value: Json) -> Json:
    """The value with NaN and infinities as text, since JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
