"""What a workload runs on today: the machines that the fleet file names, estimated as they are, and their bill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import PRICE_FIELDS, Offer
from flopwise.fleet.model import Platform, ResolvedJob, paid_all_month
from flopwise.fleet.offers import OwnOffer, allowed_devices, providers_with_tags, why_not_allowed
from flopwise.fleet.planned import searched_workload, workstation_options
from flopwise.fleet.prices import MOST_HOURS, effective, volume_bills
from flopwise.fleet.spec import ExistingMachines
from flopwise.search.allowed import AllowedDevices
from flopwise.search.answer import Candidate, Plan
from flopwise.search.plan import plan
from flopwise.search.workload import ANYWHERE, Resolved
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_chance, format_number, format_percent, format_seconds
from flopwise.values import dataclass, replace

GIVEN = "the fleet file"
LATENCY_FIGURES = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "e2e_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingPart:
    """Existing machines of one kind. `work_hours`: a month that each is needed; `paid_hours`: that each is paid."""

    written: ExistingMachines
    offer: Offer
    share: float  # of the workload that it carries
    candidate: Candidate | None  # the best layout on all of them; None: nothing fits, or people work on them
    reasons: tuple[str, ...]  # why nothing fits
    work_hours: float
    paid_hours: float
    usd: float  # a month of all

    @property
    def count(self) -> int:
        """Number of machines."""
        return self.written.count

    def __str__(self) -> str:
        return f"{self.count} x {self.offer.provider} {self.offer.instance}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingSetup:
    """All current machines of a workload. `reasons`: requirements that they do not meet, empty if they meet all.

    `prohibitions`: those that policies state, and not what the workload needs to run and meet its targets.
    """

    job: ResolvedJob
    parts: tuple[ExistingPart, ...]
    volumes_usd: float  # a month of what it stores and sends, with the provider that carries most of it
    meets: Mapping[str, float]  # the probability of each target, of the part least likely to hold it
    reasons: tuple[str, ...]
    prohibitions: tuple[str, ...] = ()

    @property
    def suffices(self) -> bool:
        """True if the machines run the workload and meet its targets, whether or not policies allow them."""
        return set(self.reasons) <= set(self.prohibitions)

    @property
    def usd(self) -> float:
        """The monthly cost, with storage and traffic, in USD."""
        return sum(part.usd for part in self.parts) + self.volumes_usd

    @property
    def main(self) -> ExistingPart:
        """The dearest part."""
        return max(self.parts, key=lambda part: part.usd)

    @property
    def fits(self) -> bool:
        """True if the workload can run there at all."""
        return not any(part.reasons for part in self.parts)


def existing_setups(platform: Platform, facts: Facts) -> dict[str, ExistingSetup]:
    """The set-up of each workload that has one, by its name; `facts` and names are those of `resolve_names`.

    Raises: SpecError, UnknownNameError: a machine, or its price, is not known; with file and line.
    """
    setups = {
        index: _existing_setup(index, job, platform, facts)
        for index, job in enumerate(platform.jobs)
        if job.spec.existing
    }
    providers = [{setups[n].main.offer.provider: True} if n in setups else {} for n in range(len(platform.jobs))]
    bills = volume_bills(platform.jobs, providers, facts)
    usd = {index: bill.usd for (index, _), bill in bills.items()}
    return {setup.job.name: replace(setup, volumes_usd=usd.get(index, 0.0)) for index, setup in setups.items()}


def _existing_setup(index: int, job: ResolvedJob, platform: Platform, facts: Facts) -> ExistingSetup:
    where = f"workloads.{index}.existing"
    offers = list[Offer]()
    for number, machines in enumerate(job.spec.existing):
        try:
            offers.append(existing_offer(machines, job, platform, facts))
        except SpecError as error:
            error.args = (f"{where}.{number}: {error}",)
            raise platform.source.with_line(error) from None
    if job.trains and len(offers) > 1:
        several = f"{where}: a training run uses machines of one kind; {len(offers)} are given"
        raise platform.source.with_line(SpecError(several))
    shares = [1 / len(offers)] * len(offers)
    pairs = list(zip(job.spec.existing, offers, strict=True))
    if job.workload is not None and len(offers) > 1:  # traffic goes to each as far as it can
        rates = [_capacity(_part(index, m, o, s, platform, facts)) for (m, o), s in zip(pairs, shares, strict=True)]
        shares = [rate / sum(rates) for rate in rates] if sum(rates) else shares
    parts = tuple(_part(index, m, o, s, platform, facts) for (m, o), s in zip(pairs, shares, strict=True) if s)
    meets: dict[str, float] = {}
    for part in parts:
        for name, odds in {} if part.candidate is None else part.candidate.meets.items():
            meets[name] = min(odds, meets.get(name, 1.0))
    reasons = [text for part in parts for text in _shortcomings(part, job)]
    prohibitions = [text for part in parts for text in _prohibitions(part, job, platform, facts)]
    if job.spec.backup and len({part.offer.provider for part in parts}) == 1:
        prohibitions.append("no capacity is on standby in a second provider")
    if job.spec.machines is not None and (have := sum(p.count for p in parts)) < job.spec.machines.count:
        reasons.append(f"{have} of the {job.spec.machines.count} machines requested")
    return ExistingSetup(
        job=job, parts=parts, volumes_usd=0.0, meets=meets, reasons=tuple(dict.fromkeys([*reasons, *prohibitions])),
        prohibitions=tuple(dict.fromkeys(prohibitions)),
    )  # fmt: skip


def existing_offer(machines: ExistingMachines, job: ResolvedJob, platform: Platform, facts: Facts) -> Offer:
    """The offer that existing machines are: at the price given, else where the workload may run, else the cheapest.

    Raises: SpecError, UnknownNameError: no such machine, or no price of it bought so is known.
    """
    offers = facts.offers_for(instance=machines.instance, provider=machines.provider, region=machines.region)
    rented = [offer for offer in offers if not isinstance(offer, OwnOffer)]
    if not rented:
        where = " in ".join(filter(None, (machines.provider, machines.region)))
        sold = dict.fromkeys(
            f"{offer.provider} {offer.region}"
            for offer in facts.offers_for(instance=machines.instance)
            if not isinstance(offer, OwnOffer)
        )
        places = f"; known: {', '.join(sold)}" if sold else ""
        raise SpecError(
            f"{machines.instance[:60]} is not known{f' of {where}' if where else ' as a cloud has it'}{places}"
        )
    column = PRICE_FIELDS[machines.purchase]
    if machines.price is not None:
        given = {"source": GIVEN, "price_date": "", column: machines.price}
        rented = [replace(offer, **given) for offer in rented]  # type: ignore[arg-type]  # by name
    priced = [offer for offer in rented if getattr(offer, column) is not None]
    if not priced:
        bought = machines.purchase.replace("_", " ")
        raise SpecError(f"no {bought} price of {rented[0].provider} {rented[0].instance} is known; give its `price`")
    having, devices = providers_with_tags(job, facts), _devices_that_run(job, platform, facts)
    refused = {o.key: why_not_allowed(o, job, platform, devices, having) is not None for o in priced}
    return min(priced, key=lambda o: (refused[o.key], getattr(o, column)))


def _devices_that_run(job: ResolvedJob, platform: Platform, facts: Facts) -> AllowedDevices:
    """The devices that policies leave a workload, those that are retired among them: they are there until then."""
    return replace(allowed_devices(job, platform, facts), include_retired=True)


def _part(
    index: int, machines: ExistingMachines, offer: Offer, share: float, platform: Platform, facts: Facts
) -> ExistingPart:
    """Machines of one kind that carry a share of the workload of a number."""
    job = platform.jobs[index]
    candidate: Candidate | None = None
    reasons: tuple[str, ...] = ()
    work = job.hours_per_month
    if job.workload is None:
        free = replace(job.spec, constraints=type(job.spec.constraints)())
        as_bought = replace(job, spec=free, purchase=(machines.purchase,), interruptible=True)
        if not workstation_options(index, as_bought, facts.with_tables(offers=(offer,))):
            reasons = (f"{offer.instance} does not match the request (accelerators, memory)",)
    else:
        workload = with_share(existing_workload(machines, job, platform), share)
        try:
            plan = plan_on(workload, facts, offer, machines.count)
            candidate = next(iter(plan.plans), None)
            reasons = tuple(f"{r.reason}{': ' + r.example if r.example else ''}" for r in plan.decisive)
        except InfeasibleError as error:
            reasons = (str(error), *error.reasons)
        reasons = () if candidate is not None else reasons or ("nothing fits there",)
    if job.ends:
        work = HOURS_PER_MONTH if candidate is None else job.runs * candidate.paid_s / HOUR_S
    work = max(min(work, MOST_HOURS), 1e-6)
    paid = machines.hours or min(work, HOURS_PER_MONTH)
    return ExistingPart(
        written=machines, offer=offer, share=share, candidate=candidate, reasons=reasons, work_hours=work,
        paid_hours=HOURS_PER_MONTH if paid_all_month(machines.purchase) else paid,
        usd=machines_usd(machines, offer, paid, job, facts),
    )  # fmt: skip


def plan_on(workload: Resolved, facts: Facts, offer: Offer, count: int) -> Plan:
    """The best layout on exactly so many instances of an offer, wherever they stand; no candidate where none fits.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: what it would run there is not known to.
    """
    free = workload.with_limits(**ANYWHERE)
    most = count * max(1, offer.count)
    there = replace(free, instances=count, min_gpus=1, max_gpus=most, max_usd_per_hour=None)
    return plan(there, facts.with_tables(offers=(offer,)), alone=False)


def machines_usd(machines: ExistingMachines, offer: Offer, hours: float, job: ResolvedJob, facts: Facts) -> float:
    """USD a month of existing machines that are paid for `hours` each; those of an invoice have interruptions in them.

    A price that is given is what is paid; a listed one may have a discount for staying on.
    """
    if machines.price is not None:
        paid = HOURS_PER_MONTH if paid_all_month(machines.purchase) else hours
        return machines.price * paid * machines.count
    price = effective(
        offer, machines.purchase, hours, facts, interruptions_per_hour=0.0 if job.trains or machines.hours else None,
        starts_per_month=job.runs if job.ends else job.schedule.starts_per_month,
    )  # fmt: skip
    assert price is not None, "only what has a price is taken"
    return price.usd_per_month * machines.count


def existing_workload(machines: ExistingMachines, job: ResolvedJob, platform: Platform) -> Resolved:
    """The workload as it is searched on existing machines: bought so, in their format, each run within its hours."""
    workload = searched_workload(job, platform, [machines.purchase]).with_limits(purchase=(machines.purchase,))
    if machines.weights is not None and not job.trains:
        workload = workload.with_limits(weight_formats=(machines.weights,))
    if job.ends and machines.hours is not None:
        longest = machines.hours / job.runs * HOUR_S
        workload = replace(workload, deadline_s=min(longest, workload.deadline_s or longest))
    return workload


def with_share(workload: Resolved, share: float) -> Resolved:
    """The workload with a share of its traffic, its users or its requests."""
    if share == 1.0:
        return workload
    users = workload.concurrency
    return replace(
        workload,
        requests_per_s=None if workload.requests_per_s is None else workload.requests_per_s * share,
        concurrency=None if users is None else max(1, round(users * share)),
        requests=None if workload.requests is None else workload.requests * share,
    )


def _capacity(part: ExistingPart) -> float:
    """Requests per second that the machines can answer; 1 for each development machine."""
    if part.candidate is None:
        return 0.0 if part.reasons else float(part.count)
    return part.candidate.figures.get("requests_per_s_capacity") or 0.0


def _shortcomings(part: ExistingPart, job: ResolvedJob) -> Iterator[str]:
    """Requirements that a part of the set-up does not meet."""
    yield from (f"{part}: {text}" for text in part.reasons[:2])
    if not job.ends and part.paid_hours < part.work_hours * (1 - 1e-6):
        yield f"{part}: on for {part.paid_hours:,.0f} of the {part.work_hours:,.0f} hours a month required"
    candidate, workload = part.candidate, job.workload
    if candidate is None or workload is None:
        return
    capacity, requests_per_s = candidate.figures.get("requests_per_s_capacity"), workload.requests_per_s
    if not job.ends and capacity is not None and requests_per_s is not None and capacity < part.share * requests_per_s:
        yield f"{part}: can answer {format_number(capacity)} of {format_number(part.share * requests_per_s)} requests/s"
    for name, odds in candidate.meets.items():
        if odds < workload.confidence:
            likely = f"{format_chance(odds)} chance, {format_percent(workload.confidence, 0)} required"
            yield f"{part}: {_target_text(name, candidate, workload, part, job)} ({likely})"


def _target_text(name: str, candidate: Candidate, workload: Resolved, part: ExistingPart, job: ResolvedJob) -> str:
    """A target with the figure that is expected."""
    if name in LATENCY_FIGURES:
        target = {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}[name]
        value = candidate.figures.get(LATENCY_FIGURES[name])
        assert target is not None
        shown = "grows without bound" if value is None or value == float("inf") else format_seconds(value)
        return f"{target.percentile} {name} {shown}, the target is {format_seconds(target.seconds)}"
    if name == "deadline":
        hours = (
            f" in the {format_number(part.paid_hours)} h a month that are paid"
            if part.written.hours and job.ends
            else ""
        )
        return f"a run takes {format_seconds(candidate.seconds)}, too long for its time{hours}"
    return {"memory": "memory: it may not fit"}.get(name, f"misses its {name} target")


def _prohibitions(part: ExistingPart, job: ResolvedJob, platform: Platform, facts: Facts) -> Iterator[str]:
    """Policies of the fleet and of the workload that a part does not keep to."""
    reason = why_not_allowed(
        part.offer, job, platform, _devices_that_run(job, platform, facts), providers_with_tags(job, facts)
    )
    if reason is not None:
        yield f"{part} in {part.offer.region}: {reason}"
    if part.written.purchase == "spot" and not job.interruptible:
        yield f"{part}: on spot, and it may not be interrupted"
