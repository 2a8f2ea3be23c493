"""Fleet files: read safely, refused with the line of what is wrong, names looked up, every quantity in base units."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.facts.custom import CustomDevice
from flopwise.facts.offers import known_region, names_instance, region_names
from flopwise.fleet import spec
from flopwise.fleet.model import FileSource, Platform, ResolvedJob
from flopwise.fleet.offers import OwnOffer, site, with_own
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import API, HOSTABLE, OWNED, RUNS, Fleet, Job, Policies
from flopwise.options import kind_of, provider_name
from flopwise.search.allowed import DeviceLimits, device_names, vendor_names
from flopwise.search.nodes import check_custom_price
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved, resolve
from flopwise.search.workload_file import document, read_text
from flopwise.units import in_dollars
from flopwise.values import dataclass, replace

MOST_SHOWN = 12
"""Names of a circle that a message holds."""
FOR_DEVELOPERS = (
    "objective", "software", "constraints.providers", "constraints.regions", "constraints.gpus",
    "constraints.vendors", "constraints.exclude", "constraints.marketplace", "constraints.include_retired",
    "constraints.instances", "constraints.purchase", "constraints.max_gpus", "constraints.max_usd_per_hour",
    "constraints.inter_node_bandwidth", "constraints.network", "constraints.intra_node",
)  # fmt: skip
"""Keys of a workload that machines to work on have a use for."""


def load_fleet(path: Path | str, existing: Path | str | None = None) -> Platform:
    """The platform of a fleet file (YAML, or JSON), validated, in base units.

    `existing`: a table of what workloads run on today, instead of the one that the file names.

    Raises: SpecError: with file and line, what was given and what is allowed.
    """
    return parse_fleet(read_text(path), str(path), existing)


def fleet_of(source: Path | str | dict[str, Any], existing: Path | str | None = None) -> Platform:
    """The platform of a fleet file, or of plain data with the same keys. Raises as `load_fleet`."""
    return fleet_from(source, existing=existing) if isinstance(source, dict) else load_fleet(source, existing)


def parse_fleet(text: str, where: str = "fleet", existing: Path | str | None = None) -> Platform:
    """The platform of the text of a fleet file; `where` names it in messages. Raises as `load_fleet`."""
    node, data = document(text, where)
    if not isinstance(data, dict):
        table = "; a table of machines goes with --existing, in addition to the fleet file whose workloads it names"
        more = table if Path(where).suffix == ".csv" else ""
        raise SpecError(f"{where}:1: a fleet is a mapping with `name` and `workloads`, not {kind_of(data)}{more}")
    return fleet_from(data, where, node, existing)


def fleet_from(
    data: dict[str, Any], where: str = "fleet", node: Any = None, existing: Path | str | None = None
) -> Platform:
    """The platform of a fleet given as plain data. Raises as `load_fleet`; without `node` no line is known."""
    named, rows = data.get("existing"), dict[str, str]()
    if existing is not None or isinstance(named, str | Path):
        table = Path(existing) if existing is not None else Path(where).parent / str(named)
        data, rows = _with_existing(data, table)
    if "model" in data and "workloads" not in data:
        raise SpecError(f"{where}: this is one workload, not a fleet; ask `flopwise plan`")
    source = FileSource(where, node, rows)
    try:
        platform = _platform(spec.FLEET_FILE.parse(data)[0])
    except UnknownNameError as error:
        raise SpecError(f"{where}: {error}") from None
    except SpecError as error:
        raise source.with_line(error) from None
    return replace(platform, source=source, written=in_dollars(spec.FLEET_FILE.without_defaults(data)))


def _with_existing(data: dict[str, Any], table: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The fleet with the rows of a table as the existing machines of the workloads that they name.

    With file and line of each row by the path that it has in the fleet.

    Raises: SpecError: with file and line, what is wrong in the table.
    """
    jobs = [job for job in data.get("workloads") or () if isinstance(job, dict)]
    names = [job.get("name") for job in jobs]
    rows, places = dict[str, list[dict[str, Any]]](), dict[str, str]()
    lines = csv.DictReader(read_text(table, "CSV").splitlines(), skipinitialspace=True)
    known = ["name", *spec.EXISTING_ROW.keys[""]]
    columns = [(column or "").strip().lower() for column in lines.fieldnames or ()]
    for column in (*columns, *({"name", "instance"} - {*columns})):
        if column not in known or column not in columns:
            what = "is missing" if column in known else f"is unknown; allowed: {', '.join(known)}"
            raise SpecError(f"{table}:1: column {column[:40]!r} {what}")
    lines.fieldnames = columns
    for line in lines:
        at = f"{table}:{lines.line_num}: "
        if None in line:
            raise SpecError(f"{at}has more cells than the table has columns")
        cells = {column: cell.strip() for column, cell in line.items() if cell and cell.strip()}
        name = cells.pop("name", "")
        if name not in names:
            raise SpecError(f"{at}{UnknownNameError('workload', name, [*map(str, names)])}")
        spec.EXISTING_ROW.parse(cells, at)
        places[f"workloads.{names.index(name)}.existing.{len(rows.get(name, ()))}"] = at.removesuffix(": ")
        rows.setdefault(name, []).append(cells)
    workloads = [job | {"existing": rows.get(str(job.get("name")), job.get("existing"))} for job in jobs]
    return data | {"workloads": workloads}, places


