"""`flopwise assess`: the GPU strategy of a whole platform."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.cli.progress import Progress
from flopwise.cli.render import Screen, bars, pairs, plain_text, table
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FILE, WHOLE_OR_ZERO
from flopwise.report.blocks import Table, Text
from flopwise.report.changes import changes
from flopwise.report.costs import baseline_text, savings_by_kind
from flopwise.report.outlook import lasts, threshold
from flopwise.report.placement import COLUMNS, streams
from flopwise.report.scaling import scaling
from flopwise.report.words import between, bill_interval, enumeration, hours, planned_text, purchase_text, usd
from flopwise.results import plain
from flopwise.units import format_percent

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment
    from flopwise.provenance import Figure


@options.command("assess", "flopwise assess examples/textnlp.yaml -o build/textnlp-report", work="assessing")
@options.argument("fleet", FILE)
@add("-o --output", FILE, "Write the report into this folder.")
@add("--compare", FILE, "Show what changed since an earlier report (folder or JSON).", field="old")
@add("--scenarios", WHOLE_OR_ZERO, "Random scenarios of demand, prices and interruptions.", default=1000)
@options.to_flag
@options.force_flag
@flags(SharedSpec, "seed")
@flags(SourceSpec, "facts calibration")
@options.explain_flag
@options.web_flag
def command(*, web: bool, explain: bool, **given: Any) -> None:
    """Machines for a whole platform: many workloads, one bill.

    FLEET is a YAML file of workloads and policies (docs/questions/fleet.md). -o writes report.html, report.md,
    assessment.json and the plan of each workload into a folder. The exit code is 1 if a workload's targets or the
    policies cannot be met.
    """
    from flopwise.api.prices import today
    from flopwise.cli.commands.export import folder_exports
    from flopwise.exports.targets import check_targets
    from flopwise.facts.catalog import load_facts
    from flopwise.fleet.assess import assess
    from flopwise.fleet.assessment import read_assessment
    from flopwise.fleet.explain import assessment_figure
    from flopwise.fleet.read import load_fleet
    from flopwise.folders import check_folder
    from flopwise.report.write import with_plan_files, write_report

    if web:
        from flopwise.cli.commands.web import run_server
        from flopwise.search.workload_file import read_text

        run_server("fleet", text=read_text(given["fleet"]))
        return
    if given["output"] is not None:
        check_folder(given["output"])
    elif given["to"]:
        raise options.usage_error("--to exports a report's plans: give the folder of the report with -o")
    check_targets(given["to"])
    folders = {target: given["output"] / target for target in given["to"]}
    if not given["force"] and (there := [folder for folder in folders.values() if folder.exists()]):
        raise options.usage_error(f"{there[0]} is there already; --force replaces what an export wrote")
    before = None if given["old"] is None else read_assessment(given["old"])
    with Progress("assessing") as progress:
        answer = assess(
            load_fleet(given["fleet"]), load_facts(given["facts"], given["calibration"]), today=today().isoformat(),
            scenarios=given["scenarios"], seed=given["seed"],
            advance=lambda what, done, whole: progress(done, whole, what),
        )  # fmt: skip
    assessment, written = answer.assessment, list[Path]()
    tree = assessment_figure(assessment, answer.plans) if explain else None
    if given["output"] is not None:
        assessment = with_plan_files(assessment, answer.plans)
        written = write_report(assessment, given["output"], plans=answer.plans, before=before)
        written += _write_provenance(tree, given["output"])
    exports = folder_exports(
        given["output"], folders, facts=given["facts"], calibration=given["calibration"], force=given["force"]
    )

    def text(fleet: Assessment, paper: Screen) -> Iterator[str]:
        yield from blocks(fleet, paper, written, before)
        for one in exports:
            yield from one.blocks(paper)

    def as_json(fleet: Assessment) -> dict[str, Any]:
        return {**plain(fleet), **({"exported": [one.document() for one in exports]} if exports else {})}

    figure = None if tree is None else lambda _: tree
    options.answer(assessment, text, as_json, figure, further=_further(given["fleet"], written))
    if assessment.warnings or not all(w.feasible for w in assessment.workloads):
        click.get_current_context().exit(1)


def _write_provenance(tree: Figure | None, folder: Path) -> list[Path]:
    """The tree as a file of the report; none without one."""
    from flopwise.files import write_whole
    from flopwise.provenance import to_json

    if tree is None:
        return []
    path = folder / "provenance.json"
    write_whole(path, json.dumps([to_json(tree)]).encode() + b"\n")
    return [path]


def _further(fleet: Path, written: Sequence[Path]) -> dict[str, str]:
    """The line that writes the report, or that exports a plan of it."""
    plans = [path for path in written if path.suffix == ".json" and path.parent.name == "plans"]
    if plans:
        exported = shlex.join(["flopwise", "export", "skypilot", str(plans[0]), "-o", "deploy"])
        return {"One of its plans as files that deploy it": exported}
    return {"The report, with all tables and plans": shlex.join(["flopwise", "assess", str(fleet), "-o", "report"])}


MOST = 5
"""Savings, risks and policies that the screen shows; the report has all."""


def blocks(
    assessment: Assessment, paper: Screen, written: Sequence[Path] = (), before: Assessment | None = None
) -> Iterator[str]:
    """The assessment as people read it."""
    cost = assessment.usd_per_month
    for w in assessment.workloads:
        if not w.feasible:
            yield paper.paint(plain_text(f"WARNING: no machine runs {w.name}: {'; '.join(w.reasons)}"), "red")
    for text in assessment.warnings:
        yield paper.paint(plain_text(f"WARNING: {text}"), "red")
    yield pairs(_totals(assessment), paper)
    if before is not None:
        yield from _since(before, assessment, paper)
    headers = ["workload", "environment", "runs on", "bought", ">hours", ">a month", "interval"]
    yield table(headers, [_row(a) for a in assessment.allocation], paper)
    if len(cost.by_provider) > 1:
        split = sorted(cost.by_provider.items(), key=lambda item: -item[1])
        yield bars(
            [(name, value, f"{usd(value)} ({format_percent(value / cost.total)})") for name, value in split], paper
        )
    ways = streams(assessment)
    if len({way.nodes[1] for way in ways}) > 1:
        yield table([*COLUMNS, ">a month"], [(*way.nodes, way.text) for way in ways], paper)
    for block in scaling(assessment):
        if isinstance(block, Table):
            yield table(list(block.headers), [tuple(map(str, row)) for row in block.rows], paper)
    yield from _lists(assessment, paper)
    if written:
        count = sum(path.suffix == ".json" for path in written[3:])
        plans = f" and {count:,} plans" if count else ""
        yield f"The report is in {plain_text(str(written[0].parent))}: {', '.join(p.name for p in written[:3])}{plans}"


def _totals(assessment: Assessment) -> list[tuple[str, Any]]:
    cost, drawn = assessment.usd_per_month, assessment.scenarios
    sums = savings_by_kind(assessment)
    rows: list[tuple[str, Any]] = [
        (
            "expected bill",
            f"{usd(cost.total if cost.expected is None else cost.expected)} a month ({bill_interval(cost)})",
        ),
        *([] if cost.expected is None else [("planned bill", planned_text(assessment))]),
        ("optimal", assessment.optimality),
    ]
    if assessment.budget_per_month is not None:
        chance = (
            ""
            if drawn is None or drawn.over_budget is None
            else f"; {format_percent(drawn.over_budget)} chance of exceeding it"
        )
        share = format_percent((cost.total if cost.expected is None else cost.expected) / assessment.budget_per_month)
        rows.append(("budget", f"{usd(assessment.budget_per_month)} a month: {share} of it used{chance}"))
    if sums:
        named = enumeration([f"{name} {usd(value)}" for name, value in sums.items()], 5)
        rows.append(("savings", f"{usd(sum(sums.values()))} a month: {named}; against {baseline_text(assessment)}"))
    return rows


def _row(a: Any) -> tuple[str, ...]:
    role = "" if a.role == "primary" else f" ({a.role})" if a.workload else a.role
    own = ", dedicated" if a.dedicated else ""
    return (
        f"{a.workload}{role}", a.environment, f"{a.count:,} x {a.provider} {a.instance}, {a.region}",
        purchase_text(a.purchase) + own + (" (assumed price)" if a.usd_per_hour_interval else ""),
        hours(a.hours_per_month), usd(a.usd_per_month), between(a.usd_low, a.usd_high),
    )  # fmt: skip


def _lists(assessment: Assessment, paper: Screen) -> Iterator[str]:
    savings = sorted((s for s in assessment.savings if s.counted), key=lambda s: -abs(s.usd_per_month))[:MOST]
    if savings:
        saved = [(s.what, s.workload, usd(s.usd_per_month), s.how) for s in savings]
        yield table(["saving", "workload", ">a month", "how"], saved, paper)
    risks = sorted(assessment.risks, key=lambda r: -r.score)[:MOST]
    if risks:
        rows = [
            (f"{r.score:.2f}", f"{100 * r.probability:.0f} %", f"{100 * r.impact:.0f} %", r.kind,
             r.workload or "the fleet", r.evidence, r.mitigation)
            for r in risks
        ]  # fmt: skip
        yield table([">risk", ">likely", ">impact", "kind", "workload", "evidence", "what to do"], rows, paper)
    dearest = next(iter(assessment.usd_per_month.by_workload), "")
    watched = [a for a in assessment.monitoring if a.workload in {"", dearest}]
    if watched:
        alerts = [(a.metric, a.workload or "the fleet", threshold(a), lasts(a.for_s), a.action) for a in watched]
        yield table(["alert", "workload", "when", ">for", "what to do"], alerts, paper)
    binding = [b for b in assessment.binding if b.usd_per_month > 0][:MOST]
    if binding:
        yield "What the policies cost:\n" + "\n".join(f"  - {plain_text(b.text)}" for b in binding)
    if steps := [step for b in binding for step in b.steps]:
        yield "What other shares of the bill would cost:\n" + "\n".join(
            f"  - {plain_text(step.text)}" for step in steps
        )
    if assessment.price_notes:
        yield "Prices:\n" + "\n".join(f"  - {plain_text(note)}" for note in assessment.price_notes[:MOST])


def _since(before: Assessment, after: Assessment, paper: Screen) -> Iterator[str]:
    """The changes, with the same words as in the report."""
    for block in changes(before, after):
        match block:
            case Text():
                yield plain_text(block.text)
            case Table():
                yield table(list(block.headers), [tuple(map(str, row)) for row in block.rows], paper)
