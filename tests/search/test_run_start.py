"""A run is paid from the boot of its machines on: what that takes, by hand from data, and who wins then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.api.serve import serve
from flopwise.api.train import train
from flopwise.cli.plan_text import blocks
from flopwise.cli.render import Screen
from flopwise.cost.money import run_cost_usd
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.formats import BF16
from flopwise.search.answer import RejectionLog
from flopwise.search.deployments import deployments
from flopwise.search.nodes import node_kinds
from flopwise.search.plan import plan
from flopwise.search.replica import with_facts
from flopwise.search.serving_option import serving_options
from flopwise.search.workload_file import workload_from
from flopwise.training.start import training_start_s
from flopwise.units import format_seconds
from named import recipe_with

FACTS = load_facts(None)
SHORT = {"model": "gpt2", "task": "pretrain", "data": {"tokens": "100M", "seq_len": 1024, "global_batch": 16}}


def test_the_start_of_a_training_run_by_hand() -> None:
    """60 s of boot, 270 of image, 24 of imports; 2.35 a layer if compiled; 2 or 4 bytes a token, 8 GB/s."""
    model = FACTS.model("gpt2")
    fused = recipe_with(stack="fsdp-compile", seq_len=1024)
    compiled = training_start_s(model, fused, 100e6, 1.0, FACTS, pretrained=False)
    assert compiled == pytest.approx(60 + 270 + 24 + 12 * 2.35 + 200e6 / 8e9)
    eager = training_start_s(model, recipe_with(stack="hf-trainer", seq_len=1024), 100e6, 2.0, FACTS, pretrained=False)
    assert eager == pytest.approx(60 + 270 + 24 + 100e6 / 8e9)
    wide = training_start_s(
        FACTS.model("Llama-3-8B"), recipe_with(stack="hf-trainer", seq_len=1024), 10e9, 2.0, FACTS, pretrained=False
    )
    assert wide == pytest.approx(354 + 20e9 / 8e9), "128,256 ids need four bytes"
    images = training_start_s(
        FACTS.model("ViT-L/16"), recipe_with(stack="hf-trainer", seq_len=197), 1e9, 1.0, FACTS, pretrained=False
    )
    assert images == pytest.approx(354 + 768e9 / 8e9), "a patch has 16 x 16 pixels of three bytes"
    tuned = training_start_s(
        FACTS.model("Llama-7B"), recipe_with(stack="hf-trainer", seq_len=1024), 0.0, 1.0, FACTS, pretrained=True
    )
    assert tuned == pytest.approx(354 + 2 * 6_738_415_616 / 850e6)


def test_time_is_paid_as_the_provider_rounds_it() -> None:
    """By the second on aws, at least a minute; by the hour at paperspace."""
    aws, hourly = (
        next(FACTS.terms_of(o.provider, o.instance) for o in FACTS.offers if o.provider == name)
        for name in ("aws", "paperspace")
    )
    assert run_cost_usd(3000.2, 100.0, 36.0, aws) == pytest.approx(31.01)
    assert run_cost_usd(5.0, 1.0, 36.0, aws) == pytest.approx(0.6)
    assert run_cost_usd(3500.0, 101.0, 36.0, hourly) == pytest.approx(72.0)


def test_a_hundred_seconds_on_eight_accelerators_do_not_beat_one() -> None:
    names = {"g4dn.xlarge": "us-east-1", "p4d.24xlarge": "us-east-1"}
    offers = tuple(o for o in FACTS.offers if names.get(o.instance) == o.region)
    found = plan(workload_from(SHORT), FACTS.with_tables(offers=offers))
    first, *rest = found.plans
    assert (first.instance, first.num_gpus) == ("g4dn.xlarge", 1)
    (eight,) = [c for c in rest if c.instance == "p4d.24xlarge"]
    assert eight.seconds < 300 < eight.start_s
    for one in found.plans:
        assert one.cost_usd == pytest.approx((one.seconds + one.start_s) / 3600 * one.usd_per_hour, rel=1e-2)


def test_a_batch_waits_for_its_engine_and_a_service_has_no_start() -> None:
    traffic = {"requests": 1000, "input_tokens": 128, "output_tokens": 16}
    offers = tuple(o for o in FACTS.offers if o.instance == "g6e.xlarge" and o.region == "us-east-1")
    some = FACTS.with_tables(offers=offers)
    batch = plan(workload_from({"model": "Llama-7B", "task": "batch", "traffic": traffic, "simulate": False}), some)
    (one,) = batch.plans
    served = serve("Llama-7B", gpu="l40s", storage="s3", weights=one.layout["weights"])
    assert served.cold_start.seconds > 24, "imports; and weights, compilation, graphs, warm-up"
    assert one.start_s == pytest.approx(60 + 270 + served.cold_start.seconds)
    assert one.cost_usd == pytest.approx((one.seconds + one.start_s) / 3600 * one.usd_per_hour, rel=1e-2)
    rate = {"requests_per_s": 1, "input_tokens": 128, "output_tokens": 16}
    service = plan(workload_from({"model": "Llama-7B", "task": "serve", "traffic": rate, "simulate": False}), some)
    assert service.plans[0].start_s == 0.0


def offers_of(*names: str) -> Facts:
    return FACTS.with_tables(offers=tuple(o for o in FACTS.offers if o.instance in names and o.region == "us-east-1"))


def test_the_interval_of_the_cost_is_that_of_the_run_after_its_start() -> None:
    """$/s x (start + what the run takes at the end of its interval); an hour of it costs what an hour costs."""
    found = plan(workload_from(SHORT), offers_of("p4d.24xlarge"))
    one = found.plans[0]
    assert one.seconds_low is not None
    assert one.seconds_high is not None
    per_s = one.cost_usd / (one.start_s + one.seconds)
    assert one.cost_usd_low == pytest.approx(per_s * (one.start_s + one.seconds_low))
    assert one.cost_usd_high == pytest.approx(per_s * (one.start_s + one.seconds_high))
    assert one.unit_usd["hour"] == pytest.approx(one.usd_per_hour, rel=1e-2)


def test_a_budget_holds_the_start_whatever_the_throughput() -> None:
    """What is left after the start is enough in 9 of 10 cases where the run's upper end costs that; else never."""
    facts = offers_of("p4d.24xlarge")
    free = plan(workload_from(SHORT), facts).plans[0]
    assert free.cost_usd_high is not None
    budget = {"targets": {"budget": free.cost_usd_high, "confidence": 0.5}}
    found = plan(workload_from(SHORT | budget), facts)
    (same,) = [c for c in found.plans if c.layout == free.layout and c.purchase == free.purchase][:1]
    assert same.meets["budget"] == pytest.approx(0.9, abs=0.01)
    start = plan(workload_from(SHORT | {"targets": {"budget": free.start_usd * 0.9}}), facts)
    assert not start.plans
    assert start.misses[0].meets["budget"] == 0.0


