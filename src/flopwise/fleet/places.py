"""Where a workload may run: providers, regions, residency and tags, as the offers that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import UnknownNameError
from flopwise.fleet.own import OwnOffer

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed, Platform


def tagged(placed: Placed, facts: Facts) -> frozenset[str] | None:
    """Providers that have every tag a workload asks for; none where only own machines have one. None: nothing is asked.

    Raises:
        UnknownNameError: neither a provider nor an own machine has such a tag.
    """
    asked = [tag.strip().lower() for tag in placed.job.tags]
    known = facts.tags
    own = {tag for offer in facts.offers if isinstance(offer, OwnOffer) for tag in offer.machines.tags}
    for tag in asked:
        if tag not in known and tag not in own:
            hint = "`compliance.csv` in a facts folder, or `tags` of own machines, add tags"
            raise UnknownNameError("tag", tag, {*known, *own}, hint)
    return facts.providers_with(asked) if known.keys() >= set(asked) else frozenset()


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
    return facts.replaced(offers=tuple(kept)), fell
