"""Time of the viewer's first paint, of its searches and of its orders with 10,000 episodes, in Chromium.

The baseline of each is the same page over a run of 100 episodes: the time of browser, server and machine by themselves.
First paint takes from the request for the address to the first visible rows; a search, from the last key to its rows;
an order, from its choice to its rows.

Then the list of 50 runs with 10,000 episodes in all; its baseline is a list of two runs of 100 episodes. A table takes
from the key to its first rows.

The same of exports of all their episodes, opened from the disk; and the report of 10,000 episodes, whose first paint
takes until all of it is laid out. How long export and report take to write is told, too; no target is set for that.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import viewer_timing
from playwright.sync_api import Browser, Page, StorageState, sync_playwright
from report_table import Result, against, options, show
from viewer_timing import time_values

from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Action, Message, Observation, Step, ToolCall, ToolResult, Trajectory, Usage

EPISODES, FEW, STEPS, BATCH = 10_000, 100, 10, 100
RUNS, FEW_RUNS = 50, 2
LIST_QUERIES = ("agent", "agent7", "-agent1", "no_such_word")
SORTS = ("-success", "model", "-model95", "started")
TYPING_MS = 1000
KINDS = ("search", "order", "filter", "sort")
"""First words of the metrics of which the slowest is told."""
ORDERS = ("newest", "task", "score", "best", "steps", "tokens", "seconds")
TABLES = {"tasks x runs": ("m", ".gridrow"), "suites x models": ("s", ".suitetable tbody tr")}
"""Table of the list -> the key that opens it, and selector of its rows."""
Measure = Callable[[Browser, Path, int], dict[str, float]]
"""Function of a browser, a folder and a number of rounds: what was measured -> seconds."""
QUERIES = ("refund", "task00", "is:failed tag:contact", '"order shipped"', "needle", "steps>5 -refund", "no_such_word")
WORDS = (
    "order", "customer", "refund", "shipped", "parcel", "ticket", "stock", "price", "city", "email", "paid", "open",
    "closed", "wanted", "missing", "agent", "policy", "article", "payment", "credit", "amount", "priority", "tier",
    "employee", "day", "list", "find", "cancel", "address", "note", "weight", "label",
)  # fmt: skip


def write(folder: Path, episodes: int) -> Path:
    """A run of that many episodes of `STEPS` steps on average, written through the real store."""
    draw = random.Random(0)

    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    config = {"env": "shop", "suite": "shop", "agent": "synthetic"}
    with create_run(folder, config, seeds=[0]), TrajectoryStore.open(folder, write=True) as store:
        for start in range(0, episodes, BATCH):
            store.append_many(
                (episode(n, draw, words), {}, (draw.choice(("contact", "refund", "stock")), f"level {n % 5}"))
                for n in range(start, min(start + BATCH, episodes))
            )
    return folder


def episode(n: int, draw: random.Random, words: Callable[[int], str]) -> Trajectory:
    """One of four trials of its task; one episode in a thousand has the needle in its reason."""
    steps = tuple(step(number, words) for number in range(draw.randint(1, 2 * STEPS - 1)))
    score = float(draw.random() < 0.6)
    needle = " needle" if n % 1000 == 7 else ""
    return Trajectory(
        id=f"{n:032x}",
        env="shop",
        task=f"task{n // 4:05}",
        trial=n % 4,
        group=f"shop/task{n // 4:05}",
        steps=steps,
        score=score,
        reason=("solved" if score else f"order {n} is open, wanted paid") + needle,
        usage=Usage(tool_calls=len(steps), wall_s=draw.random(), tools={"find_order": {"calls": 1}}),
    )


def step(number: int, words: Callable[[int], str]) -> Step:
    """A call and its result, with some 60 words of text."""
    call = ToolCall(id=str(number), name="find_order", arguments={"words": words(6)})
    return Step(
        turn=0,
        observation=Observation(messages=(Message(role="user", content=words(12)),) if number == 0 else (), tools=()),
        action=Action(text=words(8), tool_calls=(call,)),
        results=(ToolResult(call_id=str(number), content=words(45), seconds=0.01),),
        state_key=f"s{number}",
    )


@contextmanager
def run_viewer(folder: Path) -> Iterator[tuple[str, float]]:
    """The address of a viewer, and the seconds until it printed the address."""
    began = time.perf_counter()
    command = [str(Path(sys.executable).with_name("gymcp")), "view", "--no-open", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = next(line.strip() for line in process.stdout if line.startswith("http"))
        yield address, time.perf_counter() - began
    finally:
        process.send_signal(2)
        process.communicate(timeout=60)


def enter(browser: Browser, address: str) -> tuple[str, StorageState]:
    """The address of the viewer's first page and its cookie: the printed address can be opened only once."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.locator(".row").first.wait_for(timeout=120_000)
    return page.url, context.storage_state()


