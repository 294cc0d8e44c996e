"""`make pictures`: the pictures of the pages, taken in Chromium from real runs of the demo, light and dark.

`--runs FOLDER` names the runs of a demo that was played already; without it, one is played into a temporary folder.
`--check` (`make pictures-check`) takes none, and names those whose page may look otherwise by now. That is no error:
else a change of a style sheet that no picture shows would cost a demo of minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
MANIFEST = PICTURES / "pictures.json"
"""By file name, the digests of the picture's shot, which `tests/test_pictures.py` compares, and of the page's look."""
VIEWER_LOOK = ("evaluators/viewer/static/*.*",)
REPORT_LOOK = ("evaluators/report/*.css", "evaluators/report/*page.py", "evaluators/report/curves.py")
TRAINING = ("trainers/recipe/demo.toml",)
"""Files that decide what a page shows and how it looks, as globs; the last are of pages on the demo's training."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
QUALITY = 80
TIMEOUT_MS = 60_000
GYMCP = Path(sys.executable).with_name("gymcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture: what is opened, what is done there, and how much of the page is taken."""

    name: str
    opens: str
    """Path in the demo's folder: a report, or a run or folder of runs for the viewer."""
    ready: str
    """Selector of an element that is there once the page can be taken."""
    search: str = ""
    """Words for the viewer's search field."""
    clicks: tuple[str, ...] = ()
    """Selectors of elements to click, in order."""
    top: str = ""
    """Selector of the element that the picture begins at; empty: the top of the page."""
    width: int = 1200
    height: int = 760

    @property
    def digest(self) -> str:
        """Digest of the shot: a shot that is changed needs another picture."""
        return hashlib.sha256(json.dumps([asdict(self), QUALITY], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def look(self) -> str:
        """Digest of the files that decide how the page looks: a picture with another one may be older than its page."""
        found = hashlib.sha256()
        patterns: tuple[str, ...] = REPORT_LOOK if self.opens.endswith(".html") else VIEWER_LOOK
        patterns += TRAINING if self.opens.startswith("train") else ()
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
        return found.hexdigest()[:12]


SHOTS = (
    Shot(name="report", opens="tiny-level-2/report.html", ready="svg"),
    Shot(name="training-report", opens="train/report.html", ready="svg"),
    Shot(name="viewer-runs", opens=".", ready="tr:last-child td[data-label='decision p50'] [title]", height=460),
    Shot(name="viewer-episode", opens="tiny-level-2", ready=".step", search="is:failed calls>2", clicks=(".row",)),
    Shot(name="viewer-training", opens="train", ready="#detail svg"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="folder of a demo; default: one is played")
    parser.add_argument("--only", help="name of the shot to take; default: all")
    parser.add_argument("--check", action="store_true", help="name the pictures that may be older than their page")
    options = parser.parse_args()
    if options.check:
        for name in list_stale(json.loads(MANIFEST.read_text())):
            print(f"warning: {PICTURES.relative_to(ROOT) / name}: its page has changed since then: make pictures")
        return
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("screenshots: no chromium: apt-get install chromium")
    shots = [shot for shot in SHOTS if options.only in (None, shot.name)]
    if not shots:
        raise SystemExit(f"screenshots: no shot '{options.only}'; have {', '.join(shot.name for shot in SHOTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        runs = options.runs or play_demo(Path(scratch))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
            sizes = {name: size for shot in shots for name, size in take(browser, shot, runs).items()}
            browser.close()
    digests = json.loads(MANIFEST.read_text()) if MANIFEST.exists() and options.only else {}
    digests |= make_manifest(shots)
    MANIFEST.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
    for name, size in sizes.items():
        print(f"{PICTURES.relative_to(ROOT) / name}  {size / 1000:.0f} kB")


def make_manifest(shots: Iterable[Shot]) -> dict[str, dict[str, str]]:
    """The manifest's entries of pictures that are taken now."""
    return {file_name(shot, scheme): {"shot": shot.digest, "look": shot.look} for shot in shots for scheme in SCHEMES}


def list_stale(manifest: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Names of the pictures whose page looks otherwise than when they were taken."""
    return [name for name, now in make_manifest(SHOTS).items() if manifest.get(name, {}).get("look") != now["look"]]


def play_demo(folder: Path) -> Path:
    """Folder of the runs of a whole demo."""
    subprocess.run([GYMCP, "demo", "--out", folder / "runs"], check=True)
    return folder / "runs"


def file_name(shot: Shot, scheme: str) -> str:
    return f"{shot.name}-{scheme}.webp"


def take(browser: Browser, shot: Shot, runs: Path) -> dict[str, int]:
    """File name -> bytes of the two pictures of a shot, which are written."""
    PICTURES.mkdir(exist_ok=True)
    sizes = {}
    for scheme in SCHEMES:
        with open_address(runs, shot.opens) as address:
            viewport = {"width": shot.width, "height": shot.height}
            page = browser.new_page(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
            page.set_default_timeout(TIMEOUT_MS)
            page.goto(address)
            data = photograph(page, shot)
            page.close()
        path = PICTURES / file_name(shot, scheme)
        Image.open(io.BytesIO(data)).convert("RGB").save(path, "WEBP", quality=QUALITY, method=6)
        sizes[path.name] = path.stat().st_size
    return sizes


def photograph(page: Page, shot: Shot) -> bytes:
    """The page as a PNG, after what the shot does there."""
    if shot.search:
        page.locator(".row").first.wait_for()  # else the page overwrites the search with that of its address
        page.locator("#search").fill(shot.search)
        page.locator(f"#found[data-for={json.dumps(shot.search)}]").wait_for()
    for selector in shot.clicks:
        page.locator(selector).first.click()
    page.locator(shot.ready).first.wait_for()
    if shot.top:
        page.locator(shot.top).first.evaluate("each => each.scrollIntoView()")
    page.wait_for_load_state("networkidle")
    return page.screenshot()


@contextmanager
def open_address(runs: Path, opens: str) -> Iterator[str]:
    """Address of a report, or of a viewer of the runs, which is ended as by Ctrl-C."""
    if opens.endswith(".html"):
        yield (runs / opens).resolve().as_uri()
        return
    command = [str(GYMCP), "view", "--no-open", opens]
    # in that folder, so that no picture shows where it lies on this machine
    with subprocess.Popen(command, cwd=runs, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if line.startswith("http://"))
        finally:
            process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
