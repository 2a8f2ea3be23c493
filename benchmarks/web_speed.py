"""What `flopwise web` takes: start, questions a second, a page's first paint and its answer, and a rough afternoon.

`python benchmarks/web_speed.py [--requests N]`, on loopback, with chromium where it is installed. Targets: start below
1 s, first paint below 300 ms, a changed field answered within 500 ms (median), memory flat, no request without an end.
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
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent
PLAN = {"workload": "Llama-3.1-8B", "task": "serve", "simulate": False, "gpu": ["l4", "l40s"], "provider": ["aws"]}
MIXED = (
    ("memory", {"model": "Llama-3.1-8B", "gpu": "h100"}),
    ("serve", {"model": "Llama-3.1-8B", "gpu": "l40s", "rate": 2}),
    ("gpus", {"vendor": "AMD"}),
    ("train", {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 64}),
    ("memory", {"model": "no such model"}),
)


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


def resident_bytes(pid: int) -> int:
    """Memory of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    pages = [int(Path(f"/proc/{one}/statm").read_text(encoding="utf-8").split()[1]) for one in (str(pid), *children)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def afternoon(address: str, count: int) -> dict[str, int]:
    """How `count` mixed requests end: answers by status, readers that go slowly, uploads that stop half-way."""
    host, port = address.removeprefix("http://").split(":")

    def one(number: int) -> str:
        draw = random.Random(number)  # noqa: S311 - which request, not a secret
        noun, question = draw.choice(MIXED)
        kind = draw.random()
        if kind < 0.1:  # an upload that stops
            with socket.create_connection((host, int(port)), timeout=30) as raw:
                head = f"POST /api/v1/{noun} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                raw.sendall(f"{head}Content-Length: 100000\r\n\r\n{{".encode())
            return "aborted"
        if kind < 0.2:  # a reader that takes its time
            with httpx.stream("POST", f"{address}/api/v1/{noun}", json=question, timeout=120) as answer:
                for part in answer.iter_bytes(4096):
                    time.sleep(min(0.005, len(part) / 1e6))
            return "slow"
        return str(httpx.post(f"{address}/api/v1/{noun}", json=question, timeout=120).status_code)

    found: dict[str, int] = {}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for end in pool.map(one, range(count)):
            found[end] = found.get(end, 0) + 1
    return found


def paint(address: str) -> tuple[float, list[float]]:
    """First paint, and from a changed field to the changed plan, in seconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/plan")
        page.wait_for_selector("form")
        read = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
        first = float(page.evaluate(read)) / 1000
        query = "workload=Llama-3.1-8B&task=serve&simulate=false&gpu=l4&gpu=l40s&provider=aws&rate=1"
        page.goto(f"{address}/plan?{query}")
        page.wait_for_selector("#results:not([aria-busy]) table")
        seconds = []
        for rate in range(2, 9):
            begin = time.perf_counter()
            page.get_by_label("Requests a second", exact=True).fill(str(rate))
            page.wait_for_selector("#results[aria-busy]")
            page.wait_for_selector("#results:not([aria-busy]) table")
            seconds.append(time.perf_counter() - begin)
        browser.close()
    return first, seconds


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    count = parser.parse_args().requests
    static = ROOT / "src" / "flopwise" / "web" / "static"
    size = sum(path.stat().st_size for path in static.rglob("*") if path.is_file())
    print(f"bundle: {size / 1e6:.2f} MB (target 1.5)")
    with server() as (address, pid, start_s):
        print(f"start: {start_s:.2f} s (target 1)")
        httpx.get(f"{address}/api/v1/gpus", timeout=60).raise_for_status()
        if shutil.which("chromium"):
            first, seconds = paint(address)
            print(f"first paint: {1000 * first:.0f} ms (target 300)")
            print(f"a changed field to its plan: {1000 * statistics.median(seconds):.0f} ms median (target 500)")
        for clients in (1, 8, 32):
            rate, median, last = load(address, clients, max(8, 2 * clients))
            print(f"plans, {clients} clients: {rate:.2f}/s, median {median:.2f} s, p99 {last:.2f} s")
        afternoon(address, count)
        before = resident_bytes(pid)
        ends = afternoon(address, count)
        after = resident_bytes(pid)
        print(f"{count} mixed requests: {ends}; memory {before / 2**20:.0f} -> {after / 2**20:.0f} MiB")
        httpx.get(f"{address}/api/v1/gpus", timeout=60).raise_for_status()
        print("and it still answers")


if __name__ == "__main__":
    main()
