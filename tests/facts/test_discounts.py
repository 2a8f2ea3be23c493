"""Prices that are assumed from the discounts that providers publish."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import Offer

FACTS = load_facts()


def test_an_assumed_spot_price_is_the_middle_of_the_band_and_says_so() -> None:
    """n1-standard-4 with a T4 at $0.54 on demand, 60 to 91 % off: $0.0486 to $0.216, $0.1323 in the middle."""
    key = ("gcp", "n1-standard-4+1xT4", "us-central1")
    before = next(offer for offer in FACTS.offers if offer.key == key)
    after = next(offer for offer in FACTS.with_assumed_prices({"spot"}).offers if offer.key == key)
    assert before.spot_usd_per_hour is None
    assert before.on_demand_usd_per_hour == pytest.approx(0.54, rel=1e-3)
    assert after.assumed_usd_per_hour("spot") == pytest.approx((0.0486, 0.216), rel=1e-3)
    assert after.spot_usd_per_hour == pytest.approx(0.1323, rel=1e-3)
    assert after.price_note("spot") == "spot price assumed, $0.0486 to $0.216 an hour"
    assert after.price_source_of("spot").startswith("assumed, 60 to 91 % below on demand: Google Cloud")
    assert after.price_note("on_demand") == before.price_note("on_demand")


def test_what_is_known_is_never_assumed_and_nobody_without_a_band_is() -> None:
    after = {offer.key: offer for offer in FACTS.with_assumed_prices({"spot"}).offers}
    for offer in FACTS.offers:
        if offer.spot_usd_per_hour is not None or offer.provider not in {"aws", "azure", "gcp"}:
            assert after[offer.key] == offer


def _reserved(key: tuple[str, str, str]) -> tuple[Offer, Offer]:
    """An offer as it is known, and with assumed prices of reserved machines."""
    after = FACTS.with_assumed_prices({"reserved"})
    return tuple(next(offer for offer in facts.offers if offer.key == key) for facts in (FACTS, after))  # type: ignore[return-value]  # two of them


def test_three_years_are_assumed_from_the_published_discounts_and_cost_no_more_than_one() -> None:
    """g6.xlarge at $0.8048 on demand, $0.5239 for a year: 50 to 60 % off are $0.3219 to $0.4024 for three.

    The price of a year is known, and keeps its own day and source.
    """
    before, after = _reserved(("aws", "g6.xlarge", "us-east-1"))
    assert before.reserved_3y_usd_per_hour is None
    assert after.reserved_1y_usd_per_hour == before.reserved_1y_usd_per_hour == 0.52392
    low, high = after.assumed_usd_per_hour("reserved_3y") or (0.0, 0.0)
    assert low == pytest.approx(0.4 * 0.8048, rel=1e-6)
    assert high == pytest.approx(0.5 * 0.8048, rel=1e-6)
    assert after.reserved_3y_usd_per_hour == pytest.approx((low + high) / 2)
    assert after.price_note("reserved_3y").startswith("reserved price assumed, $0.3219 to $0.40")
    assert after.price_note("reserved_1y") == before.price_note("reserved_1y")
    assert after.price_date_of("reserved_1y") == before.price_date_of("reserved_1y") == "2026-01-21"
    assert after.price_source_of("reserved_3y").startswith("assumed, 50 to 60 % below on demand: AWS bulk price list")
    assert after.spot_usd_per_hour == before.spot_usd_per_hour


def test_three_years_cost_no_more_an_hour_than_a_known_year(tmp_path: Path) -> None:
    """g6e.xlarge in eu-central-1: a year is 37 % below $2.327, so that three are as much at most, 30 % off or not."""
    head = "provider,purchase,least_frac,most_frac,source,date\n"
    (tmp_path / "reserved_discounts.csv").write_text(head + "aws,reserved_3y,30%,72%,their page,2026-11-01\n")
    after = {offer.key: offer for offer in load_facts(tmp_path).with_assumed_prices({"reserved"}).offers}
    offer = after["aws", "g6e.xlarge", "eu-central-1"]
    assert offer.reserved_1y_usd_per_hour == 1.46601
    assert offer.assumed_usd_per_hour("reserved_3y") == pytest.approx((0.28 * 2.327, 1.46601))


def test_sizes_of_a_family_have_one_discount_for_a_year_and_three_years_take_off_what_the_band_says() -> None:
    """The listed prices of three years (p4d 57.3 %, p4de 57.3, p5 56.8, g6 54.1, g6e 56.8 % off) lie in AWS's band.

    So do those of G4dn, at 60 %: AWS's page of this family has a part paid upfront.
    """
    listed = [offer for offer in FACTS.offers if offer.provider == "aws" and offer.reserved_3y_usd_per_hour]
    days = {"g4dn": "2023-10-01"} | dict.fromkeys(("p4d", "p4de", "p5", "g6", "g6e"), "2026-09-13")
    assert {offer.instance.split(".")[0] for offer in listed} == days.keys()
    for offer in listed:
        family = offer.instance.split(".")[0]
        off = 1 - (offer.reserved_3y_usd_per_hour or 0.0) / (offer.on_demand_usd_per_hour or 1.0)
        assert offer.price_date_of("reserved_3y") == days[family]
        low, high = (0.598, 0.6015) if family == "g4dn" else (0.54, 0.575)
        assert low < off < high, offer.key
    years = [offer for offer in FACTS.offers if offer.instance.startswith("g6.") and offer.reserved_1y_usd_per_hour]
    shares = [(offer.reserved_1y_usd_per_hour or 0.0) / (offer.on_demand_usd_per_hour or 1.0) for offer in years]
    assert len(shares) > 10
    assert max(shares) / min(shares) < 1.001


def test_azure_reservations_are_assumed_where_they_are_asked_for() -> None:
    """Standard_NC24ads_A100_v4 at $3.673: 31 to 43 % off for a year are $2.094 to $2.534, 56 to 67 % for three."""
    before, after = _reserved(("azure", "Standard_NC24ads_A100_v4", "eastus"))
    assert (before.reserved_1y_usd_per_hour, before.reserved_3y_usd_per_hour) == (None, None)
    assert after.assumed_usd_per_hour("reserved_1y") == pytest.approx((0.57 * 3.673, 0.69 * 3.673))
    assert after.assumed_usd_per_hour("reserved_3y") == pytest.approx((0.33 * 3.673, 0.44 * 3.673))


def test_who_sells_no_year_sells_no_three_and_known_prices_stay() -> None:
    """AWS lists no year of P5 and P6: three are as listed, for p5.48xlarge, or none."""
    after = {offer.key: offer for offer in FACTS.with_assumed_prices({"reserved"}).offers}
    for offer in FACTS.offers:
        made = after[offer.key]
        if offer.instance.startswith(("p5.", "p6-")):
            assert made.reserved_3y_usd_per_hour == offer.reserved_3y_usd_per_hour
            assert (offer.reserved_3y_usd_per_hour is None) == (offer.key != ("aws", "p5.48xlarge", "us-east-1"))
        if offer.reserved_3y_usd_per_hour is not None or offer.provider not in {"aws", "azure", "gcp"}:
            assert made == offer


def test_a_term_is_a_year_or_three(tmp_path: Path) -> None:
    head = "provider,purchase,least_frac,most_frac,source,date\n"
    (tmp_path / "reserved_discounts.csv").write_text(head + "lambda,spot,10%,30%,their sales,2026-11-01\n")
    with pytest.raises(SpecError, match="reserved_1y, reserved_3y"):
        load_facts(tmp_path).with_assumed_prices({"reserved"})


def test_a_folder_of_facts_has_bands_of_its_own(tmp_path: Path) -> None:
    head = "provider,least_frac,most_frac,source,date\n"
    (tmp_path / "spot_discounts.csv").write_text(head + "lambda,10%,30%,their sales,2026-11-01\n")
    after = next(o for o in load_facts(tmp_path).with_assumed_prices({"spot"}).offers if o.provider == "lambda")
    usd = after.on_demand_usd_per_hour
    assert usd is not None
    assert after.spot_usd_per_hour == pytest.approx(0.8 * usd)
    (tmp_path / "spot_discounts.csv").write_text(head + "lambda,50%,30%,their sales,2026-11-01\n")
    with pytest.raises(SpecError, match="no less than least_frac"):
        load_facts(tmp_path).with_assumed_prices({"spot"})
