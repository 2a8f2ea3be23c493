"""A document as one page of HTML: styles and pictures inside, no script, nothing loaded from anywhere."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flopwise.report import svg
from flopwise.report.blocks import Bars, Block, Document, Link, Spans
from flopwise.report.words import plain

if TYPE_CHECKING:
    from jinja2 import Template


_DATED = re.compile(r"\d{4}-\d\d(-\d\d)?")
"""Days and months, which are not to be broken into lines."""


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only a report needs it
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    made = Environment(
        loader=PackageLoader("flopwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.tests["dated"] = lambda cell: isinstance(cell, str) and _DATED.fullmatch(cell) is not None
    made.tests["link"] = lambda cell: isinstance(cell, Link)
    made.filters["path"] = quote
    return made.get_template("document.html.j2")


def html(document: Document) -> str:
    """The whole page. Every text is escaped by the template; pictures escape their own."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    def kind(block: Block) -> str:
        return type(block).__name__.lower()

    def drawn(block: Bars | Spans) -> Any:
        return Markup(svg.bars(block) if isinstance(block, Bars) else svg.spans(block))  # noqa: S704 - svg escapes

    return _template().render(document=document, kind=kind, drawn=drawn)
