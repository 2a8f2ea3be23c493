"""An assessment as a document: which parts it has, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flopwise.report import costs, machines, outlook, own, workloads
from flopwise.report.blocks import Block, Bullets, Document, Heading, Section, Text
from flopwise.report.changes import changes
from flopwise.report.summary import summary

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment


def document(found: Assessment, before: Assessment | None = None) -> Document:
    """The whole report; with `before`, an earlier assessment, also what changed since."""
    sections = [
        Section("Summary", tuple(summary(found))),
        Section("Since the last assessment", () if before is None else tuple(changes(before, found))),
        Section("Workloads", tuple(workloads.workloads(found))),
        Section("Recommendations", tuple(workloads.recommendations(found))),
        Section("Performance expected", tuple(workloads.expected(found))),
        Section("Monthly cost", tuple(costs.costs(found))),
        Section("Allocation over providers", tuple(costs.allocation(found))),
        Section("Own machines", tuple(own.own_machines(found))),
        Section("Hosted APIs", tuple(own.hosted(found))),
        Section("Savings", tuple(costs.savings(found))),
        Section("What the policies cost", tuple(costs.policies(found))),
        Section("If things change", tuple(costs.what_ifs(found))),
        Section("Risks", tuple(outlook.risks(found))),
        Section("Roadmap", tuple(outlook.roadmap(found))),
        Section("Monitoring", tuple(outlook.monitoring(found))),
        Section("Model sizes", tuple(machines.sizes(found))),
        Section("Accelerators compared", tuple(machines.gpus(found))),
        Section("Instances considered", tuple(machines.instances(found))),
        Section("Assumptions and sources", tuple(_appendix(found))),
    ]
    dates = sorted({a.price_date for a in found.allocation if a.price_date})
    prices = "" if not dates else f", prices of {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
    return Document(
        title=f"GPU strategy: {found.name}",
        subtitle=f"{found.date}: {len(found.workloads):,} workloads{prices}",
        sections=[section for section in sections if section.blocks],
    )


def _appendix(found: Assessment) -> Iterator[Block]:
    if found.price_notes:
        yield Heading("Prices")
        yield Bullets(found.price_notes)
    if found.assumptions:
        yield Heading("Assumptions")
        yield Bullets(found.assumptions)
    yield Heading("Provenance")
    yield Text(
        "Step times, memory and latencies come from models of kernels, messages and engines; their intervals are the "
        "errors measured against published runs. Prices carry the day and the source that they were read from. "
        "The plan of each workload leads from a figure back to its formulas and facts."
    )
