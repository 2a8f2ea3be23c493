"""Hosted models as ways to answer a workload: the tokens of a month, who may have them, and what they cost there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.facts.offers import Offer
from flopwise.facts.price_book import HostedPrice
from flopwise.fleet.hosted import api_usd
from flopwise.fleet.spec import API
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.file import Placed, Platform

UNKNOWN_REGION = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOffer(Offer):
    """A hosted model: no machines, a price for tokens."""

    price: HostedPrice

    def price_usd_per_hour(self, purchase: str) -> float | None:
        """None: nothing is paid by the hour."""
        del purchase
        return None

    def cheapest(self, purchases: tuple[str, ...] = ()) -> tuple[str, float] | None:
        """None, as `price_usd_per_hour`."""
        del purchases
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of a month."""

    inputs: float
    outputs: float

    def usd(self, price: HostedPrice) -> float:
        """What an API takes for them. Source and assumptions: `flopwise.fleet.hosted.api_usd`."""
        return float(api_usd(price, self.inputs, self.outputs))


def month_of_tokens(placed: Placed, factor: float = 1.0) -> Tokens | None:
    """Tokens of a month with `factor` times the traffic or runs; None where the workload does not say them.

    Source: arithmetic: requests of all runs, or the mean rate times the hours that the service is on.
    Assumes: lengths of prompts and answers are their means; every prompt is paid in full.
    """
    wanted = placed.wanted
    if wanted is None:
        return None
    if placed.ends:
        requests = None if wanted.requests is None else wanted.requests * (placed.runs_per_month or 1.0)
    else:
        rate = wanted.requests_per_s
        requests = None if rate is None else rate / wanted.arriving.peak * placed.hours_per_month * HOUR_S
    if requests is None:
        return None
    return Tokens(
        inputs=requests * wanted.input_tokens * factor,
        outputs=requests * wanted.output_tokens * factor,
    )


def api_offers(placed: Placed, platform: Platform, facts: Facts) -> tuple[list[ApiOffer], list[str]]:
    """The APIs that may answer a workload, and why others, or any, may not. Neither where nobody asked for one."""
    if API not in placed.purchase or placed.wanted is None:
        return [], []
    wanted = placed.wanted
    held = [name for name in ("ttft", "tpot", "latency", "tokens_per_s") if getattr(wanted, name) is not None]
    if held:
        what = ", ".join({"tokens_per_s": "throughput"}.get(name, name) for name in held)
        return [], [f"no API: how it would hold the target of {what} is not known"]
    month = month_of_tokens(placed)
    if month is None:
        return [], ["no API: what it would cost needs traffic.requests_per_s; users alone do not say how many tokens"]
    name = facts.model(wanted.model).name
    prices, kept, told = facts.hosted_for(name), list[ApiOffer](), dict[str, list[str]]()
    for price in prices:
        offer = _offer(price)
        reason = _forbidden(offer, placed, platform, facts) or _too_dear(month.usd(price), placed)
        if reason is None:
            kept.append(offer)
        else:
            told.setdefault(reason, []).append(price.provider)
    if not prices:
        return [], [f"no API: nobody's price of {name} is known"]
    return kept, [f"no API of {', '.join(dict.fromkeys(whose))}: {reason}" for reason, whose in told.items()]


def _offer(price: HostedPrice) -> ApiOffer:
    return ApiOffer(
        provider=price.provider,
        instance=price.name,
        region=price.regions or UNKNOWN_REGION,
        accelerator="",
        count=0,
        source=price.source,
        price_date=price.date,
        confidence=price.confidence,
        price=price,
    )


def _forbidden(offer: ApiOffer, placed: Placed, platform: Platform, facts: Facts) -> str | None:
    """Why an API may not have the workload's data: what is not known of it counts against it."""
    limits, job = placed.job.constraints, placed.job
    if limits.providers and offer.provider.lower() not in {p.lower() for p in limits.providers}:
        return "provider not allowed"
    for places, reason in (
        (job.residency, "its data may not be there"),
        (limits.regions, "region not allowed"),
        (platform.rules.regions, "the region is not among the policies'"),
    ):
        if places and not any(offer.serves(region) for region in places):
            return f"{reason} (region {offer.region})"
    known = facts.tags
    asked = [tag.strip().lower() for tag in job.tags]
    having = frozenset() if any(tag not in known for tag in asked) else facts.providers_with(asked)
    if having is not None and offer.provider not in having:
        return f"the provider is not known to have {', '.join(job.tags)}"
    return None


def _too_dear(usd: float, placed: Placed) -> str | None:
    """The workload's own budget: of a run, or of a month of a service."""
    budget = None if placed.wanted is None else placed.wanted.budget_usd
    each = usd / (placed.runs_per_month or 1.0) if placed.ends else usd
    return None if budget is None or each <= budget else f"${each:,.2f} is above its budget"
