"""What there is to choose from: model sizes, accelerators by their money's worth, instances, own machines, APIs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flopwise.facts.offers import beside_date
from flopwise.fleet.assessment import Assessment
from flopwise.report.blocks import Bar, Bars, Block, Bullets, Heading, Table, Text
from flopwise.report.words import dash, digits, enumeration, hourly, usd
from flopwise.search.model_sizes import CONDITIONS
from flopwise.units import (
    HOURS_PER_MONTH,
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_rate,
    format_usd,
)

Row = Mapping[str, Any]
KINDS = {
    "pretrain": "to train", "finetune": "to fine-tune", "serve": "to serve", "encode": "to serve",
    "batch": "to run batches", "validate": "to run batches",
}  # fmt: skip
SHOWN = 15
"""Instance types of a provider that are listed; the JSON has all."""
DRAWN = 12
"""Accelerators in the picture."""


def sizes(assessment: Assessment) -> Iterator[Block]:
    """Categories of model sizes: what each model of the fleet really takes, by what is done with it."""
    groups: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in assessment.sizes:
        groups[str(row.get("size", "-")), str(row.get("model") or "-")][KINDS.get(str(row.get("kind")), "")].append(row)
    columns = [c for c in dict.fromkeys(KINDS.values()) if any(c in kinds for kinds in groups.values())]
    rows = []
    for (size, model), kinds in groups.items():
        first = next(iter(kinds.values()))[0]
        cells = ["; ".join(dict.fromkeys(map(_memory, kinds[c]))) or "-" if c in kinds else "-" for c in columns]
        weights = dash(first.get("bf16_weight_bytes"), format_bytes)
        rows.append((size, model, dash(first.get("parameters"), format_count), weights, *cells))
    if rows:
        yield Table(
            ["size", "model", ">parameters", ">weights in 16 bits", *columns], rows,
            "Memory of one copy over its devices, as recommended: weights, gradients, optimizer states and activations "
            "to train; weights and the cache that the engine sets aside to serve. Small: below 1 B parameters; medium: "
            "below 20 B.",
        )  # fmt: skip


def largest_models(assessment: Assessment) -> Iterator[Block]:
    """Memory of models of every size by format, and the largest that one of each accelerator trains and serves."""
    if sizes := assessment.size_classes:
        ways = list(sizes[0]["memory_bytes"])
        yield Table(
            ["size", ">parameters", *(f">{way}" for way in ways)],
            [
                (r["size"], format_count(r["parameters"]), *(format_bytes(r["memory_bytes"][way]) for way in ways))
                for r in sizes
            ],
            f"Memory of one copy by size and format, before it is spread over devices: {CONDITIONS}.",
        )  # fmt: skip
    rows = assessment.largest_models
    if rows:
        ways = list(rows[0]["parameters"])
        yield Table(
            ["one GPU", ">memory", *(f">{way}" for way in ways)],
            [
                (r["gpu"], format_bytes(r["hbm_bytes"]), *(dash(r["parameters"][way], format_count) for way in ways))
                for r in rows
            ],
            f"Parameters of the largest model that fits one device, by memory alone: {CONDITIONS}.",
        )  # fmt: skip


def _memory(row: Row) -> str:
    gpus, each, whole = row.get("gpus_of_one_copy"), row.get("memory_bytes_per_gpu"), row.get("memory_bytes")
    several = "" if whole is None or gpus in {None, 1} or each is None else f" ({gpus} x {format_bytes(each)})"
    return dash(whole, format_bytes) + several


def gpus(assessment: Assessment) -> Iterator[Block]:
    """Accelerators that the policies leave, with their facts and what their speed costs."""
    rows = assessment.gpus
    if not rows:
        return
    priced = sorted((r for r in rows if r.get("usd_per_pflop_hour")), key=lambda r: r["usd_per_pflop_hour"])
    if len(priced) > 1:
        shown = [r for r in priced if r.get("used")] + [r for r in priced if not r.get("used")]
        shown = sorted(shown[:DRAWN], key=lambda r: r["usd_per_pflop_hour"])
        costs = [(f"{r['gpu']}{' (used)' if r.get('used') else ''}", r["usd_per_pflop_hour"]) for r in shown]
        yield Bars(
            "Dollars for a PFLOP/s of dense 16-bit matrix products over an hour, on demand, at the lowest price",
            [Bar(name, cost, format_usd(cost, 2)) for name, cost in costs],
        )
    yield Table(
        [
            "GPU", "grade", ">memory", ">bandwidth", ">cores", ">tensor cores", ">peak", ">power",
            ">price of a PFLOP-hour", ">of a GB/s and month",
        ],
        [_gpu(row) for row in rows],
        "Peaks are dense, in bf16 or the nearest format that the device has. Cores are CUDA cores (AMD: stream "
        "processors), tensor cores AMD's matrix cores; a dash: the device has none, or it is not known.",
    )  # fmt: skip
    yield Table(
        ["GPU", ">on demand, each", ">spot, each", "cheapest at", "best for here", "used by"],
        [_gpu_prices(row) for row in rows],
        "Lowest and highest price over the allowed providers and regions, for one accelerator with its share of the "
        "machine. Best for: the workloads that cost least on it (within 5 %), else the one that comes closest.",
    )  # fmt: skip


def _gpu(row: Row) -> tuple[str, ...]:
    dtype = f" {row['dtype']}" if row.get("dtype") else ""
    return (
        str(row.get("gpu")), {"datacentre": "data centre"}.get(str(row.get("grade")), str(row.get("grade") or "-")),
        dash(row.get("hbm_bytes"), format_bytes), dash(row.get("hbm_bytes_per_s"), lambda x: f"{x / 1e9:,.0f} GB/s"),
        dash(row.get("cores"), lambda x: f"{x:,}"), dash(row.get("tensor_cores") or None, lambda x: f"{x:,}"),
        dash(row.get("peak_flops_per_s"), lambda x: f"{format_rate(x, 'FLOP/s')}{dtype}"),
        dash(row.get("tdp_w"), lambda x: f"{x:,.0f} W"),
        dash(row.get("usd_per_pflop_hour") or None, lambda x: format_usd(x, 2)),
        dash(row.get("usd_per_gb_per_s_hour"), lambda x: format_usd(x * HOURS_PER_MONTH, 2)),
    )  # fmt: skip


def _gpu_prices(row: Row) -> tuple[str, ...]:
    best, times = list(row.get("best_for") or []), row.get("best_for_times") or 1.0
    dearer = f", at {format_number(times, 2)} times the lowest cost" if times > 1.05 else ""
    return (
        str(row.get("gpu")), _range(row.get("usd_per_gpu_hour"), row.get("usd_per_gpu_hour_most")),
        _range(row.get("spot_usd_per_gpu_hour"), row.get("spot_usd_per_gpu_hour_most")),
        f"{row.get('provider', '')} {row.get('instance', '')}".strip() or "-",
        enumeration(best, 2) + dearer if best else "-",
        enumeration(list(row.get("workloads") or []), 2) or ("yes" if row.get("used") else "-"),
    )  # fmt: skip


def _range(low: float | None, high: float | None) -> str:
    return hourly(low) if high is None or hourly(low) == hourly(high) else f"{hourly(low)} to {hourly(high)}"


def instances(assessment: Assessment) -> Iterator[Block]:
    """One table for each provider: what was weighed, the used ones first; where prices come from below."""
    if not assessment.instances:
        return
    providers: dict[str, list[Row]] = defaultdict(list)
    for row in assessment.instances:
        providers[str(row.get("provider", "-"))].append(row)
    notes: dict[str, int] = {}
    for provider, rows in sorted(providers.items()):
        kinds = _by_type(rows)
        regions = len({r.get("region") for r in rows})
        yield Heading(provider)
        yield Text(
            f"{len(rows):,} offers of {len(kinds):,} instance types in {regions:,} regions were considered."
            + (f" The {SHOWN:,} cheapest for an accelerator are listed, and all that are used." if len(kinds) > SHOWN
               else "")
        )  # fmt: skip
        used = [k for k in kinds if any(r.get("used") for r in k)]
        others = [k for k in kinds if not any(r.get("used") for r in k)]
        shown = used + others[: max(0, SHOWN - len(used))]
        yield Table(
            [
                "instance", "region", "GPU", ">vCPU", ">RAM", ">on demand", ">spot", ">1 year", ">3 years",
                "price date", "used by", "source",
            ],
            [_instance(kind, notes) for kind in shown],
        )  # fmt: skip
    yield Heading("Sources of these prices")
    yield Bullets([f"{number}: {text}" for text, number in notes.items()])


def _by_type(rows: Sequence[Row]) -> list[list[Row]]:
    """Offers of each instance type, its used regions first, then the cheapest; types by price of an accelerator."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[str(row.get("instance"))].append(row)

    def price(row: Row) -> float:
        known = [row[key] for key in PRICES if row.get(key) is not None]
        return min(known, default=float("inf")) / (row.get("count") or 1)

    for offers in kinds.values():
        offers.sort(key=lambda r: (not r.get("used"), price(r)))
    return sorted(kinds.values(), key=lambda offers: price(offers[0]))


