"""Prices that are not on demand: how many are known."""

from __future__ import annotations

from flopwise.facts.catalog import load_facts
from flopwise.facts.price_coverage import coverage_text, price_coverage

FACTS = load_facts()
DEVICES = [offer for offer in FACTS.offers if FACTS.accelerators[offer.accelerator].kind != "cpu"]


def test_coverage_counts_the_offers_of_each_provider() -> None:
    rows = {row.provider: row for row in price_coverage(DEVICES, "spot")}
    for provider in ("aws", "azure", "gcp", "lambda"):
        own = [offer for offer in DEVICES if offer.provider == provider]
        known = sum(offer.spot_usd_per_hour is not None for offer in own)
        assert (rows[provider].offers, rows[provider].known, rows[provider].assumed) == (len(own), known, 0)
    assert rows["aws"].known >= 100, "T4, A10G, L4 and L40S in us-east-1 are known"
    assert rows["azure"].known >= 30
    text = coverage_text(price_coverage(DEVICES, "spot"), "spot")
    assert text.startswith(f"spot price known of {rows['aws'].known} of 153 aws, ")
    assert f"{rows['azure'].known} of 67 azure" in text


def test_coverage_of_reservations_says_what_no_catalog_prices() -> None:
    """AWS's page of 2023 has three years of T4 in us-east-1 alone: the line counts other regions as unknown."""
    for term in ("reserved_1y", "reserved_3y"):
        rows = {row.provider: row for row in price_coverage(DEVICES, term)}
        own = [offer for offer in DEVICES if offer.provider == "aws"]
        assert rows["aws"].known == sum(offer.price_usd_per_hour(term) is not None for offer in own)
        assert 0 < rows["aws"].known < rows["aws"].offers
    here = [o for o in DEVICES if o.provider == "aws" and o.accelerator == "T4"]
    assert {o.region for o in here if o.reserved_3y_usd_per_hour is not None} == {"us-east-1"}
    known = sum(o.reserved_3y_usd_per_hour is not None for o in here)
    assert known == sum(o.region == "us-east-1" for o in here) == 7
    text = coverage_text(price_coverage(here, "reserved_3y"), "reserved_3y")
    assert text == f"price reserved for three years known of 7 of {len(here)} aws accelerator offers"
