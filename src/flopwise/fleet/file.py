"""Fleet files: read safely, refused with the line of what is wrong, every quantity in base units."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from flopwise.errors import SpecError, UnknownNameError
from flopwise.fleet.hours import Schedule, schedule
from flopwise.fleet.own import Machines, machines
from flopwise.fleet.spec import API, HOSTABLE, INTERRUPTIBLE, OWNED, PURCHASES, RUNS, Fleet, Job, Quota, Spreads
from flopwise.search.workload import Resolved, resolve
from flopwise.search.workload_data import maybe, whole
from flopwise.search.workload_file import document, kind_of, located, place, read_text
from flopwise.units import parse_bytes, parse_count, parse_usd, parse_whole

MOST_BYTES = 1e21
"""Moved or kept in a month: all that the internet carries is less."""
MOST_SHOWN = 12
"""Names of a circle that a message holds."""
MOST_SPREAD = 2.0
"""A standard deviation of 200 %: one month in six at more than seven times the plan."""
MOST_GROWTH = 1.0
"""A month: twice as much each month is 4,096 times in a year; more is growth that no fleet follows."""

PLANNED = ("data", "method", "routing", "traffic", "techniques", "targets", "optimizer", "checkpoints", "precision")
OF_RUNS = ("min_gpus", "precision", "weight_formats", "kv_dtype", "engine", "stack", "schedule", "shard")
"""Keys, and constraints, of what is planned: machines that people work on have no use for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A quota in plain numbers; None: any."""

    most: int
    provider: str | None
    instance: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strays:
    """How far drawn months stray: standard deviations of logarithms, and hours that an interruption costs.

    The usual figures are assumed: a service's owner knows better; list prices hardly move within a month, spot prices
    do; half an hour is lost since the last checkpoint, restart included.
    """

    demand: float = 0.15
    spot_price: float = 0.20
    list_price: float = 0.02
    rework_hours: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The policies in base units; shares are fractions of the monthly cost."""

    budget_per_month: float | None
    providers: dict[str, float]
    share_tolerance: float
    regions: tuple[str, ...]
    purchase: tuple[str, ...]
    max_spot_share: float
    caps: tuple[Cap, ...]
    backup_share: float
    backup_on: bool
    backup_hours: float
    growth_per_month: float
    carbon_usd_per_kg: float
    max_price_age_days: float
    strays: Strays = Strays()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One workload in base units. `wanted` is None for machines that people work on."""

    job: Job
    wanted: Resolved | None
    environment: str
    schedule: Schedule  # when its machines are on, or may be: runs that end are on as long as they take
    runs_per_month: float | None
    interruptible: bool
    purchase: tuple[str, ...]
    growth_per_month: float
    storage_bytes: float
    egress_bytes: float
    inter_zone_bytes: float
    workstations: int
    gpus_each: int
    least_memory_bytes: float | None
    most_gpus: int | None = None  # of machines to work on, together; others have it in `wanted`
    most_usd_per_hour: float | None = None  # likewise

    @property
    def name(self) -> str:
        """As the fleet calls it."""
        return self.job.name

    @property
    def hours_per_month(self) -> float:
        """Of its schedule."""
        return self.schedule.hours_per_month

    @property
    def ends(self) -> bool:
        """Whether it is a run that ends, rather than machines that stay."""
        return self.job.task in RUNS


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fleet was read, for the lines of what is found wrong later."""

    where: str = ""
    node: Any = None

    def at(self, path: str) -> str:
        """File and line of a key, such as fleet.yaml:12; as much of it as is known."""
        return place(self.node, self.where, path.split("."))

    def located(self, error: SpecError) -> SpecError:
        """A complaint that starts with a path, with file and line in front."""
        found = self.at(str(error).split(":", 1)[0])
        error.args = (f"{found}: {error}" if found else str(error),)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A fleet, read and resolved."""

    fleet: Fleet
    rules: Rules
    workloads: tuple[Placed, ...]
    machines: tuple[Machines, ...] = ()
    source: Source = field(default=Source(), compare=False, repr=False)


def load_fleet(path: Path | str) -> Platform:
    """Read, validate and resolve a fleet file (YAML, or JSON).

    Raises:
        SpecError: with file and line, what was given and what is allowed.
    """
    return parse_fleet(read_text(path), str(path))


def parse_fleet(text: str, where: str = "fleet") -> Platform:
    """Validate and resolve the text of a fleet; `where` names it in messages.

    Raises:
        SpecError: as `load_fleet`.
    """
    node, data = document(text, where)
    if not isinstance(data, dict):
        raise SpecError(f"{where}:1: a fleet is a mapping with `name` and `workloads`, not {kind_of(data)}")
    return _resolved(data, node, where)


def fleet_from(data: dict[str, Any], where: str = "fleet") -> Platform:
    """Validate and resolve a fleet given as plain data.

    Raises:
        SpecError: as `load_fleet`, without a line.
    """
    return _resolved(data, None, where)


def _resolved(data: dict[str, Any], node: Any, where: str) -> Platform:
    try:
        fleet = msgspec.convert(data, Fleet)
    except msgspec.ValidationError as error:
        raise SpecError(located(str(error), node, where, data, Fleet)) from None
    source = Source(where, node)
    try:
        return replace(resolved(fleet), source=source)
    except UnknownNameError as error:
        raise SpecError(f"{where}: {error}") from None
    except SpecError as error:
        raise source.located(error) from None


def resolved(fleet: Fleet) -> Platform:
    """The fleet in base units.

    Raises:
        SpecError: starts with the path of what is wrong.
    """
    rules = _rules(fleet)
    names = dict[str, int]()
    for number, job in enumerate(fleet.workloads):
        if job.name in names:
            raise SpecError(f"workloads.{number}.name: {job.name[:60]!r} is used twice; each workload needs its own")
        names[job.name] = number
    growth = [_growth(fleet, rules, names, n) for n in range(len(fleet.workloads))]
    placed = tuple(_placed(fleet, rules, n, growth[n]) for n in range(len(fleet.workloads)))
    return Platform(fleet=fleet, rules=rules, workloads=placed, machines=machines(fleet.own_machines))


def _growth(fleet: Fleet, rules: Rules, names: dict[str, int], number: int) -> float:
    """Of workload `number` a month: its own, the fleet's, or that of the one it follows."""
    chain, at = dict[int, None](), number
    while (followed := fleet.workloads[at].grows_with) is not None:
        where = f"workloads.{at}.grows_with"
        if followed not in names:
            raise SpecError(f"{where}: {UnknownNameError('workload', followed, names)}")
        if fleet.workloads[at].growth_per_month is not None:
            raise SpecError(f"{where}: growth_per_month says it already; leave out one of them")
        chain[at], at = None, names[followed]
        if at in chain:
            raise SpecError(
                f"{where}: growth in a circle: {_circle(fleet, list(chain), at)}; one needs growth_per_month"
            )
    own = fleet.workloads[at].growth_per_month
    where = f"workloads.{at}.growth_per_month"
    return rules.growth_per_month if own is None else share(own, where, most=MOST_GROWTH)


