"""What a workload may use: rented machines, own machines and hosted models, by policies, residency and tags."""

from __future__ import annotations

from collections.abc import Sequence

from flopwise import options
from flopwise.errors import MissingFactError, SpecError, UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import OWNED, Offer
from flopwise.facts.price_book import HardwarePrice, HostedPrice
from flopwise.fleet.model import OwnPool, Platform, ResolvedJob
from flopwise.fleet.onprem import COLOCATED, Ownership, Site, kwh_on, ownership
from flopwise.fleet.prices import api_usd
from flopwise.fleet.spec import API, OwnMachines, SiteFigures
from flopwise.search.allowed import FORBIDS, AllowedDevices
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_bytes, format_rate, format_usd
from flopwise.values import dataclass, replace

GIVEN = "the fleet file"
UNKNOWN_REGION = "not known"


def site(given: SiteFigures, where: str) -> Site:
    """The usual site, or the usual colocation, with the figures that are given.

    Raises: SpecError: a figure that cannot be; starts with `where`.
    """
    if given.colocation_usd_per_kw_month is not None and not given.colocation:
        raise SpecError(
            f"{where}.colocation_usd_per_kw_month: is the rent of a colocation; set `colocation: true`, too"
        )
    figures = {name: getattr(given, name) for name in options.changed_options(given) if name != "colocation"}
    try:
        return replace(COLOCATED if given.colocation else Site(), **figures)
    except SpecError as error:
        raise SpecError(f"{where}.{error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOffer(Offer):
    """One kind of own machines. `month`: of one accelerator; bought ones cost its capital, too."""

    machines: OwnMachines
    site: Site
    month: Ownership
    idle_kwh: float  # of one machine that is on all month and does nothing
    standing: float  # USD a month of one machine that is there: support, room, staff and power at idle
    capital: float  # USD a month of depreciation and interest of one machine
    pool: OwnPool
    assumed: str = ""  # what is taken for granted, from clouds' machines and of its energy

    @property
    def tags(self) -> frozenset[str]:
        """The tags of the machines, in lower case."""
        return frozenset(tag.lower() for tag in self.machines.tags)

    @property
    def first_usd(self) -> float:
        """USD a month of the first machine, whatever its use."""
        return self.standing + (0.0 if self.machines.count and self.machines.sunk else self.capital)

    def price_usd_per_hour(self, purchase: str) -> float | None:
        """USD of an hour of work of a machine that works all hours that it can; None unless `purchase` is OWNED."""
        if purchase != OWNED:
            return None
        return (self.first_usd + self.count * self.month.busy_power) / self.month.available_hours


def with_own(facts: Facts, entries: Sequence[OwnMachines]) -> Facts:
    """The facts with the fleet's own machines among the offers.

    What is not said of a machine is what clouds' machines with as many of its accelerators have at least: memory of
    the host, and the network between them (none known: a job stays on one machine). Links within are the device's own.

    Raises: SpecError: a price, or a fact that the cost needs, is not known; an accelerator's name is not; says where.
    """
    there = {offer.instance for offer in facts.offers if isinstance(offer, OwnOffer)}
    clouds = {offer.provider for offer in facts.offers if not isinstance(offer, OwnOffer)}
    for number, entry in enumerate(entries):
        if entry.provider in clouds:
            raise SpecError(
                f"own_machines.{number}.provider: {entry.provider} rents machines; own ones need another name"
            )
    new = tuple(_own_offer(e, f"own_machines.{n}", facts) for n, e in enumerate(entries) if e.name not in there)
    return facts.with_tables(offers=(*facts.offers, *new)) if new else facts


def _own_offer(entry: OwnMachines, where: str, facts: Facts) -> OwnOffer:
    try:
        device = facts.accelerator(entry.gpu)
    except UnknownNameError as error:
        raise SpecError(f"{where}.gpu: {error}") from None
    price, room = _price(entry, where, device.name, facts), site(entry.site, f"{where}.site")
    try:
        month = ownership(device, price, room)
        idle_kwh = float(kwh_on(device, entry.gpus, HOURS_PER_MONTH, 0.0, replace(room.power, pue=room.pue)))
    except MissingFactError as error:
        raise SpecError(f"{where}: the cost of a month cannot be computed: {error}") from None
    alike = [o for o in facts.offers if (o.accelerator, o.count, o.accelerator_share) == (device.name, entry.gpus, 1.0)]
    memory = [o.ram_bytes for o in alike if o.ram_bytes]
    network = [o.network_bytes_per_s for o in alike if o.network_bytes_per_s]
    bought = entry.buy_up_to or not entry.sunk  # what machines cost to buy is in their month
    standing, capital = entry.gpus * month.running, entry.gpus * month.capital
    there = standing + (0.0 if entry.sunk else capital)
    off = there - entry.gpus * month.idle_power if entry.kept else 0.0  # all but power, or nothing where it is given up
    tiers = (entry.count, there - off), (entry.buy_up_to, standing + capital)
    return OwnOffer(
        provider=entry.provider, instance=entry.name, region=entry.region, accelerator=device.name, count=entry.gpus,
        source=price.source if bought else GIVEN, price_date=price.date if bought else "", confidence=price.confidence,
        ram_bytes=entry.memory or min(memory, default=None),
        network_bytes_per_s=entry.network or min(network, default=None), machines=entry, site=room, month=month,
        standing=standing, capital=capital, idle_kwh=idle_kwh,
        pool=OwnPool(tiers=tiers, off_usd=off, hours=month.available_hours),
        assumed=_assumptions(entry, memory, network),
    )  # fmt: skip


def _assumptions(entry: OwnMachines, memory: Sequence[float], network: Sequence[float]) -> str:
    """Assumptions about machines that were not described in full."""
    guesses = []
    if entry.memory is None:
        guesses.append(f"{format_bytes(min(memory))} of host memory" if memory else "no host memory to offload to")
    if entry.network is None:
        guesses.append(f"{format_rate(min(network))} between machines" if network else "no network between machines")
    given = f"{', '.join(guesses)}, as none was given (that of comparable cloud machines); " if guesses else ""
    return f"own {entry.name}: {given}energy and carbon cover its work; idle power is in the cost only"


def _price(entry: OwnMachines, where: str, accelerator: str, facts: Facts) -> HardwarePrice:
    """The purchase price of one machine."""
    if entry.price is not None:
        return HardwarePrice(
            accelerator=accelerator, unit="server", grade="", count=entry.gpus, usd=entry.price, source=GIVEN, date="",
            confidence="high",
        )  # fmt: skip
    known = facts.hardware_price(accelerator)
    if known is None:
        raise SpecError(
            f"{where}: the purchase price of {accelerator} is not known (support and network depend on it); give "
            "`price`, USD of one machine"
        )
    return known


# Where a workload may run


def providers_with_tags(job: ResolvedJob, facts: Facts) -> frozenset[str] | None:
    """Providers that have every tag of a workload; none where only own machines have one. None: it has no tags."""
    having = [facts.tags.get(tag.strip().lower(), frozenset()) for tag in job.spec.tags]
    return frozenset.intersection(*having) if having else None


def allowed_devices(job: ResolvedJob, platform: Platform, facts: Facts) -> AllowedDevices:
    """The devices and hosts that the policies allow a workload; its own limits on software and hosts go first."""
    own = job.spec.constraints
    return AllowedDevices.of(platform.rules, facts, own.instances, own)


def why_not_allowed(
    offer: Offer, job: ResolvedJob, platform: Platform, devices: AllowedDevices, having: frozenset[str] | None = None
) -> str | None:
    """The policy or residency rule that forbids an offer; None where it is allowed.

    Policies on providers, regions and devices are of what is rented; its own machines are the fleet's choice.
    """
    rules, own = platform.rules, isinstance(offer, OwnOffer)
    if not own and rules.shares and offer.provider.lower() not in {p.lower() for p in rules.shares}:
        return "the provider is not among the policies'"
    if not own and rules.regions and not any(offer.serves(region) for region in rules.regions):
        return "the region is not among the policies'"
    if not own and (limit := devices.forbids(offer)) is not None:
        return FORBIDS[limit] + (" by the policies" if limit in {"gpus", "vendors", "exclude"} else "")
    if not offer.serves_each(job.spec.residency, () if own else rules.regions):
        return "its data may not be in that region"
    return _why_without_tags(offer, job, having)


def _why_without_tags(offer: Offer, job: ResolvedJob, having: frozenset[str] | None) -> str | None:
    """Reason that names the tags missing on own machines, a provider or third-party hosts; None if none is missing."""
    if isinstance(offer, OwnOffer):
        lacking = [tag for tag in job.spec.tags if tag.strip().lower() not in offer.tags]
        return f"own machines without {', '.join(lacking)}" if lacking else None
    if having is None or (offer.provider in having and not offer.marketplace):
        return None
    hosts = " on hosts of third parties" if offer.marketplace else ""
    return f"the provider is not known to have {', '.join(job.spec.tags)}{hosts}"


# Hosted models


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOffer(Offer):
    """A hosted model: no machines, a price for tokens."""

    price: HostedPrice

    def price_usd_per_hour(self, purchase: str) -> float | None:
        """None: nothing is paid by the hour."""
        del purchase
        return None


def monthly_tokens(job: ResolvedJob, factor: float = 1.0) -> tuple[float, float] | None:
    """(tokens in, tokens out) of a month with `factor` times the traffic or runs; None where they are not stated.

    Source: arithmetic: requests of all runs, or the mean rate times the hours that the service is on.
    Assumes: lengths of prompts and answers are their means; every prompt is paid in full.
    """
    workload = job.workload
    if workload is None:
        return None
    if job.ends:
        requests = None if workload.requests is None else workload.requests * job.runs
    else:
        rate = workload.requests_per_s
        requests = None if rate is None else rate / workload.peak * job.hours_per_month * HOUR_S
    if requests is None:
        return None
    return requests * workload.input_tokens * factor, requests * workload.output_tokens * factor


def api_offers(job: ResolvedJob, platform: Platform, facts: Facts) -> tuple[list[ApiOffer], list[str]]:
    """The APIs that may answer a workload, and the reasons against others; both empty if the workload allows no API."""
    workload = job.workload
    if API not in job.purchase or workload is None:
        return [], []
    if job.pool:
        return [], ["no API: its machines serve other customers, too, and the workload is dedicated"]
    targets = [n for n in ("ttft", "tpot", "latency", "tokens_per_s") if getattr(workload, n) is not None]
    if targets:
        names = ", ".join({"tokens_per_s": "throughput"}.get(name, name) for name in targets)
        return [], [f"no API: whether it meets the target of {names} is not known"]
    month = monthly_tokens(job)
    if month is None:
        return [], [
            "no API: what it would cost needs traffic.requests_per_s; users alone do not give a number of tokens"
        ]
    name = facts.model(workload.model).name
    prices, offers, refused = facts.hosted_for(name), list[ApiOffer](), dict[str, list[str]]()
    for price in prices:
        offer = ApiOffer(
            provider=price.provider, instance=price.name, region=price.regions or UNKNOWN_REGION, accelerator="",
            count=0, source=price.source, price_date=price.date, confidence=price.confidence, price=price,
        )  # fmt: skip
        reason = _why_forbidden(offer, job, platform, facts) or _above_budget(float(api_usd(price, *month)), job)
        if reason is None:
            offers.append(offer)
        else:
            refused.setdefault(reason, []).append(price.provider)
    if not prices:
        return [], [f"no API: no price of {name} is known"]
    return offers, [f"no API of {', '.join(dict.fromkeys(whose))}: {reason}" for reason, whose in refused.items()]


def _why_forbidden(offer: ApiOffer, job: ResolvedJob, platform: Platform, facts: Facts) -> str | None:
    """Why an API may not have the workload's data: what is not known of it counts against it."""
    limits, spec = job.spec.constraints, job.spec
    if limits.providers and offer.provider.lower() not in {p.lower() for p in limits.providers}:
        return "provider not allowed"
    for regions, reason in (
        (spec.residency, "its data may not be there"),
        (limits.regions, "region not allowed"),
        (platform.rules.regions, "the region is not among the policies'"),
    ):
        if not offer.serves_each(regions):
            return f"{reason} (region {offer.region})"
    if not offer.serves_each(spec.residency, limits.regions, platform.rules.regions):
        return f"no region is within all that are named (region {offer.region})"
    having = providers_with_tags(job, facts)
    if having is not None and offer.provider not in having:
        return f"the provider is not known to have {', '.join(spec.tags)}"
    return None


def _above_budget(usd: float, job: ResolvedJob) -> str | None:
    """Reason that a run, or a service's month, exceeds the workload's own budget; None if it does not."""
    budget = None if job.workload is None else job.workload.budget_usd
    each = usd / job.runs
    return None if budget is None or each <= budget else f"{format_usd(each, 2)} is above its budget"
