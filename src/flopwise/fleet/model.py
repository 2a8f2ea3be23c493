"""What the parts of an assessment share, as plain data: workloads, policies, machines for a month, the allocation.

Machines are three records from end to end: a `Candidate` of the search, what it is for a month (`MonthlyOption`), and
how many of it are taken (`Taken`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.fleet.spec import API, OWNED, RUNS, Quota, Volumes
from flopwise.search.workload_file import place
from flopwise.units import HOURS_PER_MONTH
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.offers import Offer
    from flopwise.fleet.expected import ExpectedFigures
    from flopwise.fleet.load_levels import LoadLevels
    from flopwise.fleet.schedules import WeeklySchedule
    from flopwise.fleet.spec import Fleet, Job, Policies
    from flopwise.ops.types import Array
    from flopwise.search.answer import Candidate, Plan
    from flopwise.search.workload import Resolved

Machine = tuple[str, str, str, str, str]
"""Provider, region, instance, purchase and pool: what tells machines apart that workloads may share. The pool is empty
of what all may share, else the name of the workloads that have it to themselves."""
VOLUMES = "storage and traffic"
"""Name of volumes on the bill."""


def is_rented(purchase: str) -> bool:
    """True if machines bought so are a cloud's, at a price that it may change."""
    return purchase not in {OWNED, API}


def paid_all_month(purchase: str) -> bool:
    """True if machines bought so are paid for whether used or not."""
    return purchase == OWNED or purchase.startswith("reserved")


# Policies


@dataclass(frozen=True, slots=True)
class ProviderShare:
    """The share of the bill that is with a provider."""

    provider: str
    share: float

    def __str__(self) -> str:
        return f"the {100 * self.share:g} % {self.provider} share"


@dataclass(frozen=True, slots=True)
class SpotLimit:
    """The largest share of the bill that is on spot."""

    share: float

    def __str__(self) -> str:
        return f"the limit of {100 * self.share:g} % on spot"


@dataclass(frozen=True, slots=True)
class SecondProvider:
    """Capacity in a second provider for the workloads that require it."""

    def __str__(self) -> str:
        return "capacity in a second provider"


@dataclass(frozen=True, slots=True)
class OwnMachineCount:
    """The available number of own machines of a kind."""

    instance: str

    def __str__(self) -> str:
        return f"the number of own {self.instance}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The maximum bill of a month, in USD."""

    usd: float

    def __str__(self) -> str:
        return "the budget"


Policy = ProviderShare | Quota | SpotLimit | SecondProvider | OwnMachineCount | Budget


# Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """One workload in base units; `workload` is as `plan` resolves it, None for machines that people work on."""

    spec: Job
    workload: Resolved | None
    environment: str
    schedule: WeeklySchedule  # when its machines are on, or may be: runs that end are on as long as they take
    runs_per_month: float | None
    interruptible: bool
    purchase: tuple[str, ...]
    growth_per_month: float
    volumes: Volumes
    levels: LoadLevels | None = None  # of a service that follows its traffic

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.spec.name

    @property
    def hours_per_month(self) -> float:
        """Hours of its schedule."""
        return self.schedule.hours_per_month

    @property
    def runs(self) -> float:
        """Runs a month; 1 for a job without an end."""
        return self.runs_per_month or 1.0

    @property
    def ends(self) -> bool:
        """True if it is a run that ends, rather than machines that stay."""
        return self.spec.task in RUNS

    @property
    def trains(self) -> bool:
        """True if it is a training run, which needs all of its machines at once."""
        return self.spec.task in {"pretrain", "finetune"}

    @property
    def pool(self) -> str:
        """The pool of machines that others may not share: its own, or one by name; empty: none."""
        return self.name if self.spec.dedicated is True else self.spec.dedicated or ""

    @property
    def splittable(self) -> bool:
        """True if its machines may be of several kinds: replicas, and machines to work on."""
        return not self.trains


