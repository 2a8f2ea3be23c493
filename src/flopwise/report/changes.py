"""What changed from one assessment to the next: the bill, its parts, the machines of each workload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flopwise.report.blocks import Block, Table, Text
from flopwise.report.money import usd

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment

SMALL_USD = 0.005


def changes(before: Assessment, after: Assessment) -> Iterator[Block]:
    """The bill then and now, then what moved it."""
    old, new = before.usd_per_month, after.usd_per_month
    yield Text(f"{usd(old.total)} a month on {before.date}, now {usd(new.total)}: {_signed(new.total - old.total)}.")
    rows = []
    for title, was, now in (
        ("workload", old.by_workload, new.by_workload), ("provider", old.by_provider, new.by_provider),
        ("purchase", old.by_purchase, new.by_purchase),
    ):  # fmt: skip
        for name in sorted({*was, *now}):
            moved = now.get(name, 0.0) - was.get(name, 0.0)
            if abs(moved) >= SMALL_USD:
                rows.append((title, name, usd(was.get(name)), usd(now.get(name)), _signed(moved)))
    if rows:
        yield Table(["by", "", ">then", ">now", ">change"], rows)
    moved_machines = list(_machines(before, after))
    if moved_machines:
        yield Table(["workload", "ran on", "runs on"], moved_machines)
    if not rows and not moved_machines:
        yield Text("Nothing else changed.")


def _signed(value: float) -> str:
    return "no change" if abs(value) < SMALL_USD else f"{'+' if value > 0 else '-'}{usd(abs(value))}"


def _held(found: Assessment) -> dict[str, str]:
    held: dict[str, list[str]] = {}
    for a in found.allocation:
        held.setdefault(a.workload, []).append(
            f"{a.count:,} x {a.provider} {a.instance} {a.purchase.replace('_', ' ')}"
        )
    return {name: ", ".join(sorted(machines)) for name, machines in held.items()}


def _machines(before: Assessment, after: Assessment) -> Iterator[tuple[str, str, str]]:
    was, now = _held(before), _held(after)
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield name, was.get(name, "-"), now.get(name, "-")
