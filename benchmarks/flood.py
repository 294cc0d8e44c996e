"""The cost of a flooding server for the episodes beside it: the share of their calls that they lose.

Honest servers are called without a pause on one event loop. Beside them is, in turns, a server that is idle, one that
only computes, and one that floods; where a flood ends its session, another is opened at once, and counted. Three
figures for each flood:

* calls lost against a server that computes: what the messages cost, since both servers take a core of the machine;
* calls lost against an idle server: that, and what the flooding server's own processor time costs on this machine;
* the event loop's processor time that is spent for the flooding server, as a share of the clock's. It is measured in
  every callback of the loop, by the server for which it was made; time between callbacks is divided by their number.
  So other load on the machine changes this figure less than the others. Beside it: what of that time was charged to
  the server's share. From 1 on, the share holds.

With ``--keep`` each flood is written into results/flood.json as soon as it is measured, beside those of earlier runs;
typed again with the same code it goes on with the floods that are left. Let nothing else run. Exit code 1 if the first
or the third is above a tenth for any flood of this run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flood_server import FLOODS, LISTS
from parts import RESULTS, Part, keep_part, list_left, make_part, read_parts, show_parts
from report_table import Result, options

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.loop_share import LoopShare
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import ToolCall

IDLE, COMPUTE, SHARE = "idle", "compute", "share"
NEW_WIRE = " on 2026-07-28"
"""End of the name of a flood on the wire of that version, on which calls go past the SDK's client."""
KINDS = (
    *(kind for kind in (*FLOODS, *LISTS) if kind not in (COMPUTE, "usual_list")),
    *(f"{kind}{NEW_WIRE}" for kind in ("fewer_blocks", "fewer_floats", "escapes", "long_text", "deep", "requests")),
)
SECRET = 'sk/Live+"x<y>&q==7Zq'
"""A secret of the server, with characters that encodings change, so that it is searched in 20 forms."""
MAX_LOST = 0.10
"""Largest share of the honest servers' calls, and of the loop's time, that a flood may cost."""
HONEST_SERVERS = 4
"""Servers that are called at the same time, which leaves the loop no pause."""
WARM_UP_S = 0.5
"""Seconds that a flood runs before the calls beside it are counted."""


_in_flood = contextvars.ContextVar("in_flood", default=False)
"""True in the tasks of the server that floods, and in their callbacks."""


class Adder:
    """An honest server, whose state is one number."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def add(self, number: int) -> int:
        """Add a number."""
        self.total += number
        return self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Calls of the honest servers beside another one, summed over rounds."""

    calls: int = 0
    seconds: float = 0.0
    other_s: float = 0.0
    """Processor time of the loop's thread for the other server."""
    charged_s: float = 0.0
    """Time that was charged to the other server's share."""
    longest_ms: float = 0.0
    opened: int = 0
    """Sessions with the other server."""

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def __add__(self, other: Beside) -> Beside:
        return Beside(
            calls=self.calls + other.calls,
            seconds=self.seconds + other.seconds,
            other_s=self.other_s + other.other_s,
            charged_s=self.charged_s + other.charged_s,
            longest_ms=max(self.longest_ms, other.longest_ms),
            opened=self.opened + other.opened,
        )


def main() -> None:
    parser = options(__doc__, "3 s of each flood instead of three times 5")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--sandbox", default="bwrap")
    parser.add_argument("--keep", action="store_true", help="add each flood to results/flood.json when it is measured")
    args = parser.parse_args()
    if args.keep and args.quick:
        parser.error("--keep is for full runs: leave --quick out")
    sandbox = get_sandbox(args.sandbox)
    sandbox.check()
    kinds = args.kind or (_list_left() if args.keep else KINDS)
    parts = asyncio.run(_measure(sandbox, kinds, *((1, 3.0) if args.quick else (3, 5.0)), keep=args.keep))
    show_parts("flood", read_parts(RESULTS / "flood.json") if args.keep else parts, as_json=args.json)
    results = [result for part in parts.values() for result in part.results if result.unit == SHARE]
    if not results:
        return
    worst = max(results, key=lambda result: result.value)
    if worst.value > MAX_LOST:
        print(f"flood: {worst.metric}: {worst.value:.3f}; at most {MAX_LOST} is allowed", file=sys.stderr)
        if not args.quick:
            raise SystemExit(1)


def _list_left() -> list[str]:
    left = list_left("flood", [_name_part(kind) for kind in KINDS])
    return [kind for kind in KINDS if _name_part(kind) in left]


def _name_part(kind: str) -> str:
    return kind.replace("_", " ")


async def _measure(sandbox: Sandbox, kinds: Sequence[str], rounds: int, for_s: float, *, keep: bool) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    async with open_warm_sandbox(sandbox) as warm, contextlib.AsyncExitStack() as stack:
        spec = native_server("adder", Adder, start="fork")
        honest = [
            await stack.enter_async_context(open_session(spec, warm, initial_state={}, seed=number))
            for number in range(HONEST_SERVERS)
        ]
        for kind in kinds:
            idle = computing = flooding = Beside()
            for _ in range(rounds):  # in turns, since the load of the machine changes
                idle += await _play_beside(honest, warm, IDLE, for_s)
                computing += await _play_beside(honest, warm, COMPUTE, for_s)
                flooding += await _play_beside(honest, warm, kind, for_s)
            name = _name_part(kind)
            parts[name] = make_part(_describe(name, idle, computing, flooding))
            if keep:
                keep_part("flood", name, parts[name])
    return parts


