"""Comparison tables: accelerators by what their speed costs, model sizes, instances on offer, own machines, APIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from flopwise.facts.catalog import Facts
from flopwise.facts.defaults import PURCHASES
from flopwise.facts.offers import Offer, retirement_note
from flopwise.fleet.bill import SIZES, SolvedFleet, size_of
from flopwise.fleet.model import MonthlyOption, ResolvedJob, is_rented
from flopwise.fleet.offers import ApiOffer, OwnOffer, allowed_devices, why_not_allowed
from flopwise.fleet.onprem import HOURLY, Ownership, against_clouds
from flopwise.fleet.prices import BreakEven, break_even
from flopwise.fleet.spec import API, OWNED
from flopwise.search.model_sizes import largest_models, memory_by_size
from flopwise.units import HOURS_PER_MONTH, format_usd
from flopwise.values import replace

DTYPES = ("bf16", "fp16", "fp32")
USUAL_USE = 0.6
"""Utilisation at which machines that nothing uses are compared."""
RESERVED = ("reserved_1y", "reserved_3y")


def comparison_tables(fleet: SolvedFleet) -> dict[str, list[dict[str, Any]]]:
    """The tables of an assessment by its fields: candidates, and choices."""
    gpus, table = _gpu_rows(fleet), memory_by_size(fleet.facts)
    classes = [{"size": size_of(int(n)), "parameters": n, "memory_bytes": dict(row)} for n, row in table.items()]
    devices = [a for row in gpus if (a := fleet.facts.accelerators[row["gpu"]]).kind != "cpu"]
    return {
        "gpus": gpus, "size_classes": classes,
        "largest_models": [asdict(row) for row in largest_models(devices, fleet.facts, table)],
        "sizes": _size_rows(fleet), "instances": _instance_rows(fleet),
        "own_machines": _own_rows(fleet), "hosted": _hosted_rows(fleet),
    }  # fmt: skip


def _gpu_rows(fleet: SolvedFleet) -> list[dict[str, Any]]:
    """Accelerators that the policies leave, with their facts, USD for a PFLOP-hour and for a GB/s, cheapest first."""
    facts, best_for = fleet.facts, _best_for(fleet)
    used: dict[str, list[str]] = {}
    for chosen in fleet.chosen:
        for taken in chosen.parts:
            if taken.option.purchase != API:
                used.setdefault(taken.option.candidate.gpu, []).append(chosen.name)
    offers: dict[str, list[Offer]] = {}
    jobs = {(job.spec.residency, job.spec.constraints): job for job in fleet.platform.jobs}.values()  # alike in places
    each = [(job, allowed_devices(job, fleet.platform, facts)) for job in jobs]
    for offer in facts.offers:
        cpu = facts.accelerators[offer.accelerator].kind == "cpu"
        allowed = any(why_not_allowed(offer, job, fleet.platform, devices) is None for job, devices in each)
        if allowed and (not cpu or offer.accelerator in used):
            offers.setdefault(offer.accelerator, []).append(offer)
    rows = [_gpu_row(name, own, facts, used.get(name, [])) | best_for.get(name, {}) for name, own in offers.items()]
    return sorted(
        (r for r in rows if r["usd_per_gpu_hour"] is not None or r["spot_usd_per_gpu_hour"] is not None),
        key=lambda r: (not r["used"], r["usd_per_pflop_hour"] or 1e9),
    )


def _gpu_row(name: str, offers: Sequence[Offer], facts: Facts, used: Sequence[str]) -> dict[str, Any]:
    """Facts of one accelerator, with its lowest prices over `offers`."""

    def usd(offer: Offer, purchase: str) -> float:
        rate = offer.price_usd_per_hour(purchase)
        return inf if rate is None else rate / (offer.count * offer.accelerator_share)

    device = facts.accelerators[name]
    dtype, peak = next(((d, device.peak[d]) for d in DTYPES if d in device.peak), (None, None))
    best = min(offers, key=lambda o: (usd(o, "on_demand"), usd(o, "spot")))
    hour, spot = usd(best, "on_demand"), min(usd(offer, "spot") for offer in offers)
    most = {p: max((x for o in offers if (x := usd(o, p)) < inf), default=None) for p in ("on_demand", "spot")}
    return {
        "gpu": name, "grade": None if device.kind == "cpu" else facts.grade(name).grade, "used": bool(used),
        "workloads": list(dict.fromkeys(used)), "hbm_bytes": device.hbm_bytes,
        "hbm_bytes_per_s": device.hbm_bytes_per_s, "dtype": dtype, "peak_flops_per_s": peak, "tdp_w": device.tdp_w,
        "cores": device.num_cores, "tensor_cores": device.num_tensor_cores,
        "usd_per_gpu_hour": hour if hour < inf else None, "usd_per_gpu_hour_most": most["on_demand"],
        "spot_usd_per_gpu_hour_most": most["spot"], "providers": list(dict.fromkeys(o.provider for o in offers)),
        "usd_per_pflop_hour": hour / (peak / 1e15) if peak and hour < inf else None,
        "usd_per_gb_per_s_hour": hour / (device.hbm_bytes_per_s / 1e9) if hour < inf else None,
        "spot_usd_per_gpu_hour": spot if spot < inf else None, "provider": best.provider, "instance": best.instance,
        "region": best.region, "price_date": best.price_date, "price_note": best.price_note("on_demand"),
        "source": device.source,
    }  # fmt: skip


WELL = 1.05
"""Times the least that a workload can cost, up to which an accelerator is good for it."""


def _best_for(fleet: SolvedFleet) -> dict[str, dict[str, Any]]:
    """The workloads that cost least on each accelerator, else the one that costs least more.

    `best_for_times`: what that one costs over the least that any accelerator needs for it.
    """
    times: dict[str, dict[str, float]] = {}
    for chosen in fleet.chosen:
        least: dict[str, float] = {}
        for option in chosen.planned.options:
            if option.candidate.gpu:
                least.setdefault(option.candidate.gpu, option.usd)  # cheapest first
        floor = min(least.values(), default=0.0)
        for gpu, usd in least.items():
            times.setdefault(gpu, {})[chosen.name] = usd / floor if floor else 1.0
    rows = {}
    for gpu, by_workload in times.items():
        nearest = min(by_workload, key=lambda name: by_workload[name])
        good = [name for name, x in by_workload.items() if x <= WELL] or [nearest]
        rows[gpu] = {"best_for": good, "best_for_times": by_workload[nearest]}
    return rows


def _size_rows(fleet: SolvedFleet) -> list[dict[str, Any]]:
    """Categories of model sizes with the models of the fleet and what they really take in memory."""
    rows: list[dict[str, Any]] = [
        {
            "size": size_of(figures.parameters), "workload": chosen.name, "model": chosen.job.spec.model,
            "kind": chosen.job.spec.task, "parameters": figures.parameters,
            "bf16_weight_bytes": 2.0 * figures.parameters, "memory_bytes": figures.memory_bytes,
            "memory_bytes_per_gpu": (each := chosen.option.candidate.memory_bytes),
            "gpus_of_one_copy": round(figures.memory_bytes / each),
        }
        for chosen in fleet.chosen
        if (figures := chosen.figures) is not None
    ]  # fmt: skip
    order = [name for _, name in SIZES]
    return sorted(rows, key=lambda row: order.index(row["size"]))


DATED = ("spot", "reserved_1y", "reserved_3y")
"""Purchase options whose prices may be of another day than those on demand."""


def _instance_rows(fleet: SolvedFleet) -> list[dict[str, Any]]:
    """The offers of the allocation, by provider; `used` marks those taken."""
    workloads: dict[tuple[str, str, str], list[str]] = {}
    for taken in fleet.allocation.taken:
        workloads.setdefault(taken.option.offer.key, []).append(fleet.chosen[taken.option.workload].name)
    offers = {option.offer.key: option.offer for option in fleet.problem.options if is_rented(option.purchase)}
    rows = [
        {
            "provider": o.provider, "instance": o.instance, "region": o.region, "gpu": o.accelerator, "count": o.count,
            "vcpus": o.vcpus, "ram_bytes": o.ram_bytes, "on_demand_usd_per_hour": o.on_demand_usd_per_hour,
            "spot_usd_per_hour": o.spot_usd_per_hour, "reserved_1y_usd_per_hour": o.reserved_1y_usd_per_hour,
            "reserved_3y_usd_per_hour": o.reserved_3y_usd_per_hour, "price_date": o.price_date, "source": o.source,
            **{f"{p}_date": o.price_date_of(p) if o.price_usd_per_hour(p) is not None else None for p in DATED},
            "price_notes": [
                *(n for p in PURCHASES if o.price_usd_per_hour(p) and (n := o.price_note(p))),
                *filter(None, [retirement_note(o.retires_on)]),
            ],
            "used": key in workloads, "workloads": list(dict.fromkeys(workloads.get(key, []))),
        }
        for key, o in offers.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (r["provider"], not r["used"], r["instance"]))


def _own_rows(fleet: SolvedFleet) -> list[dict[str, Any]]:
    """Each kind of own machines: what a month of one costs, how many are used and how far, break-even with clouds.

    `against`: the cheapest region of each instance and purchase that the policies allow anything of. `usd_per_month_*`
    are of one machine; `utilisation` is the busy share of the hours that the used ones can be worked.
    """
    offers, platform = fleet.facts.offers, fleet.platform
    each = [(job, allowed_devices(job, platform, fleet.facts)) for job in platform.jobs]
    clouds = [o for o in offers if not isinstance(o, OwnOffer)]
    rentable = [o for o in clouds if any(why_not_allowed(o, job, platform, own) is None for job, own in each)]
    return [_own_row(offer, rentable, fleet) for offer in offers if isinstance(offer, OwnOffer)]


def _own_row(offer: OwnOffer, rentable: Sequence[Offer], fleet: SolvedFleet) -> dict[str, Any]:
    machine = (offer.provider, offer.region, offer.instance, OWNED)
    used = sum(count for kind, count in fleet.allocation.pools.items() if kind[:4] == machine)
    mine = [taken for taken in fleet.allocation.taken if taken.option.machine[:4] == machine]
    hours = sum(taken.count * taken.option.busy_hours for taken in mine)
    busy = min(1.0, hours / (used * offer.month.available_hours)) if used else None
    entry, month = offer.machines, offer.month
    return {
        "machine": entry.name, "provider": entry.provider, "region": entry.region, "gpu": offer.accelerator,
        "gpus": entry.gpus, "there": entry.count, "buy_up_to": entry.buy_up_to, "used": used,
        "kept": entry.kept, "bought": max(0, used - entry.count), "utilisation": busy,
        "usd_per_month_standing": offer.standing, "usd_per_month_capital": offer.capital,
        "usd_per_month_full_power": offer.count * month.busy_power,
        "usd_per_month": sum(taken.usd for taken in mine),
        "idle_usd_per_month": fleet.allocation.idle.get((*machine, ""), (0, 0.0))[1],
        "price_usd": month.purchase_usd * entry.gpus, "price_date": offer.price_date, "confidence": month.confidence,
        "workloads": [fleet.chosen[taken.option.workload].name for taken in mine],
        "against": _clouds(offer, rentable, busy or USUAL_USE),
    }  # fmt: skip


def _clouds(offer: OwnOffer, rentable: Sequence[Offer], busy: float) -> list[dict[str, Any]]:
    """Clouds' machines with the same accelerator, cheapest first; with what buying and what keeping own ones needs.

    What is paid by the hour is off when it is idle; what is reserved is paid all month, as own machines are: those cost
    less at any use, or at none.
    """
    full, kept = offer.month, replace(offer.month, capital=0.0)
    purchases = HOURLY + RESERVED
    keeping = against_clouds(kept, rentable, utilisation=busy, purchases=purchases)
    by_key = {(r.provider, r.instance, r.region, r.purchase): r.break_even_utilisation for r in keeping}
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in against_clouds(full, rentable, utilisation=busy, purchases=purchases):
        key = (row.provider, row.instance, row.purchase)
        if key in rows:
            continue
        keep = by_key[row.provider, row.instance, row.region, row.purchase]
        rows[key] = asdict(row) | {"keeping_break_even_utilisation": keep}
        if row.purchase in RESERVED:
            rows[key] |= _against_reserved(full, kept, row.usd_per_gpu_hour * HOURS_PER_MONTH, busy)
    return list(rows.values())


def _against_reserved(full: Ownership, kept: Ownership, cloud_usd: float, busy: float) -> dict[str, float | None]:
    """Break-even with an accelerator that is paid all month, `cloud_usd`."""
    use, saved = full.busy_power * busy, cloud_usd - full.running - full.busy_power * busy
    months = full.purchase_usd / saved if saved > 0 else None
    return {
        "break_even_utilisation": 0.0 if full.fixed_usd + use <= cloud_usd else None,
        "keeping_break_even_utilisation": 0.0 if kept.fixed_usd + use <= cloud_usd else None,
        "months": months if months is not None and months <= full.life_months else None,
    }


def _hosted_rows(fleet: SolvedFleet) -> list[dict[str, Any]]:
    """Each API that may answer a workload: tokens and USD of a month, against the cheapest machines.

    `break_even_tokens`: output tokens a month (their prompts are counted with them) from which some machine that is on
    all month costs no more, `why` says which; of runs, whose machines are paid by the hour, None, and a token's prices.
    """
    rows: list[dict[str, Any]] = []
    for chosen in fleet.chosen:
        others = [o for o in chosen.planned.options if o.purchase != API]
        first = others[0] if others else None
        machines = first and f"{first.instances} x {first.provider} {first.instance}, {_words(first.purchase)}"
        for option in [o for o in chosen.planned.options if isinstance(o.offer, ApiOffer)]:
            figures = option.candidate.figures
            volume, why = _break_even_tokens(option, others, chosen.job)
            row = {
                "workload": chosen.name, "provider": option.provider, "model": option.instance,
                "input_tokens_per_month": figures["input_tokens_per_month"] or 0.0,
                "output_tokens_per_month": figures["output_tokens_per_month"] or 0.0, "usd_per_month": option.usd,
                "taken": any(taken.option.candidate is option.candidate for taken in chosen.parts),
                "machines": machines, "machines_usd_per_month": None if first is None else first.usd,
                "break_even_tokens": volume, "why": why, "price_date": option.offer.price_date,
            }  # fmt: skip
            rows.append(row)
    return rows


def _words(purchase: str) -> str:
    return purchase.replace("_", " ")


def _break_even_tokens(
    option: MonthlyOption, others: Sequence[MonthlyOption], job: ResolvedJob
) -> tuple[float | None, str]:
    """(output tokens a month from which some machines cost no more, on which of them, or why on none)."""
    if not others:
        return None, "no other offer runs it"
    workload, outputs = job.workload, option.candidate.figures["output_tokens_per_month"] or 0.0
    assert isinstance(option.offer, ApiOffer)
    assert workload is not None
    if job.ends:
        api, own = 1e6 * option.usd / outputs, 1e6 * others[0].usd / outputs
        return (
            None,
            f"a million output tokens cost {format_usd(api)} there, {format_usd(own)} on the machines, at any volume",
        )
    rows: list[tuple[BreakEven, MonthlyOption]] = []
    for other in others:  # each kind of machines, on all month; of those of which it is known what they carry and cost
        rate, units = other.candidate.figures.get("requests_per_s_capacity"), max(1, other.instances // other.unit)
        if rate and other.paid_hours:
            row = break_even(
                option.offer.price, other.usd * HOURS_PER_MONTH / other.paid_hours / units,
                rate * workload.output_tokens / units,
                inputs_per_output=workload.input_tokens / workload.output_tokens,
                fill_frac=1.0 / workload.peak,
            )  # fmt: skip
            rows.append((row, other))
    pays = [(row.first, other) for row, other in rows if row.first is not None]
    if pays:
        volume, first = min(pays, key=lambda entry: entry[0])
        return volume, f"on {first.provider} {first.instance}, {_words(first.purchase)}"
    if not rows:
        return None, "the capacity of a machine is not known"
    return None, min((row for row, _ in rows), key=lambda row: row.own_usd_per_mtok).why
