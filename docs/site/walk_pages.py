"""`make docs-walk`: all pages of the built site in Chromium, light and dark, on a screen and on a phone.

Prints serious and critical findings of axe-core, pages that scroll sideways, errors of scripts, and requests that leave
the site. Exit code 1 if there is one. `--only GLOB` names pages; `--pictures FOLDER` keeps the first screen of each.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from page_findings import grave_findings, overflow
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTHS = (1280, 390)
"""Pixels of a screen, and of a phone."""
HEIGHT = 800
NOT_FILE = "404.html"
"""The page that a web server gives for a wrong address: it names its style sheets from the server's root."""
TIMEOUT_MS = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="folder that make docs has built")
    parser.add_argument("--only", default="**/*.html", help="glob of the pages to open; default: all")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each page in each look; default: none")
    options = parser.parse_args()
    pages = sorted(path for path in options.site.glob(options.only) if path.suffix == ".html" and path.name != NOT_FILE)
    if not pages:
        raise SystemExit(f"walk_pages: {options.site}: no page {options.only}: make docs")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("walk_pages: no chromium: apt-get install chromium")
    began, found = time.perf_counter(), 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=TIMEOUT_MS)
        for where, defects in walk(browser, options.site, pages, options.pictures):
            found += len(defects)
            for each in defects:
                print(f"{where}: {each}", flush=True)
        browser.close()
    looks = len(SCHEMES) * len(WIDTHS)
    print(f"{len(pages)} pages in {looks} looks: {found} defects, {time.perf_counter() - began:.0f} s")
    sys.exit(bool(found))


def walk(
    browser: Browser, site: Path, pages: Sequence[Path], pictures: Path | None = None
) -> Iterator[tuple[str, list[str]]]:
    """(page and look, its defects) of each page in each look."""
    for path in pages:
        name = str(path.relative_to(site))
        for scheme in SCHEMES:
            for width in WIDTHS:
                context = browser.new_context(
                    viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
                )
                context.set_offline(True)
                context.set_default_timeout(TIMEOUT_MS)
                page = context.new_page()
                yield f"{name}, {scheme}, {width} px", look_at(page, site, path)
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=pictures / f"{name.replace('/', '-')}-{scheme}-{width}.png")
                context.close()


def look_at(page: Page, site: Path, path: Path) -> list[str]:
    """Defects of a page of the site, opened as a file."""
    inside, defects = site.resolve().as_uri() + "/", list[str]()
    page.on("pageerror", lambda error: defects.append(f"script: {error}"))
    page.on("request", lambda sent: defects.extend([] if sent.url.startswith(inside) else [f"request: {sent.url}"]))
    page.goto(path.resolve().as_uri())
    page.locator("h1").first.wait_for()
    wide = overflow(page)
    return [*defects, *(f"scrolls sideways: {each}" for each in wide), *grave_findings(page)]


if __name__ == "__main__":
    main()
