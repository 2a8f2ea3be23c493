"""`prices own`: an hour is what its month costs, wider where the price is, and clouds are those of the same device."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.api.prices import own_prices
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError


def test_an_hour_is_its_month_over_the_hours_worked() -> None:
    rows = own_prices(utilisation=0.5)
    assert [row.usd_per_gpu_hour for row in rows] == sorted(row.usd_per_gpu_hour for row in rows)
    assert {row.grade for row in rows} == {"consumer", "workstation", "datacentre"}
    for row in rows:
        hours = row.available_hours * 0.5
        assert row.usd_per_gpu_hour == pytest.approx(sum(row.month.values()) / hours)
        assert row.usd_per_gpu_hour_low <= row.usd_per_gpu_hour <= row.usd_per_gpu_hour_high
        assert bool(row.remark) == (row.grade == "consumer")
        assert [c.usd_per_gpu_hour for c in row.against] == sorted(c.usd_per_gpu_hour for c in row.against)
        for cloud in row.against:
            even = cloud.break_even_utilisation
            assert (even is not None and even <= 0.5) == (row.usd_per_gpu_hour <= cloud.usd_per_gpu_hour)


def test_what_is_said_of_the_site_is_taken() -> None:
    [plain] = own_prices("h100")
    dearer: list[dict[str, Any]] = [
        {"colocation": True}, {"usd_per_kwh": 0.5}, {"pue": 2.0}, {"years": 2.0}, {"utilisation": 0.3},
    ]  # fmt: skip
    for change in dearer:
        [row] = own_prices("h100", **change)
        assert row.usd_per_gpu_hour > plain.usd_per_gpu_hour, change
    rate = 989.4e12 / 1e15
    assert plain.per_pflop_hour == pytest.approx(plain.usd_per_gpu_hour / rate, rel=0.01)


@pytest.mark.parametrize(
    ("asked", "error", "why"),
    [
        ({"gpu": "h1000"}, UnknownNameError, "H100"),
        ({"gpu": "T4"}, InfeasibleError, "not known"),
        ({"utilisation": 0.0}, SpecError, "utilisation"),
        ({"utilisation": float("nan")}, SpecError, "utilisation"),
        ({"pue": 0.5}, SpecError, "pue"),
        ({"years": 0.0}, SpecError, "years"),
        ({"usd_per_kwh": -1.0}, SpecError, "usd per kwh: -1.0 is out of range"),
    ],
)
def test_bad_input(asked: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        own_prices(**asked)
