"""Check of a fleet's current set-ups: whether they meet targets and policies, their cost, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import retirement_note
from flopwise.fleet.assess import Advance, recommended_fleet
from flopwise.fleet.assessment import PlainRecord
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.existing import ExistingPart, ExistingSetup, existing_setups, with_share
from flopwise.fleet.ladder import setup_changes
from flopwise.fleet.model import Platform, ResolvedJob
from flopwise.fleet.read import resolve_names
from flopwise.pictures import BarPicture, Picture
from flopwise.results import Result
from flopwise.search.service_load import load_frac
from flopwise.units import format_percent, format_usd

FORMAT = 1
"""Version of the JSON of a check."""
LEAST_IDLE = 0.01
"""Share of the bill from which idle machines are named in the sentence of a check."""


class CheckedMachines(PlainRecord, frozen=True):
    """Machines of one kind that a workload has today, with the best layout on them."""

    provider: str
    region: str
    instance: str
    gpu: str
    count: int
    purchase: str
    hours_per_month: float  # that each is paid
    work_hours_per_month: float  # that each is needed
    usd_per_hour: float  # of one, as listed or as given
    usd_per_month: float
    price_date: str
    price_source: str
    share: float  # of the workload
    busy_frac: float | None  # of what they can do in the hours that are paid
    layout: dict[str, Any]
    figures: dict[str, float | None]


class ProposedChange(PlainRecord, frozen=True):
    """One step from the current to the proposed machines; `saves_usd_per_month` below zero: it costs more."""

    what: str  # schedule, count, purchase, format, machine, backup, storage and traffic
    saves_usd_per_month: float
    usd_per_month: float  # of the workload after it
    fleet_usd_per_month: float  # of all set-ups after it and those before it
    difference_frac: float | None  # of what all changes save that are proposed; None where they save nothing
    how: str


class CheckedWorkload(PlainRecord, frozen=True):
    """The check of one workload's current machines."""

    name: str
    environment: str
    kind: str
    machines: list[CheckedMachines]
    fits: bool
    holds: bool
    reasons: list[str]  # why it does not hold
    notes: list[str]  # machines that their provider retires
    meets: dict[str, float]  # the probability of each target
    usd_per_month: float
    idle_usd_per_month: float  # of hours and machines that nothing needs
    idle: str
    proposed: str  # machines; empty where nothing on offer runs it
    proposed_usd_per_month: float | None
    changes: list[ProposedChange]


class Check(Result, PlainRecord, frozen=True):
    """The whole answer."""

    table: ClassVar[str] = "workloads"
    name: str
    date: str
    holds: bool
    workloads: list[CheckedWorkload]
    reasons: list[str]  # why the fleet as a whole does not hold
    without: list[str]  # workloads that nothing is said of
    usd_per_month: float  # of what there is
    idle_usd_per_month: float
    proposed_usd_per_month: float | None  # of the same workloads
    no_proposal: str  # why there is none
    version: int = FORMAT

    @property
    def verdict(self) -> str:
        """Set-ups that meet targets and policies, the bill, its idle share, the proposed one, a policy violated."""
        holding = sum(w.holds for w in self.workloads)
        bill = f"{format_usd(self.usd_per_month)} a month"
        idle = self.idle_usd_per_month / self.usd_per_month if self.usd_per_month else 0.0
        rest = f", {format_percent(idle, 0)} of it for idle machines" if idle >= LEAST_IDLE else ""
        if self.proposed_usd_per_month is not None:
            rest += f"; an assessment proposes {format_usd(self.proposed_usd_per_month)}"
        if self.reasons:
            rest += f"; the fleet as a whole violates a policy: {self.reasons[0]}"
        all_of = f"{holding} of {len(self.workloads):,} set-ups meet their targets and policies"
        return f"{self.name}: {all_of}, {bill}{rest}."

    def picture(self) -> Picture:
        """The current monthly cost of each workload, the dearest first, as a picture."""
        rows = sorted(((w.name, w.usd_per_month) for w in self.workloads), key=lambda item: -item[1])
        return BarPicture(title=self.verdict, unit="USD a month", rows=rows)


def check(platform: Platform, facts: Facts, *, today: str = "", advance: Advance | None = None) -> Check:
    """Check the current machines of each workload, and compare them with those of an assessment.

    Raises: SpecError, UnknownNameError: something in the fleet is wrong, or nothing is said of what there is.
    """
    if not any(job.spec.existing for job in platform.jobs):
        raise SpecError("the current machines of the workloads are missing; give `existing` or --existing FILE.csv")
    named, known = resolve_names(platform, facts)
    setups = existing_setups(named, known)
    fleet, refusal = None, ""
    try:
        fleet = recommended_fleet(platform, facts, advance or (lambda *_: None))
    except InfeasibleError as error:
        refusal = str(error)
    rows = _with_fleet_bills([_checked_workload(setup, fleet, known) for setup in setups.values()])
    reasons = list(_fleet_reasons(named, setups))
    proposed = [row.proposed_usd_per_month for row in rows if row.proposed_usd_per_month is not None]
    return Check(
        name=platform.fleet.name, date=today, holds=not reasons and all(row.holds for row in rows), workloads=rows,
        reasons=reasons, without=[job.name for job in platform.jobs if job.name not in setups],
        usd_per_month=sum(row.usd_per_month for row in rows),
        idle_usd_per_month=sum(row.idle_usd_per_month for row in rows),
        proposed_usd_per_month=sum(proposed) if len(proposed) == len(rows) else None, no_proposal=refusal,
    )  # fmt: skip