def _platform(fleet: Fleet) -> Platform:
    """The fleet in base units.

    Raises: SpecError: starts with the path of what is wrong.
    """
    if not 1 <= len(fleet.workloads) <= spec.MOST_WORKLOADS:
        raise SpecError(f"workloads: {len(fleet.workloads):,} of them; allowed: 1 to {spec.MOST_WORKLOADS:,}")
    if len(fleet.own_machines) > spec.MOST_KINDS:
        raise SpecError(f"own_machines: {len(fleet.own_machines):,} kinds; allowed: up to {spec.MOST_KINDS}")
    rules = _rules(fleet)
    numbers = _unique_names(fleet.workloads, "workloads", "workload")
    growth = [_growth(fleet, numbers, n) for n in range(len(fleet.workloads))]
    jobs = tuple(_resolved_job(fleet, rules, n, growth[n]) for n in range(len(fleet.workloads)))
    _unique_names(fleet.own_machines, "own_machines", "kind of machine")
    for number, entry in enumerate(fleet.own_machines):
        where = f"own_machines.{number}"
        if not entry.count + entry.buy_up_to:
            raise SpecError(f"{where}: none exist and none may be bought; give `count`, `buy_up_to` or both")
        if entry.region.lower() == "any" or set(entry.region) & set("*?[/"):
            raise SpecError(
                f"{where}.region: {entry.region[:60]!r} is not a place; name where your own machines are: eu-cellar"
            )
        site(entry.site, f"{where}.site")
    return Platform(fleet=fleet, rules=rules, jobs=jobs)


def _unique_names(entries: Sequence[Job | spec.OwnMachines], path: str, what: str) -> dict[str, int]:
    """The number of each entry by its name; SpecError for a name that is used twice."""
    numbers = dict[str, int]()
    for number, entry in enumerate(entries):
        if entry.name in numbers:
            raise SpecError(f"{path}.{number}.name: {entry.name[:60]!r} is used twice; each {what} needs its own")
        numbers[entry.name] = number
    return numbers


def _growth(fleet: Fleet, names: Mapping[str, int], number: int) -> float:
    """Growth of a workload a month: its own, the fleet's, or that of the one it follows."""
    chain, at = dict[int, None](), number
    while (followed := fleet.workloads[at].grows_with) is not None:
        where = f"workloads.{at}.grows_with"
        if followed not in names:
            raise SpecError(f"{where}: {UnknownNameError('workload', followed, names)}")
        if fleet.workloads[at].growth_per_month is not None:
            raise SpecError(f"{where}: growth_per_month already gives it; leave out one of them")
        chain[at], at = None, names[followed]
        if at in chain:
            circle = [fleet.workloads[n].name[:60] for n in (*list(chain)[list(chain).index(at) :], at)]
            shown = circle if len(circle) <= MOST_SHOWN else [*circle[:MOST_SHOWN], "...", circle[-1]]
            raise SpecError(f"{where}: circular growth: {' -> '.join(shown)}; one needs growth_per_month")
    own = fleet.workloads[at].growth_per_month
    return fleet.policies.growth_per_month if own is None else own


