"""The offers as data: every row is complete, possible and priced in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from each import each
from flopwise.api.facts import instances
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.defaults import PURCHASES
from flopwise.facts.offers import Offer, known_region, region_names
from flopwise.options import PROVIDER_ALIASES

FACTS = load_facts()
OFFERS = FACTS.offers
BY_KEY = {offer.key: offer for offer in OFFERS}

# provider, instance, region, accelerators, on-demand USD per hour, as the provider's own price page prints them
PRICE_PAGES = [
    ("aws", "p5.48xlarge", "us-east-1", 8, 55.04),
    ("aws", "p4d.24xlarge", "us-east-1", 8, 21.957642),
    ("aws", "g4dn.xlarge", "us-east-1", 1, 0.526),
    ("aws", "g5.xlarge", "us-east-1", 1, 1.006),
    ("aws", "m7i.4xlarge", "us-east-1", 1, 0.8064),
    ("aws", "c7a.48xlarge", "us-east-1", 2, 9.85344),
    ("gcp", "a2-highgpu-1g", "us-central1", 1, 3.673385),
    ("gcp", "c3-standard-176", "us-central1", 2, 8.870752),
    ("azure", "Standard_NC4as_T4_v3", "eastus", 1, 0.526),
    ("azure", "Standard_ND96amsr_A100_v4", "eastus", 8, 32.77),
]


@pytest.mark.parametrize(("provider", "instance", "region", "count", "price"), PRICE_PAGES)
def test_on_demand_price_is_the_providers(provider: str, instance: str, region: str, count: int, price: float) -> None:
    offer = BY_KEY[provider, instance, region]
    assert offer.count == count
    assert offer.price_usd_per_hour("on_demand") == pytest.approx(price)


@each("offer", OFFERS, label=lambda offer: "-".join(offer.key))
def test_every_offer_is_complete_and_possible(offer: Offer) -> None:
    assert offer.source
    for purchase in PURCHASES:
        date = offer.price_date_of(purchase)
        assert date == "undated" or "2023" <= date <= "2026-11-21"
        assert offer.price_source_of(purchase)
    assert offer.confidence in {"high", "medium", "low"}
    assert offer.accelerator in FACTS.accelerators
    assert offer.count >= 1
    assert 0 < offer.accelerator_share <= 1
    prices = {purchase: offer.price_usd_per_hour(purchase) for purchase in PURCHASES}
    on_demand = prices["on_demand"]
    for purchase, price in prices.items():
        if price is None:
            continue
        assert price > 0
        if on_demand is not None and purchase != "on_demand":
            assert price < on_demand, purchase
        if FACTS.accelerators[offer.accelerator].kind == "gpu":
            assert 0.05 < price / (offer.count * offer.accelerator_share) < 40, purchase
    if prices["reserved_1y"] and prices["reserved_3y"]:
        assert prices["reserved_3y"] < prices["reserved_1y"]
    if offer.ram_bytes is not None:
        assert 2**30 <= offer.ram_bytes <= 32 * 2**40


def test_offers_are_told_apart_by_provider_instance_and_region() -> None:
    assert len(BY_KEY) == len(OFFERS) >= 413


def test_a_price_of_an_undated_source_has_no_date() -> None:
    undated = [offer for offer in OFFERS if offer.price_date == "undated"]
    assert undated
    assert not [offer for offer in OFFERS if offer.price_date == "2026-11-20"], "the day of reading is no price's date"
    for offer in undated:
        note = offer.price_note("on_demand")
        assert "undated price" in note
        assert ("derived price" in note) == bool(offer.derived)


def test_each_price_has_its_own_day_and_source() -> None:
    offer = BY_KEY["aws", "g6e.xlarge", "us-east-1"]
    assert (offer.spot_usd_per_hour, offer.price_date_of("spot")) == (1.6119, "2026-08-06")
    assert offer.price_source_of("spot").startswith("AWS spot price feed")
    assert (offer.price_date_of("on_demand"), offer.price_date_of("reserved_1y")) == ("2026-07-20", "2026-01-21")
    assert "vantage" in offer.price_source_of("reserved_1y")
    assert offer.price_note("spot") == ""
    assert BY_KEY["gcp", "tpu-v6e-8", "us-central1"].price_note("spot").startswith("undated price")


def test_a_spot_price_of_a_quarter_of_that_on_demand_or_less_says_so() -> None:
    """$4.354 of $21.60 an hour are a fifth; what is just above a quarter says nothing."""
    offer = BY_KEY["gcp", "tpu-v6e-8", "us-central1"]
    low = "undated price, a quarter of the on-demand price or less"
    assert offer.price_note("spot") == low
    assert offer.price_note("on_demand") == replace(offer, spot_usd_per_hour=None).price_note("on_demand")
    assert replace(offer, spot_usd_per_hour=21.6 / 4).price_note("spot") == low
    assert replace(offer, spot_usd_per_hour=5.41).price_note("spot") == "undated price"
    assert replace(offer, on_demand_usd_per_hour=None).price_note("spot") == "undated price"


def test_three_years_have_a_day_and_a_source_of_their_own() -> None:
    """g4dn.2xlarge: a year of 2026-01 without upfront, three of AWS's page of 2023-10, $0.752 less 60 %."""
    offer = BY_KEY["aws", "g4dn.2xlarge", "us-east-1"]
    assert (offer.reserved_1y_usd_per_hour, offer.price_date_of("reserved_1y")) == (0.474, "2026-01-21")
    assert (offer.reserved_3y_usd_per_hour, offer.price_date_of("reserved_3y")) == (0.3, "2023-10-01")
    assert "part upfront" in offer.price_source_of("reserved_3y")
    assert "no upfront" in offer.price_source_of("reserved_1y")
    assert offer.price_note("reserved_3y") == "price dated 2023-10"
    assert offer.price_note("reserved_1y") == ""


