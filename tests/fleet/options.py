"""Options of an allocation as a test writes them: machines by name, with what a month of one costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flopwise.facts.offers import Offer
from flopwise.fleet.allocate import allocate as allocation
from flopwise.fleet.model import Allocation, MonthlyOption, OwnPool, WorkloadDemand
from flopwise.fleet.program import AllocationProblem
from flopwise.fleet.spec import Backup, Policies
from flopwise.search.answer import Candidate

RULES = Policies(providers={}, purchase=("on_demand",), backup=Backup(share=0.25, on=True, hours=24))
"""No policies."""


def option(
    workload: int, provider: str, usd: float, n: int = 1, *, purchase: str = "on_demand", hours: float = 730,
    instance: str = "", kg: float = 0.0, unit: int = 1, running: float = 0.0, own: OwnPool | None = None,
    pool: str = "", region: str = "r", marketplace: bool = False, software: str = "", gpu: str = "H100-SXM-80",
    retires_on: str | None = None,
) -> MonthlyOption:  # fmt: skip
    """`n` instances of a provider for a workload, each `usd` a month."""
    name = instance or f"{provider}.x"
    offer = Offer(
        provider=provider, instance=name, region=region, accelerator=gpu, count=1, source="s",
        price_date="2026-01-01", marketplace=marketplace, retires_on=retires_on,
    )  # fmt: skip
    candidate = Candidate(
        rank=1, provider=provider, region=region, instance=name, num_instances=n, gpu=gpu, num_gpus=n,
        purchase=purchase, layout={}, seconds=0.0, usd_per_hour=0.0, cost_usd=usd * n, energy_joules=None, meets={},
        figures={}, memory_bytes=0.0, capacity_bytes=0.0, price_date="2026-01-01", price_source="s",
    )  # fmt: skip
    return MonthlyOption(
        workload=workload, candidate=candidate, offer=offer, instances=n, unit=unit, busy_hours=hours, paid_hours=hours,
        usd_per_hour=usd / hours, usd_each=usd, usd_running=running, kg_each=kg, own=own, pool=pool,
        software=software,
    )  # fmt: skip


def demand(name: str, *, split: bool = False, flexible: bool = False, **more: object) -> WorkloadDemand:
    """What a workload allows; `more`: slots, a backup, volumes."""
    return WorkloadDemand(name=name, splittable=split, flexible=flexible, **more)  # type: ignore[arg-type]  # by name


def allocate(
    options: Sequence[MonthlyOption], demands: Sequence[WorkloadDemand], rules: Policies, **how: Any
) -> Allocation:
    """The cheapest allocation of a problem of these parts."""
    return allocation(AllocationProblem(options=tuple(options), demands=tuple(demands), rules=rules), **how)
