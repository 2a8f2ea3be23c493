"""A fleet: all workloads of a platform, when they run, and the policies that they share.

The structs below are the schema: they validate a file and make its published JSON Schema. A workload has the keys of a
workload file (`flopwise.search.workload`) and those of its place in the fleet.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from flopwise.facts import defaults
from flopwise.search.workload import (
    Checkpoints,
    Constraints,
    Data,
    Method,
    Name,
    Quantity,
    Routing,
    Targets,
    Techniques,
    Traffic,
    Workload,
)

Kind = Literal["pretrain", "finetune", "serve", "batch", "encode", "validate", "develop"]
Purchase = Literal["on_demand", "spot", "reserved_1y", "reserved_3y", "owned", "api"]
PURCHASES: tuple[Purchase, ...] = ("on_demand", "spot", "reserved_1y", "reserved_3y", "owned", "api")
OWNED, API = "owned", "api"
"""Ways that rent nothing: machines of one's own, and a hosted model that is paid by the token."""
HOSTABLE = frozenset({"serve", "batch", "validate"})
"""Kinds that an API can answer."""
RUNS = ("pretrain", "finetune", "batch", "validate")
"""Kinds that run and end; the others are there as long as their hours say."""
PLANNED_AS = {"validate": "batch"}
"""Kinds that are planned as another task: a validation is a batch of requests with short answers."""
INTERRUPTIBLE = frozenset({"pretrain", "finetune", "batch", "validate"})
"""Kinds that a spot instance may be taken from: they have checkpoints, or requests that are asked again."""

Month = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-(0[1-9]|1[0-2])$", description="a month, such as 2027-01")]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, frozen=True):
    """Unknown keys are errors: a misspelt policy must not be ignored."""


class Hours(_Strict, frozen=True):
    """When machines are on: from start to stop on days of the week, so many hours a day on so many days, or always.

    Times are of one clock for the whole fleet, whichever: what counts is how long, and what overlaps.
    """

    always: bool = False
    """All hours of the month."""
    start: Quantity | None = None
    """Time of day, 08:00, that machines are turned on."""
    stop: Quantity | None = None
    """Time of day, 16:00, that they are turned off; the next day where it is before start; 24:00 is the day's end."""
    per_day: Quantity | None = None
    """Hours a day, where start and stop do not matter."""
    days: Quantity | list[Name] | None = None
    """Days of the week ([mon, wed], mon-fri, weekdays, weekends, daily) or how many a month (22, 4.35: weekly)."""


class Volumes(_Strict, frozen=True):
    """What a workload keeps and moves, a month."""

    storage: Quantity | None = None
    """Bytes kept in object storage."""
    egress: Quantity | None = None
    """Bytes that leave the provider."""
    inter_zone: Quantity | None = None
    """Bytes between zones of one region."""


class Workstations(_Strict, frozen=True):
    """Machines that people work on: no workload that could be planned, only what each must have."""

    count: Quantity = 1
    """How many machines."""
    gpus: list[Name] = []
    """Which accelerators will do; any with enough memory when none is named."""
    gpus_each: Quantity = 1
    """Accelerators of each machine, at least."""
    memory: Quantity | None = None
    """Least memory of each accelerator: 16GB."""


class SiteFigures(_Strict, frozen=True):
    """What a room and its people take; what is not given is as `flopwise.fleet.onprem.Site` has it."""

    colocation: bool = False
    """In somebody's data centre: rent for the power reserved in place of a building."""
    years: Quantity | None = None
    """Until the machines are written off."""
    residual_frac: Quantity | None = None
    """What is left of the price then: 10%."""
    interest_per_year: Quantity | None = None
    """On what the machines have cost and is not written off: 5%."""
    support_frac_per_year: Quantity | None = None
    """Maker's support and spares, of the price."""
    network_frac: Quantity | None = None
    """Switches, cables, storage, installing, on top of the price."""
    host_usd_per_card: Quantity | None = None
    """US dollars of its share of a server, where only the card is priced."""
    usd_per_kwh: Quantity | None = None
    """Price of electricity."""
    pue: Quantity | None = None
    """Power at the meter over power of the machines."""
    facility_usd_per_kw: Quantity | None = None
    """A building with power and cooling, for each kilowatt of machines."""
    facility_years: Quantity | None = None
    """Until the building is written off."""
    colocation_usd_per_kw_month: Quantity | None = None
    """Rent for each kilowatt reserved."""
    staff_usd_per_year: Quantity | None = None
    """Of one person, with all costs."""
    gpus_per_person: Quantity | None = None
    """Accelerators that one person runs."""
    maintenance_hours_per_month: Quantity | None = None
    """In which machines stand still."""