def test_a_recalled_price_says_so() -> None:
    offer = BY_KEY["aws", "g4dn.2xlarge", "us-east-1"]
    recalled = replace(offer, reserved_3y_source="a page of 2023 (recalled)")
    assert recalled.price_note("reserved_3y") == "price dated 2023-10, recalled price"


def test_no_shipped_price_is_recalled() -> None:
    """What nobody looked up again decides no purchase: it is unknown."""
    sources = {offer.price_source_of(purchase) for offer in BY_KEY.values() for purchase in PURCHASES}
    assert not [source for source in sources if "recalled" in source]


def test_the_month_of_a_price_is_said_only_where_it_is_two_years_older_than_that_on_demand() -> None:
    offer = BY_KEY["aws", "g4dn.xlarge", "us-east-1"]
    assert offer.price_date == "2026-07-20"
    assert replace(offer, reserved_3y_date="2024-07-20").price_note("reserved_3y") == ""  # 730 days
    assert replace(offer, reserved_3y_date="2024-07-19").price_note("reserved_3y") == "price dated 2024-07"
    assert replace(offer, price_date="undated").price_note("reserved_3y") == ""


@pytest.mark.parametrize(
    ("columns", "cells", "year", "three"),
    [
        ("reserved_1y_usd_per_hour", "0.4", ("2026-11-01", "mine"), ("2023-10-01", "Amazon EC2 G4")),
        ("reserved_3y_usd_per_hour", "0.2", ("2026-01-21", "tsaol"), ("2026-11-01", "mine")),
        ("reserved_3y_usd_per_hour,reserved_date,reserved_source", "0.2,2026-10-01,list",
         ("2026-01-21", "tsaol"), ("2026-10-01", "list")),
        ("reserved_1y_usd_per_hour,reserved_3y_usd_per_hour,reserved_date", "0.4,0.2,2026-10-01",
         ("2026-10-01", "mine"), ("2026-10-01", "mine")),
        ("reserved_1y_usd_per_hour,reserved_3y_usd_per_hour,reserved_3y_date", "0.4,0.2,2026-10-01",
         ("2026-11-01", "mine"), ("2026-10-01", "mine")),
        ("spot_usd_per_hour", "0.2", ("2026-01-21", "tsaol"), ("2023-10-01", "Amazon EC2 G4")),
    ],
)  # fmt: skip
def test_a_row_dates_the_terms_that_it_prices(
    tmp_path: Path, columns: str, cells: str, year: tuple[str, str], three: tuple[str, str]
) -> None:
    head = f"provider,instance,region,accelerator,count,{columns},price_date,source\n"
    (tmp_path / "instances.csv").write_text(f"{head}aws,g4dn.2xlarge,us-east-1,T4,1,{cells},2026-11-01,mine\n")
    offer = next(o for o in load_facts(tmp_path).offers if o.key == ("aws", "g4dn.2xlarge", "us-east-1"))
    for purchase, (day, source) in (("reserved_1y", year), ("reserved_3y", three)):
        assert offer.price_date_of(purchase) == day, purchase
        assert offer.price_source_of(purchase).startswith(source), purchase


def test_a_sum_of_two_prices_is_as_old_as_the_older_and_says_that_it_is_derived() -> None:
    offer = BY_KEY["gcp", "n1-standard-8+1xV100-SXM2-16", "us-central1"]
    assert offer.price_date == "2025-07-13"
    assert offer.price_note("on_demand").startswith("derived price: the price of the machine of 2026-08-03")