def _rules(fleet: Fleet) -> Policies:
    """The policies with the ways to buy that hold for all workloads."""
    policies = fleet.policies
    purchases = [*(policies.purchase or ("on_demand",))]
    _check_provider_shares(policies)
    if OWNED in purchases and not fleet.own_machines:
        raise SpecError(f"policies.purchase: {OWNED} needs machines; say which under `own_machines`")
    purchases += [OWNED] if fleet.own_machines and OWNED not in purchases else []
    for number, quota in enumerate(policies.quotas):
        if quota.provider is None and quota.instance is None:
            raise SpecError(f"policies.quotas.{number}: a quota names a provider, an instance type, or both")
    return replace(policies, purchase=tuple(purchases))


def _check_provider_shares(policies: Policies) -> None:
    shares, tolerance = policies.shares, policies.share_tolerance
    total = sum(shares.values())
    if shares and abs(total - 1.0) > tolerance + 1e-9:
        raise SpecError(
            f"policies.providers: the shares add up to {100 * total:g} %; they have to make 100 %, within the "
            f"tolerance of {100 * tolerance:g} %"
        )


def _resolved_job(fleet: Fleet, rules: Policies, number: int, growth: float) -> ResolvedJob:
    job, where = fleet.workloads[number], f"workloads.{number}"
    environment = job.environment or ("training" if job.task in {"pretrain", "finetune"} else "production")
    hours = job.hours or (fleet.environments or {}).get(environment)
    named = f"{where}.hours" if job.hours is not None else f"environments.{environment}"
    workload = _workload(job, where)
    profile = () if workload is None else workload.profile
    if job.autoscale != spec.Scaling() and not profile:
        raise SpecError(f"{where}.autoscale: follows a profile of traffic; give traffic.profile, or leave it out")
    if job.task not in RUNS and job.runs_per_month is not None:
        raise SpecError(f"{where}.runs_per_month: a {job.task} workload does not end; leave it out")
    return ResolvedJob(
        spec=job, workload=workload, environment=environment,
        schedule=schedule(hours, environment, named if hours is not None else f"{where}.environment"),
        runs_per_month=(job.runs_per_month or 1.0) if job.task in RUNS else None,
        interruptible=job.task in spec.INTERRUPTIBLE if job.interruptible is None else job.interruptible,
        purchase=_purchases(job, rules, where), growth_per_month=growth, volumes=job.volumes,
    )  # fmt: skip


def _purchases(job: Job, rules: Policies, where: str) -> tuple[str, ...]:
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
    return tuple(p for p in spec.PURCHASES if p in purchases)


def _workload(job: Job, where: str) -> Resolved | None:
    """The workload as `plan` resolves it."""
    if job.task == "develop":
        if job.model is not None:
            raise SpecError(
                f"{where}.model: a develop workload is machines to work on; describe those under `machines`"
            )
        if job.machines is None:
            raise SpecError(f"{where}: a develop workload needs `machines` (count, gpus or memory)")
        written = WORKLOAD_FILE.without_defaults(job.planned)
        limits = written.pop("constraints", {})
        for key in [*written, *(f"constraints.{key}" for key in limits)]:
            if key not in FOR_DEVELOPERS:
                raise SpecError(f"{where}.{key}: has no meaning for a develop workload; leave it out")
        return None
    if job.machines is not None:
        raise SpecError(f"{where}.machines: only a develop workload names machines; constraints say what may be used")
    if job.model is None:
        raise SpecError(f"{where}: needs `model`")
    return resolve(job.workload, f"{where}.")


# Names that the facts have to know: a misspelt one is an error with its line, not an empty answer


