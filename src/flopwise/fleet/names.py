"""Names in a fleet that the facts have to know: a misspelt one is an error with its line, not an empty answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.offers import known_region, region_names
from flopwise.fleet.own import OwnOffer, with_own
from flopwise.fleet.spec import API

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flopwise.facts.catalog import Facts
    from flopwise.fleet.file import Placed, Platform


def checked(platform: Platform, facts: Facts) -> Facts:
    """The facts with the fleet's own machines, once all names that the fleet uses are known.

    Raises:
        SpecError: with file and line, and the nearest names; a provider's share that no allowed region can meet.
    """
    try:
        facts = with_own(facts, platform.machines)
        known = _Known(platform, facts)
        known.policies()
        for number, placed in enumerate(platform.workloads):
            known.workload(placed, f"workloads.{number}")
    except SpecError as error:
        raise platform.source.located(error) from None
    return facts


def spelled(platform: Platform, facts: Facts) -> Platform:
    """The platform with the providers of its shares and quotas written as the offers, or the APIs, have them.

    What they are compared with from here on has that spelling; all other names are compared blind to case.
    """
    names = [p.provider for p in facts.hosted_prices] if _asks_apis(platform) else []
    spelling = {name.lower(): name for name in [*names, *(o.provider for o in facts.offers)]}
    shares = {spelling.get(name.lower(), name): share for name, share in platform.rules.providers.items()}
    caps = [
        replace(c, provider=c.provider and spelling.get(c.provider.lower(), c.provider)) for c in platform.rules.caps
    ]
    return replace(platform, rules=replace(platform.rules, providers=shares, caps=tuple(caps)))


def _asks_apis(platform: Platform) -> bool:
    return any(API in placed.purchase for placed in platform.workloads)


@dataclass(slots=True)
class _Known:
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
        if _asks_apis(self.platform):
            prices = self.facts.hosted_prices
            self.apis = frozenset(p.provider.lower() for p in prices)
            places = (part for p in prices for part in (p.regions or "any").lower().split("/") if part != "any")
            self.regions = tuple(dict.fromkeys([*self.regions, *places]))

    def once(self, path: str, kind: str, name: str, ask: Callable[[], object]) -> None:
        """Ask for a name that was not asked for before; a complaint starts with `path`."""
        if (kind, name) in self.seen:
            return
        try:
            ask()
        except SpecError as error:
            raise _under(path, error) from None
        self.seen.add((kind, name))

    def policies(self) -> None:
        """Providers, regions and quotas of the whole fleet."""
        rules = self.platform.rules
        for name in rules.providers:
            self.provider(f"policies.providers.{name}", name, self.apis)
        for number, name in enumerate(rules.regions):
            self.region(f"policies.regions.{number}", name)
        for name, share in rules.providers.items():
            if share > rules.share_tolerance and rules.regions and name.lower() not in self.apis:
                self._placeable(name, share)
        for number, cap in enumerate(rules.caps):
            path = f"policies.quotas.{number}"
            if cap.provider is not None:
                _matched(f"{path}.provider", "provider", cap.provider, self.providers)
            if cap.instance is not None:
                _matched(f"{path}.instance", "instance", cap.instance, self.instances)

    def _placeable(self, provider: str, share: float) -> None:
        """A share needs a region that the policies allow; where own machines stand is the fleet's choice."""
        mine = self.facts.offers_for(provider=provider)
        if any(isinstance(o, OwnOffer) or o.serves(r) for o in mine for r in self.platform.rules.regions):
            return
        raise SpecError(
            f"policies.providers.{provider}: {100 * share:g} % of the bill cannot be in {provider}, which has none of "
            f"the allowed regions; policies.regions needs one of {', '.join(dict.fromkeys(o.region for o in mine))}"
        )

    def workload(self, placed: Placed, path: str) -> None:
        """Everything that one workload names."""
        limits, job = placed.job.constraints, placed.job
        apis = self.apis if API in placed.purchase else frozenset[str]()
        for at, name in _each(f"{path}.residency", job.residency):
            self.region(at, name)
        for at, name in _each(f"{path}.constraints.regions", limits.regions):
            self.region(at, name)
        for at, name in _each(f"{path}.constraints.providers", limits.providers):
            self.provider(at, name, apis)
        for at, name in _each(f"{path}.constraints.instances", limits.instances):
            self.once(at, "instance", name, partial(self.facts.offers_for, instance=name))
        for at, name in _each(f"{path}.constraints.gpus", limits.gpus):
            self.once(at, "accelerator", name, partial(self.facts.accelerator, name))
        for at, name in _each(f"{path}.machines.gpus", job.machines.gpus if job.machines else ()):
            self.once(at, "accelerator", name, partial(self.facts.accelerator, name))
        for at, name in _each(f"{path}.tags", job.tags):
            self.once(at, "tag", name, partial(self.tag, name))
        if job.model is not None:
            model = partial(self.facts.model, job.model)
            self.once(f"{path}.model", "model", job.model, model)

    def provider(self, path: str, name: str, apis: frozenset[str]) -> None:
        """One that offers machines, or is an API."""
        if name.lower() not in apis:
            self.once(path, "provider", name, partial(self.facts.offers_for, provider=name))

    def region(self, path: str, name: str) -> None:
        """One that the catalog names, or a pattern of some."""
        if not known_region(name, self.regions):
            raise _under(path, UnknownNameError("region", name, self.regions))

    def tag(self, name: str) -> None:
        """One that a provider, or a machine of one's own, has."""
        asked = name.strip().lower()
        own = {tag for o in self.facts.offers if isinstance(o, OwnOffer) for tag in o.machines.tags}
        held = {*self.facts.tags, *own}
        if asked not in held:
            hint = "`compliance.csv` in a facts folder, or `tags` of own machines, add tags"
            raise UnknownNameError("tag", name, held, hint)


def _each(path: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, name in enumerate(names):
        yield f"{path}.{number}", name


def _matched(path: str, kind: str, pattern: str, names: tuple[str, ...]) -> None:
    if not any(fnmatchcase(name.lower(), pattern.lower()) for name in names):
        raise _under(path, UnknownNameError(kind, pattern, names))


def _under(path: str, error: SpecError) -> SpecError:
    """The same complaint with the path of the key in front."""
    error.args = (f"{path}: {error}",)
    return error
