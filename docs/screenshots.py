"""Take pictures of the report that `make demo` writes: `python docs/screenshots.py` fills docs/images/report-*.png.

Needs Chromium (or Chrome), on the path or named by CHROMIUM; without one it says so and leaves the pictures alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLEET = ROOT / "examples" / "textnlp.yaml"
PICTURES = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 1080
SHOTS: dict[str, tuple[tuple[str, ...], bool]] = {
    "report-summary.png": (("Summary",), True),
    "report-performance.png": (("Performance expected",), False),
    "report-cost.png": (("Monthly cost",), False),
    "report-roadmap.png": (("Roadmap",), False),
}
"""File: the sections that it shows, and whether the title stands above them. Pictures are as high as those are."""
TALLEST = 3000


def browser() -> str | None:
    """The browser's path, None where there is none."""
    return next((p for name in (os.environ.get("CHROMIUM", ""), *BROWSERS) if name and (p := shutil.which(name))), None)


def only(page: str, titles: Sequence[str], *, header: bool) -> str:
    """The page with the named sections alone.

    Raises:
        ValueError: a section that the page does not have.
    """
    ids = {title: key for key, title in re.findall(r'<section id="(\w+)">\s*<h2>([^<]*)', page)}
    missing = [title for title in titles if title not in ids]
    if missing:
        raise ValueError(f"the report has no section {missing[0]!r}; it has {', '.join(ids)}")
    shown = ", ".join(f"#{ids[title]}" for title in titles)
    hidden = "nav, footer, section" if header else "header, nav, footer, section"
    rules = f"{hidden} {{ display: none }} {shown} {{ display: block }} main {{ padding: 24px 40px }}"
    rules += " h2 { margin-top: 20px }"
    return page.replace("</head>", f"<style>{rules}</style></head>", 1)


def height(found: str, page: Path) -> int:
    """Pixels that the page needs: a script in a copy of it measures and leaves the figure in the document."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"), count=1)
    told = "<script>onload = () => document.body.dataset.high = document.querySelector('main').offsetHeight</script>"
    copy = page.with_name("measured.html")
    copy.write_text(text.replace("</head>", f"{told}</head>", 1), encoding="utf-8")
    high = re.search(r'data-high="(\d+)"', _browsed(found, copy, TALLEST, "--dump-dom"))
    if high is None:
        raise ValueError(f"{found} did not measure the page")
    return int(high[1])


def shoot(found: str, page: Path, picture: Path) -> None:
    """Draw `page` as a PNG, as high as it is."""
    _browsed(found, page, height(found, page), f"--screenshot={picture}")


def _browsed(found: str, page: Path, high: int, what: str) -> str:
    """What the browser prints about a page; light colours, whatever the desktop prefers."""
    command = [
        found, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{high}",
        f"--user-data-dir={page.parent / 'profile'}", "--blink-settings=preferredColorScheme=1", what, page.as_uri(),
    ]  # fmt: skip
    run = subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603 - the user's own browser
    return run.stdout.decode("utf-8", errors="replace")


def main() -> int:
    """Assess the example and take the pictures; 1 where there is no browser."""
    found = browser()
    if found is None:
        sys.stderr.write("no Chromium on the path; install one, or name it in CHROMIUM\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-P", "-m", "flopwise", "assess", str(FLEET), "-o", str(report)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command
        page = (report / "report.html").read_text(encoding="utf-8")
        for name, (titles, header) in SHOTS.items():
            part = Path(folder) / "part.html"
            part.write_text(only(page, titles, header=header), encoding="utf-8")
            shoot(found, part, PICTURES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
