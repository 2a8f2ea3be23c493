"""A run is paid from the boot of its machines on: what that takes, by hand from data, and who wins then."""

from __future__ import annotations

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.search.plan import plan
from flopwise.search.run_start import run_cost_usd
from flopwise.search.workload_file import workload_from
from flopwise.training.start import training_start_s

FACTS = load_facts(None)
SHORT = {"model": "gpt2", "task": "pretrain", "data": {"tokens": "100M", "seq_len": 1024, "global_batch": 16}}


def test_the_start_of_a_training_run_by_hand() -> None:
    """60 s of boot, 270 of image, 24 of imports; 2.35 a layer where the stack compiles; 400 MB at 8 GB/s."""
    model = FACTS.model("gpt2")
    compiled = training_start_s(model, "fsdp-compile", 100e6, 1.0, FACTS, pretrained=False)
    assert compiled == pytest.approx(60 + 270 + 24 + 12 * 2.35 + 400e6 / 8e9)
    eager = training_start_s(model, "hf-trainer", 100e6, 2.0, FACTS, pretrained=False)
    assert eager == pytest.approx(60 + 270 + 24 + 200e6 / 8e9)
    tuned = training_start_s(FACTS.model("Llama-7B"), "hf-trainer", 0.0, 1.0, FACTS, pretrained=True)
    assert tuned == pytest.approx(354 + 2 * 6_738_415_616 / 850e6)


def test_time_is_paid_as_the_provider_rounds_it() -> None:
    """By the second on aws, at least a minute; by the hour at paperspace."""
    aws = next(o for o in FACTS.offers if o.provider == "aws")
    hourly = next(o for o in FACTS.offers if o.provider == "paperspace")
    assert run_cost_usd(3000.2, 100.0, 36.0, aws, FACTS) == pytest.approx(31.01)
    assert run_cost_usd(5.0, 1.0, 36.0, aws, FACTS) == pytest.approx(0.6)
    assert run_cost_usd(3500.0, 101.0, 36.0, hourly, FACTS) == pytest.approx(72.0)


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
    assert one.start_s > 60 + 270 + 24, "and weights, compilation, graphs, warm-up"
    assert one.cost_usd == pytest.approx((one.seconds + one.start_s) / 3600 * one.usd_per_hour, rel=1e-2)
    rate = {"requests_per_s": 1, "input_tokens": 128, "output_tokens": 16}
    service = plan(workload_from({"model": "Llama-7B", "task": "serve", "traffic": rate, "simulate": False}), some)
    assert service.plans[0].start_s == 0.0
