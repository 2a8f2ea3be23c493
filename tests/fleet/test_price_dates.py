"""What a fleet's bill says of its prices: no date, assumed, and of how many offers spot is known."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.api.assess import assess
from flopwise.fleet.assessment import Assessment
from flopwise.report.content import document
from flopwise.report.pages import markdown

FLEET: dict[str, Any] = {
    "name": "batches",
    "policies": {"purchase": ["on_demand", "spot"], "include_retired": True},
    "workloads": [
        {
            "name": "nightly", "task": "batch", "model": "Llama-3.1-8B",
            "traffic": {"requests": 100_000, "input_tokens": 500, "output_tokens": 200},
            "constraints": {"gpus": ["t4"], "providers": ["gcp"], "weight_formats": ["awq"]},
        }
    ],
}  # fmt: skip


def assessed(spot: str) -> Assessment:
    return assess({**FLEET, "policies": {**FLEET["policies"], "spot": spot}}, scenarios=500, today="2026-11-22")


def test_a_policy_may_assume_spot_prices_and_the_band_stands_in_the_interval() -> None:
    known, assumed = assessed("known"), assessed("assume")
    assert known.allocation[0].purchase == "on_demand"
    row = assumed.allocation[0]
    assert row.purchase == "spot"
    assert row.price_note.startswith("spot price assumed")
    assert row.usd_high / row.usd_low >= 0.40 / 0.09
    cost = assumed.usd_per_month
    assert cost.low < cost.total < cost.high
    assert cost.total < known.usd_per_month.total
    assert assumed.scenarios is not None
    assert assumed.scenarios.p90 / assumed.scenarios.p10 > 2
    assert any("assumed from published discounts" in risk.evidence for risk in assumed.risks)
    text = markdown(document(assumed))
    assert "spot price assumed" in text
    (covered,) = [one for one in assumed.spot_coverage if one.provider == "gcp"]
    assert (covered.known, covered.assumed, covered.offers) == (96, 11, 108)
    assert "96 of 108 (11 assumed) gcp" in text


def test_a_policy_may_assume_prices_of_reserved_machines() -> None:
    """Azure lists none for its T4: reserved for three years they are 56 to 67 % below on demand."""
    policies = {"purchase": ["on_demand", "reserved_1y", "reserved_3y"]}
    service = {
        "name": "api", "task": "serve", "model": "gpt2", "constraints": {"gpus": ["t4"], "providers": ["azure"]},
        "traffic": {"requests_per_s": 1, "input_tokens": 100, "output_tokens": 20},
    }  # fmt: skip
    fleet = {"name": "reserved", "workloads": [service], "policies": policies}
    known = assess(fleet, scenarios=0, today="2026-11-22")
    assert known.allocation[0].purchase == "on_demand"
    assumed = assess({**fleet, "policies": {**policies, "reserved": "assume"}}, scenarios=500, today="2026-11-22")
    (row,) = assumed.allocation
    assert (row.purchase, row.price_date) == ("reserved_3y", "2026-09-13")
    assert row.usd_per_month / known.allocation[0].usd_per_month == pytest.approx(1 - (0.56 + 0.67) / 2, rel=1e-6)
    assert row.usd_per_hour_interval == pytest.approx((0.33 * 0.526, 0.44 * 0.526))
    assert row.usd_high / row.usd_low >= 0.44 / 0.33 * (1 - 1e-9)
    (risk,) = [one for one in assumed.risks if "assumed" in one.evidence]
    assert risk.evidence.startswith("100 % of the bill is at reserved prices that are assumed from published discounts")
    assert "reserved price assumed" in markdown(document(assumed))


def test_one_workload_may_assume_where_the_fleet_does_not() -> None:
    job = {**FLEET["workloads"][0], "spot": "assume"}
    other = {**FLEET["workloads"][0], "name": "other"}
    found = assess({**FLEET, "workloads": [job, other]}, scenarios=0, today="2026-11-22")
    assert {row.workload: row.purchase for row in found.allocation} == {"nightly": "spot", "other": "on_demand"}


def test_a_derived_price_is_said_to_be_one_in_the_notes_and_the_risks() -> None:
    found = assessed("known")
    note = "derived price: the price of the machine of 2026-08-03"
    assert any(note in line for line in found.price_notes)
    assert any(note in risk.evidence for risk in found.risks)
    assert note in markdown(document(found))
