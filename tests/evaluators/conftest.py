"""One Chromium for all tests of pages that follow each other: they are one group of pytest-xdist."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

TIMEOUT_MS = 60_000
_CLOSING = ExitStack()
_OPEN: list[Browser] = []


@pytest.fixture(scope="module")
def browser(chromium: str) -> Browser:
    """Kept for the next module; else its start would take longer than most of the tests."""
    if not _OPEN:
        expect.set_options(timeout=TIMEOUT_MS)
        playwright = _CLOSING.enter_context(sync_playwright())
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        _OPEN.append(_CLOSING.enter_context(started))
    return _OPEN[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Function | None) -> None:
    """Close it before a module of other tests: while it is open, its event loop is the one of this thread."""
    goes_on = nextitem is not None and (nextitem.module is item.module or "browser" in nextitem.fixturenames)
    if _OPEN and not goes_on:
        _OPEN.clear()
        _CLOSING.close()