def _circle(fleet: Fleet, chain: list[int], start: int) -> str:
    """The names of a circle, from where it starts back to there; of a long one the first and the last."""
    names = [fleet.workloads[n].name[:60] for n in (*chain[chain.index(start) :], start)]
    return " -> ".join(names if len(names) <= MOST_SHOWN else [*names[:MOST_SHOWN], "...", names[-1]])


def share(value: object, what: str, *, most: float = 1.0) -> float:
    """A share: `0.4` or `40%`.

    Raises:
        SpecError: below 0 or above `most`.
    """
    text = str(value).strip()
    found = parse_count(text[:-1], what) / 100 if text.endswith("%") else parse_count(value, what)
    if not 0 <= found <= most:
        raise SpecError(f"{what}: {text[:40]} is out of range; allowed: 0 to {most:g} (or percent)")
    return found


def _rules(fleet: Fleet) -> Rules:
    policies = fleet.policies
    shares = {name: share(value, f"policies.providers.{name}") for name, value in policies.providers.items()}
    for name in shares:
        if (twin := next(other for other in shares if other.lower() == name.lower())) != name:
            raise SpecError(f"policies.providers.{name}: {twin} is the same provider; give it one share")
    tolerance = share(policies.share_tolerance, "policies.share_tolerance")
    total = sum(shares.values())
    if shares and abs(total - 1.0) > tolerance + 1e-9:
        raise SpecError(
            f"policies.providers: the shares add up to {100 * total:g} %; they have to make 100 %, within the "
            f"tolerance of {100 * tolerance:g} %"
        )
    ways: list[str] = [*(policies.purchase or ("on_demand",))]
    if OWNED in ways and not fleet.own_machines:
        raise SpecError(f"policies.purchase: {OWNED} needs machines; say which under `own_machines`")
    ways += [OWNED] if fleet.own_machines and OWNED not in ways else []
    budget = policies.budget_per_month
    found = None if budget is None else parse_usd(budget, "policies.budget_per_month")
    if found is not None and found <= 0:
        raise SpecError(f"policies.budget_per_month: {found:g} is out of range; allowed: above 0")
    backup = policies.backup
    return Rules(
        budget_per_month=found,
        providers=shares,
        share_tolerance=tolerance,
        regions=tuple(policies.regions),
        purchase=tuple(ways),
        max_spot_share=share(policies.max_spot_share, "policies.max_spot_share"),
        caps=tuple(_cap(quota, f"policies.quotas.{n}") for n, quota in enumerate(policies.quotas)),
        backup_share=share(backup.share, "policies.backup.share"),
        backup_on=backup.on,
        backup_hours=_between(backup.hours, "policies.backup.hours", 0, 744),
        growth_per_month=share(policies.growth_per_month, "policies.growth_per_month", most=MOST_GROWTH),
        carbon_usd_per_kg=_between(policies.carbon_usd_per_kg, "policies.carbon_usd_per_kg", 0, 1e6),
        max_price_age_days=_between(policies.max_price_age_days, "policies.max_price_age_days", 1, 36500),
        strays=_strays(policies.scenarios),
    )


