"""Where a workload may run: providers, regions, residency and tags, as the offers that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.fleet.own_machines import OwnOffer

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.model import Platform, ResolvedJob


def providers_with_tags(job: ResolvedJob, facts: Facts) -> frozenset[str] | None:
    """Providers that have every tag of a workload; none where only own machines have one. None: it has no tags."""
    needed = [tag.strip().lower() for tag in job.spec.tags]
    return facts.providers_with(needed) if facts.tags.keys() >= set(needed) else frozenset()


def why_not_allowed(
    offer: Offer, job: ResolvedJob, platform: Platform, having: frozenset[str] | None = None
) -> str | None:
    """Why the fleet's policies or the workload's residency forbid an offer; None where it is allowed.

    Policies on providers and regions are of what is rented; where its own machines stand is the fleet's choice.
    """
    rules, own = platform.rules, isinstance(offer, OwnOffer)
    if not own and rules.providers and offer.provider.lower() not in {p.lower() for p in rules.providers}:
        return "the provider is not among the policies'"
    if not own and rules.regions and not any(offer.serves(region) for region in rules.regions):
        return "the region is not among the policies'"
    if job.spec.residency and not any(offer.serves(region) for region in job.spec.residency):
        return "its data may not be in that region"
    if isinstance(offer, OwnOffer):
        lacking = [tag for tag in job.spec.tags if tag.strip().lower() not in offer.machines.tags]
        return f"own machines without {', '.join(lacking)}" if lacking else None
    if having is not None and offer.provider not in having:
        return f"the provider is not known to have {', '.join(job.spec.tags)}"
    return None


def allowed_offers(job: ResolvedJob, platform: Platform, facts: Facts) -> tuple[Facts, dict[str, int]]:
    """The facts with only the offers that a workload may use, and how many others refused for which reason."""
    having = providers_with_tags(job, facts)
    kept: list[Offer] = []
    refused: dict[str, int] = {}
    for offer in facts.offers:
        reason = why_not_allowed(offer, job, platform, having)
        if reason is None:
            kept.append(offer)
        else:
            refused[reason] = refused.get(reason, 0) + 1
    return facts.replaced(offers=tuple(kept)), refused
