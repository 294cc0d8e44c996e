"""Time of the viewer's first paint, of its searches and of its orders with 10,000 episodes, in Chromium.

The baseline of each is the same page over a run of 100 episodes: the time of browser, server and machine by themselves.
First paint takes from the request for the address to the first visible rows; a search, from the last key to its rows;
an order, from its choice to its rows.

Then the list of 50 runs with 10,000 episodes in all; its baseline is a list of two runs of 100 episodes. A table takes
from the key to its first rows.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, StorageState, sync_playwright
from report_table import Result, against, options, show

from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Action, Message, Observation, Step, ToolCall, ToolResult, Trajectory, Usage

EPISODES, FEW, STEPS, BATCH = 10_000, 100, 10, 100
RUNS, FEW_RUNS = 50, 2
LIST_QUERIES = ("agent", "agent7", "-agent1", "no_such_word")
SORTS = ("-success", "model", "-model95", "started")
ORDERS = ("newest", "task", "score", "best", "steps", "tokens", "seconds")
TABLES = {"tasks x runs": ("m", ".gridrow"), "suites x models": ("s", ".suitetable tbody tr")}
"""Table of the list -> the key that opens it, and selector of its rows."""
QUERIES = ("refund", "task00", "is:failed tag:contact", '"order shipped"', "needle", "steps>5 -refund", "no_such_word")
WORDS = (
    "order", "customer", "refund", "shipped", "parcel", "ticket", "stock", "price", "city", "email", "paid", "open",
    "closed", "wanted", "missing", "agent", "policy", "article", "payment", "credit", "amount", "priority", "tier",
    "employee", "day", "list", "find", "cancel", "address", "note", "weight", "label",
)  # fmt: skip

_PAINT = """
() => new Promise(done => {
  const look = () => document.querySelector('.row')
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : setTimeout(look, 1);
  look();
})
"""
_SEARCH = """
query => new Promise(done => {
  const search = document.getElementById('search'), found = document.getElementById('found');
  found.dataset.for = '\\u0000';
  search.value = query;
  const began = performance.now();
  search.dispatchEvent(new Event('input'));
  const look = () => found.dataset.for === query
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""


_ORDER = """
order => new Promise(done => {
  const select = document.querySelector('#selects select[aria-label="order"]');
  const found = document.getElementById('found');
  found.dataset.for = '\\u0000';
  select.value = order;
  const began = performance.now();
  select.dispatchEvent(new Event('change'));
  const look = () => found.dataset.for === ''
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""
_LISTED = """
() => new Promise(done => {
  const look = () => document.querySelector('.runtable tbody tr')
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : setTimeout(look, 1);
  look();
})
"""
_SORT = """
order => new Promise(done => {
  const select = document.getElementById('order'), found = document.getElementById('found');
  select.value = order;
  const began = performance.now();
  select.dispatchEvent(new Event('change'));
  const look = () => found.dataset.sort === order
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""
_TABLE = """
([key, rows]) => new Promise(done => {
  const began = performance.now();
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  const look = () => document.querySelector(rows)
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""


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
    return page, float(page.evaluate(_PAINT)) / 1000


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
        for query in QUERIES:
            times = []
            for _ in range(rounds):
                times.append(float(warm.evaluate(_SEARCH, query)) / 1000)
                warm.evaluate(_SEARCH, "")  # the same query again would change nothing
            found[f"search {query}"] = statistics.median(times)
        for order in ORDERS:
            times = []
            for _ in range(rounds):
                times.append(float(warm.evaluate(_ORDER, order)) / 1000)
                warm.evaluate(_ORDER, "")
            found[f"order {order}"] = statistics.median(times)
    return found


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
            paints.append(float(again.evaluate(_LISTED)) / 1000)
        found = {"start": started, "first paint": statistics.median(paints), "all runs read": read}
        for script, values, name in ((_SEARCH, LIST_QUERIES, "filter"), (_SORT, SORTS, "sort")):
            for value in values:
                times = []
                for _ in range(rounds):
                    times.append(float(again.evaluate(script, value)) / 1000)
                    again.evaluate(script, "")
                found[f"{name} {value}"] = statistics.median(times)
        for table, asked in TABLES.items():
            found[table] = float(again.evaluate(_TABLE, asked)) / 1000
    return found


def main() -> None:
    parser = options(__doc__, "2,000 episodes, fewer rounds")
    parser.add_argument("--only", choices=("run", "list"), help="measure one run, or the list of runs; default: both")
    args = parser.parse_args()
    many, rounds = (2_000, 3) if args.quick else (EPISODES, 5)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("viewer: no chromium: apt-get install chromium")
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        top = Path(scratch)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        if args.only in (None, "run"):
            folders = write(top / "many", many), write(top / "few", FEW)
            found, baseline = (measure(browser, folder, rounds) for folder in folders)
            results += compare("", found, baseline, slowest=("search ", "order "))
        if args.only in (None, "list"):
            folders = write_list(top / "runs", RUNS, many // RUNS), write_list(top / "few runs", FEW_RUNS, FEW)
            found, baseline = (measure_list(browser, folder, rounds) for folder in folders)
            results += compare("list: ", found, baseline, slowest=("filter ", "sort "))
        browser.close()
    title = (
        f"{many:,} episodes, in one run and in {RUNS}; targets: first paint 1,000 ms, search, filter and order 200 ms"
    )
    show("viewer", results, as_json=args.json, title=title, also=f", {many:,} episodes")


def compare(
    prefix: str, found: Mapping[str, float], baseline: Mapping[str, float], *, slowest: Sequence[str]
) -> list[Result]:
    """The metrics beside their baselines, and of each kind in `slowest`, a beginning of names, the slowest."""
    results = [beside(prefix + name, found[name], baseline[name]) for name in found]
    for kind in slowest:
        name = max((name for name in found if name.startswith(kind)), key=lambda each: found[each])
        results.append(beside(f"{prefix}slowest {kind.strip()}", found[name], baseline[name]))
    return results


def beside(metric: str, seconds: float, few: float) -> Result:
    """The metric in milliseconds, with its ratio to the run of `FEW` episodes."""
    return against(metric, seconds * 1e3, "ms", Result(metric=f"{FEW} episodes", value=few * 1e3, unit="ms"))


if __name__ == "__main__":
    main()
