"""A fleet: all workloads of a platform, when they run, and the policies that they share; the format of its file.

A workload has the keys of a workload file (`flopwise.search.spec`) and those of its place in the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flopwise import options, units
from flopwise.cost.spec import PURCHASES as RENTED
from flopwise.errors import SpecError
from flopwise.options import NEEDED, FileFormat, Spec, ValueKind, by_name, option, record
from flopwise.search.spec import SECTIONS, SERVING, TRAINING, WORKLOAD_FILE, ConstraintsSpec, WorkloadSpec

TASKS = (*TRAINING, *SERVING, "validate", "develop")
OWNED, API = "owned", "api"
"""Ways that rent nothing: machines of one's own, and a hosted model that is paid by the token."""
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


def _month(value: object, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", value):
        raise SpecError(f"{what}: {str(value)[:60]!r} is no month; give one such as 2027-01")
    return value


def _as_written(value: object, what: str) -> object:
    """A time of day or days of the week: `flopwise.fleet.schedules` reads them."""
    if isinstance(value, dict | bool):
        raise SpecError(f"{what}: expected text or a number, not {options.kind_of(value)}")
    return value


_MONTH = ValueKind("month", _month, "a month", {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])$"})
_CLOCK = ValueKind("time", _as_written, "quantity", {"type": ["number", "string"]})
_DAYS = ValueKind("days", _as_written, "quantity or list of text", {"type": ["number", "string", "array"]})


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Hours(Spec):
    """When machines are on: from start to stop on days of the week, so many hours a day on so many days, or always.

    Times are of one clock for the whole fleet, whichever: what counts is how long, and what overlaps.
    """

    always: bool = option("", options.FLAG, "All hours of the month.", default=False, key="always")
    start: Any = option("", _CLOCK, "Time of day, 08:00, that machines are turned on.", key="start")
    stop: Any = option(
        "", _CLOCK,
        "Time of day, 16:00, that they are turned off; the next day where it is before start; 24:00 is the day's end.",
        key="stop",
    )
    per_day: float | None = option(
        "", options.quantity("hours", units.parse_count, high=24.0),
        "Hours a day, where start and stop do not matter.", key="per_day",
    )
    days: Any = option(
        "", _DAYS,
        "Days of the week ([mon, wed], mon-fri, weekdays, weekends, daily) or how many a month (22, 4.35: weekly).",
        key="days",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes(Spec):
    """What a workload keeps and moves, a month."""

    storage: float = option("", _VOLUME, "Bytes kept in object storage.", default=0.0, key="storage")
    egress: float = option("", _VOLUME, "Bytes that leave the provider.", default=0.0, key="egress")
    inter_zone: float = option("", _VOLUME, "Bytes between zones of one region.", default=0.0, key="inter_zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workstations(Spec):
    """Machines that people work on: no workload that could be planned, only what each must have."""

    count: int = option("", options.whole(high=MOST_MACHINES), "How many machines.", default=1, key="count")
    gpus: tuple[str, ...] = option(
        "", options.name("gpu"), "Which accelerators will do; any with enough memory when none is named.",
        repeated=True, key="gpus",
    )
    gpus_each: int = option(
        "", options.whole(high=64), "Accelerators of each machine, at least.", default=1, key="gpus_each",
    )
    memory: float | None = option("", options.BYTES, "Least memory of each accelerator: 16GB.", key="memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFigures(Spec):
    """What a room and its people take; what is not given is as `flopwise.fleet.onprem.Site` has it."""

    colocation: bool = option(
        "--colocation", options.FLAG, "In somebody's data centre: rent for the power reserved in place of a building.",
        default=False, key="colocation",
    )
    years: float | None = option(
        "--years", options.COUNT, "Until the machines are written off (default: 4).", key="years",
    )
    residual_frac: float | None = option(
        "", options.FRACTION_OR_ZERO, "What is left of the price then: 10%.", key="residual_frac",
    )
    interest_per_year: float | None = option(
        "", _SHARE, "On what the machines have cost and is not written off: 5%.", key="interest_per_year",
    )
    support_frac_per_year: float | None = option(
        "", _SHARE, "Maker's support and spares, of the price.", key="support_frac_per_year",
    )
    network_frac: float | None = option(
        "", _SHARE, "Switches, cables, storage, installing, on top of the price.", key="network_frac",
    )
    host_usd_per_card: float | None = option(
        "", _USD, "US dollars of its share of a server, where only the card is priced.", key="host_usd_per_card",
    )
    usd_per_kwh: float | None = option(
        "--power-price", options.USD_OR_ZERO, "US dollars for a kWh of electricity (default: 0.128).",
        key="usd_per_kwh",
    )
    pue: float | None = option(
        "--pue", options.quantity("x", units.parse_count, low=1.0, high=4.0, closed=True),
        "Power at the meter over power of the machines (default: 1.54; 1.4 in colocation).", key="pue",
    )
    facility_usd_per_kw: float | None = option(
        "", _USD, "A building with power and cooling, for each kilowatt of machines.", key="facility_usd_per_kw",
    )
    facility_years: float | None = option(
        "", options.COUNT, "Until the building is written off.", key="facility_years",
    )
    colocation_usd_per_kw_month: float | None = option(
        "", _USD, "Rent for each kilowatt reserved.", key="colocation_usd_per_kw_month",
    )
    staff_usd_per_year: float | None = option(
        "", _USD, "Of one person, with all costs.", key="staff_usd_per_year",
    )
    gpus_per_person: float | None = option(
        "", options.COUNT, "Accelerators that one person runs.", key="gpus_per_person",
    )
    maintenance_hours_per_month: float | None = option(
        "", options.quantity("hours", units.parse_count, high=700.0, closed=True), "In which machines stand still.",
        key="maintenance_hours_per_month",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachines(Spec):
    """Machines of one kind that the fleet owns, or may buy."""

    name: str = option("", _NAME, "As the bill calls them.", default=NEEDED, key="name")
    gpu: str = option("", options.name("gpu"), "The accelerator, by any common spelling.", default=NEEDED, key="gpu")
    gpus: int = option("", options.whole(high=128), "Accelerators in one machine.", default=8, key="gpus")
    count: int = option(
        "", options.whole(low=0, high=MOST_MACHINES), "Machines that are there already.", default=0, key="count",
    )
    buy_up_to: int = option(
        "", options.whole(low=0, high=MOST_MACHINES), "Machines more that may be bought.", default=0, key="buy_up_to",
    )
    sunk: bool = option(
        "", options.FLAG, "What those that are there have cost to buy is spent, and not in the bill.", default=True,
        key="sunk",
    )
    kept: bool = option(
        "", options.FLAG,
        "Those that are there are paid used or not (room, staff, support); otherwise those not needed are given up.",
        default=True, key="kept",
    )
    price: float | None = option(
        "", options.quantity("usd", units.parse_usd, high=1e9),
        "US dollars of one machine with its accelerators; else as data/onprem.csv has it.", key="price",
    )
    provider: str = option(
        "", _NAME, "As shares and quotas call where they stand.", default="on-premises", key="provider",
    )
    region: str = option(
        "", _NAME, "What residency is compared with: eu-frankfurt is among eu-*.", default="on-premises", key="region",
    )
    tags: tuple[str, ...] = option("", _NAME, "What they have: gdpr, hipaa ...", repeated=True, key="tags")
    memory: float | None = option(
        "", options.BYTES,
        "Of the host; it and the network are those of clouds' machines alike where they are not given.", key="memory",
    )
    network: float | None = option("", options.BANDWIDTH, "Of one machine, to others: 400GB/s.", key="network")
    kg_per_kwh: float | None = option(
        "", options.quantity("kg", units.parse_count, high=3.0, closed=True),
        "Of CO2, for the electricity of the room; else that of the region, or the average of the world.",
        key="kg_per_kwh",
    )
    site: SiteFigures = option(
        "", record(SiteFigures), "What the room and its people take.", default=SiteFigures(), key="site",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Spec):
    """One workload of a fleet."""

    name: str = option("", _NAME, "Its own among the workloads.", default=NEEDED, key="name")
    task: str = option(
        "", options.choice(*TASKS),
        "What it does; `validate` is a batch of requests with short answers, `develop` machines that people work on.",
        default=NEEDED, key="task",
    )
    model: str | None = options.same(WorkloadSpec, "model")
    environment: str | None = option(
        "", _NAME, "Whose hours it has: training for what is trained, else production, when it is not given.",
        key="environment",
    )
    machines: Workstations | None = option(
        "", record(Workstations), "Only of a `develop` workload.", key="machines",
    )
    hours: Hours | None = option("", record(Hours), "Instead of its environment's.", key="hours")
    runs_per_month: float | None = option(
        "", options.quantity("count", units.parse_count, low=1e-3, high=1e6, closed=True),
        "Of what runs and ends: once a month when it is not given.", key="runs_per_month",
    )
    purchase: tuple[str, ...] = option(
        "", _PURCHASE, "Ways to buy it, among the fleet's; `owned` and `api` may be named here alone.", repeated=True,
        key="purchase",
    )
    interruptible: bool | None = option(
        "", options.FLAG,
        "Whether spot machines may be taken from it; training and batch jobs, when it is not given.",
        key="interruptible",
    )
    residency: tuple[str, ...] = option(
        "", _NAME, "Regions, or patterns of them, that its data may be in: eu-*.", repeated=True, key="residency",
    )
    tags: tuple[str, ...] = option(
        "", _NAME, "What a provider must have: hipaa, fedramp, sagemaker ...", repeated=True, key="tags",
    )
    backup: bool = option(
        "", options.FLAG, "Capacity stands ready in a second provider, as the policy says.", default=False,
        key="backup",
    )
    growth_per_month: float | None = option(
        "", _GROWTH, "Of its traffic or runs, instead of the fleet's: 5%.", key="growth_per_month",
    )
    grows_with: str | None = option(
        "", _NAME, "The workload whose growth it follows, by name, instead of a growth of its own.", key="grows_with",
    )
    starts: str | None = option("", _MONTH, "Its month in the roadmap: 2027-01.", key="starts")
    volumes: Volumes = option(
        "", record(Volumes), "What it keeps and moves.", default=Volumes(), key="volumes",
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

    most: int = option("", options.WHOLE_OR_ZERO, "Instances at once.", default=NEEDED, key="most")
    provider: str | None = option("", _NAME, "Of this provider, or of all that a pattern names.", key="provider")
    instance: str | None = option("", _NAME, "Of this type, or of all that a pattern names: p5*.", key="instance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup(Spec):
    """Capacity in a second provider for the workloads that ask for it: parts of them that it carries count."""

    share: float = option(
        "", options.FRACTION_OR_ZERO,
        "Of what any one provider carries: so much the others have if it is lost, on whole instances.", default=0.25,
        key="share",
    )
    on: bool = option(
        "", options.FLAG,
        "It runs all the time; otherwise it is only reserved on paper, and costs when it is used.", default=False,
        key="on",
    )
    hours: float = option(
        "", _HOURS, "Hours a month that it is expected to be used, where it does not run all the time.", default=24.0,
        key="hours",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSpreads(Spec):
    """How far drawn months stray from the plan: standard deviations, and hours that an interruption costs.

    The usual figures are assumed: a service's owner knows better; list prices hardly move within a month, spot prices
    do; half an hour is lost since the last checkpoint, restart included.
    """

    demand: float = option("", _SPREAD, "Standard deviation of a month's demand.", default=0.15, key="demand")
    spot_price: float = option("", _SPREAD, "The same of spot prices.", default=0.20, key="spot_price")
    list_price: float = option("", _SPREAD, "The same of all other prices.", default=0.02, key="list_price")
    rework_hours: float = option(
        "", _HOURS, "Hours of work that an interruption of a spot machine costs.", default=0.5, key="rework_hours",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies(Spec):
    """What holds for the whole fleet."""

    budget_per_month: float | None = option(
        "", options.USD, "US dollars; the answer is an error that says the floor where that is higher.",
        key="budget_per_month",
    )
    providers: Mapping[str, float] | None = option(
        "", by_name(options.FRACTION_OR_ZERO),
        "Shares of what is rented: {aws: 60%, gcp: 30%, azure: 10%}; all providers when it is empty. Machines of one's "
        "own and APIs count only where they are named here.", key="providers",
    )
    share_tolerance: float = option(
        "", options.FRACTION_OR_ZERO, "By how much a share may be missed, of the whole.", default=0.05,
        key="share_tolerance",
    )
    regions: tuple[str, ...] = option(
        "", _NAME, "Regions, or patterns of them (us-*), that may be rented in; all when none is named.",
        repeated=True, key="regions",
    )
    purchase: tuple[str, ...] = option(
        "", _PURCHASE,
        "Ways to buy; on demand when none is named. Own machines may always be used, an API only where `api` is named.",
        repeated=True, key="purchase",
    )
    max_spot_share: float = option(
        "", options.FRACTION_OR_ZERO, "Of the monthly cost.", default=1.0, key="max_spot_share",
    )
    quotas: tuple[Quota, ...] = option(
        "", record(Quota), "Instances that providers grant.", repeated=True, key="quotas",
    )
    backup: Backup = option("", record(Backup), "Capacity in a second provider.", default=Backup(), key="backup")
    growth_per_month: float = option(
        "", _GROWTH, "Of traffic and runs, of workloads that say nothing else: 4%.", default=0.0,
        key="growth_per_month",
    )
    carbon_usd_per_kg: float = option(
        "", options.quantity("usd", units.parse_count, high=1e6, closed=True),
        "What a kilogram of CO2 counts in the choice, beside the money.", default=0.0, key="carbon_usd_per_kg",
    )
    max_price_age_days: float = option(
        "", options.quantity("days", units.parse_count, low=1.0, high=36_500.0, closed=True),
        "Older prices are warned of.", default=180.0, key="max_price_age_days",
    )
    scenarios: MonthSpreads = option(
        "", record(MonthSpreads), "How far drawn months stray from the plan.", default=MonthSpreads(), key="scenarios",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(Spec):
    """A platform, as written."""

    name: str = option("", _NAME, "Of the report.", default=NEEDED, key="name")
    workloads: tuple[Job, ...] = option(
        "", ValueKind("", _job, "below", JOB_FILE.schema()), "What runs.", repeated=True, default=NEEDED,
        key="workloads",
    )
    environments: Mapping[str, Hours] | None = option(
        "", by_name(record(Hours)), "Hours by name; development, staging, production and training have usual ones.",
        key="environments",
    )
    policies: Policies = option("", record(Policies), "What holds for all.", default=Policies(), key="policies")
    own_machines: tuple[OwnMachines, ...] = option(
        "", record(OwnMachines), "What the fleet owns or may buy.", repeated=True, key="own_machines",
    )
    description: str = option("", _TEXT, "A sentence or two for the report.", default="", key="description")


# fmt: on
FLEET_FILE = FileFormat((Fleet,))


def schema() -> dict[str, Any]:
    """The JSON Schema of a fleet file."""
    document = FLEET_FILE.schema()
    document["properties"]["workloads"] |= {"minItems": 1, "maxItems": MOST_WORKLOADS}
    document["properties"]["own_machines"] |= {"maxItems": MOST_KINDS}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flopwise fleet", **document}
