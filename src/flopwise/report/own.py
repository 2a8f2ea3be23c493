"""Parts of a report on what is not rented: own machines beside the clouds they stand against, APIs beside machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flopwise.report.blocks import Block, Table, Text
from flopwise.report.words import usd
from flopwise.units import format_count, format_percent

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment

AGAINST = 12
"""Offers of clouds that each kind of own machines is set against: the cheapest."""


def own_machines(found: Assessment) -> Iterator[Block]:
    """What own machines cost and how far they are used, then the use from which they are cheaper than each cloud."""
    if not found.own_machines:
        return
    yield Table(
        [
            "machine", "where", "GPU", ">there", ">used", ">to be bought", ">busy", ">standing", ">capital",
            ">power at work", ">a month", "carries",
        ],
        [_machine(row) for row in found.own_machines],
        "Standing (room, people, support, power at idle), capital (depreciation and interest) and the power that full "
        "use adds are of one machine and month. A month of all: what is used, and what is paid and carries nothing.",
    )  # fmt: skip
    for row in found.own_machines:
        rows = row["against"][:AGAINST]
        if rows:
            use = "as busy as planned" if row["utilisation"] is not None else "at the usual use"
            yield Table(
                [
                    "instead of", "region", "bought", ">GPU-hour there", ">own GPU-hour", ">buying pays from",
                    ">keeping pays from", ">recovered in", "price of",
                ],
                [_against(r) for r in rows],
                f"{row['machine']}, {use}, everything paid: the share of the hours worked from which own machines cost "
                "less than the cloud's, bought anew and kept; what is reserved is paid all month, too.",
            )  # fmt: skip
        else:
            yield Text(f"No cloud that the policies allow has the {row['gpu']} of {row['machine']}.")


def _machine(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["machine"], f"{row['provider']}, {row['region']}", f"{row['gpus']} x {row['gpu']}", f"{row['there']:,}",
        f"{row['used']:,}", f"{row['bought']:,}", _percent(row["utilisation"]), usd(row["usd_per_month_standing"]),
        usd(row["usd_per_month_capital"]), usd(row["usd_per_month_full_power"]),
        usd(row["usd_per_month"] + row["idle_usd_per_month"]), ", ".join(row["workloads"]) or "-",
    )  # fmt: skip


def _against(row: Mapping[str, Any]) -> tuple[str, ...]:
    months = row["months"]
    return (
        f"{row['provider']} {row['instance']}", row["region"], row["purchase"].replace("_", " "),
        f"${row['usd_per_gpu_hour']:,.2f}", f"${row['own_usd_per_gpu_hour']:,.2f}",
        _use(row["break_even_utilisation"]), _use(row["keeping_break_even_utilisation"]),
        "-" if months is None else f"{months:,.0f} months", row["price_date"],
    )  # fmt: skip


def _percent(value: float | None) -> str:
    return "-" if value is None else format_percent(value, 0)


def _use(value: float | None) -> str:
    return "never" if value is None else format_percent(value, 0) if value else "any use"


def hosted(found: Assessment) -> Iterator[Block]:
    """What APIs would take for the same requests, and the volume from which machines cost no more."""
    if not found.hosted:
        return
    yield Table(
        [
            "workload", "API", ">tokens in", ">tokens out", ">a month", "", "the cheapest machines", ">a month",
            ">break-even", "", "price of",
        ],
        [
            (
                r["workload"], f"{r['provider']} {r['model']}", format_count(r["input_tokens_per_month"]),
                format_count(r["output_tokens_per_month"]), usd(r["usd_per_month"]), "taken" if r["taken"] else "",
                r["machines"] or "-", usd(r["machines_usd_per_month"]),
                "-" if r["break_even_tokens"] is None else f"{format_count(r['break_even_tokens'])} out",
                r["why"], r["price_date"],
            )
            for r in found.hosted
        ],
        "Tokens of a month. Break-even: output tokens a month, prompts with them, from which one machine that is on "
        "all month costs no more. Latency, rate limits and precision of an API are not in its price list.",
    )  # fmt: skip
