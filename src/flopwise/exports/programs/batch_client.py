"""Sends requests of a file in the layout of OpenAI's batches to a server, and writes one answer a line.

    python3 batch_client.py --url http://127.0.0.1:8000 --input-file requests.jsonl --output-file results.jsonl

It waits for the server's /health, keeps --concurrency requests in flight, repeats what fails for a while, and leaves
out requests whose answers the output file has already: after an interruption start it again.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

TRIES = 5
ANSWER_S = 3600


def wait_until_ready(url: str, limit_s: float) -> None:
    """Return once the server answers; SystemExit after `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(2)
    raise SystemExit(f"{url} did not answer in {limit_s:g} s")


def answer(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The line of the output file for one request."""
    data, line = json.dumps(request["body"]).encode(), {"id": request["custom_id"], "custom_id": request["custom_id"]}
    for tries_left in reversed(range(TRIES)):
        try:
            call = urllib.request.Request(url + request["url"], data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(call, timeout=ANSWER_S) as reply:
                response = {"status_code": reply.status, "body": json.load(reply)}
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if (error.code < 500 and error.code != 429) or not tries_left:
                return {**line, "response": None, "error": {"code": error.code, "message": text}}
        except OSError as error:
            if not tries_left:
                return {**line, "response": None, "error": {"code": None, "message": str(error)}}
        else:
            return {**line, "response": response, "error": None}
        time.sleep(2.0 ** (TRIES - tries_left))
    raise AssertionError


def requests_left(source: Path, results: Path) -> Iterator[dict[str, Any]]:
    """Requests without an answer."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    ready = {line["custom_id"] for text in lines if (line := json.loads(text))["error"] is None}
    with source.open(encoding="utf-8") as file:
        for text in file:
            if text.strip() and (request := json.loads(text))["custom_id"] not in ready:
                yield request


def main() -> None:
    """Answer every request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--input-file", type=Path, required=True)
    parser.add_argument("--output-file", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--start-seconds", type=float, default=3600, help="Time within which the server must start.")
    options = parser.parse_args()
    wait_until_ready(f"{options.url}/health", options.start_seconds)
    with ThreadPoolExecutor(options.concurrency) as pool, options.output_file.open("a", encoding="utf-8") as file:
        running = set()
        for request in requests_left(options.input_file, options.output_file):
            running.add(pool.submit(answer, options.url, request))
            if len(running) >= 2 * options.concurrency:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                write_lines(file, ended)
        write_lines(file, wait(running).done)


def write_lines(file: Any, ended: Any) -> None:
    """Append answers."""
    for future in ended:
        file.write(json.dumps(future.result(), ensure_ascii=False) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
