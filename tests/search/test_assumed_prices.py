"""A plan on machines whose price is not known: left out, or assumed and marked."""

from __future__ import annotations

import pytest

from flopwise.api.plan import plan
from flopwise.cli.plan_text import blocks
from flopwise.cli.render import Screen
from flopwise.errors import InfeasibleError
from flopwise.search.answer import Plan, to_json

BATCH = {
    "model": "Llama-3.1-8B", "task": "batch", "simulate": False,
    "traffic": {"requests": 100_000, "input_tokens": 500, "output_tokens": 200},
    "constraints": {"gpus": ["t4"], "providers": ["gcp"], "purchase": ["spot"], "weight_formats": ["awq"],
                    "include_retired": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def assumed() -> Plan:
    return plan({**BATCH, "spot": "assume"})


def test_a_spot_price_that_is_not_known_is_left_out() -> None:
    with pytest.raises(InfeasibleError, match="no offer satisfies"):
        plan(BATCH)


def test_an_assumed_price_is_marked_with_its_band(assumed: Plan) -> None:
    best = assumed.plans[0]
    assert best.purchase == "spot"
    assert best.price_note.startswith("spot price assumed, $")
    low, high = best.usd_per_hour_interval or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(best.usd_per_hour)
    assert high / low == pytest.approx(0.40 / 0.09)
    assert best.cost_usd_high is not None
    assert best.cost_usd_low is not None
    errors = (best.seconds_high or 0.0) / (best.seconds_low or 1.0)  # of the model, beside those of the price
    assert best.cost_usd_high / best.cost_usd_low == pytest.approx(errors * 0.40 / 0.09, rel=0.2)
    (row,) = assumed.spot_coverage
    assert (row.provider, row.known, row.assumed, row.offers) == ("gcp", 0, 4, 4)
    assert "spot price known of 0 of 4 (4 assumed) gcp accelerator offers" in assumed.assumptions
    assert Plan.from_json(to_json(assumed)) == assumed


def test_the_screen_says_assumed_and_how_many_are_known(assumed: Plan) -> None:
    text = "\n".join(blocks(assumed, Screen(width=200), 3))
    assert "spot price assumed, $" in text
    assert "spot price known of 0 of 4 (4 assumed) gcp accelerator offers" in text


def test_a_price_of_reserved_machines_is_assumed_where_that_is_asked_for() -> None:
    """An NC24ads of Azure at $3.673 on demand: 31 to 43 % less for a year, in the middle $2.314."""
    limits = {"gpus": ["a100"], "instances": ["Standard_NC24ads_A100_v4"], "purchase": ["reserved_1y"]}
    asked = {**BATCH, "constraints": limits}
    with pytest.raises(InfeasibleError, match="no offer satisfies"):
        plan({**asked, "spot": "assume"})
    best = plan({**asked, "reserved": "assume"}).plans[0]
    assert best.usd_per_hour / best.num_instances == pytest.approx(0.63 * 3.673)
    assert best.price_note.startswith("reserved price assumed, $2.094 to $2.534 an hour")


def test_an_undated_price_and_a_derived_one_say_so() -> None:
    on_demand = {**BATCH["constraints"], "purchase": ["on_demand"]}  # type: ignore[dict-item]
    derived = plan({**BATCH, "constraints": on_demand}).plans[0]
    assert derived.price_note.startswith("derived price: ")
    assert derived.price_date == "2025-07-13"
    sweden = {**BATCH["constraints"], "providers": ["azure"], "regions": ["swedencentral"]}  # type: ignore[dict-item]
    azure = plan({**BATCH, "constraints": sweden})
    assert azure.plans[0].price_date == "undated"
    assert azure.plans[0].price_note == "undated price"
    text = "\n".join(blocks(azure, Screen(width=200), 3))
    assert "/h, undated: Azure Retail Prices" in text
