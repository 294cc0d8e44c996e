"""`make test` and `make demo` on machines that have less, each made on the spot and gone afterwards.

Without options the quick tests and a short demo on each, which two of them begin with an empty cache; `--full` runs
everything, with empty caches. A machine is a mount namespace of its own: its temporary folder, /dev/shm, home, cache
and all that is written to the checkout are in memory, no Docker engine is in sight, and nothing of the host is changed.
Needs root. Exits 1 if a machine fails; what was skipped there is listed at the end. The busy machine has a load of 20
on one core with `--full`, of 3 in a quick run. All quick runs together are meant to take five minutes: if they take
more, one line says so, since the host's own load decides that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests"))
from machine_processes import BUSY, BUSY_QUICK, TOKEN, busy, end, seal  # noqa: E402
from ordinary_user import UID, as_ordinary_user  # noqa: E402

from gymcp.paths import gymcp_home  # noqa: E402

QUICK_S, FULL_S, BUSY_FULL_S = 900, 3 * 3600, 8 * 3600
"""Seconds after which a machine has failed; the last in a full run of the busy one, whose tests take about five hours.
"""
ALL_QUICK_S = 300
"""Seconds that the quick runs of all machines are meant to take together. More is printed and is no failure: the time
depends on the host's speed and on what else it does, and a test must not fail for that."""
SPACE = "6g"
QUICK_TESTS = (
    "tests/mcp_servers/test_sandbox.py",
    "tests/store/test_run_folder.py",
    "tests/cli/test_doctor.py",
)
ENGINE_CONTROL = ("tests/adversarial/test_attempts.py::test_controls_work[root]",)
"""Needs an engine, or what stands in for one: without either it failed on such a machine."""
DEADLINES = ("tests/mcp_servers/test_event_loop.py", "tests/mcp_servers/test_session.py")
"""Servers that answer late, or never."""
DEMO_SUITE = "bfcl"
QUICK_DEMO = f"--only {DEMO_SUITE} --limit 2"
KEPT = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy")
KEPT_PREFIXES = ("PIP_", "UV_", "NPM_", "npm_")
PROGRAMS = ("java", "node", "npm", "npx", "chromium", "chromium-browser", "google-chrome", "apt-get")
APT = Path("/usr/bin/apt-get")
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
STREAMS = {"stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
SHOWN = 400
"""Lines of a command that failed."""
SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] (?:\S+: )?(.*)$", re.MULTILINE)
ENDED = re.compile(r"^=*\s*(\d+ (?:passed|failed|skipped|error).*?)\s*=*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    lacks: str
    prepare: Callable[[Path], None] = lambda _: None
    """Takes it away, as root in the machine's mount namespace; gets the folder that holds all that is written."""
    env: dict[str, str] = field(default_factory=dict)
    space: str = SPACE
    is_user: bool = False
    """An ordinary user without root's rights."""
    is_busy: bool = False
    """True for a machine with one core, which is kept busy."""
    installs_suite: bool = False
    """The short demo installs its suite from an empty cache; else it finds the host's install there."""
    quick_tests: tuple[str, ...] = QUICK_TESTS
    is_refused: str | None = None
    """Pattern of the one line with which `make test` and `make demo` must end; None if they must pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    machine: str
    wrong: list[str]
    """In words; empty if all is well."""
    seconds: float
    tests: str
    skipped: dict[str, int]


def hide_programs(stage: Path) -> None:
    """No node, no browser, and no way to install them: a package manager that refuses."""
    searched = {Path(folder).resolve() for folder in os.get_exec_path()}
    holding = {folder for folder in searched if any(os.path.lexists(folder / name) for name in PROGRAMS)}
    for folder in sorted({*holding, APT.parent}):  # in any case where the refusing one is written: never the host's
        kept = stage / "bin" / str(folder).strip("/").replace("/", "-")
        upper, work = kept / "upper", kept / "work"
        for made in (upper, work):
            made.mkdir(parents=True)
        for name in PROGRAMS:
            if os.path.lexists(folder / name):
                os.mknod(upper / name, stat.S_IFCHR, 0)  # a whiteout
        mount("-t", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", "overlay", str(folder))
    APT.write_text("#!/bin/sh\necho 'E: Unable to lock /var/lib/dpkg: Permission denied' >&2\nexit 100\n")
    APT.chmod(0o755)


def give_null_away(stage: Path) -> None:
    """/dev/null belongs to another; the nodes are this machine's own."""
    made = stage / "dev"
    made.mkdir()
    mount("-t", "tmpfs", "-o", "mode=755", "none", str(made))
    for name, number in NODES.items():
        os.mknod(made / name, stat.S_IFCHR | 0o666, os.makedev(*number))
        (made / name).chmod(0o666)
        os.chown(made / name, UID, UID)
    for name in ("pts", "shm"):
        (made / name).mkdir()
        mount("--rbind", f"/dev/{name}", str(made / name))
    for name, target in {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", **STREAMS}.items():
        (made / name).symlink_to(target)
    mount("--move", str(made), "/dev")


def freeze_cgroups(_: Path) -> None:
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for fields in lines:
        if fields[fields.index("-", 6) + 1] in ("cgroup", "cgroup2"):
            mount("-o", "remount,bind,ro", fields[4])


def freeze_home(stage: Path) -> None:
    mount("--bind", str(stage / "home"), str(stage / "home"))
    mount("-o", "remount,bind,ro", str(stage / "home"))


C_LOCALE = {"LANG": "C", "LC_ALL": "C"}
MACHINES = {
    "no_engine": Machine(lacks="a Docker engine", quick_tests=(*QUICK_TESTS, *ENGINE_CONTROL)),
    "no_node": Machine(lacks="node, Java, a browser, and the right to install them", prepare=hide_programs),
    "user": Machine(lacks="root", is_user=True),
    "foreign_null": Machine(lacks="a /dev/null of root's", prepare=give_null_away),
    "no_cgroups": Machine(lacks="cgroups that can be written", prepare=freeze_cgroups),
    "c_locale": Machine(lacks="a locale", env=C_LOCALE),
    "frozen_home": Machine(
        lacks="a home that can be written", prepare=freeze_home, env={"GYMCP_HOME": ""}, installs_suite=True
    ),
    "two_gigabytes": Machine(lacks="disk: 2 GB are left", space="2g"),
    "busy": Machine(
        lacks="time: its one core has a load of 20, or 3 for the quick tests",
        is_busy=True,
        quick_tests=DEADLINES,
    ),
    "bare": Machine(  # much of that at once
        lacks="root, an engine, node, a browser, a locale",
        prepare=hide_programs,
        env=C_LOCALE,
        is_user=True,
        installs_suite=True,
    ),
    "no_namespaces": Machine(
        lacks="user namespaces for ordinary users",
        is_user=True,
        is_refused=r"gymcp needs a sandbox: bwrap: .*namespaces are off: sysctl -w user\.max_user_namespaces=\d+.*",
    ),
}


# --------------------------------------------------------------------------------- inside a machine's mount namespace


def inside(name: str, stage: Path, full: bool, tests: str | None) -> Outcome:
    """Makes the machine out of this process's mount namespace and runs both commands there."""
    machine, began = MACHINES[name], time.monotonic()
    furnish(stage, machine)
    if not (full or tests or machine.installs_suite):
        copy_suite(stage)
    if machine.is_user:
        give_to_user(stage)
    machine.prepare(stage)
    wrong, text = [], ""
    with busy(BUSY if full else BUSY_QUICK, limit_s(machine, full, tests)) if machine.is_busy else nullcontext():
        for target, words in commands(machine, full, tests).items():
            done = subprocess.run(
                as_user(machine, ["make", "--silent", "-o", ".venv/.installed", target, *words], stage),
                cwd=CHECKOUT,
                env=environment(machine, stage),
                capture_output=True,
                text=True,
                check=False,
            )
            text += done.stdout
            wrong += objections(machine, target, done)
    skipped: Counter[str] = Counter()
    for number, why in SKIPPED.findall(text):
        skipped[why] += int(number)
    ended = ENDED.search(text)
    return Outcome(
        machine=name,
        wrong=wrong,
        seconds=time.monotonic() - began,
        tests=ended[1] if ended else "says what is missing" if machine.is_refused else "no tests",
        skipped=dict(skipped),
    )


def furnish(stage: Path, machine: Machine) -> None:
    """All that is written goes to `stage`, in memory; /run is shown without an engine's socket."""
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", f"mode=755,size={machine.space}", "none", str(stage))
    for folder in ("tmp", "shm", "home", "cache", "run", "upper", "work", "shown"):
        (stage / folder).mkdir()
    for folder in ("tmp", "shm"):
        (stage / folder).chmod(0o1777)
    for entry in Path("/run").iterdir():
        if "docker" in entry.name or "containerd" in entry.name or entry.is_symlink():
            continue
        target = stage / "run" / entry.name
        target.mkdir() if entry.is_dir() else target.touch()
        mount("--rbind", str(entry), str(target))
    mount("--rbind", str(stage / "run"), "/run")
    mount("--bind", str(stage / "shm"), "/dev/shm")
    options = f"lowerdir={CHECKOUT},upperdir={stage}/upper,workdir={stage}/work"
    mount("-t", "overlay", "-o", options, "overlay", str(CHECKOUT))
    for left in (".hypothesis", ".pytest_cache", "runs"):  # other runs in this checkout, by another user
        shutil.rmtree(CHECKOUT / left, ignore_errors=True)


def copy_suite(stage: Path) -> None:
    """The host's install of the demo's suite, if there is one: it takes longer than all else that a machine plays."""
    place = Path("suites", DEMO_SUITE)
    if (gymcp_home() / place).is_dir():
        shutil.copytree(gymcp_home() / place, stage / "cache" / place, symlinks=True)


def give_to_user(stage: Path) -> None:
    for path in (CHECKOUT, stage / "home", stage / "cache", *(stage / "cache").rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)


def environment(machine: Machine, stage: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    places = {"HOME": str(stage / "home"), "GYMCP_HOME": str(stage / "cache"), "TMPDIR": str(stage / "tmp")}
    found = {**kept, TOKEN: os.environ[TOKEN], "LANG": "C.UTF-8", **places, **machine.env}
    return {name: value for name, value in found.items() if value}


def commands(machine: Machine, full: bool, tests: str | None) -> dict[str, list[str]]:
    """Target of make -> its further words."""
    if tests is not None:
        return {"test": [f"TESTS={tests}"]}
    if full:
        return {"test": [], "demo": []}
    return {"test": [f"TESTS={' '.join(machine.quick_tests)}", "WORKERS=0"], "demo": [f"DEMO={QUICK_DEMO}"]}


def as_user(machine: Machine, argv: list[str], stage: Path) -> list[str]:
    if not machine.is_user:
        return argv
    argv = as_ordinary_user(argv, stage / "shown")
    return argv if machine.is_refused is None else [sys.executable, __file__, "--sealed", *argv]


def objections(machine: Machine, target: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make: ***")]
    wanted, ended = "pass", f"make {target} exits with {done.returncode}"
    if machine.is_refused is None:
        well = done.returncode == 0
    else:
        wanted = "say one line"
        well = done.returncode != 0 and len(said) == 1 and re.fullmatch(machine.is_refused, said[0]) is not None
    return [] if well else ["\n".join([f"{ended} and should {wanted}:", *said[-SHOWN:]])]


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, stdout=subprocess.DEVNULL)


# ----------------------------------------------------------------------------------------------------- on the host


def play_machine(name: str, full: bool, tests: str | None) -> Outcome:
    """The machine's outcome; whatever runs on it is ended, and its folder removed."""
    stage, token, began = Path(tempfile.mkdtemp(prefix="gymcp-m-")), secrets.token_hex(8), time.monotonic()
    stage.chmod(0o755)
    limit = limit_s(MACHINES[name], full, tests)
    argv = ["unshare", "--mount", sys.executable, __file__, "--inside", name, str(stage)]
    argv += [*(["--full"] if full else []), *([] if tests is None else ["--tests", tests])]
    process = subprocess.Popen(
        argv, env={**os.environ, TOKEN: token}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit)
        why = err.decode(errors="replace")[-3000:]
    except subprocess.TimeoutExpired:
        out, why = b"", f"it has not ended within {limit} s"
    finally:
        end(token)
        process.communicate()
        stage.rmdir()  # its content went with the namespace
    if process.returncode != 0 or not out:
        return Outcome(machine=name, wrong=[why], seconds=time.monotonic() - began, tests="", skipped={})
    return Outcome(**json.loads(out.splitlines()[-1]))


def limit_s(machine: Machine, full: bool, tests: str | None) -> int:
    if not (full or tests):
        return QUICK_S
    return BUSY_FULL_S if machine.is_busy else FULL_S


def run_all(names: Sequence[str], at_once: int, full: bool, tests: str | None) -> Iterator[Outcome]:
    """The machines' outcomes, those of the busy ones first, since they take longest."""
    with ThreadPoolExecutor(at_once) as threads:
        ordered = sorted(names, key=lambda name: not MACHINES[name].is_busy)
        yield from threads.map(lambda name: play_machine(name, full, tests), ordered)


def show(outcome: Outcome) -> None:
    state = "FAILED" if outcome.wrong else "ok"
    print(f"{state:<6} {outcome.machine:<14} {outcome.seconds:5.0f} s  {outcome.tests}", flush=True)
    for text in outcome.wrong:
        print("       " + text.replace("\n", "\n       "), flush=True)


def show_skipped(outcomes: Sequence[Outcome]) -> None:
    """Reason -> machines, for what could not be tested."""
    print("skipped, and why:")
    reasons = sorted({why for outcome in outcomes for why in outcome.skipped})
    for why in reasons:
        where = [f"{outcome.machine} ({outcome.skipped[why]})" for outcome in outcomes if why in outcome.skipped]
        print(f"  {why}: {', '.join(where)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run all tests and the whole demo")
    parser.add_argument("--tests", help="run these alone: words for pytest")
    parser.add_argument("--only", action="append", choices=MACHINES, help="make this machine alone; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the machines' names and end")
    parser.add_argument("--at-once", type=int, default=2, help="machines at the same time")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--sealed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sealed:
        seal(args.sealed)
    if args.inside:
        print(json.dumps(asdict(inside(args.inside[0], Path(args.inside[1]), args.full, args.tests))))
        return
    if args.list:
        print(*MACHINES, sep="\n")
        return
    if os.getuid() != 0:
        sys.exit("machines are made in mount namespaces: only root can make them")
    began, outcomes = time.monotonic(), []
    for outcome in run_all(args.only or list(MACHINES), args.at_once, args.full, args.tests):
        outcomes.append(outcome)
        if not args.json:
            show(outcome)
    took_s, is_quick = time.monotonic() - began, not (args.full or args.tests)
    print(f"{len(outcomes)} machines in {took_s:.0f} s", file=sys.stderr)
    if args.json:
        print(json.dumps({"machines": [asdict(outcome) for outcome in outcomes]}, indent=1))
    else:
        show_skipped(outcomes)
    if failed := [outcome.machine for outcome in outcomes if outcome.wrong]:
        sys.exit(f"machines: failed: {' '.join(failed)}")
    if is_quick and took_s > ALL_QUICK_S:
        print(f"machines: all passed, in more than the {ALL_QUICK_S} s that they are meant to take", file=sys.stderr)


if __name__ == "__main__":
    main()
