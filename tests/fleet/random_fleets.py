"""Random small fleets, from file to bill, against every allocation of what each offer alone can do.

`python tests/fleet/random_fleets.py 200 5000` compares so many of them, from a seed (0).
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.facts.catalog import Facts
from flopwise.fleet.model import MonthlyOption, WorkloadDemand
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from
from flopwise.fleet.spec import Policies

sys.path.insert(0, str(Path(__file__).parent))
import test_policies_hold as by_hand
from small import catalog, solved

LETTER = {"aws": "a", "gcp": "b"}
"""Providers as the allocations by hand call them."""
INSTANCES = {"g4dn.xlarge", "g6.xlarge", "g6e.xlarge", "g2-standard-4", "n1-standard-4+1xT4"}
MODELS = ("Llama-7B", "Llama-3.1-8B", "gpt2")


@cache
def shelf() -> Facts:
    """A few machines of two clouds, each in one region."""
    offers = {(o.provider, o.instance): o for o in reversed(catalog().offers) if o.instance in INSTANCES}
    return catalog().with_tables(offers=tuple(offers.values()))


def random_fleet(seed: int) -> dict[str, Any]:
    """The file of a fleet: a service or machines to work on, and runs; with quotas, shares, a limit or a budget."""
    draw = random.Random(seed)  # noqa: S311 - figures for a test
    workloads: list[dict[str, Any]] = []
    for number in range(draw.randint(1, 3)):
        kind = draw.choice(["serve", "develop"] if number == 0 else ["batch", "finetune", "finetune"])
        workload: dict[str, Any] = {"name": f"w{number}", "task": kind}
        if kind == "develop":
            workload |= {"machines": {"count": draw.randint(1, 3), "memory": "14GB"}, "environment": "development"}
        elif kind == "serve":
            rate = round(draw.uniform(1.0, 150.0), 1)
            load: dict[str, Any] = {"requests_per_s": rate}
            if seed % 4 == 3:  # users in flight in place of arrivals
                load = {"concurrency": max(1, round(10 * rate))}
            traffic = {**load, "input_tokens": draw.choice([128, 512]), "output_tokens": 64}
            workload |= {"model": "gpt2", "traffic": traffic, "targets": {"latency": {"p95": "10s"}}}
            workload |= {"environment": "production"}
        elif kind == "batch":
            traffic = {"requests": draw.randint(1, 40) * 1000, "input_tokens": 256, "output_tokens": 64}
            workload |= {"model": draw.choice(MODELS[:2]), "traffic": traffic, "targets": {"deadline": "24h"}}
            workload |= {"runs_per_month": draw.randint(1, 8), "environment": "production"}
            workload["constraints"] = {"max_gpus": 1}
        else:
            data = {"tokens": f"{draw.randint(1, 20)}M", "seq_len": 512}
            workload |= {"model": draw.choice(MODELS), "method": {"kind": "lora"}, "data": data}
            workload |= {"runs_per_month": draw.randint(1, 6), "constraints": {"max_gpus": 2}}
        workloads.append(workload)
    policies: dict[str, Any] = {"purchase": draw.choice([["on_demand"], ["on_demand", "spot"]])}
    if draw.random() < 0.5:
        policies["quotas"] = [{"provider": draw.choice(["aws", "gcp"]), "most": draw.randint(0, 3)}]
    if draw.random() < 0.4:
        share = draw.choice([20, 50, 80])
        policies |= {"providers": {"aws": f"{share}%", "gcp": f"{100 - share}%"}, "share_tolerance": "20%"}
    if draw.random() < 0.3:
        policies["max_spot_share"] = f"{draw.choice([10, 40])}%"
    return {"name": f"fleet {seed}", "workloads": workloads, "policies": policies}


def options_of_single_offers(document: dict[str, Any]) -> tuple[list[MonthlyOption], list[WorkloadDemand]]:
    """What each workload could run on, searched with one offer on the shelf at a time."""
    platform, options, demands = fleet_from(document), list[MonthlyOption](), list[WorkloadDemand]()
    for offer in shelf().offers:
        for item in planned_workloads(platform, shelf().with_tables(offers=(offer,))):
            renamed = replace(offer, provider=LETTER[offer.provider])
            options += [replace(option, offer=renamed) for option in item.options]
    for number, job in enumerate(platform.jobs):
        mine = [option for option in options if option.workload == number]
        assert all(option.unit == 1 for option in mine)
        demands.append(WorkloadDemand(name=f"w{number}", splittable=job.splittable, flexible=job.ends))
    return options, demands


def rules_by_hand(rules: Policies) -> tuple[Policies, str]:
    """The policies with providers as letters, and the letter that a quota is of."""
    named = {LETTER[name]: share for name, share in rules.shares.items()}
    quotas = tuple(replace(quota, provider=LETTER[quota.provider or ""]) for quota in rules.quotas)
    return replace(rules, providers=named, quotas=quotas), quotas[0].provider or "a" if quotas else "a"


def difference(seed: int) -> str:
    """How the bill of a random fleet differs from the least by hand; empty where it does not."""
    document = random_fleet(seed)
    options, demands = options_of_single_offers(document)
    rules, counted = rules_by_hand(fleet_from(document).rules)
    if counted == "b":  # by hand instances of provider a are counted
        swap = {"a": "b", "b": "a"}
        options = [replace(o, offer=replace(o.offer, provider=swap[o.provider])) for o in options]
        shares = {swap[name]: share for name, share in rules.shares.items()}
        rules = replace(rules, providers=shares, quotas=tuple(replace(q, provider="a") for q in rules.quotas))
    carried = {option.workload for option in options}
    able = [n for n in range(len(demands)) if n in carried]
    try:
        found = solved(fleet_from(document), shelf())
    except InfeasibleError as error:
        found = None
        refusal = str(error)
    if not able or (found is not None and len(able) < len(demands)):
        lost = [] if found is None else [item.name for item in found.lost]
        return "" if found is None or lost == [d.name for n, d in enumerate(demands) if n not in carried] else f"{lost}"
    bills = list(by_hand.tried(options, demands, rules)) if len(able) == len(demands) else []
    least = by_hand._least(bills, options, demands, rules, 1e-9)
    if found is None:
        return "" if least is None else f"{seed}: refused ({refusal}), and ${least:,.2f} holds"
    if least is None:
        return f"{seed}: ${found.cost.total:,.2f}, and nothing holds by hand"
    usd = found.cost.total
    return "" if isclose(usd, least, rel_tol=1.1e-3) else f"{seed}: ${usd:,.2f}, and ${least:,.2f} holds by hand"


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    wrong = [text for text in map(difference, range(first, first + int(sys.argv[1]))) if text]
    sys.stdout.write("\n".join([*wrong, f"{sys.argv[1]} fleets from seed {first}, {len(wrong)} wrong\n"]))
