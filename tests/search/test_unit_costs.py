"""What one of each unit costs: arithmetic over what a run or a month does."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise import fit, instances, plan, serve, simulate, train
from flopwise.changes.explanation import answer_figure
from flopwise.cost.money import commitment_note, unit_usd
from flopwise.provenance import walk
from flopwise.search.workload import resolve

SERVICE: dict[str, Any] = {
    "model": "Llama-7B", "task": "serve",
    "traffic": {"requests_per_s": 20, "peak": 2, "input_tokens": 100, "output_tokens": 50},
}  # fmt: skip


def test_a_month_of_a_service_by_hand() -> None:
    """20 requests a second on average in 730 hours are 52.56 million, whatever the peak; $1,200 over those."""
    amounts = resolve(SERVICE).amounts(730)
    assert amounts["request"] == pytest.approx(52.56e6)
    costs = unit_usd(1200, amounts)
    assert costs["million_requests"] == pytest.approx(1200 / 52.56)
    assert costs["million_input_tokens"] == pytest.approx(1200 / 5256)
    assert costs["million_output_tokens"] == pytest.approx(1200 / 2628)
    assert costs["hour"] == pytest.approx(1200 / 730)
    assert "run" not in costs


def test_a_run_by_hand() -> None:
    """Three epochs of 1B tokens, a tenth of them padding: 2.7B trained; $270 are $90 an epoch, 10 cents a million."""
    data = {"tokens": "1B", "epochs": 3, "seq_len": 2048}
    amounts = resolve({"model": "Llama-7B", "task": "pretrain", "data": data}).amounts(10)
    costs = unit_usd(270, amounts)
    assert costs["epoch"] == pytest.approx(90)
    assert costs["million_tokens"] == pytest.approx(0.09)
    assert costs["hour"] == pytest.approx(27)
    padded = resolve({"model": "Llama-7B", "task": "pretrain", "data": data | {"padded_frac": 0.1}})
    assert padded.amounts(10)["million_tokens"] == pytest.approx(3000)  # without padding


def test_a_batch_has_a_cost_for_each_request_and_what_is_unknown_has_none() -> None:
    batch = {"model": "Llama-7B", "task": "batch", "traffic": {"requests": 1000, "input_tokens": 8, "output_tokens": 2}}
    costs = unit_usd(5.0, resolve(batch).amounts(1))
    assert (costs["run"], costs["request"]) == pytest.approx((5.0, 0.005))
    assert unit_usd(None, {"run": 1.0}) == {}
    users = {"model": "Llama-7B", "task": "serve", "traffic": {"concurrency": 8}}
    assert unit_usd(730.0, resolve(users).amounts(730)) == {"hour": 1.0}


def test_train_and_plan_say_them() -> None:
    found = train("gpt2", gpu="h100", tokens="1B", epochs=2)
    run = found.estimate.run
    assert run is not None
    assert run.cost_usd is not None
    assert found.unit_usd["epoch"] == pytest.approx(run.cost_usd / 2)
    assert found.unit_usd["million_tokens"] == pytest.approx(run.cost_usd / 2000)
    assert found.unit_usd["hour"] == pytest.approx(run.cost_usd / (run.start_s + run.seconds) * 3600)
    best = plan(SERVICE | {"constraints": {"gpus": ["L4"]}, "simulate": False}).plans[0]
    assert best.unit_usd["million_requests"] == pytest.approx(best.cost_usd / 52.56)


def test_a_run_on_reserved_machines_says_what_the_reservation_costs() -> None:
    """Three years of 8,760 hours at two dollars are $52,560, whatever a run of a day takes of them."""
    assert commitment_note("reserved_3y", 2.0, 86_400) == "the reservation costs $52,560 in its 3 years, used or not"
    assert commitment_note("reserved_1y", 2.0, 86_400) == "the reservation costs $17,520 in its year, used or not"
    assert not commitment_note("reserved_1y", 2.0, 8_760 * 3_600)
    assert not commitment_note("on_demand", 2.0, 86_400)
    run: dict[str, Any] = {"gpu": "a100-80gb", "gpus": 8, "provider": "aws"}
    for model, length in (("Llama-3.1-8B", {"tokens": "1B"}), ("resnet50", {"samples": "1M"})):
        said = [train(model, **run | length, purchase=how).assumptions for how in ("reserved_1y", "on_demand")]
        assert [sum("the reservation costs $" in text for text in texts) for texts in said] == [1, 0]


def test_idle_accelerators_of_whole_machines_are_paid_and_told_by_every_command() -> None:
    """An A100 of Amazon's machines of eight: `serve` paid for eight without a word, `simulate` and `fit` for one."""
    rented: dict[str, Any] = {"gpu": "a100-80gb", "provider": "aws"}
    [price] = {o.on_demand_usd_per_hour for o in instances(gpu="a100-80gb", provider="aws", region="us-east-1")}
    idle = "machines are rented whole: 7 of the 8 accelerators that are paid for stand idle"
    served, simulated = serve("Llama-3.1-8B", **rented, rate=1), simulate("Llama-3.1-8B", **rented, rate=1, requests=20)
    fitted = fit("Llama-3.1-8B", **rented, formats="bf16")
    trained = train("Llama-3.1-8B", **rented, lora=16, tokens="1B")
    service = fitted.formats[0].service
    assert service is not None
    assert service.usd_per_hour == served.estimate.usd_per_hour == simulated.usd_per_hour == pytest.approx(price)
    assert trained.unit_usd["hour"] == pytest.approx(price, rel=1e-4)  # billed by whole seconds
    for answer in (served, simulated, fitted, trained):
        assert idle in answer.assumptions
    tree = answer_figure(served)
    [hourly] = {one.value: one for one in walk(tree) if one.name == "cost per hour"}.values()
    assert {one.name: one.value for one in hourly.inputs}["GPUs that are paid for"] == 8
    for count in (3, 8):
        here = serve("Llama-3.1-8B", **rented, gpus=count, rate=1)
        there = simulate("Llama-3.1-8B", **rented, replicas=count, rate=1, requests=20)
        assert here.estimate.usd_per_hour is not None
        assert here.estimate.usd_per_hour * count == pytest.approx(price)
        assert there.usd_per_hour == pytest.approx(price)
        assert any("stand idle" in text for text in there.assumptions) == (count == 3)
    assert not any("stand idle" in text for text in serve("Llama-3.1-8B", gpu="a100-80gb").assumptions)


def test_a_plan_on_reserved_machines_says_what_the_reservation_costs() -> None:
    few = {"providers": ["aws"], "gpus": ["l40s"], "purchase": ["reserved_1y"]}
    tuning = {"model": "Llama-3.1-8B", "task": "finetune", "method": {"kind": "lora"}, "data": {"tokens": "50M"}}
    best = plan({**tuning, "constraints": few}).plans[0]
    assert f"the reservation costs ${best.usd_per_hour * 8_760:,.0f} in its year, used or not" in best.price_note
    service = plan({**SERVICE, "constraints": few, "simulate": False}).plans[0]
    assert "reservation" not in service.price_note, "a month pays for all of its hours"
