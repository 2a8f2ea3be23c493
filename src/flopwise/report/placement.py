"""The machines of each workload as a picture, the best of each provider, and devices that need other software."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flopwise.fleet.assessment import Assessment, ProviderChoice
from flopwise.report.blocks import Block, Stream, Streams, Table
from flopwise.report.words import change_text, largest, purchase_text, usd
from flopwise.units import format_items

DRAWN = 20
"""Workloads in the picture, those that cost most; the others are one."""
LISTED = 40
"""Workloads in the table; the JSON has all."""


def provider_choices(assessment: Assessment) -> Iterator[Block]:
    """Workload, provider, instance: each way as wide as what it costs a month."""
    if rows := streams(assessment):
        yield Streams("Which workload runs where, by what its machines cost a month", COLUMNS, rows)
    if assessment.by_provider:
        yield from _best_of_each(assessment)


COLUMNS = ("workload", "provider", "machines")


def streams(assessment: Assessment) -> list[Stream]:
    """Machines of each workload with what they cost; of many workloads those that cost most, the others together."""
    costs: dict[str, float] = defaultdict(float)
    for row in assessment.allocation:
        costs[row.workload] += row.usd_per_month
    shown = [name for name, _ in largest(costs)]
    if len(shown) > DRAWN:
        shown = shown[: DRAWN - 1]
    rest = len(costs) - len(shown)
    others = format_items(rest, "other workload")
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    for row in assessment.allocation:
        name = row.workload if row.workload in shown else others
        machines = row.instance if row.purchase == "api" or not row.gpu else f"{row.instance} ({row.gpu})"
        sums[(name or "idle machines") + " (standby)" * (row.role == "backup"), row.provider, machines] += (
            row.usd_per_month
        )
    return [Stream(nodes, value, usd(value)) for nodes, value in sorted(sums.items(), key=lambda item: -item[1])]


def _best_of_each(assessment: Assessment) -> Iterator[Block]:
    cost = assessment.usd_per_month.by_workload
    shown = {name for name, _ in largest(cost)[:LISTED]}
    rows = [_cells(choice) for choice in assessment.by_provider if choice.workload in shown or len(cost) <= LISTED]
    more = "" if len(cost) <= LISTED else f" The {LISTED} workloads that cost most are listed; assessment.json has all."
    yield Table(
        [
            "workload", "provider", "its best machines", "region", "bought", ">a month", ">against the plan", "why not",
            "price date",
        ],
        rows,
        "The cheapest machines of each provider that run the whole workload by themselves, without standby, storage "
        f"and traffic.{more}",
        first=8,
    )  # fmt: skip


def _cells(choice: ProviderChoice) -> tuple[str, ...]:
    if choice.usd_per_month is None:
        return (choice.workload, choice.provider, "-", "-", "-", "-", "-", choice.why, "-")
    machines = f"{choice.count:,} x {choice.instance}" + (f" ({choice.gpu})" if choice.gpu else "")
    if choice.purchase == "api":
        machines = choice.instance
    return (
        choice.workload, choice.provider, machines, choice.region, purchase_text(choice.purchase),
        usd(choice.usd_per_month), "-" if choice.taken else change_text(choice.change_usd), choice.why,
        choice.price_date or "-",
    )  # fmt: skip


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
