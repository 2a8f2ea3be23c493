"""Seconds of the allocation of a fleet: workloads x offers under all policies, to 0.5 and to 0.1 %, or ten seconds."""

from __future__ import annotations

import itertools
import random
import time

from flopwise.facts.offers import Offer
from flopwise.fleet.allocate import allocate
from flopwise.fleet.model import MonthlyOption, WorkloadDemand
from flopwise.fleet.program import AllocationProblem
from flopwise.fleet.spec import Backup, Policies, Quota
from flopwise.search.answer import Candidate

TARGET_S = 10.0
SIZES = ((10, 100), (50, 400))
GAPS = (5e-3, 1e-3)
PROVIDERS = {"aws": 0.6, "gcp": 0.3, "azure": 0.1}


def rules() -> Policies:
    """Shares, a limit on spot, quotas and backups."""
    return Policies(
        providers=PROVIDERS, purchase=("on_demand", "spot", "reserved_1y"), max_spot_share=0.4,
        quotas=(Quota(most=200, provider="aws", instance="aws.1*"), Quota(most=2000, provider="gcp")),
        backup=Backup(share=0.25),
    )  # fmt: skip


def option(
    workload: int, provider: str, name: str, purchase: str, instances: int, usd: float, hours: float
) -> MonthlyOption:
    """One option, with as much of its candidate as an allocation reads."""
    offer = Offer(
        provider=provider, instance=name, region="r", accelerator="A100-SXM-80", count=8, source="", price_date=""
    )
    candidate = Candidate(
        rank=1, provider=provider, region="r", instance=name, num_instances=instances, gpu=offer.accelerator,
        num_gpus=8 * instances, purchase=purchase, layout={}, seconds=0.0, usd_per_hour=0.0, cost_usd=usd,
        energy_joules=None, meets={}, figures={}, memory_bytes=0.0, capacity_bytes=0.0, price_date="", price_source="",
    )  # fmt: skip
    return MonthlyOption(
        workload=workload, candidate=candidate, offer=offer, instances=instances, busy_hours=hours, paid_hours=hours,
        usd_per_hour=None, usd_each=usd,
    )  # fmt: skip


def fleet(workloads: int, offers: int, seed: int = 0) -> tuple[list[MonthlyOption], list[WorkloadDemand]]:
    """`workloads` with `offers` options each: services that may be split, and runs that may not."""
    draw = random.Random(seed)  # noqa: S311 - figures for a benchmark
    sold = [(draw.uniform(0.5, 4.0), draw.uniform(0.8, 1.2)) for _ in range(offers)]  # speed, USD for it
    options, demands = [], []
    for number in range(workloads):
        runs = number % 2 == 0
        demands.append(WorkloadDemand(name=f"w{number}", splittable=not runs, flexible=runs, backup=number % 10 == 1))
        work, hours = draw.uniform(2, 40), draw.uniform(20, 300) if runs else 730.0
        for n in range(offers):
            provider = list(PROVIDERS)[n % 3]
            purchase = ("on_demand", "spot", "reserved_1y")[n // 3 % 3]
            speed = sold[n][0] * draw.uniform(0.8, 1.2)
            rate = sold[n][0] * sold[n][1] * {"on_demand": 1.0, "spot": 0.4, "reserved_1y": 0.65}[purchase]
            paid = 730.0 if purchase == "reserved_1y" else hours
            count = max(1, round(work / speed))
            options.append(option(number, provider, f"{provider}.{n}", purchase, count, rate * paid, hours))
    return options, demands


def table() -> list[str]:
    """The rows of the report."""
    lines = ["| workloads x offers | asked | seconds | of target | gap |", "|---|---:|---:|---:|---:|"]
    for (workloads, offers), gap in itertools.product(SIZES, GAPS):
        options, demands = fleet(workloads, offers)
        start = time.perf_counter()
        problem = AllocationProblem(options=tuple(options), demands=tuple(demands), rules=rules())
        found = allocate(problem, gap=gap, seconds=TARGET_S)
        took = time.perf_counter() - start
        asked = f"{workloads} x {offers} | {100 * gap:g} %"
        lines.append(f"| {asked} | {took:.1f} | {took / TARGET_S:.2f} | {100 * found.gap:.2f} % |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
