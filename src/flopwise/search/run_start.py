"""The bill of a run with its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.money import billed_hours
from flopwise.ops.types import Floats
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer


def run_cost_usd(seconds: Floats, start_s: Floats, usd_per_hour: Floats, offer: Offer, facts: Facts) -> Floats:
    """USD of a run with its start, as the provider rounds the time; broadcasts.

    Source: data/purchase_terms.csv. Assumes: one start; where the terms are not known the time is paid as it is.
    """
    terms, hours = facts.terms_of(offer.provider, offer.instance), (seconds + start_s) / HOUR_S
    if terms is not None:
        hours = billed_hours(hours, unit_s=terms.billing_unit_s, minimum_s=terms.minimum_s)
    return hours * usd_per_hour
