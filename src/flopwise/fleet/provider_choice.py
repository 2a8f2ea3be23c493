"""The best machines of each provider for each workload: what a month of them costs, and why the plan takes others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flopwise.fleet.assessment import ProviderChoice, RulingPolicies, RulingPolicy, ruling_text
from flopwise.fleet.bill import SAME, SolvedFleet
from flopwise.fleet.model import ChosenWorkload, MonthlyOption
from flopwise.fleet.offers import allowed_devices, providers_with_tags, why_not_allowed
from flopwise.fleet.spec import OWNED

LARGE_CLOUDS = ("aws", "gcp", "azure")
"""Providers that are always listed, with those of the policies and of the plan."""
OTHERS = 3
"""The cheapest of all other providers."""
Refused = dict[tuple[object, ...], str]
"""Why nothing of a provider carries workloads of the same residency, tags and constraints."""


def provider_choices(fleet: SolvedFleet, rules: RulingPolicies) -> list[ProviderChoice]:
    """For each workload the machines of each provider, the plan's first, then by monthly cost.

    `rules`: by workload, the policies that rule cheaper machines out.
    """
    refused: Refused = {}
    return [
        choice for chosen in fleet.chosen for choice in _choices(chosen, fleet, refused, rules.get(chosen.name, ()))
    ]


def _choices(
    chosen: ChosenWorkload, fleet: SolvedFleet, refused: Refused, rules: Sequence[RulingPolicy]
) -> list[ProviderChoice]:
    cheapest: dict[str, MonthlyOption] = {}
    for option in chosen.planned.options:  # cheapest first
        cheapest.setdefault(option.provider, option)
    cheapest[chosen.option.provider] = chosen.option
    named = dict.fromkeys([*(t.option.provider for t in chosen.parts), *fleet.platform.rules.shares, *LARGE_CLOUDS])
    others = [name for name in cheapest if name not in named][:OTHERS]
    rows = [_choice(cheapest[name], chosen, rules) for name in [*named, *others] if name in cheapest]
    rows += [_none(name, chosen, fleet, refused) for name in named if name not in cheapest]
    return sorted(rows, key=lambda row: (not row.taken, row.usd_per_month is None, row.usd_per_month or 0.0))


def _choice(option: MonthlyOption, chosen: ChosenWorkload, rules: Sequence[RulingPolicy]) -> ProviderChoice:
    """The best machines of one provider, against those that the plan has."""
    mine = [taken for taken in chosen.parts if taken.option.provider == option.provider]
    usd = sum(taken.usd for taken in chosen.parts)
    return ProviderChoice(
        workload=chosen.name, provider=option.provider, region=option.region, instance=option.instance,
        gpu=option.candidate.gpu, purchase=option.purchase, count=option.instances, usd_per_month=option.usd,
        change_usd=option.usd - usd, taken=bool(mine), why=_why_not(option, chosen, usd, rules, taken=bool(mine)),
        price_date=option.offer.price_date_of(option.purchase),
        price_source=option.offer.price_source_of(option.purchase),
    )  # fmt: skip


def _why_not(
    option: MonthlyOption, chosen: ChosenWorkload, usd: float, rules: Sequence[RulingPolicy], *, taken: bool
) -> str:
    if taken:
        return "part of the plan" if len(chosen.parts) > 1 else "the plan"
    if option.usd > usd * SAME:
        may_be_spot = chosen.option.purchase == "spot" and option.purchase != "spot"
        unknown = may_be_spot and option.offer.spot_usd_per_hour is None
        return "costs more; its spot price is not known" if unknown else "costs more"
    if option.usd * SAME >= usd:
        return "costs as much as the plan"
    if chosen.option.purchase == OWNED:
        return "cheaper alone, but own machines are paid for all month, and other workloads share them"
    return f"cheaper, but {ruling_text(rules, option.usd)}"


def _none(provider: str, chosen: ChosenWorkload, fleet: SolvedFleet, refused: Refused) -> ProviderChoice:
    """The choice for a provider without a machine for the workload, with the reason."""
    job = chosen.job
    key = (provider.lower(), job.spec.residency, job.spec.tags, job.spec.constraints)
    if key not in refused:
        refused[key] = _why_none(provider, chosen, fleet)
    return ProviderChoice(workload=chosen.name, provider=provider, why=refused[key])


def _why_none(provider: str, chosen: ChosenWorkload, fleet: SolvedFleet) -> str:
    offers = [offer for offer in fleet.facts.offers if offer.provider.lower() == provider.lower()]
    job, platform = chosen.job, fleet.platform
    having, devices = providers_with_tags(job, fleet.facts), allowed_devices(job, platform, fleet.facts)
    reasons = [why_not_allowed(offer, job, platform, devices, having) for offer in offers]
    if not offers:
        return "no machine of it is known"
    if None not in reasons:
        return f"may not be used: {Counter(reasons).most_common(1)[0][0]}"
    return f"none of its {reasons.count(None):,} allowed offers meets the requirements at a known price"
