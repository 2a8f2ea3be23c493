"""Fleet files: read safely, refused with the line of what is wrong, every quantity in base units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError, UnknownNameError
from flopwise.fleet.model import FileSource, InstanceQuota, Platform, ResolvedJob, Rules
from flopwise.fleet.own_machines import own_machine_kinds
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import (
    API,
    FLEET_FILE,
    HOSTABLE,
    INTERRUPTIBLE,
    MOST_KINDS,
    MOST_WORKLOADS,
    OWNED,
    PURCHASES,
    RUNS,
    Fleet,
    Job,
    Workstations,
)  # fmt: skip
from flopwise.options import kind_of
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved, resolve
from flopwise.search.workload_file import document, read_text

MOST_SHOWN = 12
"""Names of a circle that a message holds."""
FOR_DEVELOPERS = (
    "objective", "constraints.providers", "constraints.regions", "constraints.gpus", "constraints.instances",
    "constraints.purchase", "constraints.max_gpus", "constraints.max_usd_per_hour",
    "constraints.inter_node_bandwidth", "constraints.network",
)  # fmt: skip
"""Keys of a workload that machines to work on have a use for."""


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
    source = FileSource(where, node)
    try:
        return replace(resolved(FLEET_FILE.parse(data)[0]), source=source, written=FLEET_FILE.without_defaults(data))
    except UnknownNameError as error:
        raise SpecError(f"{where}: {error}") from None
    except SpecError as error:
        raise source.located(error) from None


def resolved(fleet: Fleet) -> Platform:
    """The fleet in base units.

    Raises:
        SpecError: starts with the path of what is wrong.
    """
    if not 1 <= len(fleet.workloads) <= MOST_WORKLOADS:
        raise SpecError(f"workloads: {len(fleet.workloads):,} of them; allowed: 1 to {MOST_WORKLOADS:,}")
    if len(fleet.own_machines) > MOST_KINDS:
        raise SpecError(f"own_machines: {len(fleet.own_machines):,} kinds; allowed: up to {MOST_KINDS}")
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
    return rules.growth_per_month if own is None else own


def _circle(fleet: Fleet, chain: list[int], start: int) -> str:
    """The names of a circle, from where it starts back to there; of a long one the first and the last."""
    names = [fleet.workloads[n].name[:60] for n in (*chain[chain.index(start) :], start)]
    return " -> ".join(names if len(names) <= MOST_SHOWN else [*names[:MOST_SHOWN], "...", names[-1]])


def _rules(fleet: Fleet) -> Rules:
    policies = fleet.policies
    ways: list[str] = [*(policies.purchase or ("on_demand",))]
    _check_provider_shares(fleet)
    if OWNED in ways and not fleet.own_machines:
        raise SpecError(f"policies.purchase: {OWNED} needs machines; say which under `own_machines`")
    ways += [OWNED] if fleet.own_machines and OWNED not in ways else []
    quotas = []
    for number, quota in enumerate(policies.quotas):
        if quota.provider is None and quota.instance is None:
            raise SpecError(f"policies.quotas.{number}: a quota is of a provider, an instance type, or both")
        quotas.append(InstanceQuota(most=quota.most, provider=quota.provider, instance=quota.instance, number=number))
    return Rules(
        budget_per_month=policies.budget_per_month, providers=dict(policies.providers or {}),
        share_tolerance=policies.share_tolerance, regions=policies.regions, purchase=tuple(ways),
        max_spot_share=policies.max_spot_share, quotas=tuple(quotas), backup_share=policies.backup.share,
        backup_on=policies.backup.on, backup_hours=policies.backup.hours, growth_per_month=policies.growth_per_month,
        carbon_usd_per_kg=policies.carbon_usd_per_kg, max_price_age_days=policies.max_price_age_days,
        spreads=policies.scenarios,
    )  # fmt: skip


def _check_provider_shares(fleet: Fleet) -> None:
    shares, tolerance = fleet.policies.providers or {}, fleet.policies.share_tolerance
    for name in shares:
        if (twin := next(other for other in shares if other.lower() == name.lower())) != name:
            raise SpecError(f"policies.providers.{name}: {twin} is the same provider; give it one share")
    total = sum(shares.values())
    if shares and abs(total - 1.0) > tolerance + 1e-9:
        raise SpecError(
            f"policies.providers: the shares add up to {100 * total:g} %; they have to make 100 %, within the "
            f"tolerance of {100 * tolerance:g} %"
        )


def _resolved_job(fleet: Fleet, rules: Rules, number: int, growth: float) -> ResolvedJob:
    job, where = fleet.workloads[number], f"workloads.{number}"
    environment = job.environment or ("training" if job.task in {"pretrain", "finetune"} else "production")
    hours = job.hours or (fleet.environments or {}).get(environment)
    named = f"{where}.hours" if job.hours is not None else f"environments.{environment}"
    workload, machines, limits = _workload(job, where), job.machines or Workstations(), job.constraints
    if job.task not in RUNS and job.runs_per_month is not None:
        raise SpecError(f"{where}.runs_per_month: a {job.task} workload does not end; leave it out")
    return ResolvedJob(
        spec=job, workload=workload, environment=environment,
        schedule=schedule(hours, environment, named if hours is not None else f"{where}.environment"),
        runs_per_month=(job.runs_per_month or 1.0) if job.task in RUNS else None,
        interruptible=job.task in INTERRUPTIBLE if job.interruptible is None else job.interruptible,
        purchase=_purchases(job, rules, where), growth_per_month=growth, storage_bytes=job.volumes.storage,
        egress_bytes=job.volumes.egress, inter_zone_bytes=job.volumes.inter_zone,
        workstations=0 if job.machines is None else machines.count, gpus_each=machines.gpus_each,
        least_memory_bytes=machines.memory, most_gpus=limits.max_gpus, most_usd_per_hour=limits.max_usd_per_hour,
    )  # fmt: skip


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
        stray = next((key for key in _keys(job.planned) if key not in FOR_DEVELOPERS), None)
        if stray is not None:
            raise SpecError(f"{where}.{stray}: has no meaning for a develop workload; leave it out")
        return None
    if job.machines is not None:
        raise SpecError(f"{where}.machines: only a develop workload names machines; constraints say what may be used")
    if job.model is None:
        raise SpecError(f"{where}: needs `model`")
    return resolve(job.workload, f"{where}.")


def _keys(planned: Mapping[str, Any]) -> list[str]:
    """The keys of a workload: sections, and the keys within its constraints."""
    written = WORKLOAD_FILE.without_defaults(planned)
    limits = written.pop("constraints", {})
    return [*written, *(f"constraints.{key}" for key in limits)]