def test_unknown_prices_stay_unknown() -> None:
    offer = BY_KEY["gcp", "a4-highgpu-8g", "us-central1"]
    assert [offer.price_usd_per_hour(purchase) for purchase in PURCHASES] == [None] * 4
    assert offer.cheapest() is None
    with pytest.raises(SpecError, match="unknown purchase option 'lease'; allowed: on_demand, spot"):
        offer.price_usd_per_hour("lease")


def test_cheapest_purchase() -> None:
    offer = BY_KEY["aws", "p4de.24xlarge", "eu-central-1"]
    assert offer.cheapest() == ("spot", 8.0274)
    assert offer.cheapest(("on_demand", "reserved_1y")) == ("reserved_1y", 21.740553)


@pytest.mark.parametrize(
    ("region", "asked", "serves"),
    [
        ("us-east-1", "us-east-1", True),
        ("us-east-1", "US-East-1", True),
        ("us-east-1", "us-*", True),
        ("us-east-1", "eu-*", False),
        ("us-*", "us-east1-a", False),  # somewhere in the states is not known to be there
        ("us-*", "us-*", True),
        ("us-*", "u*", True),
        ("us-*", "eu-west-1", False),
        ("any", "mars-1", False),
        ("any", "a*", False),  # nowhere in particular is not a name that a pattern fits
        ("any", "any", True),
        ("any", "*", True),
        ("us-east-1", "any", False),
        ("eu-north1/us-central1", "us-central1", True),
        ("eu-north1/us-central1", "us-central2", False),
    ],
)
def test_regions_may_be_patterns(region: str, asked: str, *, serves: bool) -> None:
    offer = Offer(
        provider="p", instance="i", region=region, accelerator="T4", count=1, source="s", price_date="2026-01-01"
    )
    assert offer.serves(asked) is serves


def test_several_limits_are_met_by_one_place() -> None:
    offer = Offer(
        provider="p", instance="i", region="eu-north1/us-central1", accelerator="T4", count=1, source="s",
        price_date="2026-01-01",
    )  # fmt: skip
    assert offer.serves_each(["eu-*"])
    assert offer.serves_each(["us-*"], [])
    assert offer.serves_each(["eu-*"], ["us-*", "eu-north1"])
    assert offer.serves_each(["eu-*"], ["eu-north1/us-central1"])
    assert not offer.serves_each(["eu-*"], ["us-*"])


def test_a_region_of_an_offer_with_several_places_is_known() -> None:
    names = region_names(FACTS.offers)
    assert all(known_region(offer.region, names) for offer in FACTS.offers)
    assert "eu-north1/us-central1" in names


def test_a_fraction_of_a_gpu_is_a_share_of_one() -> None:
    offer = BY_KEY["azure", "Standard_NV6ads_A10_v5", "eastus"]
    part = FACTS.offered_accelerator(offer)
    whole = FACTS.accelerators["A10"]
    assert offer.count == 1
    assert offer.accelerator_share == pytest.approx(1 / 6)
    assert part.hbm_bytes == pytest.approx(whole.hbm_bytes / 6)
    assert part.peak["bf16"] == pytest.approx(whole.peak["bf16"] / 6)


def test_a_cpu_instance_has_cores_of_a_socket_and_the_ram_it_is_sold_with() -> None:
    offer = BY_KEY["aws", "m7i.4xlarge", "us-east-1"]  # 16 vCPU = 8 of the 48 cores of a Xeon 8488C, 64 GiB
    part = FACTS.offered_accelerator(offer)
    assert part.num_sms == 8
    assert part.hbm_bytes == 64 * 2**30
    assert part.hbm_bytes_per_s == pytest.approx(307.2e9 * 8 / 48)
    both = BY_KEY["aws", "m7i.48xlarge", "us-east-1"]  # 192 vCPU: both sockets
    assert (both.count, both.accelerator_share) == (2, 1.0)
    assert FACTS.offered_accelerator(both).hbm_bytes == 384 * 2**30


def test_a_cpu_offer_never_has_more_cores_than_its_vcpus() -> None:
    cpu_offers = instances(kind="cpu")
    assert len(cpu_offers) >= 50
    for offer in cpu_offers:
        cores = FACTS.accelerators[offer.accelerator].figure("num_sms") * offer.count * offer.accelerator_share
        assert offer.vcpus is not None
        assert cores == pytest.approx(offer.vcpus / (1 if "vCPU = core" in offer.notes else 2))
        assert offer.ram_bytes is not None


