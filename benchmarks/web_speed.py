"""What `flopwise web` takes: start, questions a second, a page's first paint and its answer, and a rough afternoon.

`python benchmarks/web_speed.py [--requests N] [--pages]`, on loopback, with chromium where it is installed; `--pages`:
start, first paints and changed fields alone. Targets: start below 1 s, first paint below 300 ms, plans within 1 s, a
changed field answered within 500 ms (median), three plans from the start page
in under three minutes each (`tests/web/journeys.py`). It fails where the mixed requests, slow readers and aborted
uploads among them, leave one without an answer or with one of 5xx, where memory grows over them by more than
`GROWS_BYTES`, and where the server answers no more.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent
PLAN = {"workload": "Llama-3.1-8B", "task": "serve", "simulate": False, "gpu": ["l4", "l40s"], "provider": ["aws"]}
MIXED = (
    ("memory", {"model": "Llama-3.1-8B", "gpu": "h100"}),
    ("serve", {"model": "Llama-3.1-8B", "gpu": "l40s", "rate": 2}),
    ("gpus", {"vendor": "AMD"}),
    ("train", {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 64}),
    ("memory", {"model": "no such model"}),
)
PATHS = ("/plan", "/estimate", "/serve", "/fleet", "/runs", "/catalog")
REPEATS = 3
SLOWEST_MS = 90_000
ANSWERED_S = 60.0
"""In which each of the mixed requests has to be answered."""
GROWS_BYTES = 64 * 2**20
"""By how much the memory of the server and its processes may grow over requests that were all asked before."""
HANGS, FAILS = "no answer in time", "no answer"
FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
ANSWERED = "#results:not([aria-busy]) table"
LISTEN = """
const plain = window.fetch;
window.asked = [];
window.fetch = (...request) => {
  window.asked.push({ path: String(request[0]), begin: performance.now() });
  return plain(...request);
};
"""
"""Notes when a page asks."""
MARKS = """(begin) => {
  const plan = window.asked.find((one) => one.begin >= begin && one.path.endsWith("/plan"));
  const after = (name) => performance.getEntriesByName(name).find((one) => one.startTime >= begin)?.startTime;
  const [ranked, shown, whole] = ["plan-ranked", "plan-shown", "plan-whole"].map(after);
  return [shown - begin, plan.begin - begin, ranked - plan.begin, whole - begin];
}"""
"""Milliseconds from `begin` to the painted plans; of those to the question, and to its ranking; to the whole answer."""
CHANGED = "(begin) => performance.getEntriesByName('plan-whole').some((one) => one.startTime >= begin)"
SERVICE = "workload=Llama-3.1-8B&task=serve&simulate=false&input=1024&output=256&ttft=1s"
CHANGES = (
    (
        "a service on two GPUs of one provider", f"{SERVICE}&gpu=l4&gpu=l40s&provider=aws&rate=1", "Requests a second",
        [f"{rate}.5" for rate in range(2, 9)],
    ),
    ("a service over all offers", f"{SERVICE}&rate=1", "Requests a second", [f"{rate}.7" for rate in range(2, 9)]),
    (
        "a fine-tuning over all offers", "workload=Llama-3.1-8B&task=finetune&lora=16&tokens=20M", "Tokens of the run",
        [f"{tokens}M" for tokens in range(30, 100, 10)],
    ),
)  # fmt: skip
"""What is followed: plan, its address, the field that is changed, and to what."""
HEAD = ("| web | target | measured | processor time of the server |", "|---|---:|---:|---:|")


@contextlib.contextmanager
def server() -> Iterator[tuple[str, int, float]]:
    """Address, process and seconds until the first page is there."""
    line = [sys.executable, "-P", "-m", "flopwise", "web", "--no-open", "--port", "0"]
    begin = time.perf_counter()
    one = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert one.stdout is not None
    try:
        address = one.stdout.readline().strip().rstrip("/")
        while True:
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"{address}/plan").raise_for_status()
                break
        yield address, one.pid, time.perf_counter() - begin
    finally:
        one.send_signal(signal.SIGINT)
        one.wait(20)


def load(address: str, clients: int, count: int) -> tuple[float, float, float]:
    """Plans a second, median and 99th percentile in seconds, of `clients` that each ask another question."""

    def ask(number: int) -> float:
        begin = time.perf_counter()
        question = PLAN | {"rate": round(0.5 + number / 1000 + clients, 4)}
        httpx.post(f"{address}/api/v1/plan", json=question, timeout=300).raise_for_status()
        return time.perf_counter() - begin

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        seconds = sorted(pool.map(ask, range(count)))
    return count / (time.perf_counter() - begin), statistics.median(seconds), seconds[int(0.99 * (count - 1))]


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children = (task / "children").read_text(encoding="utf-8").split()
            found += [one for child in children for one in family(int(child))]
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process and all below it."""
    pages = [int(Path(f"/proc/{one}/statm").read_text(encoding="utf-8").split()[1]) for one in family(pid)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def processor_s(pid: int) -> float:
    """Processor time of a process and all below it so far."""
    ticks = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def afternoon(address: str, count: int) -> dict[str, int]:
    """How `count` mixed requests end: answers by status, readers that go slowly, uploads that stop half-way."""
    host, port = address.removeprefix("http://").split(":")

    def one(number: int) -> str:
        try:
            return ended(number)
        except (httpx.HTTPError, OSError) as failure:
            hangs = isinstance(failure, httpx.TimeoutException | TimeoutError)
            return f"{HANGS if hangs else FAILS} ({type(failure).__name__})"

    def ended(number: int) -> str:
        draw = random.Random(number)  # noqa: S311 - which request, not a secret
        noun, question = draw.choice(MIXED)
        kind = draw.random()
        if kind < 0.1:  # an upload that stops
            with socket.create_connection((host, int(port)), timeout=30) as raw:
                head = f"POST /api/v1/{noun} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                raw.sendall(f"{head}Content-Length: 100000\r\n\r\n{{".encode())
            return "aborted"
        if kind < 0.2:  # a reader that takes its time
            with httpx.stream("POST", f"{address}/api/v1/{noun}", json=question, timeout=ANSWERED_S) as answer:
                for part in answer.iter_bytes(4096):
                    time.sleep(min(0.005, len(part) / 1e6))
            return "slow" if answer.status_code < 500 else str(answer.status_code)
        return str(httpx.post(f"{address}/api/v1/{noun}", json=question, timeout=ANSWERED_S).status_code)

    found: dict[str, int] = {}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for end in pool.map(one, range(count)):
            found[end] = found.get(end, 0) + 1
    return found


def endured(address: str, ends: Mapping[str, int], before: int, after: int) -> list[str]:
    """What is wrong with a server after mixed requests that ended so: a hang, an answer of 5xx, a leak, silence."""
    wrong = [
        f"{number} requests ended with {end}" for end, number in ends.items() if end.startswith(("5", HANGS, FAILS))
    ]
    if after > before + GROWS_BYTES:
        grown = (after - before) / 2**20
        wrong.append(f"its memory grew by {grown:.0f} MiB, more than {GROWS_BYTES / 2**20:.0f}: what leaks?")
    try:
        httpx.get(f"{address}/api/v1/gpus", timeout=ANSWERED_S).raise_for_status()
    except httpx.HTTPError as failure:
        wrong.append(f"it does not answer any more: {failure!r}")
    return wrong


@contextlib.contextmanager
def pages(address: str) -> Iterator[Callable[[], Page]]:
    """Makes pages of one chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield lambda: browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})
        browser.close()


def first_paints(new_page: Callable[[], Page]) -> dict[str, float]:
    """Seconds from the navigation to the first paint, for each page: the median of `REPEATS`."""
    found: dict[str, float] = {}
    for path in PATHS:
        seconds = []
        for _ in range(REPEATS):
            page = new_page()
            page.goto(path)
            page.wait_for_selector("h1")
            page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            seconds.append(float(page.evaluate(FIRST_PAINT)) / 1000)
            page.close()
        found[path] = statistics.median(seconds)
    return found


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """How a page follows its fields, in seconds."""

    look_s: float  # until any plans are there
    first_s: float  # until all are
    shown_s: float  # from a changed field to its painted plans, at the median as what follows
    asked_s: float  # of these until the question is sent
    ranked_s: float  # from then on until the ranking arrives; the rest is drawing
    whole_s: float  # from a changed field to all that stands below the plans, but for the details of one
    server_s: float  # processor time of the server and its processes for each, details of the best plan included


def change_times(page: Page, query: str, field: str, values: Iterable[str], pid: int) -> ChangeTimes:
    """Open a plan, and change one field of it again and again."""
    page.add_init_script(LISTEN)
    parts: list[list[float]] = []
    begin = time.perf_counter()
    page.goto(f"/plan?{query}")
    page.wait_for_selector("#results table", timeout=SLOWEST_MS)
    look = time.perf_counter() - begin
    page.wait_for_selector(ANSWERED, timeout=SLOWEST_MS)
    first = time.perf_counter() - begin
    page.wait_for_selector("text=operations", timeout=SLOWEST_MS)
    spent = processor_s(pid)
    for value in values:
        there = page.evaluate("() => performance.now()")
        page.get_by_label(field, exact=True).fill(value)
        page.wait_for_function(CHANGED, arg=there, timeout=SLOWEST_MS)
        parts.append([one / 1000 for one in page.evaluate(MARKS, there)])
        page.wait_for_selector("text=operations", timeout=SLOWEST_MS)
    shown, asked, ranked, whole = (statistics.median(column) for column in zip(*parts, strict=True))
    return ChangeTimes(look, first, shown, asked, ranked, whole, (processor_s(pid) - spent) / len(parts))


def table(count: int = 1000, *, pages_only: bool = False) -> list[str]:
    """What was measured, as Markdown; `pages_only`: without clients and journeys."""
    static = ROOT / "src" / "flopwise" / "web" / "static"
    size = sum(path.stat().st_size for path in static.rglob("*") if path.is_file())
    rows = [("the pages' files", "1.5 MB", f"{size / 1e6:.2f} MB", "")]
    steps: list[str] = []
    starts = []
    for _ in range(REPEATS - 1):
        with server() as (_, _, start_s):
            starts.append(start_s)
    with server() as (address, pid, start_s):
        rows.append(("start, to the first page", "1 s", f"{min(*starts, start_s):.2f} s", ""))
        httpx.get(f"{address}/api/v1/gpus", timeout=60).raise_for_status()
        if shutil.which("chromium"):
            with pages(address) as new_page:
                for path, seconds in first_paints(new_page).items():
                    rows.append((f"first paint of {path}", "300 ms", f"{1000 * seconds:.0f} ms", ""))
                for what, query, field, values in CHANGES:
                    page = new_page()
                    found = change_times(page, query, field, values, pid)
                    page.close()
                    rows.append(
                        (f"{what}: a first look, all plans", "1 s", f"{found.look_s:.2f}, {found.first_s:.2f} s", "")
                    )
                    split = f"{found.asked_s:.2f} to ask, {found.ranked_s:.2f} to rank, the rest to draw"
                    measured = f"{found.shown_s:.2f} s ({split}); all of it {found.whole_s:.2f} s"
                    rows.append((f"{what}: a changed field", "0.5 s", measured, f"{found.server_s:.2f} s"))
                steps = [] if pages_only else journeys(new_page)
        if pages_only:
            return [*HEAD, *(f"| {' | '.join(row)} |" for row in rows)]
        for clients in (1, 8, 32):
            rate, median, last = load(address, clients, max(8, 2 * clients))
            rows.append((f"plans, {clients} clients", "", f"{rate:.1f}/s, median {median:.2f} s, p99 {last:.2f} s", ""))
        afternoon(address, count)
        before = resident_bytes(pid)
        ends = afternoon(address, count)
        after = resident_bytes(pid)
        wrong = endured(address, ends, before, after)
        said = ", ".join(f"{number} {kind}" for kind, number in sorted(ends.items()))
        rows.append((f"{count:,} mixed requests", "", said, ""))
        rows.append(("memory before and after them", "flat", f"{before / 2**20:.0f}, {after / 2**20:.0f} MiB", ""))
    if wrong:
        raise SystemExit(f"the server did not endure {count:,} mixed requests: {'; '.join(wrong)}")
    return [*HEAD, *(f"| {' | '.join(row)} |" for row in rows), *steps]


def journeys(new_page: Callable[[], Page]) -> list[str]:
    """Each step of three plans from the start page on."""
    sys.path.insert(0, str(ROOT / "tests" / "web"))
    from journeys import JOURNEYS
    from playwright.sync_api import expect

    expect.set_options(timeout=SLOWEST_MS)
    lines = ["", "| from the start page | step | waited | person |", "|---|---|---:|---:|"]
    for name, walk in JOURNEYS.items():
        page = new_page()
        page.set_default_timeout(SLOWEST_MS)
        steps = walk(page)
        page.close()
        lines += [f"| {name} | {one.name} | {one.waited_s:.1f} s | {one.person_s:.1f} s |" for one in steps]
        waited, own = (sum(getattr(one, part) for one in steps) for part in ("waited_s", "person_s"))
        lines.append(f"| {name} | **all, of 180 s** | {waited:.1f} s | {own:.1f} s |")
    return lines


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--pages", action="store_true", help="start, first paints and changed fields alone")
    given = parser.parse_args()
    print("\n".join(table(given.requests, pages_only=given.pages)))


if __name__ == "__main__":
    main()