@dataclass(frozen=True, slots=True)
class FileSource:
    """The file that a fleet was read from, for line numbers in later messages."""

    where: str = ""
    node: Any = None
    rows: Mapping[str, str] = field(default_factory=dict)  # file and line of what a table has, by its path here

    def at(self, path: str) -> str:
        """File and line of a key, such as fleet.yaml:12; as much of it as is known."""
        return place(self.node, self.where, path.split("."))

    def with_line(self, error: SpecError) -> SpecError:
        """The error, which starts with the path of a key, with file and line in front."""
        path, colon, text = str(error).partition(":")
        row = next((row for row in self.rows if path == row or path.startswith(f"{row}.")), None)
        if row is not None:
            key = path.removeprefix(row).removeprefix(".")
            error.args = (f"{self.rows[row]}: {key}{colon if key else ''}{text if key else text.lstrip()}",)
            return error
        line = self.at(path)
        error.args = (f"{line}: {error}" if line else str(error),)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A fleet, read and resolved; `rules`: its policies with the ways to buy that hold for all."""

    fleet: Fleet
    rules: Policies
    jobs: tuple[ResolvedJob, ...]
    source: FileSource = field(default=FileSource(), compare=False, repr=False)
    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


# Machines for a month

Market = tuple[str, bool, bool, str]
"""A region, whether its hosts are those of third parties, whether its machines are retired, and the software that its
devices need: of a provider, what policies on regions, on the marketplace, on retired machines and on vendors allow or
do not."""
Trait = tuple[str, Market] | tuple[str, str]
"""What policies may leave out for all workloads: a market of a provider, a kind of device, a way to buy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPool:
    """Own machines of one kind: the present ones, at the monthly cost of using one, then those to buy.

    `off_usd`: a month of one that is there, used or not. `hours`: a month that one can be worked.
    """

    tiers: tuple[tuple[int, float], ...]  # (at most so many, USD a month of each)
    off_usd: float = 0.0
    hours: float = HOURS_PER_MONTH

    @property
    def most(self) -> int:
        """Machines that there can be."""
        return sum(count for count, _ in self.tiers)

    def used_usd(self, count: int) -> float:
        """USD a month of so many used machines; those beyond the last cost as it does."""
        left, usd, paid = count, 0.0, min(count, self.tiers[0][0]) * self.off_usd
        for most, usd in self.tiers:
            paid, left = paid + min(left, most) * usd, left - min(left, most)
        return paid + left * usd

    def idle(self, count: int) -> int:
        """Present machines that are paid besides `count` used ones."""
        return max(0, self.tiers[0][0] - count) if self.off_usd else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyOption:
    """One option to carry a whole workload for a month: a candidate of the search on an offer, bought one way.

    Each of `instances` is busy `busy_hours` and paid `paid_hours`. `usd_each`: a month of one instance for those hours,
    rework and checkpoints included; of own machines the first's. `usd_running`: what the work of one adds to that, the
    power of own machines. `usd_per_hour` is None of an API. `kwh` at the meter and `kg` of CO2: a month of all
    instances, None where a power limit is not known; `kg_each`: of one, as it counts in the choice.
    """

    workload: int  # its number
    candidate: Candidate
    offer: Offer
    instances: int
    unit: int = 1  # instances of one replica: the smallest part that a workload may be split into
    busy_hours: float
    paid_hours: float
    usd_per_hour: float | None
    usd_each: float
    usd_running: float = 0.0
    kwh: float | None = None
    kg: float | None = None
    kg_each: float = 0.0
    software: str = ""  # that a project has to be written for
    own: OwnPool | None = None  # of own machines: how many there are, and what they cost together
    pool: str = ""  # that others may not share
    notes: tuple[str, ...] = ()

    @property
    def provider(self) -> str:
        """The provider of the machines."""
        return self.offer.provider

    @property
    def region(self) -> str:
        """The region of the machines."""
        return self.offer.region

    @property
    def market(self) -> Market:
        """The market that policies on regions, hosts, retired machines and vendors distinguish."""
        return self.region, self.offer.marketplace, self.offer.retires_on is not None, self.software

    @property
    def traits(self) -> tuple[Trait, ...]:
        """The traits within which options are compared where money that buys nothing is left out."""
        return (self.provider, self.market), ("device", self.offer.accelerator), ("purchase", self.purchase)

    @property
    def instance(self) -> str:
        """Their type."""
        return self.offer.instance

    @property
    def purchase(self) -> str:
        """The purchase option of the machines."""
        return self.candidate.purchase

    @property
    def machine(self) -> Machine:
        """The key that identifies a pool of machines."""
        return self.provider, self.region, self.instance, self.purchase, self.pool

    @property
    def whole_kind(self) -> Machine:
        """The machine without its pool, by which own machines are counted."""
        return (*self.machine[:4], "")

    @property
    def is_pooled(self) -> bool:
        """True if its machines are paid all month, used or not."""
        return paid_all_month(self.purchase)

    @property
    def gpus_each(self) -> int:
        """Accelerators of one machine; 0 of an API."""
        return 0 if self.purchase == API else max(1, self.candidate.num_gpus // self.candidate.num_instances)

    @property
    def is_scaled(self) -> bool:
        """True if its machines may follow the traffic: they are paid by the hour."""
        return not self.is_pooled and self.purchase != API

    @property
    def usd(self) -> float:
        """USD a month of all instances, without sharing."""
        return self.pool_usd(self.instances) + self.instances * self.usd_running

    def pool_usd(self, machines: int) -> float:
        """USD a month of `machines` of its machines, by any user."""
        return machines * self.usd_each if self.own is None else self.own.used_usd(machines)

    def __str__(self) -> str:
        return f"{self.instances} x {self.provider} {self.instance} ({self.candidate.gpu})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkload:
    """A workload with the options that carry it, cheapest first, and the plan they come from."""

    index: int
    job: ResolvedJob
    workload: Resolved | None  # as it was searched: with its window and the ways to buy
    plan: Plan | None
    options: tuple[MonthlyOption, ...]
    reasons: tuple[str, ...]  # where nothing carries it
    notes: tuple[str, ...] = ()
    num_kinds: int | None = None  # kinds of machines that were searched, where there were more

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.job.name


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadDemand:
    """The constraints of a workload: splitting, schedule, and a standby at another provider.

    `volumes_usd`: what its storage and traffic cost a month, by the provider that carries all of it.
    """

    name: str
    splittable: bool
    flexible: bool  # runs that may be put anywhere in their slots; others are on in all of them
    slots: tuple[float, ...] = ()  # share of the week of each slot it is on in, else 0; (): on in all
    backup: bool = False
    volumes_usd: Mapping[str, float] = field(default_factory=dict)
    levels: LoadLevels | None = None  # of a service that follows its traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Instances of an option with their monthly cost; `role` primary or backup.

    Of machines shared with other workloads it costs its part by hours of use. `by_level`: of a service that follows its
    traffic the machines that are on at each level of it, and the `scaled_hours` a month that each is paid on average.
    """

    option: MonthlyOption
    count: int
    usd: float
    role: str = "primary"
    by_level: tuple[int, ...] = ()
    scaled_hours: float | None = None

    @property
    def paid_hours(self) -> float:
        """Hours a month that each is paid, on average."""
        return self.option.paid_hours if self.scaled_hours is None else self.scaled_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The machines, the pools with their paid instances, the bill and its gap to the lower bound.

    `usd`: a month, machines and volumes; `objective`: that with the weight on carbon. `volumes`: the share of what a
    workload (its number) stores and sends that is with a provider; `by_provider`: the bill.
    """

    taken: tuple[Taken, ...]
    pools: dict[Machine, int]
    idle: dict[Machine, tuple[int, float]]  # own machines that are paid and not used, and the USD of all of them
    volumes: dict[tuple[int, str], float]
    by_provider: dict[str, float]
    usd: float
    objective: float
    kg: float
    gap: float
    left_out: tuple[
        tuple[Trait, float], ...
    ] = ()  # for all workloads, so that shares hold; USD a month cheaper with it
    whole_traits: bool = True  # whether it is known that no allocation which leaves others out is cheaper
    out_of_time: bool = False  # the clock stopped the solver: another machine may find a cheaper one
    columns: Array | None = field(default=None, repr=False, compare=False)  # of the program, to begin another from


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenWorkload:
    """A workload with its machines: `parts` of every kind, primary, of which `main` carries most."""

    planned: PlannedWorkload
    main: Taken
    parts: tuple[Taken, ...]
    figures: ExpectedFigures | None

    @property
    def job(self) -> ResolvedJob:
        """The workload as written."""
        return self.planned.job

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.planned.job.name

    @property
    def option(self) -> MonthlyOption:
        """The option that carries most of it."""
        return self.main.option


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeBill:
    """The monthly bill of a workload's storage and traffic with one provider, in USD, and the sources of the prices."""

    storage: float = 0.0
    traffic: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """Both."""
        return self.storage + self.traffic
