"""Draw what commands print: `python docs/picture.py [NAME ...]` writes docs/images/plan.svg and docs/terminal.md.

Commands run in a terminal of the width that is drawn, with its colours.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PLAN = ("plan", "examples/3-serve-70b.yaml", "--top", "6")
WIDTHS = (80, 100, 120, 200)
SHOTS = {
    "fit": "fit Llama-3.3-70B --gpu 2xa100-80gb --context 40k",
    "memory": "memory Llama-3.3-70B --gpu 2xa100-80gb --context 40k",
    "train": "train Llama-3.1-8B --gpu 64xh100 --tokens 1T",
    "serve": "serve Llama-3.1-8B --gpu l40s --rate 2",
    "simulate": "simulate Llama-3.1-8B --gpu h100 --rate 5",
    "plan-training": "plan Llama-3.1-8B --task finetune --lora 16 --tokens 50M",
    "plan-serving": "plan Llama-3.1-8B --task serve --rate 2 --ttft 1s",
    "compare": "compare Llama-3.1-8B --tokens-per-month 500M --no-simulate",
    "assess": "assess examples/textnlp.yaml",
    "io": "io Llama-3.1-70B --gpu 1024xh100",
    "roofline": "roofline Llama-3.1-8B --gpu h100 --batch 8",
    "explain": "explain memory Llama-3.1-8B --gpu l4 --context 8k",
    "shapes": "explain Llama-3.1-8B --gpu h100",
    "models": "models qwen3",
    "gpus": "gpus h100",
    "instances": "instances h100",
    "prices": "prices age",
    "export": "export --list",
    "watch": "watch --rules",
}
"""Picture: the command line that it shows. One of each command that answers without a device or a running job."""
PAGE = ROOT / "docs" / "terminal.md"
INTRODUCTION = """\
# In a terminal

Each command in a terminal of 100 columns, and the same answer in 80, 120 and 200. Tables leave out their least
important columns first, then wrap cells, and where that is not enough each row becomes a record; names, figures and
intervals are never cut. Of long answers the first {kept} lines are shown. `docs/picture.py` draws the pictures.
"""
LINE, CHAR, PAD = 17, 7.83, 16
KEPT = 44
"""Lines that a picture shows at most: of a plan the ranked table, the best plan and the chart."""
COLOURS = {
    "1": "#ffffff", "2": "#9aa0a6", "31": "#f28b82", "32": "#81c995", "33": "#fdd663", "34": "#8ab4f8", "36": "#78d9ec",
}  # fmt: skip
"""Of a terminal's codes; all others are the plain colour."""
PLAIN, TITLE = "#e8eaed", "#8ab4f8"
SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")


def printed(command: tuple[str, ...], columns: int) -> list[str]:
    """The lines that a command writes to a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    env |= {"TERM": "xterm-256color", "FLOPWISE_CONFIG": ""}
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "flopwise", *command], stdout=theirs, stderr=subprocess.DEVNULL, cwd=ROOT, env=env
    )
    os.close(theirs)
    data = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # all that wrote to it are gone
            break
        if not part:
            break
        data += part
    os.close(ours)
    assert process.wait() == 0, command
    return data.decode("utf-8").replace("\r\n", "\n").rstrip().splitlines()


def runs(line: str) -> Iterator[tuple[str, str]]:
    """(text, colour) of the parts of a line."""
    colour, last = PLAIN, 0
    for match in SEQUENCE.finditer(line):
        if match.start() > last:
            yield line[last : match.start()], colour
        colour = next((COLOURS[code] for code in match[1].split(";") if code in COLOURS), PLAIN)
        last = match.end()
    if last < len(line):
        yield line[last:], colour


def drawn(title: str, lines: list[str]) -> str:
    """`lines` as a terminal window in SVG."""
    parts = [[(f"$ {title}", TITLE)], [], *(list(runs(line)) for line in lines)]
    width = max(sum(len(text) for text, _ in line) for line in parts) * CHAR + 2 * PAD
    height = len(parts) * LINE + 2 * PAD + 10
    rows = []
    for number, line in enumerate(parts):
        y, column = PAD + 28 + number * LINE, 0
        for text, colour in line:
            x = PAD + CHAR * column
            places = f"{x:.1f}" if text.isascii() else " ".join(f"{x + CHAR * i:.1f}" for i in range(len(text)))
            weight = ' font-weight="bold"' if colour == COLOURS["1"] else ""
            rows.append(
                f'<text x="{places}" y="{y}" fill="{colour}"{weight} xml:space="preserve">{escape(text)}</text>'
            )
            column += len(text)
    buttons = enumerate(("#f28b82", "#fdd663", "#81c995"))
    dots = "".join(f'<circle cx="{PAD + 6 + 18 * i}" cy="14" r="5" fill="{c}"/>' for i, c in buttons)
    font = 'font-family="ui-monospace, \'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="13"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {font}>'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" rx="8" fill="#202124"/>{dots}{"".join(rows)}'
        "</svg>\n"
    )


def page() -> str:
    """The page of all pictures but that of the README."""
    parts = [INTRODUCTION.format(kept=KEPT)]
    for name, command in SHOTS.items():
        others = ", ".join(f"[{columns}](images/terminal/{name}-{columns}.svg)" for columns in WIDTHS if columns != 100)
        picture = f"![flopwise {command} in a terminal of 100 columns](images/terminal/{name}-100.svg)"
        parts.append(f"## `flopwise {command}`\n\n{picture}\n\nIn {others} columns.\n")
    return "\n".join(parts)


def main(names: Sequence[str]) -> None:
    """Run the commands and write the pictures, those named or all, and the page."""
    (IMAGES / "terminal").mkdir(parents=True, exist_ok=True)
    shots = [("plan", PLAN, 120)]
    shots += [
        (f"terminal/{name}-{columns}", tuple(command.split()), columns)
        for name, command in SHOTS.items()
        for columns in WIDTHS
    ]
    for name, command, columns in shots:
        if not names or name.removeprefix("terminal/").rpartition("-")[0] in names or name in names:
            lines = printed(command, columns)[:KEPT]
            (IMAGES / f"{name}.svg").write_text(drawn(f"flopwise {' '.join(command)}", lines), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