class OwnMachines(_Strict, frozen=True):
    """Machines of one kind that the fleet owns, or may buy."""

    name: Name
    """As the bill calls them."""
    gpu: Name
    """The accelerator, by any common spelling."""
    gpus: Quantity = 8
    """Accelerators in one machine."""
    count: Quantity = 0
    """Machines that are there already."""
    buy_up_to: Quantity = 0
    """Machines more that may be bought."""
    sunk: bool = True
    """What those that are there have cost to buy is spent, and not in the bill."""
    kept: bool = True
    """Those that are there are paid used or not (room, staff, support); otherwise those not needed are given up."""
    price: Quantity | None = None
    """US dollars of one machine with its accelerators; else as data/onprem.csv has it."""
    provider: Name = "on-premises"
    """As shares and quotas call where they stand."""
    region: Name = "on-premises"
    """What residency is compared with: eu-frankfurt is among eu-*."""
    tags: list[Name] = []
    """What they have: gdpr, hipaa ..."""
    memory: Quantity | None = None
    """Of the host; it and the network are those of clouds' machines alike where they are not given."""
    network: Quantity | None = None
    """Of one machine, to others: 400GB/s."""
    kg_per_kwh: Quantity | None = None
    """Of CO2, for the electricity of the room; else that of the region, or the average of the world."""
    site: SiteFigures = SiteFigures()
    """What the room and its people take."""


class Job(_Strict, frozen=True):
    """One workload of a fleet."""

    name: Name
    """Its own among the workloads."""
    task: Kind
    """What it does; `validate` is a batch of requests with short answers, `develop` machines that people work on."""
    model: Name | None = None
    """A catalog name, a hub id, a folder, a config.json, or a size such as 7B."""
    environment: Name | None = None
    """Whose hours it has: training for what is trained, else production, when it is not given."""
    data: Data = Data()
    """Of training."""
    method: Method = Method()
    """Of fine-tuning."""
    routing: Routing = Routing()
    """Of mixtures of experts."""
    traffic: Traffic = Traffic()
    """Of a service, or the requests of a batch."""
    techniques: Techniques = Techniques()
    """Of a service: what its engine does beyond serving plainly."""
    targets: Targets = Targets()
    """What has to be met."""
    constraints: Constraints = Constraints()
    """Where and with what it may run."""
    objective: Literal["cost", "time", "energy"] = "cost"
    """What its layouts are ranked by; the choice between offers is by cost."""
    optimizer: Name = defaults.OPTIMIZER
    """Of training."""
    checkpoints: Checkpoints = Checkpoints()
    """Of training: how often it is saved, and how."""
    precision: Name | None = None
    """One precision instead of all that the machines have."""
    machines: Workstations | None = None
    """Only of a `develop` workload."""
    hours: Hours | None = None
    """Instead of its environment's."""
    runs_per_month: Quantity | None = None
    """Of what runs and ends: once a month when it is not given."""
    purchase: list[Purchase] = []
    """Ways to buy it, among the fleet's; `owned` and `api` may be named here alone."""
    interruptible: bool | None = None
    """Whether spot machines may be taken from it; training and batch jobs, when it is not given."""
    residency: list[Name] = []
    """Regions, or patterns of them, that its data may be in: eu-*."""
    tags: list[Name] = []
    """What a provider must have: hipaa, fedramp, sagemaker ..."""
    backup: bool = False
    """Capacity stands ready in a second provider, as the policy says."""
    growth_per_month: Quantity | None = None
    """Of its traffic or runs, instead of the fleet's: 5%."""
    grows_with: Name | None = None
    """The workload whose growth it follows, by name, instead of a growth of its own."""
    starts: Month | None = None
    """Its month in the roadmap: 2027-01."""
    volumes: Volumes = Volumes()
    """What it keeps and moves."""

    def workload(self, limits: dict[str, Any] | None = None) -> Workload:
        """The workload that `flopwise plan` would be asked about, with `limits` laid over its constraints."""
        assert self.model is not None
        constraints = msgspec.structs.replace(self.constraints, **(limits or {}))
        return Workload(
            model=self.model,
            task=PLANNED_AS.get(self.task, self.task),  # type: ignore[arg-type]  # the tasks of a Workload are left
            name=self.name,
            data=self.data,
            method=self.method,
            routing=self.routing,
            traffic=self.traffic,
            techniques=self.techniques,
            targets=self.targets,
            constraints=constraints,
            objective=self.objective,
            optimizer=self.optimizer,
            precision=self.precision,
            checkpoints=self.checkpoints,
        )


