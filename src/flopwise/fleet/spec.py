"""A fleet: all workloads of a platform, when they run, and the policies that they share; the format of its file.

A workload has the keys of a workload file (`flopwise.search.spec`) and those of its place in the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any

from flopwise import options, units
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.offers import names_instance
from flopwise.options import FIELD, NEEDED, FileFormat, Spec, ValueKind, by_name, option, record
from flopwise.search.spec import (
    SECTIONS,
    SERVING,
    TRAINING,
    WORKLOAD_FILE,
    ConstraintsSpec,
    RankingSpec,
    WorkloadSpec,
    assumed_kinds,
)
from flopwise.serving.spec import AutoscaleSpec
from flopwise.values import dataclass, replace

TASKS = (*TRAINING, *SERVING, "validate", "develop")
ON_DEMAND, EXISTING = "on_demand", "existing"
"""What savings may be held against, besides an accelerator: the same machines on demand, what runs today."""
OWNED, API = "owned", "api"
"""Ways that rent nothing: machines of your own, and a hosted model that is paid by the token."""
PURCHASES = (*defaults.PURCHASES, OWNED, API)
HOSTABLE = frozenset({"serve", "batch", "validate"})
"""Kinds that an API can answer."""
RUNS = ("pretrain", "finetune", "batch", "validate")
"""Kinds that run and end; the others are there as long as their hours say."""
PLANNED_AS = {"validate": "batch"}
"""Kinds that are planned as another task: a validation is a batch of requests with short answers."""
INTERRUPTIBLE = frozenset({"pretrain", "finetune", "batch", "validate"})
"""Kinds that a spot instance may be taken from: they have checkpoints, or requests that are asked again."""
MOST_GROWTH = 1.0
"""A month: twice as much each month is 4,096 times in a year; more is growth that no fleet follows."""
MOST_MACHINES = 100_000
MOST_WORKLOADS, MOST_KINDS = 2000, 100
"""Of a fleet: workloads, and kinds of machines of its own."""

_PURCHASE, _NAME, _TEXT = options.choice(*PURCHASES), options.name("name"), options.name("text", 5000)
_GROWTH = options.quantity("share", units.parse_share, high=MOST_GROWTH, closed=True)
_SPREAD = options.quantity("share", units.parse_share, high=2.0, closed=True)
_VOLUME = options.quantity("bytes", units.parse_bytes, high=1e21, closed=True)  # all that the internet carries is less
_SHARE = options.quantity("share", units.parse_share, high=1e6, closed=True)
_USD = options.quantity("usd", units.parse_usd, high=1e9, closed=True)
_HOURS = options.quantity("hours", units.parse_count, high=744.0, closed=True)


def _key(kind: ValueKind, text: str, *, flags: str = "", default: Any = None, repeated: bool = False) -> Any:
    """A field that files say under its own name."""
    return option(flags, kind, text, default=default, key=FIELD, repeated=repeated)


def _month(value: object, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", value):
        raise SpecError(f"{what}: {str(value)[:60]!r} is not a month; give one such as 2027-01")
    return value


def _as_written(value: object, what: str) -> object:
    """A time of day or days of the week: `flopwise.fleet.schedules` reads them."""
    if isinstance(value, dict | bool):
        raise SpecError(f"{what}: expected text or a number, not {options.kind_of(value)}")
    return value


def _pool(value: object, what: str) -> bool | str:
    """True where machines are its own alone, or the name of a pool."""
    return value if isinstance(value, bool) else str(_NAME.parse(value, what))


_POOL = ValueKind("name", _pool, "true, false or text", {"type": ["boolean", "string"], "minLength": 1})
_MONTH = ValueKind("month", _month, "a month", {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])$"})
_CLOCK = ValueKind("time", _as_written, "quantity", {"type": ["number", "string"]})
_DAYS = ValueKind("days", _as_written, "quantity or list of text", {"type": ["number", "string", "array"]})


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Hours(Spec):
    """The hours at which machines are on: from start to stop on days of the week, a number of them, or always.

    All times are in one time zone, whichever it is: only durations and overlaps matter.
    """

    always: bool = _key(options.FLAG, "All hours of the month.", default=False)
    start: Any = _key(_CLOCK, "Time of day (08:00) at which machines are turned on.")
    stop: Any = _key(
        _CLOCK,
        "Time of day (16:00) at which they are turned off, on the next day if it is before start; 24:00 is the end of "
        "the day.",
    )
    per_day: float | None = _key(
        options.quantity("hours", units.parse_count, high=24.0), "Hours a day, if start and stop do not matter.",
    )
    days: Any = _key(
        _DAYS,
        "Days of the week ([mon, wed], mon-fri, weekdays, weekends, daily) or a number of days a month (22; 4.35 is "
        "weekly).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes(Spec):
    """Data that a workload stores and transfers, per month."""

    storage: float = _key(_VOLUME, "Bytes kept in object storage.", default=0.0)
    egress: float = _key(_VOLUME, "Bytes that leave the provider.", default=0.0)
    inter_zone: float = _key(_VOLUME, "Bytes between zones of one region.", default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workstations(Spec):
    """Machines for people to work on: they are not planned, only their requirements are met."""

    count: int = _key(options.whole(high=MOST_MACHINES), "How many machines.", default=1)
    gpus: tuple[str, ...] = _key(
        options.name("gpu", 400), "Accepted accelerators; empty allows any with enough memory.",
        repeated=True,
    )
    gpus_each: int = _key(options.whole(high=64), "Minimum accelerators per machine.", default=1)
    memory: float | None = _key(options.BYTES, "Minimum memory of each accelerator: 16GB.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFigures(Spec):
    """Costs of a room and its staff; the defaults are those of `flopwise.fleet.onprem.Site`."""

    colocation: bool = _key(
        options.FLAG, "In colocation: rent for reserved power in place of a building.",
        flags="--colocation", default=False,
    )
    years: float | None = _key(options.COUNT, "Years until the machines are written off (default: 4).", flags="--years")
    residual_frac: float | None = _key(
        options.FRACTION_OR_ZERO, "Resale value at the end, as a share of the price: 10%.",
    )
    interest_per_year: float | None = _key(_SHARE, "Yearly interest on what is not yet written off: 5%.")
    support_frac_per_year: float | None = _key(_SHARE, "Vendor support and spares per year, as a share of the price.")
    network_frac: float | None = _key(
        _SHARE, "Switches, cables, storage and installation, as a share on top of the price.",
    )
    host_usd_per_card: float | None = _key(_USD, "US dollars for its share of a server, if only the card has a price.")
    usd_per_kwh: float | None = _key(
        options.USD_OR_ZERO, "US dollars for a kWh of electricity (default: 0.128).", flags="--power-price",
    )
    pue: float | None = _key(
        options.quantity("x", units.parse_count, low=1.0, high=4.0, closed=True),
        "Power at the meter over power of the machines (default: 1.54; 1.4 in colocation).", flags="--pue",
    )
    facility_usd_per_kw: float | None = _key(
        _USD, "US dollars for a building with power and cooling, per kilowatt of machines.",
    )
    facility_years: float | None = _key(options.COUNT, "Years until the building is written off.")
    colocation_usd_per_kw_month: float | None = _key(_USD, "Rent per month and reserved kilowatt.")
    staff_usd_per_year: float | None = _key(_USD, "Yearly cost of one person, everything included.")
    gpus_per_person: float | None = _key(options.COUNT, "Accelerators that one person runs.")
    maintenance_hours_per_month: float | None = _key(
        options.quantity("hours", units.parse_count, high=700.0, closed=True),
        "Hours a month in which machines are down for maintenance.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachines(Spec):
    """Machines of one kind that the fleet owns, or may buy."""

    name: str = _key(_NAME, "Name of the machines on the bill.", default=NEEDED)
    gpu: str = _key(options.name("gpu", 400), "Accelerator, in any common spelling.", default=NEEDED)
    gpus: int = _key(options.whole(high=128), "Accelerators in one machine.", default=8)
    count: int = _key(options.whole(low=0, high=MOST_MACHINES), "Machines already owned.", default=0)
    buy_up_to: int = _key(options.whole(low=0, high=MOST_MACHINES), "Further machines that may be bought.", default=0)
    sunk: bool = _key(
        options.FLAG, "The purchase price of owned machines is sunk, and not on the bill.", default=True,
    )
    kept: bool = _key(
        options.FLAG,
        "Owned machines cost room, staff and support even if unused; if false, unused machines are given up.",
        default=True,
    )
    price: float | None = _key(
        options.quantity("usd", units.parse_usd, high=1e9),
        "Price of one machine with its accelerators in US dollars (default: that of data/onprem.csv).",
    )
    provider: str = _key(_NAME, "Name of the site, for shares and quotas.", default="on-premises")
    region: str = _key(_NAME, "Region, for residency rules: eu-frankfurt matches eu-*.", default="on-premises")
    tags: tuple[str, ...] = _key(_NAME, "Attestations of the site: gdpr, hipaa ...", repeated=True)
    memory: float | None = _key(
        options.BYTES, "Memory of the host (default, as for the network: that of comparable cloud machines).",
    )
    network: float | None = _key(options.BANDWIDTH, "Network bandwidth of one machine to others: 400GB/s.")
    kg_per_kwh: float | None = _key(
        options.quantity("kg", units.parse_count, high=3.0, closed=True),
        "Carbon intensity of the room's electricity (default: that of the region, or the world's average).",
    )
    site: SiteFigures = _key(record(SiteFigures), "Costs of the site and its people.", default=SiteFigures())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingMachines(Spec):
    """Machines that a workload runs on today: `check` judges them, and savings are relative to them."""

    instance: str = _key(options.name("instance"), "Instance type, in any common spelling.", default=NEEDED)
    count: int = _key(options.whole(high=MOST_MACHINES), "Number of instances.", default=1)
    purchase: str = _key(options.choice(*defaults.PURCHASES), "Purchase option.", default="on_demand")
    hours: float | None = _key(
        options.quantity("hours", units.parse_count, high=744.0),
        "Paid hours a month of each machine (default: those of its schedule, or of its runs).",
    )
    provider: str | None = _key(_NAME, "Provider, if several offer such a type.")
    region: str | None = _key(_NAME, "Region (default: the cheapest known).")
    price: float | None = _key(
        options.quantity("usd", units.parse_usd, high=1e6),
        "US dollars per hour of one instance, instead of the list price.",
    )
    weights: str | None = _key(
        options.name("format"), "Weight format in use: fp16, awq ... (default: the best).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Spec):
    """Machines for each hour of a service's traffic profile, and a policy for load above it."""

    fixed: bool = _key(options.FLAG, "Keep all machines of the peak on, whatever the traffic.", default=False)
    headroom: float = _key(
        _SHARE, "Machines in addition to those that the highest hourly rate needs, up to the number at the peak: 20%."
, default=0.0,
    )
    policy: str = _key(
        options.choice("queue", "concurrency", "utilisation", "kv"),
        "Policy of the simulator's autoscaler, on top of the machines of the hour; concurrency adds machines where "
        "batches are full.", default="concurrency",
    )
    target: float | None = options.same(AutoscaleSpec, "target", key=FIELD)
    min_replicas: int | None = options.same(AutoscaleSpec, "min_replicas", key=FIELD)
    cold_start: float | None = options.same(AutoscaleSpec, "cold_start", key=FIELD)
    cool_down: float | None = options.same(AutoscaleSpec, "cool_down", key=FIELD)
    tick: float | None = options.same(AutoscaleSpec, "tick", key=FIELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Spec):
    """One workload of a fleet."""

    name: str = _key(_NAME, "Unique name of the workload.", default=NEEDED)
    task: str = _key(
        options.choice(*TASKS),
        "Task; `validate` is a batch of requests with short answers, `develop` means machines that people work on.",
        default=NEEDED,
    )
    model: str | None = options.same(WorkloadSpec, "model")
    environment: str | None = _key(
        _NAME, "Environment whose hours it has (default: training for training tasks, otherwise production).",
    )
    machines: Workstations | None = _key(record(Workstations), "Only for a `develop` workload.")
    hours: Hours | None = _key(record(Hours), "Schedule of its own, instead of its environment's.")
    runs_per_month: float | None = _key(
        options.quantity("count", units.parse_count, low=1e-3, high=1e6, closed=True),
        "Runs a month of a workload that ends (default: one).",
    )
    purchase: tuple[str, ...] = _key(
        _PURCHASE, "Purchase options out of the fleet's; `owned` and `api` may be named only here.", repeated=True,
    )
    interruptible: bool | None = _key(
        options.FLAG, "Whether it may be interrupted, which allows spot (default: yes for training and batch jobs).",
    )
    residency: tuple[str, ...] = _key(
        _NAME, "Regions, or patterns of them, in which its data may be: eu-*.", repeated=True,
    )
    tags: tuple[str, ...] = _key(
        _NAME, "Attestations and services that its provider must offer: hipaa, fedramp, sagemaker ...", repeated=True,
    )
    backup: bool = _key(options.FLAG, "Keep standby capacity with a second provider, as the policy says."
, default=False)
    dedicated: bool | str = _key(
        _POOL, "Dedicated machines: for this workload alone, or for all workloads that name the same pool.",
        default=False,
    )
    growth_per_month: float | None = _key(_GROWTH, "Monthly growth of its traffic or runs, instead of the fleet's: 5%.")
    grows_with: str | None = _key(
        _NAME, "Name of the workload whose growth it follows, instead of its own growth.",
    )
    starts: str | None = _key(_MONTH, "Month of the roadmap in which it starts: 2027-01.")
    volumes: Volumes = _key(record(Volumes), "Volumes of storage and traffic.", default=Volumes())
    existing: tuple[ExistingMachines, ...] = _key(
        record(ExistingMachines), "Machines that it runs on today, which `flopwise check` judges.", repeated=True,
    )
    autoscale: Scaling = _key(
        record(Scaling), "How a service follows its `traffic.profile` (which it does by default).",
        default=Scaling(),
    )
    # fmt: on
    constraints: ConstraintsSpec = field(default=ConstraintsSpec())  # as `planned` has them
    planned: Mapping[str, Any] = field(default_factory=dict)  # what it says of the workload, as written

    @property
    def workload(self) -> dict[str, Any]:
        """The workload, with the keys of a file for `flopwise plan`."""
        return {"model": self.model, "task": PLANNED_AS.get(self.task, self.task), "name": self.name, **self.planned}


