"""Pictures of the web app for the documentation: `python docs/web_pictures.py`; needs chromium and the test tools."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
PAGES = {
    "web-plan": "/plan?workload=Llama-3.1-8B&task=finetune&lora=16&tokens=20M&provider=aws",
    "web-serve": "/serve?model=Llama-3.1-8B&gpu=l40s&rate=2&duration=5min&ttft=1s",
    "web-fleet": "/fleet",
}
"""Pictures, and the addresses that they show."""


def main() -> None:
    """Write them."""
    line = [sys.executable, "-P", "-m", "flopwise", "web", "--no-open", "--port", "0"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    assert server.stdout is not None
    address = server.stdout.readline().strip().rstrip("/")
    with sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"] if root else []
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1500}, color_scheme="light")
        for name, path in PAGES.items():
            page.goto(address + path)
            if name == "web-fleet":
                page.get_by_role("button", name="Write an example").click()
                page.get_by_role("button", name="Assess").click()
            page.wait_for_selector("#results:not([aria-busy]) table", timeout=120_000)
            page.wait_for_selector(".chart[data-drawn], .picture")
            page.locator(".status").first.evaluate("(one) => one.remove()")  # how long this machine took
            page.evaluate("() => scrollTo(0, 0)")
            page.wait_for_timeout(3_000)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()
    server.send_signal(signal.SIGINT)
    server.wait(20)


if __name__ == "__main__":
    main()
