"""Where a workload may run: providers, regions, residency and tags, as the offers that are left."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from flopwise.errors import UnknownNameError
from flopwise.facts.compliance import providers_with, tags
from flopwise.facts.hosted_prices import hosted_prices
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.spec import API

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed, Platform


def check_names(platform: Platform, facts: Facts) -> None:
    """Misspelt providers, regions, instances and GPUs are errors, not empty answers.

    Raises:
        UnknownNameError: says where in the fleet, and the nearest names.
    """
    rules = platform.rules
    apis = {p.provider for p in hosted_prices(facts.folder)} if _hosted(platform) else frozenset()
    for provider in rules.providers:
        if provider not in apis:
            _known(lambda p=provider: facts.offers_for(provider=p), f"policies.providers.{provider}")
    for number, region in enumerate(rules.regions):
        _known(lambda r=region: facts.offers_for(region=r), f"policies.regions.{number}")
    for number, cap in enumerate(rules.caps):
        if cap.provider is not None:
            _matched(cap.provider, (o.provider for o in facts.offers), "provider", f"policies.quotas.{number}")
        if cap.instance is not None:
            _matched(cap.instance, (o.instance for o in facts.offers), "instance", f"policies.quotas.{number}")
    for placed in platform.workloads:
        _check_workload(placed, facts, apis)


def _hosted(platform: Platform) -> bool:
    """Whether an API may answer anything."""
    return any(API in placed.purchase for placed in platform.workloads)


def _check_workload(placed: Placed, facts: Facts, apis: Collection[str]) -> None:
    limits, where = placed.job.constraints, f"workload {placed.name[:60]}"
    for region in (*placed.job.residency, *limits.regions):
        _known(lambda r=region: facts.offers_for(region=r), where)
    for provider in limits.providers:
        if provider not in apis or API not in placed.purchase:
            _known(lambda p=provider: facts.offers_for(provider=p), where)
    for instance in limits.instances:
        _known(lambda i=instance: facts.offers_for(instance=i), where)
    if placed.job.tags:
        _known(lambda: tagged(placed, facts), where)
    for gpu in (*limits.gpus, *(placed.job.machines.gpus if placed.job.machines else ())):
        _known(lambda g=gpu: facts.accelerator(g), where)


def _known(ask: object, where: str) -> None:
    try:
        ask()  # type: ignore[operator]  # a question without arguments
    except UnknownNameError as error:
        raise _placed_error(error, where) from None


def _placed_error(error: UnknownNameError, where: str) -> UnknownNameError:
    """The same error with the place in front."""
    told = UnknownNameError(error.kind, error.given, error.nearest)
    told.args = (f"{where}: {error}",)
    return told


def _matched(pattern: str, names: Iterable[str], kind: str, where: str) -> None:
    held = list(dict.fromkeys(names))
    if not any(fnmatchcase(name.lower(), pattern.lower()) for name in held):
        raise _placed_error(UnknownNameError(kind, pattern, held), where)


def tagged(placed: Placed, facts: Facts) -> frozenset[str] | None:
    """Providers that have every tag a workload asks for; none where only own machines have one. None: nothing is asked.

    Raises:
        UnknownNameError: neither a provider nor an own machine has such a tag.
    """
    asked = [tag.strip().lower() for tag in placed.job.tags]
    known = tags(facts.folder)
    own = {tag for offer in facts.offers if isinstance(offer, OwnOffer) for tag in offer.machines.tags}
    for tag in asked:
        if tag not in known and tag not in own:
            hint = "`compliance.csv` in a facts folder, or `tags` of own machines, add tags"
            raise UnknownNameError("tag", tag, {*known, *own}, hint)
    return providers_with(asked, facts.folder) if known.keys() >= set(asked) else frozenset()


def allowed(offer: Offer, placed: Placed, platform: Platform, having: frozenset[str] | None = None) -> str | None:
    """Why the fleet's policies or the workload's residency forbid an offer; None where they do not.

    Policies on providers and regions are of what is rented; where its own machines stand is the fleet's choice.
    """
    rules, own = platform.rules, isinstance(offer, OwnOffer)
    if not own and rules.providers and offer.provider.lower() not in {p.lower() for p in rules.providers}:
        return "the provider is not among the policies'"
    if not own and rules.regions and not any(offer.serves(region) for region in rules.regions):
        return "the region is not among the policies'"
    if placed.job.residency and not any(offer.serves(region) for region in placed.job.residency):
        return "its data may not be in that region"
    if isinstance(offer, OwnOffer):
        lacking = [tag for tag in placed.job.tags if tag.strip().lower() not in offer.machines.tags]
        return f"own machines without {', '.join(lacking)}" if lacking else None
    if having is not None and offer.provider not in having:
        return f"the provider is not known to have {', '.join(placed.job.tags)}"
    return None


def offers_of(placed: Placed, platform: Platform, facts: Facts) -> tuple[Facts, dict[str, int]]:
    """The facts with only the offers that a workload may use, and how many others fell for which reason."""
    having = tagged(placed, facts)
    kept: list[Offer] = []
    fell: dict[str, int] = {}
    for offer in facts.offers:
        reason = allowed(offer, placed, platform, having)
        if reason is None:
            kept.append(offer)
        else:
            fell[reason] = fell.get(reason, 0) + 1
    return replace(facts, offers=tuple(kept)), fell
