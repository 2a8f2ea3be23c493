"""A report in a folder: all of its files, or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from flopwise.errors import SpecError
from flopwise.files import read_at_most
from flopwise.fleet.assessment import FORMAT, Assessment
from flopwise.fleet.check import Check
from flopwise.folders import check_folder, write_folder
from flopwise.report.blocks import Document
from flopwise.report.checked import check_document
from flopwise.report.content import document
from flopwise.report.pages import html, markdown
from flopwise.search.answer import Plan
from flopwise.search.answer import to_json as plan_json

JSON, PLANS, CHECK_JSON = "assessment.json", "plans", "check.json"
HTML, MARKDOWN = "report.html", "report.md"
PLAN_NAME = re.compile(r"\d{3,}-[a-z0-9-]+\.json")
MOST_BYTES = 200_000_000


def to_json(assessment: Assessment) -> bytes:
    """The assessment as one JSON document, indented."""
    return msgspec.json.format(msgspec.json.encode(assessment), indent=2) + b"\n"


def _text(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


TARGETS: dict[str, Callable[[Assessment, Document], bytes]] = {
    HTML: lambda _, made: html(made).encode("utf-8", errors="replace"),
    MARKDOWN: lambda _, made: markdown(made).encode("utf-8", errors="replace"),
    JSON: lambda assessment, _: to_json(assessment),
}
"""What is written of an assessment and of the document that people read: a file of each name, by its function."""


def plan_file(name: str, number: int) -> str:
    """The file of a workload's plan: its name with nothing in it that could lead elsewhere, and its number."""
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return f"{PLANS}/{number:03d}-{safe or 'workload'}.json"


class _Version(msgspec.Struct):
    version: int = 0


def read_assessment(path: Path | str) -> Assessment:
    """An assessment that `write_report` wrote; `path` is its file, or the folder of the report.

    Raises: SpecError: the file cannot be read or is no assessment.
    """
    file = Path(path)
    file = file / JSON if file.is_dir() else file
    try:
        data = read_at_most(file, MOST_BYTES)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read ({error.strerror or error}); give an {JSON} of a report") from None
    if len(data) > MOST_BYTES:
        raise SpecError(f"{file}: larger than {MOST_BYTES:,} bytes; not an assessment")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > FORMAT:
            raise SpecError(
                f"{file}: assessment format {version}, of a newer flopwise; this one reads format {FORMAT}: "
                "upgrade it, or assess the old fleet again"
            )
        return msgspec.json.decode(data, type=Assessment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: not an assessment ({str(error)[:160]}); give an {JSON} of a report") from None


def with_plan_files(assessment: Assessment, plans: Mapping[str, Plan]) -> Assessment:
    """The assessment with the file of each workload that has a plan."""
    rows = [
        msgspec.structs.replace(w, plan_file=plan_file(w.name, number) if w.name in plans else None)
        for number, w in enumerate(assessment.workloads, start=1)
    ]
    return msgspec.structs.replace(assessment, workloads=rows)


def write_report(
    assessment: Assessment, folder: Path | str, *, plans: Mapping[str, Plan] | None = None,
    before: Assessment | None = None,
) -> list[Path]:  # fmt: skip
    """Write report.html, report.md, assessment.json and the `plans` by their workloads; returns what was written.

    A failure leaves nothing half done. Plans of an earlier report go; other files in the folder stay.

    Raises: SpecError: the folder is a file, or cannot be written to.
    """
    given = plans or {}
    check_folder(folder)
    assessment = with_plan_files(assessment, given)
    made = document(assessment, before)
    files = {name: export(assessment, made) for name, export in TARGETS.items()}
    files |= {w.plan_file: plan_json(given[w.name]) + b"\n" for w in assessment.workloads if w.plan_file}
    return write_folder(folder, files, stale=_old_plans)


def _old_plans(folder: Path) -> list[str]:
    """The plan files of an earlier report in a folder."""
    there = (folder / PLANS).iterdir() if (folder / PLANS).is_dir() else ()
    return [f"{PLANS}/{file.name}" for file in there if PLAN_NAME.fullmatch(file.name)]


def write_check(found: Check, folder: Path | str) -> list[Path]:
    """Write report.html, report.md and check.json; returns what was written. As `write_report`, and raises as it."""
    made = check_document(found)
    data = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
    pages = {HTML: html(made).encode("utf-8", errors="replace"), MARKDOWN: markdown(made).encode("utf-8", "replace")}
    return write_folder(folder, {**pages, CHECK_JSON: data})