def _strays(given: Spreads) -> Strays:
    named = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
    where = "policies.scenarios"
    shares = {n: share(v, f"{where}.{n}", most=MOST_SPREAD) for n, v in named.items() if n != "rework_hours"}
    if "rework_hours" in named:
        shares["rework_hours"] = _between(named["rework_hours"], f"{where}.rework_hours", 0, 744)
    return Strays(**shares)


def _cap(quota: Quota, where: str) -> Cap:
    if quota.provider is None and quota.instance is None:
        raise SpecError(f"{where}: a quota is of a provider, an instance type, or both")
    return Cap(most=parse_whole(quota.most, f"{where}.most", low=0), provider=quota.provider, instance=quota.instance)


def _between(value: object, what: str, low: float, high: float) -> float:
    found = parse_count(value, what)
    if not low <= found <= high:
        raise SpecError(f"{what}: {found:g} is out of range; allowed: {low:g} to {high:g}")
    return found


def _placed(fleet: Fleet, rules: Rules, number: int, growth: float) -> Placed:
    job, where = fleet.workloads[number], f"workloads.{number}"
    environment = job.environment or ("training" if job.task in {"pretrain", "finetune"} else "production")
    hours = job.hours or fleet.environments.get(environment)
    named = f"{where}.hours" if job.hours is not None else f"environments.{environment}"
    wanted, machines = _wanted(job, where), job.machines
    runs = None
    if job.task in RUNS:
        runs = _between(1 if job.runs_per_month is None else job.runs_per_month, f"{where}.runs_per_month", 1e-3, 1e6)
    elif job.runs_per_month is not None:
        raise SpecError(f"{where}.runs_per_month: a {job.task} workload does not end; leave it out")
    sizes = {name: getattr(job.volumes, name) for name in ("storage", "egress", "inter_zone")}
    volumes = {name: _volume(v, f"{where}.volumes.{name}") for name, v in sizes.items()}
    memory = None if machines is None or machines.memory is None else machines.memory
    return Placed(
        job=job,
        wanted=wanted,
        environment=environment,
        schedule=schedule(hours, environment, named if hours is not None else f"{where}.environment"),
        runs_per_month=runs,
        interruptible=job.task in INTERRUPTIBLE if job.interruptible is None else job.interruptible,
        purchase=_purchases(job, rules, where),
        growth_per_month=growth,
        storage_bytes=volumes["storage"],
        egress_bytes=volumes["egress"],
        inter_zone_bytes=volumes["inter_zone"],
        workstations=0 if machines is None else parse_whole(machines.count, f"{where}.machines.count", high=100_000),
        gpus_each=1 if machines is None else parse_whole(machines.gpus_each, f"{where}.machines.gpus_each", high=64),
        least_memory_bytes=None if memory is None else parse_bytes(memory, f"{where}.machines.memory"),
        most_gpus=whole(job.constraints.max_gpus, f"{where}.constraints.max_gpus", 10**6),
        most_usd_per_hour=maybe(job.constraints.max_usd_per_hour, parse_usd, f"{where}.constraints.max_usd_per_hour"),
    )