APART = {"spot": "spot", "reserved_1y": "1 year", "reserved_3y": "3 years"}
"""Purchase options whose prices have days of their own, as the table names them."""


def _dates(row: Row) -> str:
    """The days of an offer's prices, and what is to be known of them."""
    usual = str(row.get("price_date", "-"))
    others = {name: row.get(f"{key}_date") for key, name in APART.items()}
    if others["1 year"] == others["3 years"]:
        others = {"spot": others["spot"], "reserved": others["1 year"]}
    dated = [usual, *(f"{name} {day}" for name, day in others.items() if day not in (None, usual))]
    notes = map(beside_date, row.get("price_notes") or ())
    return "; ".join(dict.fromkeys([*dated, *filter(None, notes)]))


PRICES = ("on_demand_usd_per_hour", "spot_usd_per_hour", "reserved_1y_usd_per_hour", "reserved_3y_usd_per_hour")


def _instance(offers: Sequence[Row], notes: dict[str, int]) -> tuple[str, ...]:
    first = offers[0]
    taken = [r for r in offers if r.get("used")] or [first]
    names = list(dict.fromkeys(name for r in taken for name in r.get("workloads") or []))
    region = " and ".join(str(r.get("region", "-")) for r in taken)
    more = len(offers) - len(taken)
    source = str(first.get("source") or "")
    number = notes.setdefault(source, len(notes) + 1) if source else None
    return (
        str(first.get("instance")), region + (f" (+ {more})" if more else ""),
        f"{digits(first['count'])} x {first.get('gpu', '?')}" if first.get("count") else str(first.get("gpu", "-")),
        dash(first.get("vcpus"), digits), dash(first.get("ram_bytes"), format_bytes),
        *(hourly(first.get(key)) for key in PRICES), _dates(first),
        enumeration(names, 2) or ("yes" if first.get("used") else "-"), "-" if number is None else str(number),
    )  # fmt: skip