def test_data_are_brought_once_however_often_they_are_read() -> None:
    """100M tokens in four epochs: 25M ids of two bytes, from a store of 8 GB/s."""
    facts, once = offers_of("g4dn.xlarge"), {"task": "pretrain", "model": "gpt2"}
    data = {"tokens": "100M", "seq_len": 1024, "global_batch": 16}
    starts = [
        plan(workload_from(once | {"data": data | more}), facts).plans[0]
        for more in ({}, {"tokens": "25M", "epochs": 4})
    ]
    assert starts[0].seconds == pytest.approx(starts[1].seconds)
    assert starts[0].start_s - starts[1].start_s == pytest.approx(150e6 / 8e9)


def test_every_stack_of_the_table_is_one() -> None:
    for record in FACTS.start_records:
        for name in record.stacks:
            assert name == "any" or FACTS.stack(name).name == name


def test_train_pays_for_the_start_as_a_plan_does() -> None:
    """gpt2 on a machine of eight: 354 s, 12 layers of compilation, 200 MB; at the price of its hour."""
    run = train("gpt2", gpu="a100", gpus=8, tokens="100M", price=2).estimate.run
    assert run is not None
    assert run.start_s == pytest.approx(354 + 12 * 2.35 + 200e6 / 8e9)
    assert run.start_usd == pytest.approx(16 * run.start_s / 3600)
    assert run.cost_usd == pytest.approx(16 * (run.start_s + run.seconds) / 3600)
    assert train("gpt2", gpu="a100", gpus=8).estimate.run is None


def test_train_is_billed_as_the_named_offer_bills() -> None:
    """By the hour, of a provider with such terms: 0.1 h and the start are one hour."""
    offer = next(o for o in FACTS.offers if o.provider == "paperspace" and o.on_demand_usd_per_hour and o.count == 1)
    named: dict[str, Any] = {"provider": offer.provider, "instance": offer.instance, "region": offer.region}
    run = train("gpt2", seq=1024, tokens="1M", **named).estimate.run
    assert run is not None
    assert 0 < run.start_s + run.seconds < 3600
    assert run.cost_usd == pytest.approx(offer.on_demand_usd_per_hour)


def test_the_interval_of_what_train_costs_leaves_its_start_alone() -> None:
    """2 $/h: start 382.2 s, and the run at 1.25 and at 0.8 of the throughput."""
    run = train("gpt2", gpu="a100", tokens="100M", price=2).estimate.run
    assert run is not None
    ends = run.ends(replace(train("gpt2", gpu="a100").estimate.band, low=0.8, high=1.25))
    for end, rate in (("low", 1.25), ("high", 0.8)):
        assert ends[f"cost_usd_{end}"] == pytest.approx(2 / 3600 * (run.start_s + run.seconds / rate))
        assert ends[f"seconds_{end}"] == pytest.approx(run.seconds / rate)


def test_weights_of_what_is_tuned_are_brought_whether_by_adapters_or_not() -> None:
    """2 bytes for each of 8.03e9 weights at 850 MB/s: 18.9 s more than from scratch."""
    asked: dict[str, Any] = {"gpu": "a100", "gpus": 8, "tokens": "10M", "seq": 2048, "global_batch": 64}
    starts = {}
    ways: dict[str, dict[str, Any]] = {"scratch": {}, "whole": {"finetune": True}}
    ways["lora"] = {"lora": 8, "stack": "fsdp-compile"}
    for name, more in ways.items():
        run = train("Llama-3.1-8B", **asked, **more).estimate.run
        assert run is not None
        starts[name] = run.start_s
    assert starts["whole"] - starts["scratch"] == pytest.approx(2 * 8_030_261_248 / 850e6)
    assert starts["lora"] == starts["whole"]


