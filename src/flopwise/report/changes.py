"""What changed from one assessment to the next: the bill, its parts, the machines, their prices, the risks."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.fleet.assessment import Allotment, Assessment
from flopwise.report.blocks import Block, Table, Text
from flopwise.report.words import bought, change_text, enumeration, hourly, usd
from flopwise.units import format_percent

SMALL_USD = 0.005
SMALL_SCORE = 0.05
"""By which a risk's score has to move to be told."""


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
                words = bought(name) if title == "purchase" else name
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
    for words, names in (
        ("New", [n for n in now if n not in set(was)]),
        ("Gone", [n for n in was if n not in set(now)]),
    ):
        if names:
            yield Text(f"{words}: {enumeration(names, 10)}.")
    if before.budget_per_month != after.budget_per_month:
        yield Text(f"The budget was {usd(before.budget_per_month)} and is {usd(after.budget_per_month)}.")


def _machines_by_workload(assessment: Assessment) -> dict[str, str]:
    machines: dict[str, list[str]] = {}
    for a in assessment.allocation:
        standby = " (backup)" if a.role == "backup" else ""
        machines.setdefault(a.workload, []).append(
            f"{a.count:,} x {a.provider} {a.instance}, {a.region}, {bought(a.purchase)}{standby}"
        )
    return {name: "; ".join(sorted(own)) for name, own in machines.items()}


def _machines(before: Assessment, after: Assessment) -> Iterator[tuple[str, str, str]]:
    was, now = _machines_by_workload(before), _machines_by_workload(after)
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield name, was.get(name, "-"), now.get(name, "-")


def _prices(before: Assessment, after: Assessment) -> Iterator[tuple[str, ...]]:
    """Of machines that both have."""

    def paid(assessment: Assessment) -> dict[tuple[str, str, str, str], Allotment]:
        return {(a.provider, a.region, a.instance, a.purchase): a for a in assessment.allocation}

    was, now = paid(before), paid(after)
    for key in sorted(was.keys() & now.keys()):
        then, today = was[key].usd_per_hour, now[key].usd_per_hour
        if then and today is not None and abs(today - then) > 1e-9 * then:
            change = today / then - 1
            sign = "+" if change > 0 else ""
            yield (
                f"{key[0]} {key[2]}, {key[1]}", bought(key[3]), f"{hourly(then)} ({was[key].price_date})",
                f"{hourly(today)} ({now[key].price_date})", f"{sign}{format_percent(change)}",
            )  # fmt: skip


def _risks(before: Assessment, after: Assessment) -> Iterator[tuple[str, ...]]:
    """Risks that came, went or moved; several of one kind count by their worst."""

    def worst_by_kind(assessment: Assessment) -> dict[tuple[str, str], tuple[float, str]]:
        rows: dict[tuple[str, str], tuple[float, str]] = {}
        for r in sorted(assessment.risks, key=lambda r: r.score):
            rows[r.kind, r.workload] = r.score, r.evidence
        return rows

    was, now = worst_by_kind(before), worst_by_kind(after)
    for key in sorted({*was, *now}):
        then, today = was.get(key), now.get(key)
        if abs((then or (0.0,))[0] - (today or (0.0,))[0]) < SMALL_SCORE:
            continue
        yield (
            key[0], key[1] or "the fleet", "-" if then is None else f"{then[0]:.2f}",
            "gone" if today is None else f"{today[0]:.2f}", (today or then or (0.0, ""))[1],
        )  # fmt: skip