def _volume(value: object, what: str) -> float:
    """Bytes a month."""
    found = 0.0 if value is None else parse_bytes(value, what)
    if not 0 <= found <= MOST_BYTES:
        raise SpecError(f"{what}: {value!s:.40} is out of range; allowed: 0 to {MOST_BYTES / 1e18:g} EB")
    return found


def _purchases(job: Job, rules: Rules, where: str) -> tuple[str, ...]:
    """Ways to buy: its own among the fleet's, in the usual order. To rent nothing needs no leave of the policies."""
    asked: set[str] = set(job.purchase or rules.purchase)
    if job.purchase and OWNED in asked and OWNED not in rules.purchase:
        raise SpecError(f"{where}.purchase: {OWNED} needs machines; say which under `own_machines`")
    if API in job.purchase and job.task not in HOSTABLE:
        kinds = ", ".join(sorted(HOSTABLE))
        raise SpecError(f"{where}.purchase: an {API} answers requests ({kinds}); it cannot {job.task}")
    asked -= {API} if job.task not in HOSTABLE else set()
    beyond = sorted(asked - {*rules.purchase, API}) if job.purchase else []
    if beyond:
        raise SpecError(
            f"{where}.purchase: {', '.join(beyond)} is not among the fleet's; policies.purchase allows "
            f"{', '.join(rules.purchase)}"
        )
    return tuple(p for p in PURCHASES if p in asked)


def _wanted(job: Job, where: str) -> Resolved | None:
    """The workload as `plan` resolves it."""
    if job.task == "develop":
        if job.model is not None:
            raise SpecError(
                f"{where}.model: a develop workload is machines to work on; describe those under `machines`"
            )
        if job.machines is None:
            raise SpecError(f"{where}: a develop workload needs `machines` (count, gpus or memory)")
        blank = Job(name=job.name, task=job.task)
        given = [name for name in PLANNED if getattr(job, name) != getattr(blank, name)]
        limits, kept = job.constraints, type(job.constraints)()
        given += [f"constraints.{name}" for name in OF_RUNS if getattr(limits, name) != getattr(kept, name)]
        if given:
            raise SpecError(f"{where}.{given[0]}: has no meaning for a develop workload; leave it out")
        return None
    if job.machines is not None:
        raise SpecError(f"{where}.machines: only a develop workload names machines; constraints say what may be used")
    if job.model is None:
        raise SpecError(f"{where}: needs `model`")
    try:
        return resolve(job.workload())
    except UnknownNameError:
        raise
    except SpecError as error:
        raise SpecError(f"{where}.{error}") from None