def first_paint(browser: Browser, url: str, cookie: StorageState) -> tuple[Page, float]:
    """A page that shows rows, and the seconds from the request for it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, storage_state=cookie)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(url, wait_until="commit")
    return page, float(page.evaluate(viewer_timing.PAINT)) / 1000


def measure(browser: Browser, folder: Path, rounds: int) -> dict[str, float]:
    """Median seconds of a first paint, of each query and of each order, and the seconds until every transcript can be
    searched."""
    with run_viewer(folder) as (address, started):
        url, cookie = enter(browser, address)
        paints = [first_paint(browser, url, cookie) for _ in range(rounds)]
        began = time.perf_counter()
        page = paints[-1][0]
        indexed = "async () => { const a = await (await fetch('api/about')).json(); return a.searchable >= a.indexed }"
        while not page.evaluate(indexed):
            page.wait_for_timeout(200)
            if time.perf_counter() - began > 600:
                raise SystemExit("the transcripts are not searchable after ten minutes")
        found = {"start": started, "first paint": statistics.median(seconds for _, seconds in paints)}
        found["transcripts searchable"] = time.perf_counter() - began
        warm, _ = first_paint(browser, url, cookie)
        found |= time_episodes(warm, rounds)
    return found


def time_episodes(page: Page, rounds: int) -> dict[str, float]:
    """Median seconds of each query and of each order of a run's page."""
    searches = time_values(page, viewer_timing.SEARCH, QUERIES, rounds)
    orders = time_values(page, viewer_timing.ORDER, ORDERS, rounds)
    return {f"search {query}": each for query, each in searches.items()} | {
        f"order {order}": each for order, each in orders.items()
    }


def write_list(folder: Path, runs: int, episodes: int) -> Path:
    """A folder of that many runs: copies of one, whose records name other agents."""
    first = write(folder / "run00", episodes)
    for n in range(1, runs):
        copy = folder / f"run{n:02}"
        shutil.copytree(first, copy)
        record = json.loads((copy / "run.json").read_text())
        record["config"]["agent"] = f"agent{n}"
        (copy / "run.json").write_text(json.dumps(record))
    return folder


def measure_list(browser: Browser, folder: Path, rounds: int) -> dict[str, float]:
    """Median seconds of a first paint, of filters, orders and tables, and the seconds until all runs are read."""
    with run_viewer(folder) as (address, started):
        began = time.perf_counter()
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.locator(".runtable tbody tr").first.wait_for(timeout=120_000)
        cookie, paints = context.storage_state(), []
        while page.evaluate("async () => (await (await fetch('api/runs')).json()).unread"):
            page.wait_for_timeout(50)
        read = time.perf_counter() - began
        for _ in range(rounds):
            again = browser.new_context(viewport={"width": 1280, "height": 800}, storage_state=cookie).new_page()
            again.goto(page.url, wait_until="commit")
            paints.append(float(again.evaluate(viewer_timing.LISTED)) / 1000)
        found = {"start": started, "first paint": statistics.median(paints), "all runs read": read}
        found |= time_list(again, rounds)
    return found


def time_list(page: Page, rounds: int) -> dict[str, float]:
    """Median seconds of each filter and order of the list of runs, and seconds of its tables."""
    filters = time_values(page, viewer_timing.SEARCH, LIST_QUERIES, rounds)
    sorts = time_values(page, viewer_timing.SORT, SORTS, rounds)
    tables = {table: float(page.evaluate(viewer_timing.TABLE, asked)) / 1000 for table, asked in TABLES.items()}
    return (
        {f"filter {query}": each for query, each in filters.items()}
        | {f"sort {order}": each for order, each in sorts.items()}
        | tables
    )


def open_file(browser: Browser, file: Path, script: str, rounds: int) -> tuple[Page, float]:
    """A page from the disk, opened in a new context each time, and the median seconds until it is seen."""
    paints = []
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(file.as_uri(), wait_until="commit")
        paints.append(float(page.evaluate(script)) / 1000)
    return page, statistics.median(paints)


