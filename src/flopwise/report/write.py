"""A report in a folder: all of its files, or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from flopwise.fleet.assessment import ASSESSMENT_FILE, Assessment
from flopwise.fleet.check import Check, CheckedWorkload
from flopwise.folders import check_folder, write_folder
from flopwise.report.blocks import Block, Bullets, Document, Section, Table, Text, Tile, Tiles
from flopwise.report.content import document
from flopwise.report.pages import html, markdown
from flopwise.report.plan_page import plan_document
from flopwise.report.words import CHANGE_HEADERS, change_rows, change_text, dash, hours, purchase_text, usd
from flopwise.report.workloads import plan_page
from flopwise.search.answer import Plan
from flopwise.search.answer import to_json as plan_json
from flopwise.units import format_percent

PLANS, CHECK_JSON = "plans", "check.json"
HTML, MARKDOWN = "report.html", "report.md"
PLAN_NAME = re.compile(r"\d{3,}-[a-z0-9-]+\.(json|html)")


def to_json(answer: Assessment | Check) -> bytes:
    """The answer as one JSON document, indented, its verdict first: what `--json` prints."""
    return msgspec.json.format(msgspec.json.encode({"verdict": answer.verdict, **answer.document()}), indent=2) + b"\n"


def _text(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


TARGETS: dict[str, Callable[[Assessment, Document], bytes]] = {
    HTML: lambda _, made: _text(html(made)),
    MARKDOWN: lambda _, made: _text(markdown(made)),
    ASSESSMENT_FILE: lambda assessment, _: to_json(assessment),
}
"""What is written of an assessment and of the document that people read: a file of each name, by its function."""


def plan_file(name: str, number: int) -> str:
    """The file of a workload's plan: its name with nothing in it that could lead elsewhere, and its number."""
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return f"{PLANS}/{number:03d}-{safe or 'workload'}.json"


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
    """Write report.html, report.md, assessment.json and the `plans` by their workloads, each as JSON and as a page.

    Returns what was written.

    A failure leaves nothing half done. Plans of an earlier report go; other files in the folder stay.

    Raises: SpecError: the folder is a file, or cannot be written to.
    """
    given = plans or {}
    check_folder(folder)
    assessment = with_plan_files(assessment, given)
    made = document(assessment, before)
    files = {name: export(assessment, made) for name, export in TARGETS.items()}
    for w in assessment.workloads:
        if w.plan_file:
            files[w.plan_file] = plan_json(given[w.name]) + b"\n"
            files[plan_page(w.plan_file)] = _text(html(plan_document(given[w.name], w.name)))
    return write_folder(folder, files, stale=_old_plans)


def _old_plans(folder: Path) -> list[str]:
    """The plan files of an earlier report in a folder."""
    there = (folder / PLANS).iterdir() if (folder / PLANS).is_dir() else ()
    return [f"{PLANS}/{file.name}" for file in there if PLAN_NAME.fullmatch(file.name)]


def write_check(answer: Check, folder: Path | str) -> list[Path]:
    """Write report.html, report.md and check.json; returns what was written. As `write_report`, and raises as it."""
    made = check_document(answer)
    pages = {HTML: _text(html(made)), MARKDOWN: _text(markdown(made))}
    return write_folder(folder, {**pages, CHECK_JSON: to_json(answer)})


def check_document(answer: Check) -> Document:
    """The check as a document: current machines, misses, and the command of an assessment."""
    holding = sum(w.holds for w in answer.workloads)
    summary = f"{holding} of {len(answer.workloads):,} set-ups meet their targets and policies"
    wrong = [*answer.reasons, *(f"{w.name}: {text}" for w in answer.workloads for text in w.reasons)]
    retired = [f"{w.name}: {text}" for w in answer.workloads for text in w.notes]
    sections = [
        Section("Summary", tuple(_summary(answer))),
        Section("Missed targets and policies", (Bullets(wrong),) if wrong else ()),
        Section("Retired machines", (Bullets(retired),) if retired else ()),
        Section("What runs today", (_machines(answer),)),
        Section("What would change", tuple(_changes(answer))),
    ]
    return Document(
        title=f"What runs today: {answer.name}",
        subtitle=f"{answer.date}: {summary}".removeprefix(": "),
        sections=[section for section in sections if section.blocks],
    )


def _summary(answer: Check) -> Iterator[Block]:
    idle = format_percent(answer.idle_usd_per_month / answer.usd_per_month) if answer.usd_per_month else "-"
    tiles = [
        Tile("a month", usd(answer.usd_per_month), "for what runs today, with storage and traffic"),
        Tile("idle", usd(answer.idle_usd_per_month), f"{idle} of it: hours and machines that nothing needs"),
    ]
    if answer.proposed_usd_per_month is not None:
        change = change_text(answer.proposed_usd_per_month - answer.usd_per_month)
        tiles.append(
            Tile(
                "proposed", usd(answer.proposed_usd_per_month), f"with the machines of an assessment: {change} a month"
            )
        )
    yield Tiles(tiles)
    if answer.proposed_usd_per_month is None and answer.no_proposal:
        yield Text(f"Nothing is proposed: {answer.no_proposal}")
    if answer.without:
        yield Text(f"Not stated: what runs {', '.join(answer.without)}")


def _machines(answer: Check) -> Table:
    return Table(
        ["workload", "runs on", "bought", ">hours", ">a month", "fits", "holds", ">likely", ">busy", ">idle a month",
         "price date"],
        [row for w in answer.workloads for row in _rows(w)],
        "Likely: the probability that the hardest target is met. Busy: the share of the machines' capacity in use "
        "while they are on. Idle: the cost of hours and machines that nothing needs.",
    )  # fmt: skip


def _rows(w: CheckedWorkload) -> Iterator[tuple[str, ...]]:
    """A row for each kind of machine; the judgement stands in the first."""
    likely = dash(min(w.meets.values(), default=None), lambda value: format_percent(value, 0))
    for number, m in enumerate(w.machines):
        first = not number
        verdict = (*("yes" if good else "no" for good in (w.fits, w.holds)), likely) if first else ("", "", "")
        yield (
            w.name if first else "", f"{m.count:,} x {m.provider} {m.instance}, {m.region}", purchase_text(m.purchase),
            hours(m.hours_per_month), usd(m.usd_per_month), *verdict,
            dash(m.busy_frac, lambda value: format_percent(value, 0)), usd(w.idle_usd_per_month) if first else "",
            m.price_date or m.price_source,
        )  # fmt: skip


def _changes(answer: Check) -> Iterator[Block]:
    if rows := change_rows(answer):
        note = (
            "The easiest change of each workload first; each builds on those before it. Share: its part of the "
            "difference between today's bill and the proposal. After it: the monthly cost of the workload, and of all."
        )
        yield Table(CHANGE_HEADERS, rows, note)
