"""The price book as data: every row is possible, dated and sourced, and the loaders say what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flopwise.data import DATA
from flopwise.errors import SpecError
from flopwise.facts import price_book
from flopwise.facts.accelerators import GRADES
from flopwise.facts.catalog import folder_files, load_facts
from flopwise.facts.regions import GRIDS, TAGS
from flopwise.facts.tables import ANY, FactTable, read_table

FACTS = load_facts()
BOOK: tuple[FactTable[Any], ...] = (
    GRIDS, TAGS, price_book.HARDWARE, price_book.HOSTED, price_book.TERMS, price_book.VOLUMES,
)  # fmt: skip
PROVIDERS = {offer.provider for offer in FACTS.offers}


@pytest.mark.parametrize("table", BOOK, ids=lambda table: table.file)
def test_every_row_is_sourced_dated_and_stands_once(table: FactTable[Any]) -> None:
    rows = read_table(DATA / table.file, table.columns, keys=table.required_columns)
    assert len(rows) >= 13
    assert table.file in folder_files()
    seen = [tuple(row.values[name] for name in table.key) for row in rows]
    assert len(set(seen)) == len(seen)
    for row in rows:
        assert row.values["source"]
        assert "2018" < row.values["date"] <= "2026-11-21"
        if "recalled" in row.values["source"] and row.values["confidence"] == "high":
            assert table in {price_book.TERMS, TAGS}, "what was recalled is not certain"


def test_providers_are_those_of_the_offers() -> None:
    named = {name for tag in FACTS.tags.values() for name in tag} | {name for name, _ in FACTS.volume_prices}
    named |= {row.provider for row in FACTS.grids} | {row.provider for row in FACTS.purchase_terms}
    assert named <= {*PROVIDERS, ANY}


def test_every_offers_region_has_a_grid_and_the_large_clouds_their_own() -> None:
    for offer in FACTS.offers:
        grid = FACTS.grid(offer.provider, offer.region)
        assert 0.005 < grid.kg_per_kwh < 0.8
        if offer.provider in {"aws", "gcp", "azure"}:
            assert (grid.provider, grid.region) == (offer.provider, offer.region)


def test_the_same_grid_is_alike_in_two_sources() -> None:
    pairs = [("aws", "us-east-1", "azure", "eastus"), ("gcp", "us-east4", "aws", "us-east-1")]
    pairs += [("gcp", "europe-west9", "any", "paris"), ("azure", "swedencentral", "gcp", "europe-north2")]
    for one, here, other, there in pairs:
        ratio = FACTS.grid(one, here).kg_per_kwh / FACTS.grid(other, there).kg_per_kwh
        assert 0.7 < ratio < 1.4, (one, here, other, there)


def test_a_region_falls_back_from_its_own_row_to_patterns_to_the_world() -> None:
    assert FACTS.grid("aws", "us-east-1").region == "us-east-1"
    assert FACTS.grid("lambda", "us-*").region == "us*"
    assert FACTS.grid("nobody", "mars").region == "*"


def test_hosted_models_are_those_of_the_catalog() -> None:
    names = {row["name"] for row in FACTS.models.rows()}
    prices = FACTS.hosted_prices
    assert {p.model for p in prices if p.model} <= names
    assert len({p.provider for p in prices}) >= 6
    for price in prices:
        assert 0.01 <= price.input_usd_per_mtok <= price.output_usd_per_mtok * 1.0001
        assert (price.cached_usd_per_mtok or 0) < price.input_usd_per_mtok
    hosted = FACTS.hosted_for("llama-3.3-70b-instruct")
    assert {p.provider for p in hosted} >= {"deepinfra", "groq", "together"}
    assert [p.output_usd_per_mtok for p in FACTS.hosted_for("llama-3.1-8b") if p.provider == "groq"] == [0.08]
    assert FACTS.hosted_for("no-such-model") == ()


def test_hardware_is_of_known_accelerators_and_servers_come_first() -> None:
    prices = FACTS.hardware_prices
    for price in prices:
        assert price.accelerator in FACTS.accelerators
        assert 500 < price.usd / price.count < 100_000
    assert {price.grade for price in prices} == set(GRADES)
    server = FACTS.hardware_price("H100-SXM-80")
    assert server is not None
    assert (server.unit, server.count) == ("server", 8)
    assert FACTS.hardware_price("T4") is None


def test_sustained_use_is_for_the_machines_that_google_names() -> None:
    for offer in FACTS.offers:
        found = FACTS.terms_of(offer.provider, offer.instance)
        if offer.provider == "gcp":
            assert found is not None
            assert (found.sustained_tiers is not None) == offer.instance.startswith("n1-"), offer.instance
        elif found is not None:
            assert found.sustained_tiers is None


def test_volume_tiers_fall_and_unknown_ones_are_none() -> None:
    for provider in PROVIDERS:
        for kind in price_book.VOLUME_KINDS:
            price = FACTS.volume_prices.get((provider, kind))
            if price is None:
                continue
            paid = [usd for _, usd in price.tiers if usd]
            assert paid == sorted(paid, reverse=True)
            assert all(1e-12 < usd < 2e-10 for usd in paid)
    assert ("vast", "storage") not in FACTS.volume_prices


def test_tags_say_which_providers_have_them() -> None:
    assert FACTS.tags["hipaa"] & FACTS.tags["sagemaker"] == {"aws"}
    assert not FACTS.tags["sagemaker"] & FACTS.tags["vertex"]


ORIGIN = ",s,2026-01-01"
WRONG = [
    (price_book.TERMS, "provider,instances,billing_unit_s,minimum_s,sustained_tiers", "a,*,1,1,0.5:1"),
    (price_book.TERMS, "provider,instances,billing_unit_s,minimum_s,sustained_tiers", "a,*,1,1,0:0.5;0.5:0.9"),
    (price_book.TERMS, "provider,instances,billing_unit_s,minimum_s", "a,*,0,1"),
    (price_book.TERMS, "provider,instances,minimum_s", "a,*,1"),
    (price_book.VOLUMES, "provider,kind,from_gb,usd_per_gb,gb_bytes", "a,egress,5,1,1e9"),
    (price_book.VOLUMES, "provider,kind,from_gb,usd_per_gb,gb_bytes", f"a,egress,0,1,1e9{ORIGIN}\na,egress,0,0.5,1e9"),
    (price_book.VOLUMES, "provider,kind,from_gb,usd_per_gb,gb_bytes", "a,egress,0,-1,1e9"),
    (GRIDS, "provider,region,kg_per_kwh", "a,x,386"),
    (price_book.HOSTED, "provider,name,input_usd_per_mtok,output_usd_per_mtok", "a,m,1,0"),
    (price_book.HARDWARE, "accelerator,unit,grade,count,usd,least_usd", "T4,card,datacentre,1,5,9"),
    (TAGS, "provider,tag,colour", "a,b,c"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "header", "row"), WRONG)
def test_a_wrong_row_names_its_place(tmp_path: Path, table: FactTable[Any], header: str, row: str) -> None:
    (tmp_path / table.file).write_text(f"{header},source,date\n{row}{ORIGIN}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=rf"{table.file}, row [123]"):
        load_facts(tmp_path)


def test_a_folders_rows_are_laid_over_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / GRIDS.file).write_text("provider,region,kg_per_kwh,source,date\naws,us-east-1,0.1,own,2026-01-01\n")
    (tmp_path / price_book.VOLUMES.file).write_text(
        "provider,kind,from_gb,usd_per_gb,gb_bytes,source,date\naws,egress,0,0.02,1e9,own,2026-01-01\n"
    )
    facts = load_facts(tmp_path)
    own_grid, shipped = facts.grid("aws", "us-east-1"), FACTS.grid("aws", "us-east-1")
    assert (own_grid.kg_per_kwh, own_grid.source) == (0.1, "own")
    assert own_grid.pue == shipped.pue is not None, "an empty cell keeps the shipped fact"
    assert facts.grid("aws", "us-west-2") == FACTS.grid("aws", "us-west-2")
    [(start, usd)] = facts.volume_prices["aws", "egress"].tiers
    assert start == 0
    assert usd == pytest.approx(0.02e-9)
