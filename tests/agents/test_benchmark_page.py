"""Pages on models, played as a reader types them, against an endpoint on the loopback."""

from __future__ import annotations

import json
from pathlib import Path

from chat_server import chat_server, says
from page_blocks import DOCS
from page_player import play_page

ENDPOINT = "http://127.0.0.1:8000/v1"


def test_a_model_is_benchmarked_and_compared(tmp_path: Path) -> None:
    with chat_server(lambda number, body: says("I cannot do that.")) as server:
        assert play_page(DOCS / "start" / "benchmark-your-model.md", tmp_path, replace={ENDPOINT: server.url}) == 5
    asked = {request["model"] for request in server.requests}
    assert asked == {"my-model", "my-other-model"}
    assert (tmp_path / "runs" / "my-model" / "report.html").is_file()


def test_a_model_has_a_price_and_a_budget(tmp_path: Path) -> None:
    with chat_server(lambda number, body: says("I cannot do that.")) as server:
        assert play_page(DOCS / "policies.md", tmp_path, replace={ENDPOINT: server.url}) == 2
    (summary,) = tmp_path.glob("runs/*/summary.json")
    assert 0 < json.loads(summary.read_text())["cost"] < 2