JOB_FILE = FileFormat(
    specs=(Job, *(spec for spec in WORKLOAD_FILE.specs if spec is not WorkloadSpec)),
    sections=SECTIONS,
    order=("name", "task", "model", "environment", *WORKLOAD_FILE.order[3:]),
)
OWN_KEYS = frozenset(declared.key for declared in options.options_of(Job).values())


def _job(value: object, what: str) -> Job:
    if isinstance(value, Job):
        return value
    specs = JOB_FILE.parse(value, f"{what}.")
    assert isinstance(value, dict)
    planned = {key: part for key, part in value.items() if key not in OWN_KEYS}
    limits = next(spec for spec in specs if isinstance(spec, ConstraintsSpec))
    job: Job = specs[0]
    return replace(job, constraints=limits, planned=planned)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Spec):
    """Highest number of concurrent instances of a type, or of all types that match a pattern."""

    most: int = _key(options.WHOLE_OR_ZERO, "Instances at once.", default=NEEDED)
    provider: str | None = _key(_NAME, "Provider to which the quota applies, or a pattern.")
    instance: str | None = _key(_NAME, "Instance type to which the quota applies, or a pattern: p5*.")

    def __str__(self) -> str:
        return f"the quota of {self.most} x {' '.join(part for part in (self.provider, self.instance) if part)}"

    def counts(self, provider: str, instance: str) -> bool:
        """True if the quota counts machines of this type."""
        if self.provider is not None and not fnmatchcase(provider.lower(), self.provider.lower()):
            return False
        return self.instance is None or names_instance(self.instance, instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup(Spec):
    """Standby capacity with a second provider for the workloads that require it; partial capacity counts."""

    share: float = _key(
        options.FRACTION_OR_ZERO,
        "Share of a provider's load that the others can carry if that provider is lost, on whole "
        "instances.", default=0.25,
    )
    on: bool = _key(
        options.FLAG, "Keep the backup running all the time; otherwise it costs only when it is used.",
        default=False,
    )
    hours: float = _key(
        _HOURS, "Expected hours of use a month, if it does not run all the time.", default=24.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSpreads(Spec):
    """Spread of the simulated months around the plan: standard deviations, and hours that an interruption costs.

    The defaults are assumptions that a service's owner can improve: list prices hardly move within a month, spot prices
    do; an interruption loses half an hour since the last checkpoint, restart included.
    """

    demand: float = _key(_SPREAD, "Standard deviation of a month's demand.", default=0.15)
    spot_price: float = _key(_SPREAD, "Standard deviation of a month's spot prices.", default=0.20)
    list_price: float = _key(_SPREAD, "Standard deviation of a month's other prices.", default=0.02)
    rework_hours: float = _key(_HOURS, "Hours of work that an interruption of a spot machine costs.", default=0.5)


_SHARES = by_name(options.FRACTION_OR_ZERO)


def _provider_shares(value: object, what: str) -> dict[str, float]:
    if isinstance(value, list):
        raise SpecError(
            f"{what}: each provider has a share here, as in {{aws: 60%, gcp: 40%}}; to allow providers without shares, "
            "list them in `constraints.providers` of the workloads"
        )
    shares: dict[str, float] = _SHARES.parse(value, what)
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies(Spec):
    """Policies that apply to the whole fleet."""

    budget_per_month: float | None = _key(
        options.USD, "Monthly budget in US dollars; if no bill is that low, the error states the lowest possible bill.",
    )
    providers: Mapping[str, float] | None = _key(
        ValueKind("", _provider_shares, _SHARES.words, _SHARES.schema),
        "Shares of the rented machines' cost: {aws: 60%, gcp: 30%, azure: 10%}; empty allows all providers. Own "
        "machines and APIs count only if they are named here.",
    )
    share_tolerance: float = _key(
        options.FRACTION_OR_ZERO, "Tolerance of the shares, as a fraction of the whole bill.", default=0.05,
    )
    regions: tuple[str, ...] = _key(
        _NAME, "Regions, or patterns of them (us-*), in which machines may be rented; empty allows all.", repeated=True,
    )
    gpus: tuple[str, ...] = options.same(ConstraintsSpec, "gpus", key=FIELD)
    vendors: tuple[str, ...] = options.same(ConstraintsSpec, "vendors", key=FIELD)
    exclude: tuple[str, ...] = options.same(ConstraintsSpec, "exclude", key=FIELD)
    software: tuple[str, ...] = options.same(ConstraintsSpec, "software", key=FIELD)
    marketplace: bool = options.same(ConstraintsSpec, "marketplace", key=FIELD, default=False)
    include_retired: bool = options.same(ConstraintsSpec, "include_retired", key=FIELD, default=False)
    purchase: tuple[str, ...] = _key(
        _PURCHASE,
        "Purchase options (default: on demand). Own machines are always allowed, an API only if `api` is named.",
        repeated=True,
    )
    spot: str = options.same(RankingSpec, "spot", key=FIELD, section="")
    reserved: str = options.same(RankingSpec, "reserved", key=FIELD, section="")
    max_spot_share: float = _key(options.FRACTION_OR_ZERO, "Highest share of spot in the monthly cost.", default=1.0)
    quotas: tuple[Quota, ...] = _key(record(Quota), "Quotas of instances that providers grant.", repeated=True)
    backup: Backup = _key(record(Backup), "Capacity in a second provider.", default=Backup())
    growth_per_month: float = _key(
        _GROWTH, "Monthly growth of traffic and runs, for workloads that do not state their own: 4%.", default=0.0,
    )
    carbon_usd_per_kg: float = _key(
        options.quantity("usd", units.parse_count, high=1e6, closed=True),
        "US dollars per kilogram of CO2, added to the cost in the choice of machines.", default=0.0,
    )
    max_price_age_days: float = _key(
        options.quantity("days", units.parse_count, low=1.0, high=36_500.0, closed=True),
        "Age in days beyond which a price causes a warning.",
        default=180.0,
    )
    baseline: str | None = _key(
        _NAME, "Baseline of the savings: `on_demand` (the same machines on demand, services around the clock), "
               "`existing` (the current machines; the default if they are given), or an accelerator on which each "
               "workload would run in the published format.",
    )
    scenarios: MonthSpreads = _key(
        record(MonthSpreads), "Spread of the simulated months around the plan.", default=MonthSpreads(),
    )

    @property
    def assumed_prices(self) -> frozenset[str]:
        """The kinds of prices that are assumed where they are not known: spot, reserved."""
        return assumed_kinds(spot=self.spot, reserved=self.reserved)

    @property
    def shares(self) -> Mapping[str, float]:
        """Shares of what is rented, by provider."""
        return self.providers or {}

    @property
    def has_shares(self) -> bool:
        """True if a policy limits the share of a provider, or of spot, in the bill: money wasted could satisfy it."""
        return bool(self.shares) or self.max_spot_share < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(Spec):
    """A platform, as written."""

    name: str = _key(_NAME, "Name of the fleet, in the report's title.", default=NEEDED)
    workloads: tuple[Job, ...] = _key(
        ValueKind("", _job, "below", JOB_FILE.schema()), "What runs.", repeated=True, default=NEEDED,
    )
    environments: Mapping[str, Hours] | None = _key(
        by_name(record(Hours)), "Hours by name; development, staging, production and training have usual ones.",
    )
    policies: Policies = _key(record(Policies), "Policies for all workloads.", default=Policies())
    own_machines: tuple[OwnMachines, ...] = _key(record(OwnMachines), "Machines that the fleet owns or may buy."
, repeated=True)
    description: str = _key(_TEXT, "A sentence or two for the report.", default="")
    existing: Any = _key(
        options.FILE, "A table (CSV) of the current machines of the workloads, with columns name, instance, count and "
                      "hours, and optionally the other keys of `existing`; its rows replace those of a workload.",
    )


# fmt: on
FLEET_FILE = FileFormat((Fleet,))
EXISTING_ROW = FileFormat((ExistingMachines,))


def schema() -> dict[str, Any]:
    """The JSON Schema of a fleet file."""
    document = FLEET_FILE.schema()
    document["properties"]["workloads"] |= {"minItems": 1, "maxItems": MOST_WORKLOADS}
    document["properties"]["own_machines"] |= {"maxItems": MOST_KINDS}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flopwise fleet", **document}
