"""Spot prices: how many are known."""

from __future__ import annotations

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
