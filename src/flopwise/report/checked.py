"""A check of what a fleet runs on today, as a document."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.fleet.check import Check, CheckedWorkload
from flopwise.report.blocks import Block, Bullets, Document, Section, Table, Text, Tile, Tiles
from flopwise.report.words import bought, change_text, dash, hours, usd
from flopwise.units import format_percent


def check_document(found: Check) -> Document:
    """What there is, what does not hold, and the way to what an assessment would take."""
    holding = sum(w.holds for w in found.workloads)
    wrong = [*found.reasons, *(f"{w.name}: {text}" for w in found.workloads for text in w.reasons)]
    sections = [
        Section("Summary", tuple(_summary(found))),
        Section("What does not hold", (Bullets(wrong),) if wrong else ()),
        Section("What runs today", (_machines(found),)),
        Section("What would change", tuple(_changes(found))),
    ]
    return Document(
        title=f"What runs today: {found.name}",
        subtitle=f"{found.date}: {holding} of {len(found.workloads):,} set-ups hold".removeprefix(": "),
        sections=[section for section in sections if section.blocks],
    )


def _summary(found: Check) -> Iterator[Block]:
    idle = format_percent(found.idle_usd_per_month / found.usd_per_month) if found.usd_per_month else "-"
    tiles = [
        Tile("a month", usd(found.usd_per_month), "of what there is, storage and traffic with it"),
        Tile("idle", usd(found.idle_usd_per_month), f"{idle} of it: hours and machines that nothing needs"),
    ]
    if found.proposed_usd_per_month is not None:
        change = change_text(found.proposed_usd_per_month - found.usd_per_month)
        tiles.append(Tile("proposed", usd(found.proposed_usd_per_month), f"what an assessment takes: {change} a month"))
    yield Tiles(tiles)
    if found.proposed_usd_per_month is None and found.no_proposal:
        yield Text(f"Nothing is proposed: {found.no_proposal}")
    if found.without:
        yield Text(f"What other workloads run on is not said: {', '.join(found.without)}")


def _machines(found: Check) -> Table:
    return Table(
        ["workload", "runs on", "bought", ">hours", ">a month", "fits", "holds", ">likely", ">busy", ">idle a month",
         "price of"],
        [row for w in found.workloads for row in _rows(w)],
        "Likely: the probability of the target that is met least surely. Busy: of what the machines can do while they "
        "are on. Idle: of hours and machines that nothing needs.",
    )  # fmt: skip


def _rows(w: CheckedWorkload) -> Iterator[tuple[str, ...]]:
    """A row for each kind of machine; the judgement stands in the first."""
    likely = dash(min(w.meets.values(), default=None), lambda value: format_percent(value, 0))
    for number, m in enumerate(w.machines):
        first = not number
        verdict = (*("yes" if good else "no" for good in (w.fits, w.holds)), likely) if first else ("", "", "")
        yield (
            w.name if first else "", f"{m.count:,} x {m.provider} {m.instance}, {m.region}", bought(m.purchase),
            hours(m.hours_per_month), usd(m.usd_per_month), *verdict,
            dash(m.busy_frac, lambda value: format_percent(value, 0)), usd(w.idle_usd_per_month) if first else "",
            m.price_date or m.price_source,
        )  # fmt: skip


def _changes(found: Check) -> Iterator[Block]:
    rows = [
        (w.name, c.what, change_text(-c.saves_usd_per_month), usd(c.usd_per_month), c.how)
        for w in found.workloads
        for c in w.changes
    ]
    if rows:
        yield Table(["workload", "change", ">a month", ">then", "how"], rows, "Easiest first; each on top of the last.")
