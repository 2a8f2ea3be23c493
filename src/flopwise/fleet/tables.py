"""Comparison tables: accelerators by what their speed costs, model sizes by their real memory, instances on offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flopwise.fleet.places import allowed
from flopwise.fleet.results import SIZES, size_of
from flopwise.fleet.spec import API, OWNED

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.allocate import Allocation
    from flopwise.fleet.file import Platform
    from flopwise.fleet.problem import Problem
    from flopwise.fleet.results import Chosen

DTYPES = ("bf16", "fp16", "fp32")


def gpu_rows(platform: Platform, facts: Facts, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Accelerators that the policies leave, with their facts, USD for a PFLOP-hour and for a GB/s, cheapest first."""
    used: dict[str, list[str]] = {}
    for held in chosen:
        for found, _ in held.parts:
            if found.purchase != API:
                used.setdefault(found.candidate.gpu, []).append(held.item.placed.name)
    offers: dict[str, list[Offer]] = {}
    asked = {tuple(p.job.residency): p for p in platform.workloads}.values()  # all that residency tells apart
    for offer in facts.offers:
        cpu = facts.accelerators[offer.accelerator].kind == "cpu"
        if (not cpu or offer.accelerator in used) and any(allowed(offer, p, platform) is None for p in asked):
            offers.setdefault(offer.accelerator, []).append(offer)
    rows = [_gpu_row(name, held, facts, used.get(name, [])) for name, held in offers.items()]
    return sorted(
        (r for r in rows if r["usd_per_gpu_hour"] is not None or r["spot_usd_per_gpu_hour"] is not None),
        key=lambda r: (not r["used"], r["usd_per_pflop_hour"] or 1e9),
    )


def _each(offer: Offer, rate: float | None) -> float:
    return float("inf") if rate is None else rate / (offer.count * offer.accelerator_share)


def _gpu_row(name: str, offers: Sequence[Offer], facts: Facts, used: Sequence[str]) -> dict[str, Any]:
    """Facts of one accelerator, with its lowest prices over `offers`."""
    device = facts.accelerators[name]
    dtype, rate = next(((d, device.peak[d]) for d in DTYPES if d in device.peak), (None, None))
    best = min(offers, key=lambda o: (_each(o, o.on_demand_usd_per_hour), _each(o, o.spot_usd_per_hour)))
    spot = min(offers, key=lambda o: _each(o, o.spot_usd_per_hour))
    usd = None if best.on_demand_usd_per_hour is None else _each(best, best.on_demand_usd_per_hour)
    return {
        "gpu": name,
        "grade": None if device.kind == "cpu" else facts.grade(name).grade,
        "used": bool(used),
        "workloads": list(dict.fromkeys(used)),
        "hbm_bytes": device.hbm_bytes,
        "hbm_bytes_per_s": device.hbm_bytes_per_s,
        "dtype": dtype,
        "peak_flops_per_s": rate,
        "tdp_w": device.tdp_w,
        "usd_per_gpu_hour": usd,
        "usd_per_pflop_hour": None if not rate or usd is None else usd / (rate / 1e15),
        "usd_per_gb_per_s_hour": None if usd is None else usd / (device.hbm_bytes_per_s / 1e9),
        "spot_usd_per_gpu_hour": None if spot.spot_usd_per_hour is None else _each(spot, spot.spot_usd_per_hour),
        "provider": best.provider,
        "instance": best.instance,
        "region": best.region,
        "price_date": best.price_date,
        "source": device.source,
    }


def size_rows(chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Categories of model sizes with the models of the fleet and what they really take in memory."""
    groups: dict[str, list[Chosen]] = {name: [] for _, name in SIZES}
    for held in chosen:
        if held.figures is not None:
            groups[size_of(held.figures.parameters)].append(held)
    rows = []
    for name, group in groups.items():
        for held in group:
            told = held.figures
            assert told is not None
            rows.append(
                {
                    "size": name,
                    "workload": held.item.placed.name,
                    "model": held.item.placed.job.model,
                    "kind": held.item.placed.job.task,
                    "parameters": told.parameters,
                    "bf16_weight_bytes": 2.0 * told.parameters,
                    "memory_bytes": told.memory_bytes,
                    "memory_bytes_per_gpu": held.way.candidate.memory_bytes,
                    "gpus_of_one_copy": round(told.memory_bytes / held.way.candidate.memory_bytes),
                }
            )
    return rows


def instance_rows(made: Problem, found: Allocation) -> list[dict[str, Any]]:
    """What was weighed in the allocation, by provider; `used` tells what was taken."""
    taken: dict[tuple[str, str, str], list[str]] = {}
    for t in found.taken:
        names = taken.setdefault((t.choice.provider, t.choice.instance, t.choice.region), [])
        names.append(made.items[t.choice.workload].placed.name)
    offers = {w.offer.key: w.offer for w in made.ways if w.purchase not in {OWNED, API}}
    rows = [
        {
            "provider": o.provider, "instance": o.instance, "region": o.region, "gpu": o.accelerator, "count": o.count,
            "vcpus": o.vcpus, "ram_bytes": o.ram_bytes, "on_demand_usd_per_hour": o.on_demand_usd_per_hour,
            "spot_usd_per_hour": o.spot_usd_per_hour, "reserved_1y_usd_per_hour": o.reserved_1y_usd_per_hour,
            "reserved_3y_usd_per_hour": o.reserved_3y_usd_per_hour, "price_date": o.price_date, "source": o.source,
            "used": o.key in taken, "workloads": list(dict.fromkeys(taken.get(o.key, []))),
        }
        for o in offers.values()
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (r["provider"], not r["used"], r["instance"]))
