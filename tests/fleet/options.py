"""Options of an allocation as a test writes them: machines by name, with what a month of one costs."""

from __future__ import annotations

from flopwise.facts.offers import Offer
from flopwise.fleet.model import MonthlyOption, OwnPool, Rules, WorkloadDemand
from flopwise.search.answer import Candidate

RULES = Rules(
    budget_per_month=None, providers={}, share_tolerance=0.05, regions=(), purchase=("on_demand",), max_spot_share=1.0,
    quotas=(), backup_share=0.25, backup_on=True, backup_hours=24, growth_per_month=0.0, carbon_usd_per_kg=0.0,
    max_price_age_days=180,
)  # fmt: skip
"""No policies."""


def option(
    workload: int, provider: str, usd: float, n: int = 1, *, purchase: str = "on_demand", hours: float = 730,
    instance: str = "", kg: float = 0.0, unit: int = 1, running: float = 0.0, own: OwnPool | None = None,
) -> MonthlyOption:  # fmt: skip
    """`n` instances of a provider for a workload, each `usd` a month."""
    name = instance or f"{provider}.x"
    offer = Offer(
        provider=provider, instance=name, region="r", accelerator="H100-SXM-80", count=1, source="s",
        price_date="2026-01-01",
    )  # fmt: skip
    candidate = Candidate(
        rank=1, provider=provider, region="r", instance=name, num_instances=n, gpu="H100-SXM-80", num_gpus=n,
        purchase=purchase, layout={}, seconds=0.0, usd_per_hour=0.0, cost_usd=usd * n, energy_joules=None, meets={},
        figures={}, memory_bytes=0.0, capacity_bytes=0.0, price_date="2026-01-01", price_source="s",
    )  # fmt: skip
    return MonthlyOption(
        workload=workload, candidate=candidate, offer=offer, instances=n, unit=unit, busy_hours=hours, paid_hours=hours,
        usd_per_hour=usd / hours, usd_each=usd, usd_running=running, kg_each=kg, own=own,
    )  # fmt: skip


def demand(name: str, *, split: bool = False, flexible: bool = False, **more: object) -> WorkloadDemand:
    """What a workload allows; `more`: slots, a backup, volumes."""
    return WorkloadDemand(name=name, splittable=split, flexible=flexible, **more)  # type: ignore[arg-type]  # by name
