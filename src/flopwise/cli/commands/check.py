"""`flopwise check`: what a platform runs on today, judged."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.cli.parts import bullets
from flopwise.cli.progress import Progress
from flopwise.cli.render import Screen, pairs, plain_text, table
from flopwise.facts.spec import SourceSpec
from flopwise.options import FILE
from flopwise.report.words import CHANGE_HEADERS, change_rows, change_text, hours, purchase_text, usd
from flopwise.units import format_percent

if TYPE_CHECKING:
    from flopwise.fleet.check import Check, CheckedWorkload


@options.command("check", "flopwise check examples/existing.yaml --existing examples/existing.csv", work="checking")
@options.argument("fleet", FILE)
@add("-o --output", FILE, "Write the report of the check into this folder.")
@add("--existing", FILE, "A table (CSV) of what workloads run on: name, instance, count, hours.")
@flags(SourceSpec, "facts calibration")
def command(**given: Any) -> None:
    """Assessment of today's machines: targets, cost, and what to change.

    FLEET is a fleet file (docs/questions/check.md) whose workloads list their machines under `existing`, or in a table.
    Each is compared with its targets and policies, and with the allocation of `flopwise assess`, one change after the
    other. -o writes report.html, report.md and check.json into a folder. The exit code is 1 if a target or a policy is
    not met.
    """
    from flopwise.api.check import check
    from flopwise.folders import check_folder
    from flopwise.report.write import write_check

    if given["output"] is not None:
        check_folder(given["output"])
    with Progress("checking") as progress:
        answer = check(
            given["fleet"], existing=given["existing"], facts=given["facts"],
            calibration=given["calibration"],
            advance=lambda what, done, whole: progress(done, whole, what),
        )  # fmt: skip
    written = [] if given["output"] is None else write_check(answer, given["output"])
    whole = shlex.join(["flopwise", "assess", str(given["fleet"]), "-o", "report"])
    options.answer(
        answer, lambda one, paper: blocks(one, paper, written), further={"The proposal as a report": whole}
    )  # fmt: skip
    if not answer.holds:
        click.get_current_context().exit(1)


def blocks(answer: Check, paper: Screen, written: Sequence[Path] = ()) -> Iterator[str]:
    """The check as people read it."""
    yield pairs(list(_totals(answer)), paper)
    headers = [
        "workload", "runs on", "bought", ">hours", ">a month", "fits", "targets and policies", ">chance", ">busy",
        ">idle",
    ]  # fmt: skip
    yield table(headers, [row for w in answer.workloads for row in _rows(w)], paper)
    if wrong := [*answer.reasons, *(f"{w.name}: {text}" for w in answer.workloads for text in w.reasons)]:
        yield bullets("Missed targets and policies:", [plain_text(text) for text in wrong])
    if notes := [f"{w.name}: {text}" for w in answer.workloads for text in w.notes]:
        yield bullets("Retired machines:", [plain_text(text) for text in notes])
    if rows := change_rows(answer):
        yield table(CHANGE_HEADERS, rows, paper)
    if written:
        yield f"The report is in {plain_text(str(written[0].parent))}: {', '.join(path.name for path in written)}"


def _totals(answer: Check) -> Iterator[tuple[str, Any]]:
    beside = answer.usd_per_month - sum(m.usd_per_month for w in answer.workloads for m in w.machines)
    if beside > 0.005:
        yield "of it, storage and traffic", usd(beside)
    share = format_percent(answer.idle_usd_per_month / answer.usd_per_month) if answer.usd_per_month else "-"
    yield "idle", f"{usd(answer.idle_usd_per_month)} a month, {share} of it"
    if answer.proposed_usd_per_month is not None:
        change = answer.proposed_usd_per_month - answer.usd_per_month
        yield "proposed", f"{usd(answer.proposed_usd_per_month)} a month: {change_text(change)}"
    elif answer.no_proposal:
        yield "proposed", f"nothing: {answer.no_proposal}"
    if answer.without:
        yield "unknown", f"current machines of {len(answer.without)} other workloads: {', '.join(answer.without[:5])}"


def _rows(w: CheckedWorkload) -> Iterator[tuple[Any, ...]]:
    """A row for each kind of machine; the judgement stands in the first."""
    likely = format_percent(min(w.meets.values()), 0) if w.meets else None
    for number, m in enumerate(w.machines):
        verdict = (w.fits, w.holds, likely) if not number else ("", "", "")
        busy = None if m.busy_frac is None else format_percent(m.busy_frac, 0)
        idle = usd(w.idle_usd_per_month) if w.idle_usd_per_month and not number else ""
        yield (
            "" if number else w.name, f"{m.count:,} x {m.provider} {m.instance}, {m.region}", purchase_text(m.purchase),
            hours(m.hours_per_month), usd(m.usd_per_month), *verdict, busy, idle,
        )  # fmt: skip
