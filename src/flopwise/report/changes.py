"""What changed from one assessment to the next: the bill, its parts, the machines, their prices, the risks."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.fleet.assessment import Assessment
from flopwise.report.blocks import Block, Table, Text
from flopwise.report.words import change_text, enumeration, hourly, purchase_text, usd
from flopwise.units import format_percent

SMALL_USD = 0.005
SMALL_SCORE = 0.05
"""Minimum change of a risk's score that is reported."""


def changes(before: Assessment, after: Assessment) -> Iterator[Block]:
    """The bill then and now, then what moved it."""
    old, new = before.usd_per_month, after.usd_per_month
    yield Text(
        f"{usd(old.total)} a month on {before.date or 'an unknown day'}, now {usd(new.total)}: "
        f"{change_text(new.total - old.total)}."
    )
    if before.name != after.name:
        yield Text(
            f"The earlier assessment is of another fleet, {before.name}; this one is of {after.name}.", strong=True
        )
    blocks = [*_fleet(before, after)]
    rows = []
    for title, was, now in (
        ("workload", old.by_workload, new.by_workload), ("provider", old.by_provider, new.by_provider),
        ("purchase", old.by_purchase, new.by_purchase),
    ):  # fmt: skip
        for name in sorted({*was, *now}):
            moved = now.get(name, 0.0) - was.get(name, 0.0)
            if abs(moved) >= SMALL_USD:
                words = purchase_text(name) if title == "purchase" else name
                rows.append((title, words, usd(was.get(name)), usd(now.get(name)), change_text(moved)))
    if rows:
        blocks.append(Table(["by", "", ">then", ">now", ">change"], rows))
    for headers, entries in (
        (["workload", "ran on", "runs on"], _machines(before, after)),
        (["price of an hour", "bought", ">then", ">now", ">change"], _prices(before, after)),
        (["risk", "workload", ">score then", ">score now", "evidence"], _risks(before, after)),
    ):
        lines = list(entries)
        if lines:
            blocks.append(Table(headers, lines))
    yield from blocks or [Text("Nothing else changed.")]


def _fleet(before: Assessment, after: Assessment) -> Iterator[Block]:
    """Workloads that came and went, and the budget."""
    was, now = [w.name for w in before.workloads], [w.name for w in after.workloads]
    new, gone = [n for n in now if n not in set(was)], [n for n in was if n not in set(now)]
    for words, names in (("New", new), ("Gone", gone)):
        if names:
            yield Text(f"{words}: {enumeration(names, 10)}.")
    if before.budget_per_month != after.budget_per_month:
        yield Text(f"The budget was {usd(before.budget_per_month)} and is {usd(after.budget_per_month)}.")


def _machines_by_workload(assessment: Assessment) -> dict[str, str]:
    machines: dict[str, list[str]] = {}
    for a in assessment.allocation:
        standby = " (backup)" if a.role == "backup" else ""
        machines.setdefault(a.workload, []).append(
            f"{a.count:,} x {a.provider} {a.instance}, {a.region}, {purchase_text(a.purchase)}{standby}"
        )
    return {name: "; ".join(sorted(own)) for name, own in machines.items()}


def _machines(before: Assessment, after: Assessment) -> Iterator[tuple[str, str, str]]:
    was, now = _machines_by_workload(before), _machines_by_workload(after)
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield name, was.get(name, "-"), now.get(name, "-")


def _prices(before: Assessment, after: Assessment) -> Iterator[tuple[str, ...]]:
    """Changed prices of machines that both assessments use."""
    was, now = ({(a.provider, a.region, a.instance, a.purchase): a for a in x.allocation} for x in (before, after))
    for key in sorted(was.keys() & now.keys()):
        (provider, region, instance, purchase), old, new = key, was[key], now[key]
        then, today = old.usd_per_hour, new.usd_per_hour
        if then and today is not None and abs(today - then) > 1e-9 * then:
            change = f"{'+' if today > then else ''}{format_percent(today / then - 1)}"
            yield (
                f"{provider} {instance}, {region}", purchase_text(purchase), f"{hourly(then)} ({old.price_date})",
                f"{hourly(today)} ({new.price_date})", change,
            )  # fmt: skip


def _risks(before: Assessment, after: Assessment) -> Iterator[tuple[str, ...]]:
    """Risks that came, went or moved; several of one kind count by their worst."""
    by_score = (sorted(x.risks, key=lambda r: r.score) for x in (before, after))
    was, now = ({(r.kind, r.workload): (r.score, r.evidence) for r in risks} for risks in by_score)
    for key in sorted({*was, *now}):
        then, today = was.get(key), now.get(key)
        if abs((then or (0.0,))[0] - (today or (0.0,))[0]) >= SMALL_SCORE:
            yield (
                key[0], key[1] or "the fleet", "-" if then is None else f"{then[0]:.2f}",
                "gone" if today is None else f"{today[0]:.2f}", (today or then or (0.0, ""))[1],
            )  # fmt: skip