def test_a_deadline_holds_the_start_whatever_the_throughput() -> None:
    """After the start the run's upper end is in time in 9 of 10 cases; a deadline within the start never holds."""
    facts = offers_of("p4d.24xlarge")
    free = plan(workload_from(SHORT), facts).plans[0]
    assert free.seconds_high is not None
    late = {"targets": {"deadline": free.start_s + free.seconds_high, "confidence": 0.5}}
    found = plan(workload_from(SHORT | late), facts)
    (same,) = [c for c in found.plans if c.layout == free.layout and c.purchase == free.purchase][:1]
    assert same.meets["deadline"] == pytest.approx(0.9, abs=0.01)
    start = plan(workload_from(SHORT | {"targets": {"deadline": free.start_s * 0.9}}), facts)
    assert not start.plans
    assert start.misses[0].meets["deadline"] == 0.0
    near = start.misses[0]
    assert near.shortfall["deadline"] == pytest.approx((near.start_s + near.seconds) / (free.start_s * 0.9))


def test_a_batch_with_a_deadline_has_as_many_replicas_as_the_time_after_its_start_takes() -> None:
    """200,000 requests in 3,600 s less the start, over what one replica answers a second with a chance of 80 %."""
    traffic = {"requests": 200_000, "input_tokens": 512, "output_tokens": 128}
    job = {"model": "Llama-7B", "task": "batch", "traffic": traffic, "simulate": False, "targets": {"deadline": "1h"}}
    facts = offers_of("g6e.xlarge")
    workload = with_facts(workload_from(job), facts)
    (node,) = node_kinds(workload, facts, RejectionLog())
    found = deployments(facts.model("Llama-7B"), workload, node, BF16, facts.cache_format("bf16"))
    assert found is not None
    assert (found.start_s > 360).all()
    model, cache = facts.model("Llama-7B"), facts.cache_format("bf16")
    (option,) = serving_options(workload, model, node, found, cache, node.priced[:1])
    pace = found.requests_per_s * option.bands["throughput"].quantile(1 - 0.8)
    by_hand = np.ceil(200_000 / (3600 - found.start_s) / pace)
    assert found.replicas.tolist() == by_hand.tolist()
    assert (by_hand > np.ceil(200_000 / 3600 / pace)).any()


def test_energy_holds_the_start_at_idle_power() -> None:
    """An A100 of 400 W idles at 40 W beside 200 W of its host; eight of them, 1.2 at the meter, for the start."""
    one = plan(workload_from(SHORT), offers_of("p4d.24xlarge")).plans[0]
    idle = 8 * (40 + 200) * 1.2 * one.start_s
    assert one.energy_joules is not None
    assert one.energy_joules_low is not None
    run = one.energy_joules - idle
    assert 8 * (40 + 200) * 1.2 * one.seconds < run < 8 * (0.95 * 400 + 200) * 1.2 * one.seconds
    assert one.seconds_low is not None
    assert one.energy_joules_low == pytest.approx(idle + run * one.seconds_low / one.seconds)
    traffic = {"requests": 1000, "input_tokens": 128, "output_tokens": 16}
    batch = {"model": "Llama-7B", "task": "batch", "traffic": traffic, "simulate": False}
    answered = plan(workload_from(batch), offers_of("g6e.xlarge")).plans[0]
    assert answered.energy_joules is not None
    idle = (35 + 175) * 1.2 * answered.start_s  # an L40S of 350 W
    run = answered.energy_joules - idle
    assert (35 + 175) * 1.2 * answered.seconds < run < (0.95 * 350 + 175) * 1.2 * answered.seconds


def test_what_a_deadline_holds_is_what_the_answer_and_its_table_say() -> None:
    """A run of seconds on machines that take minutes to start: `done in` is both, and the start has a column."""
    facts, text = FACTS, {**SHORT, "constraints": {"gpus": ["T4"]}}
    met = plan(workload_from(text), facts)
    best, paper = met.plans[0], Screen(width=300)
    assert f"done in {format_seconds(best.start_s + best.seconds)} (" in met.verdict
    assert f"), {format_seconds(best.start_s)} of it to start" in met.verdict
    shown = "\n".join(blocks(met, paper, 3))
    assert " start  " in shown
    missed = plan(workload_from({**text, "targets": {"deadline": f"{best.start_s / 2:.0f}s"}}), facts)
    nearest = missed.misses[0]
    assert not missed.plans
    both, start = format_seconds(nearest.start_s + nearest.seconds), format_seconds(nearest.start_s)
    assert f"whose time of {both}, {start} of it to start, is" in missed.verdict
    example = next(row.example for row in missed.ruled_out if row.reason == "misses deadline")
    assert ": done in " in example
