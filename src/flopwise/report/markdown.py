"""A document as Markdown: tables as tables, bars as characters; nothing in a text can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flopwise.report.blocks import Bars, Block, Bullets, Document, Spans, Table, Text, Tiles

COLUMNS = 40
"""Characters of the longest bar."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!])")
_LEADING = re.compile(r"^(\s*)(\d+)([.)])|^(\s*)([-+=:])")


def escaped(text: str) -> str:
    """`text` as Markdown shows it letter by letter, on one line."""
    plain = " ".join(str(text).split())
    plain = _SPECIAL.sub(r"\\\1", plain).replace("&", "&amp;")
    return _LEADING.sub(lambda m: f"{m[1]}{m[2]}\\{m[3]}" if m[2] else f"{m[4]}\\{m[5]}", plain)


def markdown(document: Document) -> str:
    """The whole document."""
    parts = [f"# {escaped(document.title)}", escaped(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += ["\n".join(_lines(block)) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield f"**{escaped(block.text)}**" if block.strong else escaped(block.text)
        case Bullets():
            yield from (f"- {escaped(item)}" for item in block.items)
        case Tiles():
            yield from _table(Table(["", ">", ""], [(t.name, t.value, t.note) for t in block.tiles]))
        case Table():
            yield from _table(block)
        case Bars():
            yield from _bars(block)
        case Spans():
            yield from _table(Table([block.title, "from", ""], [(r[0], _tick(block, r[1]), r[3]) for r in block.rows]))


def _table(block: Table) -> Iterator[str]:
    yield f"| {' | '.join(escaped(h.removeprefix('>')) for h in block.headers)} |"
    yield f"|{'|'.join('---:' if h.startswith('>') else '---' for h in block.headers)}|"
    for row in block.rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"
    if block.note:
        yield ""
        yield escaped(block.note)


def _bars(block: Bars) -> Iterator[str]:
    most = max((bar.value for bar in block.bars), default=0.0)
    yield f"{escaped(block.title)}{f' ({escaped(block.mark_text)})' if block.mark_text else ''}"
    yield ""
    rows = [
        (
            bar.name,
            "█" * max(round(COLUMNS * bar.value / most), 1 if bar.value > 0 else 0) if most > 0 else "",
            bar.text,
        )
        for bar in block.bars
    ]
    yield from _table(Table(["", "", ">"], rows))


def _tick(block: Spans, at: float) -> str:
    return min(block.ticks, key=lambda tick: abs(tick[0] - at))[1] if block.ticks else f"{at:g}"
