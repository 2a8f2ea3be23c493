"""Seconds of the allocation of a fleet: workloads x offers under all policies, to 0.5 and to 0.1 %, or ten seconds."""

from __future__ import annotations

import itertools
import random
import time

from flopwise.fleet.allocate import Choice, Demand, allocate
from flopwise.fleet.file import Cap, Rules

TARGET_S = 10.0
SIZES = ((10, 100), (50, 400))
GAPS = (5e-3, 1e-3)
PROVIDERS = {"aws": 0.6, "gcp": 0.3, "azure": 0.1}


def rules() -> Rules:
    """Shares, a limit on spot, quotas and backups."""
    return Rules(
        budget_per_month=None, providers=PROVIDERS, share_tolerance=0.05, regions=(),
        purchase=("on_demand", "spot", "reserved_1y"), max_spot_share=0.4,
        caps=(Cap(most=200, provider="aws", instance="aws.1*"), Cap(most=2000, provider="gcp", instance=None)),
        backup_share=0.25, backup_on=False, backup_hours=24, growth_per_month=0.0, carbon_usd_per_kg=0.0,
        max_price_age_days=180,
    )  # fmt: skip


def fleet(workloads: int, offers: int, seed: int = 0) -> tuple[list[Choice], list[Demand]]:
    """`workloads` with `offers` ways each: services that may be split, and runs that may not."""
    draw = random.Random(seed)  # noqa: S311 - figures for a benchmark
    sold = [(draw.uniform(0.5, 4.0), draw.uniform(0.8, 1.2)) for _ in range(offers)]  # speed, USD for it
    choices, demands = [], []
    for number in range(workloads):
        runs = number % 2 == 0
        demands.append(Demand(name=f"w{number}", splittable=not runs, flexible=runs, backup=number % 10 == 1))
        work, hours = draw.uniform(2, 40), draw.uniform(20, 300) if runs else 730.0
        for n in range(offers):
            provider = list(PROVIDERS)[n % 3]
            purchase = ("on_demand", "spot", "reserved_1y")[n // 3 % 3]
            speed = sold[n][0] * draw.uniform(0.8, 1.2)
            rate = sold[n][0] * sold[n][1] * {"on_demand": 1.0, "spot": 0.4, "reserved_1y": 0.65}[purchase]
            paid = 730.0 if purchase == "reserved_1y" else hours
            choices.append(
                Choice(
                    workload=number, provider=provider, region="r", instance=f"{provider}.{n}", purchase=purchase,
                    instances=max(1, round(work / speed)), usd_each=rate * paid, busy_hours=hours,
                )
            )  # fmt: skip
    return choices, demands


def table() -> list[str]:
    """The rows of the report."""
    lines = ["| workloads x offers | asked | seconds | of target | gap |", "|---|---:|---:|---:|---:|"]
    for (workloads, offers), gap in itertools.product(SIZES, GAPS):
        choices, demands = fleet(workloads, offers)
        start = time.perf_counter()
        found = allocate(choices, demands, rules(), gap=gap, seconds=TARGET_S)
        took = time.perf_counter() - start
        asked = f"{workloads} x {offers} | {100 * gap:g} %"
        lines.append(f"| {asked} | {took:.1f} | {took / TARGET_S:.2f} | {100 * found.gap:.2f} % |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
