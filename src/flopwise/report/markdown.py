"""A document as Markdown: tables as tables, bars as characters; nothing in a text can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

from flopwise.report.blocks import Bars, Block, Bullets, Document, Heading, Link, Points, Spans, Table, Text, Tiles
from flopwise.report.words import plain

COLUMNS = 40
"""Characters of the longest bar."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!])")
_LEADING = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=:])")
_PLAIN = re.compile(r"-?[$\d][\d,.]*( %| GiB| h)?")


def escaped(text: str) -> str:
    """`text` as Markdown shows it letter by letter, on one line."""
    shown = " ".join(plain(str(text)).split())
    shown = _SPECIAL.sub(r"\\\1", shown).replace("&", "&amp;")
    return _LEADING.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", shown)


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
        case Heading():
            yield f"### {escaped(block.text)}"
        case Bullets():
            yield from (f"- {escaped(item)}" for item in block.items)
        case Points():
            yield from (f"- **{escaped(lead)}** {escaped(item)}" for lead, item in block.items)
        case Tiles():
            yield from _table(Table(["", ">", ""], [(t.name, t.value, t.note) for t in block.tiles]))
        case Table():
            yield from _table(block)
        case Bars():
            yield from _bars(block)
        case Spans():
            yield from _table(Table([block.title, "from", ""], [(r.name, r.begins, r.text) for r in block.rows]))


def _table(block: Table) -> Iterator[str]:
    yield f"| {' | '.join(escaped(h.removeprefix('>')) for h in block.headers)} |"
    yield f"|{'|'.join('---:' if h.startswith('>') else '---' for h in block.headers)}|"
    for row in block.rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"
    if block.note:
        yield ""
        yield escaped(block.note)


def _cell(cell: str | Link) -> str:
    if isinstance(cell, Link):
        return f"[{escaped(cell.text)}]({quote(cell.file)})"
    return cell if cell == "-" or _PLAIN.fullmatch(cell) else escaped(cell)


def _bars(block: Bars) -> Iterator[str]:
    most = max((bar.value for bar in block.bars), default=0.0)
    yield f"{escaped(block.title)}{f' ({escaped(block.mark_text)})' if block.mark_text else ''}"
    yield ""
    intervals = any(bar.interval for bar in block.bars)
    rows = [
        (
            bar.name,
            "█" * max(round(COLUMNS * bar.value / most), 1 if bar.value > 0 else 0) if most > 0 else "",
            bar.text,
            *([bar.interval] if intervals else []),
        )
        for bar in block.bars
    ]
    yield from _table(Table(["", "", ">", *(["interval"] if intervals else [])], rows))
