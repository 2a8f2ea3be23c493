"""Names in a fleet that the facts have to know: a misspelt one is an error with its line, not an empty answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.offers import known_region, region_names
from flopwise.fleet.own_machines import OwnOffer, with_own
from flopwise.fleet.spec import API

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.model import Platform, ResolvedJob


def resolve_names(platform: Platform, facts: Facts) -> tuple[Platform, Facts]:
    """The platform and the facts with its own machines, once all names that the fleet uses are known.

    Providers of shares and quotas are written as the offers, or the APIs, have them: what they are compared with from
    here on has that spelling; all other names are compared blind to case.

    Raises:
        SpecError: with file and line, and the nearest names; a provider's share that no allowed region can meet.
    """
    try:
        facts = with_own(facts, platform.machines)
        known = _KnownNames(platform, facts)
        known.check_policies()
        for number, job in enumerate(platform.jobs):
            known.check_job(job, f"workloads.{number}")
    except SpecError as error:
        raise platform.source.located(error) from None
    names = [p.provider for p in facts.hosted_prices] if _uses_apis(platform) else []
    spelling = {name.lower(): name for name in [*names, *(o.provider for o in facts.offers)]}
    rules = platform.rules
    shares = {spelling.get(name.lower(), name): share for name, share in rules.providers.items()}
    named = [q.provider and spelling.get(q.provider.lower(), q.provider) for q in rules.quotas]
    quotas = tuple(replace(quota, provider=name) for quota, name in zip(rules.quotas, named, strict=True))
    return replace(platform, rules=replace(rules, providers=shares, quotas=quotas)), facts


def _uses_apis(platform: Platform) -> bool:
    return any(API in job.purchase for job in platform.jobs)


@dataclass(slots=True)
class _KnownNames:
    """What is known, and what of it was looked up already: a thousand workloads name the same few things."""

    platform: Platform
    facts: Facts
    apis: frozenset[str] = frozenset()
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
        if _uses_apis(self.platform):
            prices = self.facts.hosted_prices
            self.apis = frozenset(p.provider.lower() for p in prices)
            places = (part for p in prices for part in (p.regions or "any").lower().split("/") if part != "any")
            self.regions = tuple(dict.fromkeys([*self.regions, *places]))

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
        for name in rules.providers:
            self.check_provider(f"policies.providers.{name}", name, self.apis)
        for number, name in enumerate(rules.regions):
            self.check_region(f"policies.regions.{number}", name)
        for name, share in rules.providers.items():
            if share > rules.share_tolerance and rules.regions and name.lower() not in self.apis:
                self._check_share_region(name, share)
        for quota in rules.quotas:
            path = f"policies.quotas.{quota.number}"
            _check_pattern(f"{path}.provider", "provider", quota.provider, self.providers)
            _check_pattern(f"{path}.instance", "instance", quota.instance, self.instances)

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
        apis = self.apis if API in job.purchase else frozenset[str]()
        checks: tuple[tuple[str, Sequence[str], Callable[[str, str], object]], ...] = (
            ("residency", spec.residency, self.check_region),
            ("constraints.regions", limits.regions, self.check_region),
            ("constraints.providers", limits.providers, lambda at, name: self.check_provider(at, name, apis)),
            (
                "constraints.instances",
                limits.instances,
                self.look_up("instance", lambda n: facts.offers_for(instance=n)),
            ),
            ("constraints.gpus", limits.gpus, self.look_up("accelerator", facts.accelerator)),
            (
                "machines.gpus",
                spec.machines.gpus if spec.machines else (),
                self.look_up("accelerator", facts.accelerator),
            ),
            ("tags", spec.tags, self.look_up("tag", self.check_tag)),
        )
        for key, names, check in checks:
            for number, name in enumerate(names):
                check(f"{path}.{key}.{number}", name)
        if spec.model is not None:
            model = self.look_up("model", facts.model)
            model(f"{path}.model", spec.model)

    def check_provider(self, path: str, name: str, apis: frozenset[str]) -> None:
        """One that offers machines, or is an API."""
        if name.lower() not in apis:
            self.look_up("provider", lambda provider: self.facts.offers_for(provider=provider))(path, name)

    def check_region(self, path: str, name: str) -> None:
        """One that the catalog names, or a pattern of some."""
        if not known_region(name, self.regions):
            raise _with_path(path, UnknownNameError("region", name, self.regions))

    def check_tag(self, name: str) -> None:
        """One that a provider, or a machine of one's own, has."""
        own = {tag for o in self.facts.offers if isinstance(o, OwnOffer) for tag in o.machines.tags}
        known = {*self.facts.tags, *own}
        if name.strip().lower() not in known:
            hint = "`compliance.csv` in a facts folder, or `tags` of own machines, add tags"
            raise UnknownNameError("tag", name, known, hint)


def _check_pattern(path: str, kind: str, pattern: str | None, names: tuple[str, ...]) -> None:
    if pattern is not None and not any(fnmatchcase(name.lower(), pattern.lower()) for name in names):
        raise _with_path(path, UnknownNameError(kind, pattern, names))


def _with_path(path: str, error: SpecError) -> SpecError:
    """The same complaint with the path of the key in front."""
    error.args = (f"{path}: {error}",)
    return error
