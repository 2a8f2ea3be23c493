"""An assessment as a document: which parts it has, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flopwise.report import costs, machines, outlook, workloads
from flopwise.report.blocks import Block, Bullets, Document, Heading, Section, Text
from flopwise.report.changes import changes
from flopwise.report.summary import summary

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment


def document(assessment: Assessment, before: Assessment | None = None) -> Document:
    """The whole report; with `before`, an earlier assessment, also what changed since."""
    sections = [
        Section("Summary", tuple(summary(assessment))),
        Section("Since the last assessment", () if before is None else tuple(changes(before, assessment))),
        Section("Workloads", tuple(workloads.workloads(assessment))),
        Section("Recommendations", tuple(workloads.recommendations(assessment))),
        Section("Performance expected", tuple(workloads.expected(assessment))),
        Section("Monthly cost", tuple(costs.costs(assessment))),
        Section("Allocation over providers", tuple(costs.allocation(assessment))),
        Section("Own machines", tuple(machines.own_machines(assessment))),
        Section("Hosted APIs", tuple(machines.hosted(assessment))),
        Section("Savings", tuple(costs.savings(assessment))),
        Section("What the policies cost", tuple(costs.policies(assessment))),
        Section("If things change", tuple(costs.what_ifs(assessment))),
        Section("Risks", tuple(outlook.risks(assessment))),
        Section("Roadmap", tuple(outlook.roadmap(assessment))),
        Section("Monitoring", tuple(outlook.monitoring(assessment))),
        Section("Model sizes", tuple(machines.sizes(assessment))),
        Section("Accelerators compared", tuple(machines.gpus(assessment))),
        Section("Instances considered", tuple(machines.instances(assessment))),
        Section("Assumptions and sources", tuple(_appendix(assessment))),
    ]
    dates = sorted({a.price_date for a in assessment.allocation if a.price_date})
    prices = "" if not dates else f", prices of {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
    return Document(
        title=f"GPU strategy: {assessment.name}",
        subtitle=f"{assessment.date}: {len(assessment.workloads):,} workloads{prices}",
        sections=[section for section in sections if section.blocks],
    )


def _appendix(assessment: Assessment) -> Iterator[Block]:
    if assessment.price_notes:
        yield Heading("Prices")
        yield Bullets(assessment.price_notes)
    if assessment.assumptions:
        yield Heading("Assumptions")
        yield Bullets(assessment.assumptions)
    yield Heading("Provenance")
    yield Text(
        "Step times, memory and latencies come from models of kernels, messages and engines; their intervals are the "
        "errors measured against published runs. Prices carry the day and the source that they were read from. "
        "The plan of each workload leads from a figure back to its formulas and facts."
    )