def resolve_names(platform: Platform, facts: Facts) -> tuple[Platform, Facts]:
    """The platform and the facts with its own machines, once all names that the fleet uses are known.

    Providers of shares and quotas are written as the offers, or the APIs, have them: what they are compared with from
    here on has that spelling; all other names are compared blind to case.

    Raises: SpecError: with file and line, and the nearest names; a provider's share that no allowed region can meet.
    """
    hosted = facts.hosted_prices if any(API in job.purchase for job in platform.jobs) else ()
    try:
        own_rules = (job.workload.assumed_prices for job in platform.jobs if job.workload is not None)
        facts = facts.with_custom(name for path, name in _gpu_names(platform) if _is_custom(path, name))
        facts = facts.with_assumed_prices(platform.rules.assumed_prices.union(*own_rules))
        facts = with_own(facts, platform.fleet.own_machines)
        known = _KnownNames(platform, facts, {p.provider.lower(): p.provider for p in hosted})
        known.check_policies()
        for number, job in enumerate(platform.jobs):
            known.check_job(job, f"workloads.{number}")
    except SpecError as error:
        raise platform.source.with_line(error) from None
    rules = platform.rules
    shares = {known.provider_name(name): share for name, share in rules.shares.items()}
    quotas = tuple(replace(q, provider=q.provider and known.provider_name(q.provider)) for q in rules.quotas)
    return replace(platform, rules=replace(rules, providers=shares, quotas=quotas)), facts


def _gpu_names(platform: Platform) -> Iterator[tuple[str, str]]:
    """Accelerators that the fleet names, as it writes them, each with the path of its key."""
    lists = [("policies.gpus", platform.rules.gpus)]
    for number, job in enumerate(platform.jobs):
        lists.append((f"workloads.{number}.constraints.gpus", job.spec.constraints.gpus))
        if job.spec.machines is not None:
            lists.append((f"workloads.{number}.machines.gpus", job.spec.machines.gpus))
    for path, names in lists:
        yield from ((f"{path}.{number}", name) for number, name in enumerate(names))
    for number, machine in enumerate(platform.fleet.own_machines):
        yield f"own_machines.{number}.gpu", machine.gpu


def _is_custom(path: str, name: str) -> bool:
    """True if a name describes a custom device. Raises SpecError: it describes one wrongly."""
    try:
        return CustomDevice.of(name) is not None
    except SpecError as error:
        raise _with_path(path, error) from None