def measure_export(browser: Browser, folder: Path, rounds: int) -> dict[str, float]:
    """Seconds of an export of all episodes, and of its run's page: first paint, the first search, each query and
    order. The texts are loaded when the search field is entered; a word typed in it takes about a second."""
    out = folder.parent / f"pages of {folder.name}"
    written = run_gymcp("view", folder, "--export", out, "--limit", "0")
    file = next(out.glob("runs/*/index.html"))
    page, paint = open_file(browser, file, viewer_timing.PAINT, rounds)
    at_once = float(page.evaluate(viewer_timing.SEARCH, "first search")) / 1000
    page, _ = open_file(browser, file, viewer_timing.PAINT, 1)
    page.locator("#search").click()
    page.wait_for_timeout(TYPING_MS)
    typed = float(page.evaluate(viewer_timing.SEARCH, "first search")) / 1000
    found = {"written": written, "first paint": paint, "first query, without a moment to load": at_once}
    return found | {"search, the first, typed in a second": typed} | time_episodes(page, rounds)


def measure_exported_list(browser: Browser, folder: Path, rounds: int) -> dict[str, float]:
    """Seconds of an export of all episodes of several runs, and of its list: first paint, each filter, order, table."""
    out = folder.parent / f"pages of {folder.name}"
    written = run_gymcp("view", folder, "--export", out, "--limit", "0")
    page, paint = open_file(browser, out / "index.html", viewer_timing.LISTED, rounds)
    return {"written": written, "first paint": paint} | time_list(page, rounds)


def measure_report(browser: Browser, folder: Path, rounds: int) -> dict[str, float]:
    """Seconds of a run's report, and until the browser shows all of it: it has no script, so nothing to search."""
    written = run_gymcp("report", folder)
    _, paint = open_file(browser, folder / "report.html", viewer_timing.SHOWN, rounds)
    return {"written": written, "first paint": paint}


def run_gymcp(*words: str | Path) -> float:
    """Seconds of a command."""
    began = time.perf_counter()
    command = [Path(sys.executable).with_name("gymcp"), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


RUN_PARTS: Mapping[str, Measure] = {"run": measure, "export": measure_export, "report": measure_report}
LIST_PARTS: Mapping[str, Measure] = {"list": measure_list, "exported list": measure_exported_list}


def main() -> None:
    parser = options(__doc__, "2,000 episodes, fewer rounds")
    parser.add_argument("--only", choices=(*RUN_PARTS, *LIST_PARTS), help="part to measure; default: all")
    args = parser.parse_args()
    many, rounds = (2_000, 3) if args.quick else (EPISODES, 5)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("viewer: no chromium: apt-get install chromium")
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        top = Path(scratch)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        if args.only is None or args.only in RUN_PARTS:
            folders = write(top / "many", many), write(top / "few", FEW)
            for part in (args.only,) if args.only else RUN_PARTS:
                found, baseline = (RUN_PARTS[part](browser, folder, rounds) for folder in folders)
                results += compare("" if part == "run" else f"{part}: ", found, baseline)
        if args.only is None or args.only in LIST_PARTS:
            folders = write_list(top / "runs", RUNS, many // RUNS), write_list(top / "few runs", FEW_RUNS, FEW)
            for part in (args.only,) if args.only else LIST_PARTS:
                found, baseline = (LIST_PARTS[part](browser, folder, rounds) for folder in folders)
                results += compare(f"{part}: ", found, baseline)
        browser.close()
    title = (
        f"{many:,} episodes, in one run and in {RUNS}; targets: first paint 1,000 ms, search, filter and order 200 ms"
    )
    show("viewer", results, as_json=args.json, title=title, also=f", {many:,} episodes")


def compare(prefix: str, found: Mapping[str, float], baseline: Mapping[str, float]) -> list[Result]:
    """The metrics beside their baselines, and of each of `KINDS`, a beginning of names, the slowest."""
    results = [beside(prefix + name, found[name], baseline[name]) for name in found]
    for kind in KINDS:
        if names := [name for name in found if name.startswith(f"{kind} ")]:
            name = max(names, key=lambda each: found[each])
            results.append(beside(f"{prefix}slowest {kind}", found[name], baseline[name]))
    return results


def beside(metric: str, seconds: float, few: float) -> Result:
    """The metric in milliseconds, with its ratio to the run of `FEW` episodes."""
    return against(metric, seconds * 1e3, "ms", Result(metric=f"{FEW} episodes", value=few * 1e3, unit="ms"))


if __name__ == "__main__":
    main()