class Quota(_Strict, frozen=True):
    """At most so many instances of a type, or of all that a pattern names, at once."""

    most: Quantity
    """Instances at once."""
    provider: Name | None = None
    """Of this provider, or of all that a pattern names."""
    instance: Name | None = None
    """Of this type, or of all that a pattern names: p5*."""


class Backup(_Strict, frozen=True):
    """Capacity in a second provider for the workloads that ask for it: parts of them that it carries count."""

    share: Quantity = 0.25
    """Of what any one provider carries: so much the others have if it is lost, on whole instances."""
    on: bool = False
    """It runs all the time; otherwise it is only reserved on paper, and costs when it is used."""
    hours: Quantity = 24
    """Hours a month that it is expected to be used, where it does not run all the time."""


class Spreads(_Strict, frozen=True):
    """How far drawn months stray from the plan, where the fleet's owner knows better than the usual figures."""

    demand: Quantity | None = None
    """Standard deviation of a month's demand: 15% when it is not given."""
    spot_price: Quantity | None = None
    """The same of spot prices: 20%."""
    list_price: Quantity | None = None
    """The same of all other prices: 2%."""
    rework_hours: Quantity | None = None
    """Hours of work that an interruption of a spot machine costs: 0.5."""


class Policies(_Strict, frozen=True):
    """What holds for the whole fleet."""

    budget_per_month: Quantity | None = None
    """US dollars; the answer is an error that says the floor where that is higher."""
    providers: dict[Name, Quantity] = {}
    """Shares of what is rented: {aws: 60%, gcp: 30%, azure: 10%}; all providers when it is empty.

    Machines of one's own and APIs count only where they are named here.
    """
    share_tolerance: Quantity = 0.05
    """By how much a share may be missed, of the whole."""
    regions: list[Name] = []
    """Regions, or patterns of them (us-*), that may be rented in; all when none is named."""
    purchase: list[Purchase] = []
    """Ways to buy; on demand when none is named. Own machines may always be used, an API only where `api` is named."""
    max_spot_share: Quantity = 1.0
    """Of the monthly cost."""
    quotas: list[Quota] = []
    """Instances that providers grant."""
    backup: Backup = Backup()
    """Capacity in a second provider."""
    growth_per_month: Quantity = 0.0
    """Of traffic and runs, of workloads that say nothing else: 4%."""
    carbon_usd_per_kg: Quantity = 0.0
    """What a kilogram of CO2 counts in the choice, beside the money."""
    max_price_age_days: Quantity = 180
    """Older prices are warned of."""
    scenarios: Spreads = Spreads()
    """How far drawn months stray from the plan."""


class Fleet(_Strict, frozen=True):
    """A platform, as written."""

    name: Name
    """Of the report."""
    workloads: Annotated[list[Job], msgspec.Meta(min_length=1, max_length=2000)]
    """What runs."""
    environments: dict[Name, Hours] = {}
    """Hours by name; development, staging, production and training have usual ones."""
    policies: Policies = Policies()
    """What holds for all."""
    own_machines: Annotated[list[OwnMachines], msgspec.Meta(max_length=100)] = []
    """What the fleet owns or may buy."""
    description: Annotated[str, msgspec.Meta(max_length=5000)] = ""
    """A sentence or two for the report."""


def schema() -> dict[str, Any]:
    """The JSON Schema of a fleet file."""
    document = msgspec.json.schema(Fleet)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flopwise fleet", **document}
