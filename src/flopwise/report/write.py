"""A report in a folder: all of its files, or none."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import SpecError
from flopwise.fleet.assessment import FORMAT, Assessment
from flopwise.report.content import document
from flopwise.report.html import html
from flopwise.report.markdown import markdown

if TYPE_CHECKING:
    from flopwise.search.answer import Plan

HTML, MARKDOWN, JSON, PLANS = "report.html", "report.md", "assessment.json", "plans"
MOST_BYTES = 200_000_000


def plan_file(name: str, number: int) -> str:
    """The file of a workload's plan: its name with nothing in it that could lead elsewhere, and its number."""
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return f"{PLANS}/{number:03d}-{safe or 'workload'}.json"


def to_json(found: Assessment) -> bytes:
    """The assessment as one JSON document, indented."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def read_assessment(path: Path | str) -> Assessment:
    """An assessment that `write_report` wrote.

    Raises:
        SpecError: the file cannot be read or is no assessment.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MOST_BYTES:
            raise SpecError(f"{file}: larger than {MOST_BYTES:,} bytes; not an assessment")
        found = msgspec.json.decode(file.read_bytes(), type=Assessment)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read ({error.strerror or error}); give an {JSON} of a report") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: not an assessment ({str(error)[:160]}); give an {JSON} of a report") from None
    if found.version != FORMAT:
        raise SpecError(f"{file}: assessment format {found.version}; this flopwise reads format {FORMAT}")
    return found


def write_report(
    found: Assessment, folder: Path | str, *, plans: Mapping[str, Plan] | None = None, before: Assessment | None = None
) -> list[Path]:
    """Write report.html, report.md, assessment.json and the plans by their file; returns what was written.

    The files are made beside the folder and moved into it at the end, so that a failure leaves nothing half done.

    Raises:
        SpecError: the folder is a file, or cannot be written to.
    """
    from flopwise.search.answer import to_json as plan_json  # noqa: PLC0415 - only where there are plans

    goal, made = Path(folder), document(found, before)
    files = {HTML: html(made).encode(), MARKDOWN: markdown(made).encode(), JSON: to_json(found)}
    files |= {name: plan_json(plan) + b"\n" for name, plan in (plans or {}).items()}
    if goal.exists() and not goal.is_dir():
        raise SpecError(f"{goal} is a file; a report needs a folder")
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".report-") as waiting:
            for name, data in files.items():
                place = Path(waiting) / name
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(data)
            goal.mkdir(exist_ok=True)
            for old in (goal / PLANS).glob("[0-9][0-9][0-9]-*.json"):  # of the last report
                old.unlink()
            for name in files:
                (goal / name).parent.mkdir(exist_ok=True)
                (Path(waiting) / name).replace(goal / name)
    except OSError as error:
        raise SpecError(f"{goal}: cannot be written ({error.strerror or error})") from None
    return [goal / name for name in files]
