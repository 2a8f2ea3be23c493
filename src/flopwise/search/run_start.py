"""What a batch pays for before its first request, and the bill of a run with its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.money import billed_hours
from flopwise.ops.types import Floats
from flopwise.serving.startup import cold_start
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.serving.job import ServeJob

STORE = "s3"
"""Kind of storage that weights and data are brought from."""


def batch_start_s(job: ServeJob, facts: Facts) -> float:
    """Seconds from a machine that is paid to the first request of a batch.

    Source: data/run_start.csv, `flopwise.serving.startup.cold_start`. Assumes: as there; replicas start together.
    """
    return facts.start_s("machine", "image") + cold_start(job, facts.storage(STORE)).seconds


def run_cost_usd(seconds: Floats, start_s: Floats, usd_per_hour: Floats, offer: Offer, facts: Facts) -> Floats:
    """USD of a run with its start, as the provider rounds the time; broadcasts.

    Source: data/purchase_terms.csv. Assumes: one start; where the terms are not known the time is paid as it is.
    """
    terms, hours = facts.terms_of(offer.provider, offer.instance), (seconds + start_s) / HOUR_S
    if terms is not None:
        hours = billed_hours(hours, unit_s=terms.billing_unit_s, minimum_s=terms.minimum_s)
    return hours * usd_per_hour
