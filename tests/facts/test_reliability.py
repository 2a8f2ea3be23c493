"""Records of failures and spot interruptions: published rates come out again, a folder's rows lie over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.reliability import FailureRecord, SpotRecord
from flopwise.facts.tables import ANY
from flopwise.training.goodput import DEFAULT_RELIABILITY
from named import FACTS

SPOT = "provider,accelerator,least_frac,most_frac,period,source,date\n"


def test_records_give_the_rates_that_were_published() -> None:
    records = FACTS.failures
    assert 16_384 / records["llama-3"].mtbf_gpu_s * 54 * 86400 == pytest.approx(419)
    assert records["rsc-1"].mtbf_gpu_s / 16_384 / 3600 == pytest.approx(1.8, abs=0.01)  # the projection of its authors
    assert DEFAULT_RELIABILITY.mtbf_gpu_s == pytest.approx(records["llama-3"].mtbf_gpu_s)


def test_rows_have_a_source_and_name_what_is_known() -> None:
    chips = FACTS.accelerators
    every: list[FailureRecord | SpotRecord] = [*FACTS.failures.values(), *FACTS.spot_records]
    assert all(r.source and r.date and r.confidence for r in every)
    assert all(r.accelerator in chips for r in every if r.accelerator)
    providers = {offer.provider for offer in FACTS.offers}
    assert {r.provider for r in FACTS.spot_records} <= {*providers, ANY}
    assert all(0 <= r.least_frac <= r.most_frac < 1 and r.interruptions_per_s > 0 for r in FACTS.spot_records)


def test_a_share_a_month_is_a_rate_that_leaves_the_rest() -> None:
    month = 365.25 / 12 * 86400
    row = SpotRecord(provider="p", least_frac=0.4, most_frac=0.6, period="month", source="s", date="2026-01-01")
    assert 2 ** -(row.interruptions_per_s * month / 0.6931471805599453) == pytest.approx(0.5)


def test_every_spot_offer_has_a_rate_and_says_how_sure_it_is() -> None:
    aws, google = FACTS.spot("aws", "H100-SXM-80"), FACTS.spot("gcp", "L4")
    assert google.interruptions_per_s > aws.interruptions_per_s
    assert FACTS.spot("aws", "T4").accelerator is None, "of the provider, where its machine has none"
    assert FACTS.spot("aws", "A10G").accelerator == "A10G"
    other = FACTS.spot("lambda", "H100-SXM-80")
    assert other.provider == ANY
    assert "assumed" in other.text
    assert "low confidence" in other.text
    for offer in FACTS.offers:
        assert FACTS.spot(offer.provider, offer.accelerator).interruptions_per_s > 0
    with pytest.raises(UnknownNameError, match="rsc-1"):
        FACTS.failure_record("rsc-9")


def test_a_folder_lies_over_the_shipped_rows(tmp_path: Path) -> None:
    (tmp_path / "failures.csv").write_text("name,gpus,days,failures,source,date\nours,512,30,6,logs,2026-01-01\n")
    (tmp_path / "spot.csv").write_text(SPOT + "aws,H100-SXM-80,0.5,0.5,day,logs,2026-01-01\n")
    assert load_facts(tmp_path).failure_record("Ours").mtbf_gpu_s == 512 * 5 * 86400
    assert load_facts(tmp_path).failure_record("llama-3") == FACTS.failure_record("llama3")
    row = load_facts(tmp_path).spot("aws", "H100-SXM-80")
    assert row.period == "day"
    (tmp_path / "spot.csv").write_text(SPOT + "any,,0.5,0.5,hour,logs,2026-01-01\naws,,0.1,0.1,day,logs,2026-01-01\n")
    assert (
        load_facts(tmp_path).spot("vast", "L4").text
        == "50 to 50 % of instances are interrupted per hour (logs, 2026-01-01, medium confidence)"
    )
    assert load_facts(tmp_path).spot("aws", "B200").least_frac == 0.1
    assert load_facts(tmp_path).spot("aws", "L4") == FACTS.spot("aws", "L4"), (
        "the shipped row of the accelerator stands"
    )
    asked: dict[str, Any] = {"gpu": "h100", "gpus": 8, "fsdp": True, "seq": 2048, "tokens": 1e9, "facts": tmp_path}
    run = flopwise.train("Llama-3.1-8B", failures="ours", **asked).estimate.run
    assert run is not None
    assert run.mtbf_s == pytest.approx(512 * 5 * 86400 / 8)


@pytest.mark.parametrize("cells", ["0.6,0.5,day", "0,0,day", "0.1,1.0,day", "-0.1,0.2,day", "0.1,0.2,week"])
def test_rows_that_cannot_be_name_their_place(tmp_path: Path, cells: str) -> None:
    (tmp_path / "spot.csv").write_text(SPOT + f"aws,L4,{cells},logs,2026-01-01\n")
    with pytest.raises(SpecError, match="row 2"):
        load_facts(tmp_path)
