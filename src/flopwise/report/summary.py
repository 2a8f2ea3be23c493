"""The first page: the figures that matter, and what they mean for whoever decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flopwise.report.blocks import Block, Points, Text, Tile, Tiles
from flopwise.report.costs import carbon_known, paid_beyond, saved
from flopwise.report.outlook import past_budget
from flopwise.report.words import between, bought, digits, largest, listed, runs_on, sentence, share, usd
from flopwise.units import format_percent

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment, Risk

TOP = 3
"""Workloads and risks that the summary names."""
WORTH = 0.01
"""Share of the bill from which a saving or a policy is worth a sentence."""
YEARS = {"reserved_1y": 1, "reserved_3y": 3}


def summary(assessment: Assessment) -> Iterator[Block]:
    """Tiles, one sentence, and what to know, to decide and to watch."""
    yield Tiles(list(_tiles(assessment)))
    yield Text(_headline(assessment), strong=True)
    yield Points(list(_points(assessment)))


def _tiles(assessment: Assessment) -> Iterator[Tile]:
    cost, drawn, budget = assessment.usd_per_month, assessment.scenarios, assessment.budget_per_month
    yield Tile("a month", usd(cost.total), f"{between(cost.low, cost.high)} in 8 of 10 cases")
    if budget is not None:
        odds = None if drawn is None else drawn.over_budget
        chance = "" if odds is None else f"; {format_percent(odds)} chance of a month above"
        yield Tile("of the budget", format_percent(cost.total / budget), f"of {usd(budget)} a month{chance}")
    primary = [a for a in assessment.allocation if a.role == "primary" and a.purchase != "api"]
    yield Tile(
        "accelerators", f"{sum(a.num_gpus for a in primary):,}",
        f"on {sum(a.count for a in primary):,} machines of {len({a.provider for a in primary}):,} providers, at most "
        "at once",
    )  # fmt: skip
    sums = saved(assessment)
    if sums:
        named = listed([f"{name} {usd(value)}" for name, value in sums.items()], 2)
        beyond = -sum(s.usd_per_month for s in paid_beyond(assessment))
        less = f"; {usd(beyond)} paid for policies is taken off" if beyond else ""
        yield Tile("saved a month", usd(sum(sums.values())), f"{named}, against the next best{less}")
    kg, known, whole = carbon_known(assessment)
    if known:
        part = "" if known == whole else f", of {known:,} of {whole:,} workloads; the others' power is not known"
        yield Tile("carbon", f"{digits(kg)} kg", f"CO2 equivalent a month{part}")


def _headline(assessment: Assessment) -> str:
    cost = assessment.usd_per_month
    failed = [w.name for w in assessment.workloads if not w.feasible]
    runs = (
        f"All {len(assessment.workloads):,} workloads run"
        if not failed
        else f"Nothing runs {listed(failed)}; the rest runs"
    )
    split = listed([f"{p} {share(v, cost.total)}" for p, v in largest(cost.by_provider)], 5)
    return f"{runs} for {usd(cost.total)} a month" + (f": {split}." if split and cost.total else ".")


def _points(assessment: Assessment) -> Iterator[tuple[str, str]]:
    yield from _money(assessment)
    yield from _decisions(assessment)
    worst: dict[str, Risk] = {}
    for risk in sorted(assessment.risks, key=lambda r: -r.score):
        worst.setdefault(risk.kind, risk)
    for risk in [*worst.values()][:TOP]:
        whose = f"{risk.workload}: " if risk.workload else ""
        evidence = sentence(risk.evidence) if not whose else f"{risk.evidence.rstrip('.')}."
        yield f"Risk: {risk.kind}.", f"{whose}{evidence} {sentence(risk.mitigation)}"
    yield from _ahead(assessment)


def _money(assessment: Assessment) -> Iterator[tuple[str, str]]:
    cost = assessment.usd_per_month
    held = {w.name: w for w in assessment.workloads}
    said = []
    for name, value in largest(cost.by_workload)[:TOP]:
        where = f" on {runs_on(assessment, held[name])}" if name in held else ""
        said.append(f"{name} {usd(value)} ({share(value, cost.total)}){where}")
    if said:
        yield "Where the money goes.", f"{'; '.join(said)}."
    ways = largest(cost.by_purchase)
    if ways and cost.total:
        yield "How it is bought.", sentence(listed([f"{bought(n)} {share(v, cost.total)}" for n, v in ways], 6))


def _decisions(assessment: Assessment) -> Iterator[tuple[str, str]]:
    """Commitments to sign, and savings that are open."""
    for purchase, years in YEARS.items():
        rows = [a for a in assessment.allocation if a.purchase == purchase and a.role == "primary"]
        if rows:
            named = listed([f"{a.count:,} x {a.provider} {a.instance}" for a in rows])
            whole = sum(a.usd_per_month for a in rows) * 12 * years
            term = "a year" if years == 1 else f"{years} years"
            yield "To sign.", f"{named} for {term}, {usd(whole)} in all{_gained(assessment, purchase)}."
    least = WORTH * assessment.usd_per_month.total
    for saving in sorted(assessment.savings, key=lambda s: -s.usd_per_month):
        if not saving.taken and saving.usd_per_month >= least:
            yield (
                "Still open.",
                f"{saving.what} of {saving.workload} would save {usd(saving.usd_per_month)} a month: "
                + (sentence(saving.how)[:1].lower() + sentence(saving.how)[1:]),
            )
            break
    costly = [b for b in assessment.binding if b.usd_per_month >= least][:2]
    if costly:
        yield "What the policies cost.", sentence("; ".join(b.text.rstrip(".") for b in costly))


def _gained(assessment: Assessment, purchase: str) -> str:
    """What the commitments of one term save against on demand, and a warning of those that cost more than that."""
    mine = [s for s in assessment.savings if s.taken and s.purchase == purchase]
    gained = sum(s.usd_per_month for s in mine)
    told = "" if not gained else f"; they {'save' if gained > 0 else 'cost'} {usd(abs(gained))} a month"
    told += " more than on demand" if gained < 0 else " against on demand" if gained else ""
    dear = sorted((s for s in mine if s.usd_per_month < 0), key=lambda s: s.usd_per_month)
    if not dear:
        return told
    named = listed([f"that for {s.workload} costs {usd(-s.usd_per_month)} a month more ({s.why})" for s in dear], 2)
    return f"{told}. Look twice: {named}"


def _ahead(assessment: Assessment) -> Iterator[tuple[str, str]]:
    if len(assessment.forecast) < 2:
        return
    last, over = assessment.forecast[-1], past_budget(assessment)
    told = f"with the stated growth the bill is {usd(last.usd)} in {last.month}"
    if over is not None:
        told += f"; it passes the budget in {over.month}"
    yield "What comes.", sentence(told)
