"""Hosted models against machines of your own: break-evens that a scan over volumes finds too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.facts.price_book import HostedPrice
from flopwise.fleet.prices import api_usd, break_even


def price(inputs: float = 0.5, outputs: float = 1.5, cached: float | None = None) -> HostedPrice:
    return HostedPrice(
        provider="p", name="m", input_usd_per_mtok=inputs, output_usd_per_mtok=outputs, cached_usd_per_mtok=cached,
        source="s", date="2026-01-01",
    )  # fmt: skip


def test_a_bill_by_hand() -> None:
    assert api_usd(price(), 2e6, 1e6) == pytest.approx(2.5)
    assert api_usd(price(cached=0.05), 2e6, 1e6, 0.5) == pytest.approx(0.5 + 0.05 + 1.5)
    assert api_usd(price(), 2e6, 1e6, 0.5) == pytest.approx(2.5), "no price of cached tokens: none is assumed"


@settings(deadline=None)
@example(usd=100.0, rate=100.0, inputs=0.0, outputs=0.50403, fill=0.755)
@given(
    usd=st.floats(100, 50_000), rate=st.floats(100, 50_000), inputs=st.floats(0, 20), outputs=st.floats(0.05, 20),
    fill=st.floats(0.1, 1),
)  # fmt: skip
def test_break_even_is_where_a_scan_finds_it(
    usd: float, rate: float, inputs: float, outputs: float, fill: float
) -> None:
    offer = price(0.3 * outputs, outputs)
    found = break_even(offer, usd, rate, inputs_per_output=inputs, fill_frac=fill)
    volumes = np.linspace(0.001, 12, 20_000) * found.capacity_per_machine
    machines = np.maximum(np.ceil(np.round(volumes / found.capacity_per_machine, 9)), 1.0)
    owned, rented = machines * usd, api_usd(offer, inputs * volumes, volumes)
    pays = np.asarray(owned <= rented * (1 + 1e-9))
    step = volumes[1] - volumes[0]
    if found.first is None:
        assert not pays.any() or found.own_usd_per_mtok == pytest.approx(found.api_usd_per_mtok, rel=1e-2)
        assert found.why
        return
    if found.capacity_per_machine - found.first > 2 * step:  # else the scan steps over the part that pays
        assert volumes[np.argmax(pays)] == pytest.approx(found.first, abs=2 * step)
    if found.always is not None and found.always < volumes[-1] - 2 * step:
        later = volumes > found.always + 2 * step
        assert pays[later].all()
        before = volumes[(volumes < found.always - 2 * step)]
        gap = found.always % found.capacity_per_machine  # since the last machine was added: the scan has to see it
        if found.always > found.first * 1.01 and gap > 6 * step:
            assert not pays[: before.size][-3:].all()


def test_a_dear_machine_never_pays_and_says_why() -> None:
    found = break_even(price(0.02, 0.04), 5000, 500)
    assert (found.first, found.always) == (None, None)
    assert "a full machine costs $3.81 for a million output tokens, the API $0.04" in found.why


@pytest.mark.parametrize("wrong", [{"fill_frac": 0}, {"fill_frac": 2}, {"inputs_per_output": -1}, {"cached_frac": 1.5}])
def test_impossible_figures_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="is out of range"):
        break_even(price(), 1000, 100, **wrong)
    with pytest.raises(SpecError, match="usd_per_month"):
        break_even(price(), 0, 100)