def _checked_workload(setup: ExistingSetup, fleet: SolvedFleet | None, facts: Facts) -> CheckedWorkload:
    """One workload's answer."""
    chosen = None if fleet is None else fleet.by_name.get(setup.job.name)
    changes = [] if chosen is None or fleet is None else setup_changes(setup, chosen, fleet)
    wasted = [c for c in changes if c.saved_usd > 0 and c.what in ("schedule", "count")] if setup.suffices else []
    confidence = 0.0 if setup.job.workload is None else setup.job.workload.confidence
    machines = "" if fleet is None else " and ".join(
        f"{row.count:,} x {row.provider} {row.instance}" for row, _, owner in fleet.primary if owner is chosen
    )  # fmt: skip
    return CheckedWorkload(
        name=setup.job.name, environment=setup.job.environment, kind=setup.job.spec.task,
        machines=[_checked_machines(part, setup.job, facts) for part in setup.parts],
        fits=setup.fits and setup.meets.get("memory", 1.0) >= confidence, holds=not setup.reasons,
        reasons=list(setup.reasons),
        notes=[f"{part}: {retirement_note(part.offer.retires_on)}" for part in setup.parts if part.offer.retires_on],
        meets=dict(setup.meets), usd_per_month=setup.usd,
        idle_usd_per_month=sum(c.saved_usd for c in wasted), idle="; ".join(c.how for c in wasted), proposed=machines,
        proposed_usd_per_month=setup.usd - sum(c.saved_usd for c in changes) if chosen is not None else None,
        changes=[
            ProposedChange(
                what=c.what, saves_usd_per_month=c.saved_usd, usd_per_month=c.usd_after, how=c.how,
                fleet_usd_per_month=c.usd_after, difference_frac=None,
            )
            for c in changes
        ],
    )  # fmt: skip


def _with_fleet_bills(rows: Sequence[CheckedWorkload]) -> list[CheckedWorkload]:
    """The workloads with what all of them cost after each change, one after the other, and its part of all savings."""
    usd, saved = sum(row.usd_per_month for row in rows), sum(c.saves_usd_per_month for row in rows for c in row.changes)
    after = list[CheckedWorkload]()
    for row in rows:
        changes = list[ProposedChange]()
        for change in row.changes:
            usd -= change.saves_usd_per_month
            part = change.saves_usd_per_month / saved if saved > 0 else None
            changes.append(msgspec.structs.replace(change, fleet_usd_per_month=usd, difference_frac=part))
        after.append(msgspec.structs.replace(row, changes=changes))
    return after


def _checked_machines(part: ExistingPart, job: ResolvedJob, facts: Facts) -> CheckedMachines:
    offer, candidate, workload = part.offer, part.candidate, job.workload
    figures = {} if candidate is None else {n: v if v != float("inf") else None for n, v in candidate.figures.items()}
    if candidate is not None and "e2e_s" not in figures:
        figures |= {"run_s": candidate.seconds, "start_s": candidate.start_s}
    busy = figures.get("busy_frac", None if candidate is None else 1.0)
    if candidate is not None and workload is not None and workload.is_closed_loop and not job.ends:
        busy = load_frac(with_share(workload, part.share), facts, offer, candidate)
    worked = min(1.0, part.work_hours / part.paid_hours) if part.paid_hours else 0.0
    return CheckedMachines(
        provider=offer.provider, region=offer.region, instance=offer.instance,
        gpu=facts.offered_accelerator(offer).name, count=part.count, purchase=part.written.purchase,
        hours_per_month=part.paid_hours, work_hours_per_month=part.work_hours,
        usd_per_hour=offer.price_usd_per_hour(part.written.purchase) or 0.0, usd_per_month=part.usd,
        price_date=offer.price_date_of(part.written.purchase),
        price_source=offer.price_source_of(part.written.purchase), share=part.share,
        busy_frac=None if busy is None else busy * worked,
        layout={} if candidate is None else candidate.layout, figures=figures,
    )  # fmt: skip


def _fleet_reasons(platform: Platform, setups: Mapping[str, ExistingSetup]) -> Iterator[str]:
    """Policies of the whole fleet that the current machines violate."""
    rules = platform.rules
    total = sum(setup.usd for setup in setups.values())
    if rules.budget_per_month is not None and total > rules.budget_per_month:
        yield f"{format_usd(total, 0)} a month is above the budget of {format_usd(rules.budget_per_month, 0)}"
    parts = [part for setup in setups.values() for part in setup.parts]
    for quota in rules.quotas:
        used = sum(part.count for part in parts if quota.counts(part.offer.provider, part.offer.instance))
        if used > quota.most:
            yield f"{quota}: there are {used}"
    bills = dict.fromkeys((part.offer.provider for part in parts), 0.0)
    for setup in setups.values():
        bills[setup.main.offer.provider] += setup.volumes_usd
    for part in parts:
        bills[part.offer.provider] += part.usd
    shares = rules.shares if len(setups) == len(platform.jobs) else {}
    for provider, share in shares.items():
        part_of_bill = bills.get(provider, 0.0) / total if total else 0.0
        if abs(part_of_bill - share) > rules.share_tolerance + 1e-9:
            yield f"the {100 * share:g} % {provider} share: {100 * part_of_bill:.0f} % of the bill is with {provider}"
    spot = sum(part.usd for part in parts if part.written.purchase == "spot")
    if total and spot / total > rules.max_spot_share + 1e-9:
        yield f"{100 * spot / total:.0f} % of the bill is on spot; the limit is {100 * rules.max_spot_share:g} %"
