"""A fleet: all workloads of a platform, when they run, and the policies that they share; the format of its file.

A workload has the keys of a workload file (`flopwise.search.spec`) and those of its place in the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from flopwise import options, units
from flopwise.cost.spec import PURCHASES as RENTED
from flopwise.errors import SpecError
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

TASKS = (*TRAINING, *SERVING, "validate", "develop")
ON_DEMAND, EXISTING = "on_demand", "existing"
"""What savings may be held against, besides an accelerator: the same machines on demand, what runs today."""
OWNED, API = "owned", "api"
"""Ways that rent nothing: machines of your own, and a hosted model that is paid by the token."""
PURCHASES = (*RENTED, OWNED, API)
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
    """Whether machines are its own alone, or the name of a pool."""
    return value if isinstance(value, bool) else str(_NAME.parse(value, what))


_POOL = ValueKind("name", _pool, "true, false or text", {"type": ["boolean", "string"], "minLength": 1})
_MONTH = ValueKind("month", _month, "a month", {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])$"})
_CLOCK = ValueKind("time", _as_written, "quantity", {"type": ["number", "string"]})
_DAYS = ValueKind("days", _as_written, "quantity or list of text", {"type": ["number", "string", "array"]})


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Hours(Spec):
    """When machines are on: from start to stop on days of the week, so many hours a day on so many days, or always.

    Times are of one clock for the whole fleet, whichever: what counts is how long, and what overlaps.
    """

    always: bool = _key(options.FLAG, "All hours of the month.", default=False)
    start: Any = _key(_CLOCK, "Time of day, 08:00, that machines are turned on.")
    stop: Any = _key(
        _CLOCK,
        "Time of day, 16:00, that they are turned off; the next day where it is before start; 24:00 is the day's end.",
    )
    per_day: float | None = _key(
        options.quantity("hours", units.parse_count, high=24.0), "Hours a day, where start and stop do not matter.",
    )
    days: Any = _key(
        _DAYS,
        "Days of the week ([mon, wed], mon-fri, weekdays, weekends, daily) or how many a month (22, 4.35: weekly).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes(Spec):
    """What a workload keeps and moves, a month."""

    storage: float = _key(_VOLUME, "Bytes kept in object storage.", default=0.0)
    egress: float = _key(_VOLUME, "Bytes that leave the provider.", default=0.0)
    inter_zone: float = _key(_VOLUME, "Bytes between zones of one region.", default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workstations(Spec):
    """Machines that people work on: no workload that could be planned, only what each must have."""

    count: int = _key(options.whole(high=MOST_MACHINES), "How many machines.", default=1)
    gpus: tuple[str, ...] = _key(
        options.name("gpu", 400), "Which accelerators will do; any with enough memory when none is named.",
        repeated=True,
    )
    gpus_each: int = _key(options.whole(high=64), "Accelerators of each machine, at least.", default=1)
    memory: float | None = _key(options.BYTES, "Least memory of each accelerator: 16GB.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFigures(Spec):
    """What a room and its people take; what is not given is as `flopwise.fleet.onprem.Site` has it."""

    colocation: bool = _key(
        options.FLAG, "In colocation: rent for reserved power in place of a building.",
        flags="--colocation", default=False,
    )
    years: float | None = _key(options.COUNT, "Years until the machines are written off (default: 4).", flags="--years")
    residual_frac: float | None = _key(options.FRACTION_OR_ZERO, "What is left of the price then: 10%.")
    interest_per_year: float | None = _key(_SHARE, "On what the machines have cost and is not written off: 5%.")
    support_frac_per_year: float | None = _key(_SHARE, "Maker's support and spares, of the price.")
    network_frac: float | None = _key(_SHARE, "Switches, cables, storage, installing, on top of the price.")
    host_usd_per_card: float | None = _key(_USD, "US dollars of its share of a server, where only the card is priced.")
    usd_per_kwh: float | None = _key(
        options.USD_OR_ZERO, "US dollars for a kWh of electricity (default: 0.128).", flags="--power-price",
    )
    pue: float | None = _key(
        options.quantity("x", units.parse_count, low=1.0, high=4.0, closed=True),
        "Power at the meter over power of the machines (default: 1.54; 1.4 in colocation).", flags="--pue",
    )
    facility_usd_per_kw: float | None = _key(_USD, "A building with power and cooling, for each kilowatt of machines.")
    facility_years: float | None = _key(options.COUNT, "Until the building is written off.")
    colocation_usd_per_kw_month: float | None = _key(_USD, "Rent for each kilowatt reserved.")
    staff_usd_per_year: float | None = _key(_USD, "Of one person, with all costs.")
    gpus_per_person: float | None = _key(options.COUNT, "Accelerators that one person runs.")
    maintenance_hours_per_month: float | None = _key(
        options.quantity("hours", units.parse_count, high=700.0, closed=True), "In which machines stand still.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachines(Spec):
    """Machines of one kind that the fleet owns, or may buy."""

    name: str = _key(_NAME, "As the bill calls them.", default=NEEDED)
    gpu: str = _key(options.name("gpu", 400), "The accelerator, by any common spelling.", default=NEEDED)
    gpus: int = _key(options.whole(high=128), "Accelerators in one machine.", default=8)
    count: int = _key(options.whole(low=0, high=MOST_MACHINES), "Machines that are there already.", default=0)
    buy_up_to: int = _key(options.whole(low=0, high=MOST_MACHINES), "Machines more that may be bought.", default=0)
    sunk: bool = _key(
        options.FLAG, "What those that are there have cost to buy is spent, and not in the bill.", default=True,
    )
    kept: bool = _key(
        options.FLAG,
        "Those that are there are paid used or not (room, staff, support); otherwise those not needed are given up.",
        default=True,
    )
    price: float | None = _key(
        options.quantity("usd", units.parse_usd, high=1e9),
        "US dollars of one machine with its accelerators; else as data/onprem.csv has it.",
    )
    provider: str = _key(_NAME, "As shares and quotas call where they stand.", default="on-premises")
    region: str = _key(_NAME, "What residency is compared with: eu-frankfurt is among eu-*.", default="on-premises")
    tags: tuple[str, ...] = _key(_NAME, "What they have: gdpr, hipaa ...", repeated=True)
    memory: float | None = _key(
        options.BYTES, "Of the host; it and the network are those of clouds' machines alike where they are not given.",
    )
    network: float | None = _key(options.BANDWIDTH, "Of one machine, to others: 400GB/s.")
    kg_per_kwh: float | None = _key(
        options.quantity("kg", units.parse_count, high=3.0, closed=True),
        "Of CO2, for the electricity of the room; else that of the region, or the average of the world.",
    )
    site: SiteFigures = _key(record(SiteFigures), "What the room and its people take.", default=SiteFigures())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingMachines(Spec):
    """Machines that a workload has today: what it is judged on, and what savings are held against."""

    instance: str = _key(options.name("instance"), "Instance type, as the cloud or people call it.", default=NEEDED)
    count: int = _key(options.whole(high=MOST_MACHINES), "How many of it.", default=1)
    purchase: str = _key(options.choice(*RENTED), "How they are bought.", default="on_demand")
    hours: float | None = _key(
        options.quantity("hours", units.parse_count, high=744.0),
        "A month that each is paid; as its schedule says, or as long as its runs take, when it is not given.",
    )
    provider: str | None = _key(_NAME, "Whose they are, where several have such a type.")
    region: str | None = _key(_NAME, "Where they stand; the cheapest that is known when it is not given.")
    price: float | None = _key(
        options.quantity("usd", units.parse_usd, high=1e6), "US dollars an hour of one, instead of the listed price.",
    )
    weights: str | None = _key(
        options.name("format"), "Weight format that runs on them (fp16, awq ...); the best when it is not given.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Spec):
    """How a service follows the profile of its traffic: machines by the hour, and a policy for what comes besides."""

    fixed: bool = _key(options.FLAG, "All machines of the peak stay on, whatever the traffic.", default=False)
    headroom: float = _key(
        _SHARE, "Machines of an hour beyond those that its highest rate takes, up to the peak's: 20%.", default=0.0,
    )
    policy: str = _key(
        options.choice("queue", "concurrency", "utilisation", "kv"),
        "Of the simulator's autoscaler, on top of the machines of the hour; concurrency adds some where batches are "
        "full.", default="concurrency",
    )
    target: float | None = options.same(AutoscaleSpec, "target", key=FIELD)
    min_replicas: int | None = options.same(AutoscaleSpec, "min_replicas", key=FIELD)
    cold_start: float | None = options.same(AutoscaleSpec, "cold_start", key=FIELD)
    cool_down: float | None = options.same(AutoscaleSpec, "cool_down", key=FIELD)
    tick: float | None = options.same(AutoscaleSpec, "tick", key=FIELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Spec):
    """One workload of a fleet."""

    name: str = _key(_NAME, "Its own among the workloads.", default=NEEDED)
    task: str = _key(
        options.choice(*TASKS),
        "What it does; `validate` is a batch of requests with short answers, `develop` machines that people work on.",
        default=NEEDED,
    )
    model: str | None = options.same(WorkloadSpec, "model")
    environment: str | None = _key(
        _NAME, "Whose hours it has: training for what is trained, else production, when it is not given.",
    )
    machines: Workstations | None = _key(record(Workstations), "Only of a `develop` workload.")
    hours: Hours | None = _key(record(Hours), "Instead of its environment's.")
    runs_per_month: float | None = _key(
        options.quantity("count", units.parse_count, low=1e-3, high=1e6, closed=True),
        "Of what runs and ends: once a month when it is not given.",
    )
    purchase: tuple[str, ...] = _key(
        _PURCHASE, "Ways to buy it, among the fleet's; `owned` and `api` may be named here alone.", repeated=True,
    )
    interruptible: bool | None = _key(
        options.FLAG, "Whether spot machines may be taken from it; training and batch jobs, when it is not given.",
    )
    residency: tuple[str, ...] = _key(
        _NAME, "Regions, or patterns of them, that its data may be in: eu-*.", repeated=True,
    )
    tags: tuple[str, ...] = _key(_NAME, "What a provider must have: hipaa, fedramp, sagemaker ...", repeated=True)
    backup: bool = _key(options.FLAG, "Capacity stands ready in a second provider, as the policy says.", default=False)
    dedicated: bool | str = _key(
        _POOL, "Machines that no other workload may share: its own, or those of all that name the same pool.",
        default=False,
    )
    growth_per_month: float | None = _key(_GROWTH, "Of its traffic or runs, instead of the fleet's: 5%.")
    grows_with: str | None = _key(
        _NAME, "Name of the workload whose growth it follows, instead of its own growth.",
    )
    starts: str | None = _key(_MONTH, "Its month in the roadmap: 2027-01.")
    volumes: Volumes = _key(record(Volumes), "What it keeps and moves.", default=Volumes())
    existing: tuple[ExistingMachines, ...] = _key(
        record(ExistingMachines), "What it runs on today: `flopwise check` judges it.", repeated=True,
    )
    autoscale: Scaling = _key(
        record(Scaling), "How a service with a `traffic.profile` follows it; it does by default.",
        default=Scaling(),
    )
    # fmt: on
    constraints: ConstraintsSpec = field(default=ConstraintsSpec())  # as `planned` has them
    planned: Mapping[str, Any] = field(default_factory=dict)  # what it says of the workload, as written

    @property
    def workload(self) -> dict[str, Any]:
        """The workload that `flopwise plan` would be asked about."""
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
    """At most so many instances of a type, or of all that a pattern names, at once."""

    most: int = _key(options.WHOLE_OR_ZERO, "Instances at once.", default=NEEDED)
    provider: str | None = _key(_NAME, "Of this provider, or of all that a pattern names.")
    instance: str | None = _key(_NAME, "Of this type, or of all that a pattern names: p5*.")

    def __str__(self) -> str:
        return f"the quota of {self.most} x {' '.join(part for part in (self.provider, self.instance) if part)}"

    def counts(self, provider: str, instance: str) -> bool:
        """Whether it counts machines of this type."""
        if self.provider is not None and not fnmatchcase(provider.lower(), self.provider.lower()):
            return False
        return self.instance is None or names_instance(self.instance, instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup(Spec):
    """Capacity in a second provider for the workloads that ask for it: parts of them that it carries count."""

    share: float = _key(
        options.FRACTION_OR_ZERO,
        "Of what any one provider carries: so much the others have if it is lost, on whole instances.", default=0.25,
    )
    on: bool = _key(
        options.FLAG, "It runs all the time; otherwise it is only reserved on paper, and costs when it is used.",
        default=False,
    )
    hours: float = _key(
        _HOURS, "Hours a month that it is expected to be used, where it does not run all the time.", default=24.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSpreads(Spec):
    """How far drawn months stray from the plan: standard deviations, and hours that an interruption costs.

    The usual figures are assumed: a service's owner knows better; list prices hardly move within a month, spot prices
    do; half an hour is lost since the last checkpoint, restart included.
    """

    demand: float = _key(_SPREAD, "Standard deviation of a month's demand.", default=0.15)
    spot_price: float = _key(_SPREAD, "The same of spot prices.", default=0.20)
    list_price: float = _key(_SPREAD, "The same of all other prices.", default=0.02)
    rework_hours: float = _key(_HOURS, "Hours of work that an interruption of a spot machine costs.", default=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies(Spec):
    """What holds for the whole fleet."""

    budget_per_month: float | None = _key(
        options.USD, "US dollars; the answer is an error that says the floor where that is higher.",
    )
    providers: Mapping[str, float] | None = _key(
        by_name(options.FRACTION_OR_ZERO),
        "Shares of what is rented: {aws: 60%, gcp: 30%, azure: 10%}; all providers when it is empty. Machines of your "
        "own and APIs count only where they are named here.",
    )
    share_tolerance: float = _key(
        options.FRACTION_OR_ZERO, "By how much a share may be missed, of the whole.", default=0.05,
    )
    regions: tuple[str, ...] = _key(
        _NAME, "Regions, or patterns of them (us-*), that may be rented in; all when none is named.", repeated=True,
    )
    gpus: tuple[str, ...] = options.same(ConstraintsSpec, "gpus", key=FIELD)
    vendors: tuple[str, ...] = options.same(ConstraintsSpec, "vendors", key=FIELD)
    exclude: tuple[str, ...] = options.same(ConstraintsSpec, "exclude", key=FIELD)
    software: tuple[str, ...] = options.same(ConstraintsSpec, "software", key=FIELD)
    marketplace: bool = options.same(ConstraintsSpec, "marketplace", key=FIELD, default=False)
    purchase: tuple[str, ...] = _key(
        _PURCHASE,
        "Ways to buy; on demand when none is named. Own machines may always be used, an API only where `api` is named.",
        repeated=True,
    )
    spot: str = options.same(RankingSpec, "spot", key=FIELD, section="")
    reserved: str = options.same(RankingSpec, "reserved", key=FIELD, section="")
    max_spot_share: float = _key(options.FRACTION_OR_ZERO, "Of the monthly cost.", default=1.0)
    quotas: tuple[Quota, ...] = _key(record(Quota), "Instances that providers grant.", repeated=True)
    backup: Backup = _key(record(Backup), "Capacity in a second provider.", default=Backup())
    growth_per_month: float = _key(_GROWTH, "Of traffic and runs, of workloads that say nothing else: 4%.", default=0.0)
    carbon_usd_per_kg: float = _key(
        options.quantity("usd", units.parse_count, high=1e6, closed=True),
        "What a kilogram of CO2 counts in the choice, beside the money.", default=0.0,
    )
    max_price_age_days: float = _key(
        options.quantity("days", units.parse_count, low=1.0, high=36_500.0, closed=True), "Older prices are warned of.",
        default=180.0,
    )
    baseline: str | None = _key(
        _NAME, "What savings are held against: `on_demand`, the same machines bought so, services around the clock; "
        "`existing`, what workloads run on today; or an accelerator on which each would run as published. The second "
        "where workloads say what they run on, else the first.",
    )
    scenarios: MonthSpreads = _key(
        record(MonthSpreads), "How far drawn months stray from the plan.", default=MonthSpreads(),
    )

    @property
    def assumed_prices(self) -> frozenset[str]:
        """The kinds of prices that are assumed where they are not known: spot, reserved."""
        return assumed_kinds(spot=self.spot, reserved=self.reserved)

    @property
    def shares(self) -> Mapping[str, float]:
        """Shares of what is rented, by provider."""
        return self.providers or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(Spec):
    """A platform, as written."""

    name: str = _key(_NAME, "Of the report.", default=NEEDED)
    workloads: tuple[Job, ...] = _key(
        ValueKind("", _job, "below", JOB_FILE.schema()), "What runs.", repeated=True, default=NEEDED,
    )
    environments: Mapping[str, Hours] | None = _key(
        by_name(record(Hours)), "Hours by name; development, staging, production and training have usual ones.",
    )
    policies: Policies = _key(record(Policies), "What holds for all.", default=Policies())
    own_machines: tuple[OwnMachines, ...] = _key(record(OwnMachines), "What the fleet owns or may buy.", repeated=True)
    description: str = _key(_TEXT, "A sentence or two for the report.", default="")
    existing: Any = _key(
        options.FILE, "A table (CSV) of what workloads run on today, with columns name, instance, count and hours, and "
        "optionally the other keys of `existing`; its rows stand in for a workload's own.",
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
