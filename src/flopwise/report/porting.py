"""If you port: what workloads would cost on devices that their projects need other software for."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.fleet.assessment import Assessment
from flopwise.report.blocks import Block, Table
from flopwise.report.words import change_text, largest, purchase_text, usd

LISTED = 40
"""Workloads in the table; the JSON has all."""


def if_you_port(assessment: Assessment) -> Iterator[Block]:
    """Each workload's cheapest machines with AMD, TPU, Trainium or Inferentia, or Gaudi; what it saves and takes."""
    shown = {name for name, _ in largest(assessment.usd_per_month.by_workload)[:LISTED]}
    rows = [
        (
            port.workload, port.software, f"{port.num_instances:,} x {port.provider} {port.instance} ({port.gpu})",
            purchase_text(port.purchase), usd(port.cost_usd), change_text(-port.saves_usd), f"{port.rows:,}",
            "; ".join(port.work),
        )
        for port in assessment.if_you_port
        if port.workload in shown
    ]  # fmt: skip
    if rows:
        yield Table(
            [
                "workload", "software", "machines", "bought", ">a month", ">against the plan", ">measured rows",
                "what has to be ported",
            ],
            rows,
            "The plan needs no port: its machines run PyTorch and CUDA code unchanged. The following would need one, "
            "whose effort is not in the price. Measured rows: the published runs of that software behind the "
            "estimates.",
            first=8,
        )  # fmt: skip