def test_filters_agree_with_a_plain_scan() -> None:
    found = instances(provider="AWS", region="us-east-1", gpu="h100", purchase="spot", max_usd_per_hour=30)
    assert found == tuple(
        o
        for o in OFFERS
        if o.provider == "aws"
        and o.region == "us-east-1"
        and o.accelerator == "H100-SXM-80"
        and o.spot_usd_per_hour is not None
        and o.spot_usd_per_hour <= 30
    )
    assert {o.instance for o in instances("P5.48XLARGE")} == {"p5.48xlarge"}
    assert all((o.on_demand_usd_per_hour or 9) <= 1 for o in instances(max_usd_per_hour=1))


def test_the_offers_of_one_accelerator_are_those_of_the_whole_table() -> None:
    for name in dict.fromkeys(offer.accelerator for offer in OFFERS):
        alone = Facts()
        assert alone.offers_for(accelerator=name) == tuple(offer for offer in OFFERS if offer.accelerator == name)
        assert "offers" not in vars(alone), "no other row is read"
    assert Facts().offers_for(accelerator="RTX-2080") == FACTS.offers_for(accelerator="RTX-2080")


def test_offers_of_a_folder_count_for_an_accelerator(tmp_path: Path) -> None:
    row = "provider,instance,region,accelerator,count,on_demand_usd_per_hour,price_date,source\n"
    (tmp_path / "instances.csv").write_text(f"{row}me,box,cellar,h100,8,1.5,2026-08-01,own\n", encoding="utf-8")
    mine = [offer for offer in load_facts(tmp_path).offers_for(accelerator="h100") if offer.provider == "me"]
    assert [offer.instance for offer in mine] == ["box"]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"provider": "awz"}, "unknown provider 'awz'; nearest: aws"),
        ({"region": "westeurop"}, "unknown region 'westeurop'; nearest: westeurope"),
        ({"gpu": "h1000"}, "unknown accelerator 'h1000'; nearest"),
        ({"name": "p5.48xlarg"}, "unknown instance 'p5.48xlarg'; nearest: p5.48xlarge"),
    ],
)
def test_a_filter_that_fits_nothing_known_names_the_nearest(filters: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        instances(**filters)


def test_a_kind_of_device_is_one_of_a_few() -> None:
    with pytest.raises(SpecError, match="kind: 'fpga' is not one of gpu, tpu, npu, soc, cpu"):
        instances(kind="fpga")


@pytest.mark.parametrize(("given", "offered"), [("amazon", "aws"), ("Google Cloud", "gcp"), ("lambda-labs", "lambda")])
def test_a_provider_goes_by_the_names_that_people_use(given: str, offered: str) -> None:
    assert {o.provider for o in instances(provider=given)} == {offered}
    assert load_facts().offers_for(provider=given) == load_facts().offers_for(provider=offered)


def test_a_misspelt_other_name_of_a_provider_is_near() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown provider 'gogle'.* Google is read as gcp"):
        instances(provider="gogle")


def test_other_names_are_of_providers_that_are_known_and_none_is_one() -> None:
    providers = {o.provider for o in OFFERS}
    assert set(PROVIDER_ALIASES.values()) <= providers
    assert not PROVIDER_ALIASES.keys() & providers


# provider, instance, the day as the provider's own announcement has it
RETIRED = [
    ("aws", "p3.2xlarge", "2025-12-20"),
    ("azure", "Standard_NC24rs_v3", "2025-09-30"),
    ("gcp", "n1-standard-8+1xP100-PCIe-16", "2026-09-15"),
    ("gcp", "n1-standard-4+1xT4", "2027-08-01"),
    ("gcp", "n1-standard-4+1xP4", "2027-08-01"),
]


@pytest.mark.parametrize(("provider", "instance", "day"), RETIRED)
def test_retired_machines_have_the_day_of_the_announcement(provider: str, instance: str, day: str) -> None:
    assert {o.retires_on for o in OFFERS if (o.provider, o.instance) == (provider, instance)} == {day}


def test_no_other_machine_is_retired() -> None:
    """A pattern of names takes no machine beside its own: no size of another series, no other accelerator."""
    kinds = {(o.provider, o.accelerator) for o in OFFERS if o.retires_on}
    assert kinds == {
        ("aws", "V100-SXM2-16"), ("azure", "V100-PCIe-16"), ("gcp", "P100-PCIe-16"), ("gcp", "T4"), ("gcp", "P4"),
    }  # fmt: skip
    assert not any(o.retires_on for o in OFFERS if o.instance.startswith(("p3dn", "Standard_NC4as", "Standard_ND40rs")))


def test_the_cheapest_offer_of_a_list_is_no_retired_one() -> None:
    """The retired V100 of Azure cost less on spot than any other; the sentence names one that can be had."""
    found = instances(gpu="v100-pcie-16")
    assert all(o.retires_on for o in found)
    both = instances(gpu="t4")
    assert any(o.retires_on for o in both)
    assert not all(o.retires_on for o in both)
