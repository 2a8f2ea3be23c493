"""The price book as data: every row is possible, dated and sourced, and the loaders say what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import book, carbon, compliance, hardware_prices, hosted_prices, terms
from flopwise.facts.catalog import FOLDER_FILES, load_facts
from flopwise.facts.models import model_rows

FACTS = load_facts()
TABLES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    carbon.FILE: (carbon.COLUMNS, carbon.KEYS),
    compliance.FILE: (compliance.COLUMNS, compliance.KEYS),
    hardware_prices.FILE: (hardware_prices.COLUMNS, hardware_prices.KEYS),
    hosted_prices.FILE: (hosted_prices.COLUMNS, hosted_prices.KEYS),
    terms.TERMS: (terms.TERMS_COLUMNS, ("provider", "instances", "billing_unit_s", "minimum_s", "source", "date")),
    terms.VOLUMES: (terms.VOLUME_COLUMNS, ("provider", "kind", "from_gb", "usd_per_gb", "gb_bytes", "source", "date")),
}
IDENTITY = {
    carbon.FILE: ("provider", "region"),
    compliance.FILE: ("provider", "tag"),
    hardware_prices.FILE: ("accelerator", "unit"),
    hosted_prices.FILE: ("provider", "name"),
    terms.TERMS: ("provider", "instances"),
    terms.VOLUMES: ("provider", "kind", "from_gb"),
}
PROVIDERS = {offer.provider for offer in FACTS.offers}


@pytest.mark.parametrize("file", TABLES)
def test_every_row_is_sourced_dated_and_stands_once(file: str) -> None:
    columns, keys = TABLES[file]
    rows = list(book.rows(file, columns, keys))
    assert len(rows) >= 13
    assert file in FOLDER_FILES
    seen = [tuple(row.values[name] for name in IDENTITY[file]) for row in rows]
    assert len(set(seen)) == len(seen)
    for row in rows:
        assert row.values["source"]
        assert "2018" < row.values["date"] <= "2026-11-21"
        if "recalled" in row.values["source"] and row.values["confidence"] == "high":
            assert file in {terms.TERMS, compliance.FILE}, "what was recalled is not certain"


def test_providers_are_those_of_the_offers() -> None:
    for file in (carbon.FILE, compliance.FILE, terms.TERMS, terms.VOLUMES):
        columns, keys = TABLES[file]
        assert {row.values["provider"] for row in book.rows(file, columns, keys)} <= {*PROVIDERS, carbon.ANY}


def test_every_offers_region_has_a_grid_and_the_large_clouds_their_own() -> None:
    for offer in FACTS.offers:
        grid = carbon.grid_record(offer.provider, offer.region)
        assert 0.005 < grid.kg_per_kwh < 0.8
        if offer.provider in {"aws", "gcp", "azure"}:
            assert (grid.provider, grid.region) == (offer.provider, offer.region)


def test_the_same_grid_is_alike_in_two_sources() -> None:
    pairs = [("aws", "us-east-1", "azure", "eastus"), ("gcp", "us-east4", "aws", "us-east-1")]
    pairs += [("gcp", "europe-west9", "any", "paris"), ("azure", "swedencentral", "gcp", "europe-north2")]
    for one, here, other, there in pairs:
        ratio = carbon.grid_record(one, here).kg_per_kwh / carbon.grid_record(other, there).kg_per_kwh
        assert 0.7 < ratio < 1.4, (one, here, other, there)


def test_a_region_falls_back_from_its_own_row_to_patterns_to_the_world() -> None:
    assert carbon.grid_record("aws", "us-east-1").region == "us-east-1"
    assert carbon.grid_record("lambda", "us-*").region == "us*"
    assert carbon.grid_record("nobody", "mars").region == "*"


def test_hosted_models_are_those_of_the_catalog() -> None:
    names = {row["name"] for row in model_rows()}
    prices = hosted_prices.hosted_prices()
    assert {p.model for p in prices if p.model} <= names
    assert len({p.provider for p in prices}) >= 6
    for price in prices:
        assert 0.01 <= price.input_usd_per_mtok <= price.output_usd_per_mtok * 1.0001
        assert (price.cached_usd_per_mtok or 0) < price.input_usd_per_mtok
    hosted = hosted_prices.hosted_for("llama-3.3-70b-instruct")
    assert {p.provider for p in hosted} >= {"deepinfra", "groq", "together"}
    assert hosted_prices.hosted_price("GROQ", "llama-3.1-8b").output_usd_per_mtok == 0.08
    assert hosted_prices.hosted_for("no-such-model") == ()
    with pytest.raises(UnknownNameError, match="groq"):
        hosted_prices.hosted_price("groq", "llama-3.1-405b")


def test_hardware_is_of_known_accelerators_and_servers_come_first() -> None:
    prices = hardware_prices.hardware_prices()
    for price in prices:
        assert price.accelerator in FACTS.accelerators
        assert 500 < price.usd / price.count < 100_000
    assert {price.grade for price in prices} == set(hardware_prices.GRADES)
    server = hardware_prices.hardware_price("H100-SXM-80")
    assert server is not None
    assert (server.unit, server.count) == ("server", 8)
    assert hardware_prices.hardware_price("T4") is None


def test_sustained_use_is_for_the_machines_that_google_names() -> None:
    for offer in FACTS.offers:
        found = terms.purchase_terms(offer.provider, offer.instance)
        if offer.provider == "gcp":
            assert found is not None
            assert (found.sustained_tiers is not None) == offer.instance.startswith("n1-"), offer.instance
        elif found is not None:
            assert found.sustained_tiers is None


def test_volume_tiers_fall_and_unknown_ones_are_none() -> None:
    for provider in PROVIDERS:
        for kind in terms.KINDS:
            price = terms.volume_price(provider, kind)
            if price is None:
                continue
            paid = [usd for _, usd in price.tiers if usd]
            assert paid == sorted(paid, reverse=True)
            assert all(1e-12 < usd < 2e-10 for usd in paid)
    assert terms.volume_price("vast", "storage") is None


def test_tags_say_which_providers_have_them() -> None:
    assert compliance.providers_with([]) is None
    assert compliance.providers_with(["HIPAA", "sagemaker"]) == frozenset({"aws"})
    assert compliance.providers_with(["sagemaker", "vertex"]) == frozenset()
    with pytest.raises(UnknownNameError, match="nearest: sagemaker"):
        compliance.providers_with(["sagemakr"])


ORIGIN = ",s,2026-01-01"
WRONG: list[tuple[str, str, str, Callable[[Path], object]]] = [
    (terms.TERMS, "provider,instances,billing_unit_s,minimum_s,sustained_tiers,source,date\n", f"a,*,1,1,0.5:1{ORIGIN}",
     lambda f: terms.purchase_terms("a", "x", f)),
    (terms.TERMS, "provider,instances,billing_unit_s,minimum_s,sustained_tiers,source,date\n",
     f"a,*,1,1,0:0.5;0.5:0.9{ORIGIN}", lambda f: terms.purchase_terms("a", "x", f)),
    (terms.TERMS, "provider,instances,billing_unit_s,minimum_s,source,date\n", f"a,*,0,1{ORIGIN}",
     lambda f: terms.purchase_terms("a", "x", f)),
    (terms.VOLUMES, "provider,kind,from_gb,usd_per_gb,gb_bytes,source,date\n", f"a,egress,5,1,1e9{ORIGIN}",
     lambda f: terms.volume_price("a", "egress", f)),
    (terms.VOLUMES, "provider,kind,from_gb,usd_per_gb,gb_bytes,source,date\n",
     f"a,egress,0,1,1e9{ORIGIN}\na,egress,0,0.5,1e9{ORIGIN}", lambda f: terms.volume_price("a", "egress", f)),
    (terms.VOLUMES, "provider,kind,from_gb,usd_per_gb,gb_bytes,source,date\n", f"a,egress,0,-1,1e9{ORIGIN}",
     lambda f: terms.volume_price("a", "egress", f)),
    (carbon.FILE, "provider,region,kg_per_kwh,source,date\n", f"a,x,386{ORIGIN}",
     lambda f: carbon.grid_record("a", "x", f)),
    (hosted_prices.FILE, "provider,name,input_usd_per_mtok,output_usd_per_mtok,source,date\n", f"a,m,1,0{ORIGIN}",
     hosted_prices.hosted_prices),
    (hardware_prices.FILE, "accelerator,unit,grade,count,usd,least_usd,source,date\n",
     f"T4,card,datacentre,1,5,9{ORIGIN}", hardware_prices.hardware_prices),
    (compliance.FILE, "provider,tag,source\n", "a,b,s", compliance.tags),
]  # fmt: skip


@pytest.mark.parametrize(("file", "header", "row", "load"), WRONG)
def test_a_wrong_row_names_its_place(
    tmp_path: Path, file: str, header: str, row: str, load: Callable[[Path], object]
) -> None:
    (tmp_path / file).write_text(f"{header}{row}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=rf"{file}, row [123]"):
        load(tmp_path)


def test_a_folders_rows_are_laid_over_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / carbon.FILE).write_text("provider,region,kg_per_kwh,source,date\naws,us-east-1,0.1,own,2026-01-01\n")
    (tmp_path / terms.VOLUMES).write_text(
        "provider,kind,from_gb,usd_per_gb,gb_bytes,source,date\naws,egress,0,0.02,1e9,own,2026-01-01\n"
    )
    assert carbon.grid_record("aws", "us-east-1", tmp_path).kg_per_kwh == 0.1
    assert carbon.grid_record("aws", "us-west-2", tmp_path) == carbon.grid_record("aws", "us-west-2")
    own = terms.volume_price("aws", "egress", tmp_path)
    assert own is not None
    [(start, usd)] = own.tiers
    assert start == 0
    assert usd == pytest.approx(0.02e-9)
    assert (DATA / carbon.FILE).is_file()