def _describe(flood: str, idle: Beside, computing: Beside, flooding: Beside) -> list[Result]:
    return [
        _lost(f"calls lost beside {flood}", SHARE, flooding, computing, "a server that computes"),
        _lost(
            f"calls lost beside {flood}, its own processor time included", "of all", flooding, idle, "an idle server"
        ),
        Result(metric=f"time of the loop taken by {flood}", value=flooding.other_s / flooding.seconds, unit=SHARE),
        Result(
            metric=f"charged to {flood}", value=flooding.charged_s / flooding.other_s, unit="of its time on the loop"
        ),
        Result(metric=f"longest call beside {flood}", value=flooding.longest_ms, unit="ms"),
        Result(metric=f"sessions of {flood}", value=flooding.opened, unit="opened"),
    ]


def _lost(metric: str, unit: str, flooding: Beside, quiet: Beside, beside: str) -> Result:
    ratio = flooding.rate / quiet.rate
    baseline = f"calls/s beside {beside}"
    return Result(metric=metric, value=1 - ratio, unit=unit, baseline=baseline, baseline_value=quiet.rate, ratio=ratio)


async def _play_beside(honest: Sequence[ToolSession], sandbox: Sandbox, kind: str, for_s: float) -> Beside:
    """Call the honest servers, each again and again, beside a server of that kind."""
    opened: list[str] = []
    other = asyncio.create_task(_keep_open(sandbox, kind, WARM_UP_S + for_s, opened))
    await asyncio.sleep(WARM_UP_S)
    began = time.perf_counter()
    with _meter_callbacks() as meter:
        counts = await asyncio.gather(*(_calls(session, began + for_s) for session in honest))
    seconds = time.perf_counter() - began
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    calls, longest = sum(count for count, _ in counts), max(longest for _, longest in counts)
    return Beside(
        calls=calls,
        seconds=seconds,
        other_s=meter.other_s,
        charged_s=meter.charged_s,
        longest_ms=1e3 * longest,
        opened=len(opened),
    )


class _Meter:
    """Processor time of the loop's callbacks, by whether they belong to the flooding server."""

    def __init__(self) -> None:
        self._spent_s = {True: 0.0, False: 0.0}
        self._callbacks = {True: 0, False: 0}
        self._began = time.thread_time()
        self.other_s = 0.0
        self.charged_s = 0.0

    def run(self, handle: asyncio.Handle) -> None:
        began = time.thread_time()
        _run_plain(handle)
        in_flood = bool(handle._context.get(_in_flood))  # type: ignore[attr-defined]
        self._spent_s[in_flood] += time.thread_time() - began
        self._callbacks[in_flood] += 1

    def charge(self, share: LoopShare, seconds: float) -> None:
        _charge_plain(share, seconds)
        if _in_flood.get():
            self.charged_s += seconds

    def stop(self) -> None:
        between_s = time.thread_time() - self._began - sum(self._spent_s.values())
        self.other_s = self._spent_s[True] + between_s * self._callbacks[True] / sum(self._callbacks.values())


_run_plain, _charge_plain = asyncio.Handle._run, LoopShare.charge


@contextlib.contextmanager
def _meter_callbacks() -> Iterator[_Meter]:
    meter = _Meter()

    def run(handle: asyncio.Handle) -> None:
        meter.run(handle)

    def charge(share: LoopShare, seconds: float) -> None:
        meter.charge(share, seconds)

    asyncio.Handle._run = run  # type: ignore[assignment, method-assign]
    LoopShare.charge = charge  # type: ignore[assignment, method-assign]
    try:
        yield meter
    finally:
        asyncio.Handle._run = _run_plain  # type: ignore[method-assign]
        LoopShare.charge = _charge_plain  # type: ignore[method-assign]
        meter.stop()


async def _calls(session: ToolSession, until: float) -> tuple[int, float]:
    count, longest = 0, 0.0
    while (began := time.perf_counter()) < until:
        await session.call_tool(ToolCall(id="", name="add"), {"number": 1}, timeout_s=60.0)
        longest = max(longest, time.perf_counter() - began)
        count += 1
    return count, longest


async def _keep_open(sandbox: Sandbox, kind: str, for_s: float, opened: list[str]) -> None:
    """Have a server of that kind, and another whenever it is lost; each is added to `opened`."""
    _in_flood.set(True)
    kind, new_wire, _ = kind.partition(NEW_WIRE)
    spec = replace(native_server("flood", "flood_server"), state="opaque", wire="legacy")
    if new_wire:
        spec = replace(spec, state="declared", wire="2026-07-28")
    if kind == "repeated_secret":
        spec = replace(spec, env={**spec.env, "FLOOD_SECRET": SECRET}, secrets={SECRET: "${FLOOD_SECRET}"})
    if kind in LISTS:
        spec = replace(spec, env={**spec.env, "FLOOD_LIST": kind})
    while True:
        opened.append(kind)
        with contextlib.suppress(EnvInfraError):
            async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
                while kind in FLOODS:
                    await session.call_tool(ToolCall(id="", name=kind), {"for_s": for_s}, timeout_s=60.0)
                if kind == IDLE:
                    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
