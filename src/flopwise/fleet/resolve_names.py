"""Names in a fleet that the facts have to know: a misspelt one is an error with its line, not an empty answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.compliance import tags
from flopwise.facts.hosted_prices import hosted_prices
from flopwise.facts.models.catalog import load_model
from flopwise.facts.offers import known_region, region_names
from flopwise.fleet.own_machines import OwnOffer, with_own
from flopwise.fleet.spec import API

if TYPE_CHECKING:
    from collections.abc import Callable

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.model import Platform, ResolvedJob


def check_names(platform: Platform, facts: Facts) -> Facts:
    """The facts with the fleet's own machines, once all names that the fleet uses are known.

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
    return facts


def with_catalog_spelling(platform: Platform, facts: Facts) -> Platform:
    """The platform with the providers of its shares and quotas written as the offers, or the APIs, have them.

    What they are compared with from here on has that spelling; all other names are compared blind to case.
    """
    names = [p.provider for p in hosted_prices(facts.folder)] if _uses_apis(platform) else []
    spelling = {name.lower(): name for name in [*names, *(o.provider for o in facts.offers)]}
    shares = {spelling.get(name.lower(), name): share for name, share in platform.rules.providers.items()}
    quotas = tuple(
        replace(q, provider=q.provider and spelling.get(q.provider.lower(), q.provider)) for q in platform.rules.quotas
    )
    return replace(platform, rules=replace(platform.rules, providers=shares, quotas=quotas))


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
            prices = hosted_prices(self.facts.folder)
            self.apis = frozenset(p.provider.lower() for p in prices)
            places = (part for p in prices for part in (p.regions or "any").lower().split("/") if part != "any")
            self.regions = tuple(dict.fromkeys([*self.regions, *places]))

    def look_up(self, path: str, kind: str, name: str, find: Callable[[], object]) -> None:
        """Look up a name once; a complaint starts with `path`."""
        if (kind, name) in self.seen:
            return
        try:
            find()
        except SpecError as error:
            raise _with_path(path, error) from None
        self.seen.add((kind, name))

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
        limits, spec = job.spec.constraints, job.spec
        apis = self.apis if API in job.purchase else frozenset[str]()
        regions = _each(f"{path}.constraints.regions", limits.regions)
        for at, name in (*_each(f"{path}.residency", spec.residency), *regions):
            self.check_region(at, name)
        for at, name in _each(f"{path}.constraints.providers", limits.providers):
            self.check_provider(at, name, apis)
        for at, name in _each(f"{path}.constraints.instances", limits.instances):
            self.look_up(at, "instance", name, partial(self.facts.offers_for, instance=name))
        devices = spec.machines.gpus if spec.machines else []
        for at, name in (*_each(f"{path}.constraints.gpus", limits.gpus), *_each(f"{path}.machines.gpus", devices)):
            self.look_up(at, "accelerator", name, partial(self.facts.accelerator, name))
        for at, name in _each(f"{path}.tags", spec.tags):
            self.look_up(at, "tag", name, partial(self.check_tag, name))
        if spec.model is not None:
            model = partial(load_model, spec.model, facts_folder=self.facts.folder)
            self.look_up(f"{path}.model", "model", spec.model, model)

    def check_provider(self, path: str, name: str, apis: frozenset[str]) -> None:
        """One that offers machines, or is an API."""
        if name.lower() not in apis:
            self.look_up(path, "provider", name, partial(self.facts.offers_for, provider=name))

    def check_region(self, path: str, name: str) -> None:
        """One that the catalog names, or a pattern of some."""
        if not known_region(name, self.regions):
            raise _with_path(path, UnknownNameError("region", name, self.regions))

    def check_tag(self, name: str) -> None:
        """One that a provider, or a machine of one's own, has."""
        own = {tag for o in self.facts.offers if isinstance(o, OwnOffer) for tag in o.machines.tags}
        known = {*tags(self.facts.folder), *own}
        if name.strip().lower() not in known:
            hint = "`compliance.csv` in a facts folder, or `tags` of own machines, add tags"
            raise UnknownNameError("tag", name, known, hint)


def _each(path: str, names: list[str]) -> Iterator[tuple[str, str]]:
    for number, name in enumerate(names):
        yield f"{path}.{number}", name


def _check_pattern(path: str, kind: str, pattern: str | None, names: tuple[str, ...]) -> None:
    if pattern is not None and not any(fnmatchcase(name.lower(), pattern.lower()) for name in names):
        raise _with_path(path, UnknownNameError(kind, pattern, names))


def _with_path(path: str, error: SpecError) -> SpecError:
    """The same complaint with the path of the key in front."""
    error.args = (f"{path}: {error}",)
    return error
