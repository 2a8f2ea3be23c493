"""Seconds of fleets: allocations of workloads x offers under all policies, and the assessment of a thousand workloads.

`python benchmarks/fleet_speed.py 1000` assesses so many and says the processor seconds, too.
"""

from __future__ import annotations

import itertools
import random
import resource
import sys
import time
from typing import Any

from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import Offer
from flopwise.fleet.allocate import allocate
from flopwise.fleet.assess import assess
from flopwise.fleet.model import MonthlyOption, WorkloadDemand
from flopwise.fleet.program import AllocationProblem
from flopwise.fleet.read import fleet_from
from flopwise.fleet.spec import Backup, Policies, Quota
from flopwise.search.answer import Candidate

TARGET_S = 10.0
SIZES = ((10, 100), (50, 400))
GAPS = (5e-3, 1e-3)
THOUSAND, THOUSAND_TARGET_S = 1000, 60.0
TASKS = {"serve": 45, "batch": 20, "finetune": 20, "encode": 5, "develop": 10}
"""Kinds of workloads of a large fleet, with how often each is drawn."""
MODELS = ("Llama-3.1-8B", "Llama-7B", "gpt-j-6b", "Qwen2.5-32B", "Llama-3.1-70B")
LENGTHS = ((256, 64), (1024, 256), (2048, 512))
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


def large_fleet(workloads: int, seed: int = 0) -> dict[str, Any]:
    """The file of a fleet of so many workloads that differ in task, model, lengths, rate and targets."""
    draw = random.Random(seed)  # noqa: S311 - figures for a benchmark
    made: list[dict[str, Any]] = []
    for number in range(workloads):
        (task,) = draw.choices([*TASKS], [*TASKS.values()])
        model, (prompt, answer) = draw.choice(MODELS), draw.choice(LENGTHS)
        lengths = {"input_tokens": prompt, "output_tokens": answer}
        one: dict[str, Any] = {"name": f"w{number}", "task": task}
        if task == "serve":
            one |= {
                "model": model,
                "environment": "production",
                "targets": {"latency": {"p95": draw.choice(["10s", "30s"])}},
            }
            one["traffic"] = {"requests_per_s": round(draw.uniform(0.5, 60), 2), **lengths}
        elif task == "batch":
            one |= {"model": model, "targets": {"deadline": "24h"}, "runs_per_month": draw.randint(1, 20)}
            one |= {"environment": "production", "traffic": {"requests": draw.randint(10, 400) * 1000, **lengths}}
        elif task == "finetune":
            one |= {"model": model, "method": {"kind": "lora"}, "runs_per_month": draw.randint(1, 6)}
            one["data"] = {"tokens": f"{draw.randint(5, 200)}M", "seq_len": draw.choice([1024, 2048])}
        elif task == "encode":
            one |= {"model": "bert-base-uncased", "environment": "production", "targets": {"latency": {"p95": "500ms"}}}
            one["traffic"] = {"requests_per_s": draw.randint(10, 3000), "input_tokens": 128}
        else:
            one |= {"machines": {"count": draw.randint(1, 4), "memory": "14GB"}, "environment": "development"}
        made.append(one)
    return {
        "name": f"{workloads} workloads", "workloads": made,
        "environments": {"development": {"per_day": 8, "days": 22}},
        "policies": {"purchase": ["on_demand", "spot", "reserved_1y"]},
    }  # fmt: skip


def assessed_s(workloads: int) -> float:
    """Seconds from the file of a large fleet to its assessment."""
    start = time.perf_counter()
    assess(fleet_from(large_fleet(workloads)), load_facts(), today="2026-11-21")
    return time.perf_counter() - start


def table() -> list[str]:
    """The rows of the report."""
    lines = ["| workloads x offers | asked | seconds | of target | gap |", "|---|---:|---:|---:|---:|"]
    for (workloads, offers), gap in itertools.product(SIZES, GAPS):
        options, demands = fleet(workloads, offers)
        start = time.perf_counter()
        problem = AllocationProblem(options=tuple(options), demands=tuple(demands), rules=rules())
        found = allocate(problem, gap=gap)
        took = time.perf_counter() - start
        asked = f"{workloads} x {offers} | {100 * gap:g} %"
        lines.append(f"| {asked} | {took:.1f} | {took / TARGET_S:.2f} | {100 * found.gap:.2f} % |")
    took = assessed_s(THOUSAND)
    lines.append(
        f"| {THOUSAND:,} workloads, assessed over the catalog | | {took:.1f} | {took / THOUSAND_TARGET_S:.2f} | |"
    )
    return lines


if __name__ == "__main__":
    if len(sys.argv) > 1:
        seconds = assessed_s(int(sys.argv[1]))
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own, children = (usage.ru_utime + usage.ru_stime for usage in used)
        print(f"{seconds:.1f} s, of processors {own:.1f} s here and {children:.1f} s in processes")
    else:
        print("\n".join(table()))
