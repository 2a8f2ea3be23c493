"""Draw what a command prints as a picture for the README: `python docs/picture.py` writes docs/images/plan.svg."""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "plan.svg"
COMMAND = ("plan", "examples/3-serve-70b.yaml", "--top", "6")
LINE, CHAR, PAD = 17, 7.83, 16
KEPT = 44
"""Lines that the picture shows: the ranked table, the best plan and the chart."""


def drawn(title: str, lines: list[str]) -> str:
    """`lines` as a terminal window in SVG."""
    width = max(len(title) + 2, *map(len, lines)) * CHAR + 2 * PAD
    height = (len(lines) + 2) * LINE + 2 * PAD + 10
    rows = []
    for number, line in enumerate([f"$ {title}", "", *lines]):
        y = PAD + 28 + number * LINE
        color = "#8ab4f8" if number == 0 else "#e8eaed"
        places = PAD if line.isascii() else " ".join(f"{PAD + CHAR * i:.1f}" for i in range(len(line)))
        rows.append(f'<text x="{places}" y="{y}" fill="{color}" xml:space="preserve">{escape(line)}</text>')
    buttons = enumerate(("#f28b82", "#fdd663", "#81c995"))
    dots = "".join(f'<circle cx="{PAD + 6 + 18 * i}" cy="14" r="5" fill="{c}"/>' for i, c in buttons)
    font = 'font-family="ui-monospace, \'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="13"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {font}>'
        f'<rect width="100%" height="100%" rx="8" fill="#202124"/>{dots}{"".join(rows)}</svg>\n'
    )


def main() -> None:
    """Run the command and write the picture."""
    run = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "flopwise", *COMMAND],
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
    )
    lines = run.stdout.rstrip().splitlines()[:KEPT]
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(f"flopwise {' '.join(COMMAND)}", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
