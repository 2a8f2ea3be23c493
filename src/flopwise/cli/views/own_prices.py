"""Accelerators of one's own on the screen: what an hour costs by grade, and when that beats a cloud."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.fleet.onprem import AgainstCloud
    from flopwise.fleet.own_hour import OwnPrice

CLOUDS = 20
"""Offers that are shown of one accelerator."""


def blocks(found: list[OwnPrice], paper: Screen) -> Iterator[str]:
    """All of them in one table; of one alone its month and the clouds as well."""
    busy = units.format_percent(found[0].utilisation)
    yield heading(f"Accelerators of one's own, worked {busy} of the hours that maintenance leaves", paper)
    yield table(
        (
            "accelerator", "grade", ">memory", ">bought for", ">USD/hour", ">USD/PFLOP-hour", ">USD/(TB/s)-hour",
            "cheapest cloud", ">USD/hour", ">pays from", "priced",
        ),
        [_row(row) for row in found],
        paper,
    )  # fmt: skip
    if len(found) == 1:
        [one] = found
        yield "A month of one:\n" + pairs([(name, units.format_usd(usd)) for name, usd in one.month.items()], paper)
        if one.against:
            yield "Against each offer that is paid by the hour:\n" + table(
                ("provider", "instance", "region", "bought", ">USD/hour", ">pays from", ">months", "priced"),
                [_cloud(row) for row in one.against[:CLOUDS]],
                paper,
            )
    remarks = {row.remark: None for row in found if row.remark}
    if remarks:
        names = {why: ", ".join(row.accelerator for row in found if row.remark == why) for why in remarks}
        yield "To know of them:\n" + "\n".join(f"  - {names[why]}: {why}" for why in remarks)


def _row(row: OwnPrice) -> tuple[Any, ...]:
    hour = f"{row.usd_per_gpu_hour:.3f}"
    if row.usd_per_gpu_hour_low != row.usd_per_gpu_hour_high:
        hour += f" ({row.usd_per_gpu_hour_low:.3f} to {row.usd_per_gpu_hour_high:.3f})"
    cloud = row.against[0] if row.against else None
    flops = None if row.per_pflop_hour is None else f"{row.per_pflop_hour:.3g}"
    speed = None if row.per_tb_per_s_hour is None else f"{row.per_tb_per_s_hour:.3g}"
    return (
        row.accelerator, row.grade, units.format_bytes(row.hbm_bytes), units.format_usd(row.price_usd), hour, flops,
        speed, *(_cheapest(cloud) if cloud is not None else (None, None, None)), row.price_date,
    )  # fmt: skip


def _cheapest(cloud: AgainstCloud) -> tuple[str, str, str]:
    return f"{cloud.provider} {cloud.instance}, {cloud.purchase}", f"{cloud.usd_per_gpu_hour:.3f}", _from(cloud)


def _cloud(row: AgainstCloud) -> tuple[Any, ...]:
    months = None if row.months is None else f"{row.months:.0f}"
    return (
        row.provider, row.instance, row.region, row.purchase, f"{row.usd_per_gpu_hour:.3f}", _from(row), months,
        row.price_date,
    )  # fmt: skip


def _from(row: AgainstCloud) -> str:
    """The utilisation from which own ones cost less."""
    return "never" if row.break_even_utilisation is None else units.format_percent(row.break_even_utilisation)