# What is not rented

AGAINST = 12
"""Offers of clouds that each kind of own machines is set against: the cheapest."""


def own_machines(assessment: Assessment) -> Iterator[Block]:
    """Blocks: cost and use of own machines, and the use from which they are cheaper than each cloud."""
    if not assessment.own_machines:
        return
    yield Table(
        [
            "machine", "where", "GPU", ">there", ">used", ">to be bought", ">busy", ">standing", ">capital",
            ">power at work", ">a month", "carries",
        ],
        [_own_machine(row) for row in assessment.own_machines],
        "Per machine and month: standing costs (room, people, support, power at idle), capital (depreciation and "
        "interest), and the power that full use adds. A month of all machines: the cost of those in use, and of those "
        "that are idle.",
    )  # fmt: skip
    for row in assessment.own_machines:
        rows = row["against"][:AGAINST]
        if rows:
            use = "as busy as planned" if row["utilisation"] is not None else "at the usual use"
            yield Table(
                [
                    "instead of", "region", "bought", ">GPU-hour there", ">own GPU-hour", ">buying pays from",
                    ">keeping pays from", ">recovered in", "price date",
                ],
                [_against_cloud(r) for r in rows],
                f"{row['machine']}, {use}, all costs included: the utilisation from which own machines cost less than "
                "the cloud's, if bought anew and if kept; reservations are paid all month, too.",
            )  # fmt: skip
        else:
            yield Text(f"No cloud that the policies allow has the {row['gpu']} of {row['machine']}.")


def _own_machine(row: Row) -> tuple[str, ...]:
    return (
        row["machine"], f"{row['provider']}, {row['region']}", f"{row['gpus']} x {row['gpu']}", f"{row['there']:,}",
        f"{row['used']:,}", f"{row['bought']:,}", dash(row["utilisation"], lambda x: format_percent(x, 0)),
        usd(row["usd_per_month_standing"]), usd(row["usd_per_month_capital"]), usd(row["usd_per_month_full_power"]),
        usd(row["usd_per_month"] + row["idle_usd_per_month"]), ", ".join(row["workloads"]) or "-",
    )  # fmt: skip


def _against_cloud(row: Row) -> tuple[str, ...]:
    return (
        f"{row['provider']} {row['instance']}", row["region"], row["purchase"].replace("_", " "),
        format_usd(row["usd_per_gpu_hour"], 2), format_usd(row["own_usd_per_gpu_hour"], 2),
        _use(row["break_even_utilisation"]), _use(row["keeping_break_even_utilisation"]),
        dash(row["months"], lambda x: f"{x:,.0f} months"), row["price_date"],
    )  # fmt: skip


def _use(value: float | None) -> str:
    return "never" if value is None else format_percent(value, 0) if value else "any use"
