"""Spot prices: how many are known, and what is assumed of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.spot_prices import coverage_text, spot_coverage

FACTS = load_facts()
DEVICES = [offer for offer in FACTS.offers if FACTS.accelerators[offer.accelerator].kind != "cpu"]


def test_coverage_counts_the_offers_of_each_provider() -> None:
    rows = {row.provider: row for row in spot_coverage(DEVICES)}
    for provider in ("aws", "azure", "gcp", "lambda"):
        own = [offer for offer in DEVICES if offer.provider == provider]
        known = sum(offer.spot_usd_per_hour is not None for offer in own)
        assert (rows[provider].offers, rows[provider].known, rows[provider].assumed) == (len(own), known, 0)
    assert rows["aws"].known >= 100, "T4, A10G, L4 and L40S in us-east-1 are known"
    assert rows["azure"].known >= 30
    text = coverage_text(spot_coverage(DEVICES))
    assert text.startswith(f"spot price known of {rows['aws'].known} of 153 aws, ")
    assert f"{rows['azure'].known} of 67 azure" in text


def test_an_assumed_spot_price_is_the_middle_of_the_band_and_says_so() -> None:
    """n1-standard-4 with a T4 at $0.54 on demand, 60 to 91 % off: $0.0486 to $0.216, $0.1323 in the middle."""
    key = ("gcp", "n1-standard-4+1xT4", "us-central1")
    before = next(offer for offer in FACTS.offers if offer.key == key)
    after = next(offer for offer in FACTS.with_assumed_spot().offers if offer.key == key)
    assert before.spot_usd_per_hour is None
    assert before.on_demand_usd_per_hour == pytest.approx(0.54, rel=1e-3)
    assert after.spot_band_usd_per_hour == pytest.approx((0.0486, 0.216), rel=1e-3)
    assert after.spot_usd_per_hour == pytest.approx(0.1323, rel=1e-3)
    assert after.price_note("spot") == "spot price assumed, $0.0486 to $0.216 an hour"
    assert after.price_source_of("spot").startswith("assumed, 60 to 91 % below on demand: Google Cloud")
    assert after.price_note("on_demand") == before.price_note("on_demand")


def test_what_is_known_is_never_assumed_and_nobody_without_a_band_is() -> None:
    after = {offer.key: offer for offer in FACTS.with_assumed_spot().offers}
    for offer in FACTS.offers:
        if offer.spot_usd_per_hour is not None or offer.provider not in {"aws", "azure", "gcp"}:
            assert after[offer.key] == offer


def test_a_folder_of_facts_has_bands_of_its_own(tmp_path: Path) -> None:
    head = "provider,least_frac,most_frac,source,date\n"
    (tmp_path / "spot_discounts.csv").write_text(head + "lambda,10%,30%,their sales,2026-11-01\n")
    after = next(o for o in load_facts(tmp_path).with_assumed_spot().offers if o.provider == "lambda")
    usd = after.on_demand_usd_per_hour
    assert usd is not None
    assert after.spot_usd_per_hour == pytest.approx(0.8 * usd)
    (tmp_path / "spot_discounts.csv").write_text(head + "lambda,50%,30%,their sales,2026-11-01\n")
    with pytest.raises(SpecError, match="no less than least_frac"):
        load_facts(tmp_path).with_assumed_spot()
