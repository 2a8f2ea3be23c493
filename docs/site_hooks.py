"""Hooks of the documentation's site, `make site`: what the pages have that a site needs otherwise.

Links to files of the repository name the file, formulas become MathML, which browsers draw by themselves, abbreviations
have their line of the glossary, and two parts of the navigation are listed from the project: the export targets, and the
Python functions with their docstrings.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import flopwise

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:benchmarks|examples|src|tests|CONTRIBUTING)[^)]*)\)")
"""A link to a file of the repository that is no page."""
FORMULA = re.compile(
    r"(`[^`\n]*`|^```.*?^```)|\$\$(.+?)\$\$|(?<![\w$])\$(?=[\\a-zA-Z(])([^$\n]+?)\$(?!\d)", re.DOTALL | re.MULTILINE
)
"""Code, which stays; a formula of its own; one in a line."""
API = "python-functions.md"
GLOSSARY = "glossary.md"
ABBREVIATION = re.compile(r"[A-Za-z]*[A-Z]{2}[A-Za-z0-9]*")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation with every export target and the functions."""
    targets = sorted(path.stem for path in (Path(config.docs_dir) / "export").glob("*.md") if path.stem != "index")
    reference = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    reference.append({"Python functions": API})
    pages: list[Any] = ["export/index.md", *({name: f"export/{name}.md"} for name in targets)]
    reference.append({"Export targets": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages, with one of the Python functions."""
    names = [name for name in flopwise.__all__ if not name.startswith("_")]
    text = "\n\n".join(["# Python functions", *(f"::: flopwise.{name}" for name in names)])
    files.append(File.generated(config, API, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """The page as the site shows it; abbreviations explain themselves."""
    named = LINK.sub(lambda found: f"{found[1]} (`{found[2].lstrip('./')}`)", markdown)
    drawn = FORMULA.sub(_drawn, named)
    return drawn if page.file.src_uri == GLOSSARY else f"{drawn}\n\n{_abbreviations(config.docs_dir)}"


@cache
def _abbreviations(folder: str) -> str:
    """The abbreviations of the glossary with their first sentences, as Markdown declares them."""
    text = Path(folder, GLOSSARY).read_text(encoding="utf-8")
    lines = []
    for title, body in re.findall(r"^### (.*)\n\n((?:.+\n)+)", text, re.MULTILINE):
        first = re.split(r"(?<=[a-z\)])\. ", " ".join(body.split()))[0].rstrip(".")
        lines += [f"*[{term}]: {first}" for term in title.split(", ") if ABBREVIATION.fullmatch(term)]
    return "\n".join(lines)


def _drawn(found: re.Match[str]) -> str:
    code, block, inline = found.groups()
    if code is not None:
        return str(code)
    return str(convert(block or inline, display="block" if block else "inline"))
