"""Fleet files: read safely, refused with the line of what is wrong, every quantity in base units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from flopwise.errors import SpecError, UnknownNameError
from flopwise.fleet.model import FileSource, InstanceQuota, MonthSpreads, Platform, ResolvedJob, Rules
from flopwise.fleet.own_machines import own_machine_kinds
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import API, HOSTABLE, INTERRUPTIBLE, OWNED, PURCHASES, RUNS, Fleet, Job, Workstations
from flopwise.search.workload import Resolved, resolve
from flopwise.search.workload_data import maybe, whole
from flopwise.search.workload_file import document, kind_of, located, read_text
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
    return _read(data, node, where)


def fleet_from(data: dict[str, Any], where: str = "fleet") -> Platform:
    """Validate and resolve a fleet given as plain data.

    Raises:
        SpecError: as `load_fleet`, without a line.
    """
    return _read(data, None, where)


def _read(data: dict[str, Any], node: Any, where: str) -> Platform:
    try:
        fleet = msgspec.convert(data, Fleet)
    except msgspec.ValidationError as error:
        raise SpecError(located(str(error), node, where, data, Fleet)) from None
    source = FileSource(where, node)
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
    jobs = tuple(_resolved_job(fleet, rules, n, growth[n]) for n in range(len(fleet.workloads)))
    return Platform(fleet=fleet, rules=rules, jobs=jobs, machines=own_machine_kinds(fleet.own_machines))


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
    frac = parse_count(text[:-1], what) / 100 if text.endswith("%") else parse_count(value, what)
    if not 0 <= frac <= most:
        raise SpecError(f"{what}: {text[:40]} is out of range; allowed: 0 to {most:g} (or percent)")
    return frac


def _between(value: object, what: str, low: float, high: float) -> float:
    number = parse_count(value, what)
    if not low <= number <= high:
        raise SpecError(f"{what}: {number:g} is out of range; allowed: {low:g} to {high:g}")
    return number


def _rules(fleet: Fleet) -> Rules:
    policies, backup = fleet.policies, fleet.policies.backup
    ways: list[str] = [*(policies.purchase or ("on_demand",))]
    tolerance = share(policies.share_tolerance, "policies.share_tolerance")
    shares = _provider_shares(fleet, tolerance)
    if OWNED in ways and not fleet.own_machines:
        raise SpecError(f"policies.purchase: {OWNED} needs machines; say which under `own_machines`")
    ways += [OWNED] if fleet.own_machines and OWNED not in ways else []
    budget = policies.budget_per_month
    budget = None if budget is None else parse_usd(budget, "policies.budget_per_month")
    if budget is not None and budget <= 0:
        raise SpecError(f"policies.budget_per_month: {budget:g} is out of range; allowed: above 0")
    return Rules(
        budget_per_month=budget, providers=shares, share_tolerance=tolerance, regions=tuple(policies.regions),
        purchase=tuple(ways), max_spot_share=share(policies.max_spot_share, "policies.max_spot_share"),
        quotas=_quotas(fleet), backup_share=share(backup.share, "policies.backup.share"), backup_on=backup.on,
        backup_hours=_between(backup.hours, "policies.backup.hours", 0, 744),
        growth_per_month=share(policies.growth_per_month, "policies.growth_per_month", most=MOST_GROWTH),
        carbon_usd_per_kg=_between(policies.carbon_usd_per_kg, "policies.carbon_usd_per_kg", 0, 1e6),
        max_price_age_days=_between(policies.max_price_age_days, "policies.max_price_age_days", 1, 36500),
        spreads=_month_spreads(fleet),
    )  # fmt: skip


def _provider_shares(fleet: Fleet, tolerance: float) -> dict[str, float]:
    shares = {name: share(value, f"policies.providers.{name}") for name, value in fleet.policies.providers.items()}
    for name in shares:
        if (twin := next(other for other in shares if other.lower() == name.lower())) != name:
            raise SpecError(f"policies.providers.{name}: {twin} is the same provider; give it one share")
    total = sum(shares.values())
    if shares and abs(total - 1.0) > tolerance + 1e-9:
        raise SpecError(
            f"policies.providers: the shares add up to {100 * total:g} %; they have to make 100 %, within the "
            f"tolerance of {100 * tolerance:g} %"
        )
    return shares


def _month_spreads(fleet: Fleet) -> MonthSpreads:
    given, where = msgspec.structs.asdict(fleet.policies.scenarios), "policies.scenarios"
    values = {
        name: _between(value, f"{where}.{name}", 0, 744)
        if name == "rework_hours"
        else share(value, f"{where}.{name}", most=MOST_SPREAD)
        for name, value in given.items()
        if value is not None
    }
    return MonthSpreads(**values)


def _quotas(fleet: Fleet) -> tuple[InstanceQuota, ...]:
    quotas = []
    for number, quota in enumerate(fleet.policies.quotas):
        where = f"policies.quotas.{number}"
        if quota.provider is None and quota.instance is None:
            raise SpecError(f"{where}: a quota is of a provider, an instance type, or both")
        most = parse_whole(quota.most, f"{where}.most", low=0)
        quotas.append(InstanceQuota(most=most, provider=quota.provider, instance=quota.instance, number=number))
    return tuple(quotas)


def _resolved_job(fleet: Fleet, rules: Rules, number: int, growth: float) -> ResolvedJob:
    job, where = fleet.workloads[number], f"workloads.{number}"
    environment = job.environment or ("training" if job.task in {"pretrain", "finetune"} else "production")
    hours = job.hours or fleet.environments.get(environment)
    named = f"{where}.hours" if job.hours is not None else f"environments.{environment}"
    workload, machines, limits = _workload(job, where), job.machines or Workstations(), job.constraints
    memory, count = machines.memory, 0
    if job.machines is not None:
        count = parse_whole(machines.count, f"{where}.machines.count", high=100_000)
    runs = None
    if job.task in RUNS:
        runs = _between(1 if job.runs_per_month is None else job.runs_per_month, f"{where}.runs_per_month", 1e-3, 1e6)
    elif job.runs_per_month is not None:
        raise SpecError(f"{where}.runs_per_month: a {job.task} workload does not end; leave it out")
    return ResolvedJob(
        spec=job, workload=workload, environment=environment,
        schedule=schedule(hours, environment, named if hours is not None else f"{where}.environment"),
        runs_per_month=runs,
        interruptible=job.task in INTERRUPTIBLE if job.interruptible is None else job.interruptible,
        purchase=_purchases(job, rules, where), growth_per_month=growth,
        storage_bytes=_volume(job.volumes.storage, f"{where}.volumes.storage"),
        egress_bytes=_volume(job.volumes.egress, f"{where}.volumes.egress"),
        inter_zone_bytes=_volume(job.volumes.inter_zone, f"{where}.volumes.inter_zone"), workstations=count,
        gpus_each=parse_whole(machines.gpus_each, f"{where}.machines.gpus_each", high=64),
        least_memory_bytes=None if memory is None else parse_bytes(memory, f"{where}.machines.memory"),
        most_gpus=whole(limits.max_gpus, f"{where}.constraints.max_gpus", 10**6),
        most_usd_per_hour=maybe(limits.max_usd_per_hour, parse_usd, f"{where}.constraints.max_usd_per_hour"),
    )  # fmt: skip


def _volume(value: object, what: str) -> float:
    """Bytes a month."""
    nbytes = 0.0 if value is None else parse_bytes(value, what)
    if not 0 <= nbytes <= MOST_BYTES:
        raise SpecError(f"{what}: {value!s:.40} is out of range; allowed: 0 to {MOST_BYTES / 1e18:g} EB")
    return nbytes


def _purchases(job: Job, rules: Rules, where: str) -> tuple[str, ...]:
    """Ways to buy: its own among the fleet's, in the usual order. To rent nothing needs no leave of the policies."""
    purchases: set[str] = set(job.purchase or rules.purchase)
    if job.purchase and OWNED in purchases and OWNED not in rules.purchase:
        raise SpecError(f"{where}.purchase: {OWNED} needs machines; say which under `own_machines`")
    if API in job.purchase and job.task not in HOSTABLE:
        kinds = ", ".join(sorted(HOSTABLE))
        raise SpecError(f"{where}.purchase: an {API} answers requests ({kinds}); it cannot {job.task}")
    purchases -= {API} if job.task not in HOSTABLE else set()
    beyond = sorted(purchases - {*rules.purchase, API}) if job.purchase else []
    if beyond:
        raise SpecError(
            f"{where}.purchase: {', '.join(beyond)} is not among the fleet's; policies.purchase allows "
            f"{', '.join(rules.purchase)}"
        )
    return tuple(p for p in PURCHASES if p in purchases)


def _workload(job: Job, where: str) -> Resolved | None:
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