@dataclass(slots=True)
class _KnownNames:
    """The known names, and those looked up already: a thousand workloads name the same few things.

    `apis`: providers of hosted models, by their names in small letters; none where no workload may be answered by one.
    """

    platform: Platform
    facts: Facts
    apis: Mapping[str, str]
    providers: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    seen: set[tuple[str, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Gather the names once."""
        offers = self.facts.offers
        self.providers = tuple(dict.fromkeys(o.provider for o in offers))
        self.instances = tuple(dict.fromkeys(o.instance for o in offers))
        self.regions = region_names(offers)
        if self.apis:
            parts = (part for p in self.facts.hosted_prices for part in (p.regions or "any").lower().split("/"))
            self.regions = tuple(dict.fromkeys([*self.regions, *(part for part in parts if part != "any")]))

    def provider_name(self, provider: str) -> str:
        """A provider as the offers, or the APIs, have it, by any of its names; a pattern as it is."""
        names = {**self.apis, **{name.lower(): name for name in self.providers}}
        return names.get(provider.lower()) or names.get(provider_name(provider).lower(), provider)

    def look_up(self, kind: str, find: Callable[[str], object]) -> Callable[[str, str], None]:
        """A check that looks up each name of a kind once; a complaint starts with the path of the key."""

        def check(path: str, name: str) -> None:
            if (kind, name) not in self.seen:
                try:
                    find(name)
                except SpecError as error:
                    raise _with_path(path, error) from None
                self.seen.add((kind, name))

        return check

    def check_policies(self) -> None:
        """Providers, regions and quotas of the whole fleet."""
        rules = self.platform.rules
        named = dict[str, str]()
        for name in rules.shares:
            self.check_provider(f"policies.providers.{name}", name, self.apis)
            if (twin := named.setdefault(self.provider_name(name), name)) != name:
                raise SpecError(f"policies.providers.{name}: {twin} is the same provider; give it one share")
        for number, name in enumerate(rules.regions):
            self.check_region(f"policies.regions.{number}", name)
        for name, share in rules.shares.items():
            if share > rules.share_tolerance and rules.regions and name.lower() not in self.apis:
                self._check_share_region(name, share)
        if rules.baseline is not None and rules.baseline not in {spec.ON_DEMAND, spec.EXISTING}:
            self.look_up("accelerator", self.facts.accelerator)("policies.baseline", rules.baseline)
        self._check_devices("policies", rules)
        for number, quota in enumerate(rules.quotas):
            for kind, pattern, names in (
                ("provider", quota.provider and self.provider_name(quota.provider), self.providers),
                ("instance", quota.instance, self.instances),
            ):  # fmt: skip
                means = _means_provider if kind == "provider" else names_instance
                if pattern is not None and not any(means(pattern, name) for name in names):
                    raise _with_path(f"policies.quotas.{number}.{kind}", UnknownNameError(kind, pattern, names))

    def _check_share_region(self, provider: str, share: float) -> None:
        """A share needs a region that the policies allow; where own machines stand is the fleet's choice."""
        mine = self.facts.offers_for(provider=provider)
        if any(isinstance(o, OwnOffer) or o.serves(r) for o in mine for r in self.platform.rules.regions):
            return
        raise SpecError(
            f"policies.providers.{provider}: {100 * share:g} % of the bill cannot be in {provider}, which has none of "
            f"the allowed regions; policies.regions needs one of {', '.join(dict.fromkeys(o.region for o in mine))}"
        )

    def check_job(self, job: ResolvedJob, path: str) -> None:
        """Everything that one workload names."""
        limits, spec, facts = job.spec.constraints, job.spec, self.facts
        apis = self.apis if API in job.purchase else dict[str, str]()
        instance = self.look_up("instance", lambda name: facts.offers_for(instance=name))
        devices = self.look_up("accelerator", lambda name: device_names([name], facts))
        checks: tuple[tuple[str, Sequence[str], Callable[[str, str], object]], ...] = (
            ("residency", spec.residency, self.check_region),
            ("constraints.regions", limits.regions, self.check_region),
            ("constraints.providers", limits.providers, lambda at, name: self.check_provider(at, name, apis)),
            ("constraints.instances", limits.instances, instance),
            ("machines.gpus", spec.machines.gpus if spec.machines else (), devices),
            ("tags", spec.tags, self.look_up("tag", self.check_tag)),
        )
        self._check_devices(f"{path}.constraints", limits)
        for key, names, check in checks:
            for number, name in enumerate(names):
                check(f"{path}.{key}.{number}", name)
        if spec.model is not None:
            self.look_up("model", facts.model)(f"{path}.model", spec.model)

    def _check_devices(self, path: str, limits: DeviceLimits) -> None:
        """Names, vendors and families of devices, and that one of those that are named is sold."""
        devices = self.look_up("accelerator", lambda name: device_names([name], self.facts))
        vendor = self.look_up("vendor", lambda name: vendor_names([name], self.facts))
        for key, names, check in (
            ("gpus", limits.gpus, devices), ("exclude", limits.exclude, devices), ("vendors", limits.vendors, vendor)
        ):  # fmt: skip
            for number, name in enumerate(names):
                check(f"{path}.{key}.{number}", name)
        try:
            check_custom_price(limits.gpus, self.facts)
        except SpecError as error:
            raise _with_path(f"{path}.gpus", error) from None

    def check_provider(self, path: str, name: str, apis: Mapping[str, str]) -> None:
        """One that offers machines, or is an API."""
        if name.lower() not in apis:
            self.look_up("provider", lambda provider: self.facts.offers_for(provider=provider))(path, name)

    def check_region(self, path: str, name: str) -> None:
        """One that the catalog names, or a pattern of some."""
        if not known_region(name, self.regions):
            raise _with_path(path, UnknownNameError("region", name, self.regions))

    def check_tag(self, name: str) -> None:
        """One that a provider, or a machine of your own, has."""
        own = {tag for o in self.facts.offers if isinstance(o, OwnOffer) for tag in o.tags}
        known = {*self.facts.tags, *own}
        if name.strip().lower() not in known:
            hint = "`compliance.csv` in a facts folder, or `tags` of own machines, add tags"
            raise UnknownNameError("tag", name, known, hint)


def _means_provider(pattern: str, name: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


def _with_path(path: str, error: SpecError) -> SpecError:
    """The error with the path of the key in front."""
    error.args = (f"{path}: {error}",)
    return error
