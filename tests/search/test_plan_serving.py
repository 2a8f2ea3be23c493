"""Plans of services: what is searched, what is told of misses and levers."""

import re
from typing import Any

import pytest

import flopwise
from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Plan
from flopwise.search.plan import plan
from flopwise.search.workload_file import workload_from

FACTS = load_facts()


def planned(model: str, **more: object) -> Plan:
    base = {"task": "serve", "traffic": {"requests_per_s": 2, "input_tokens": 500, "output_tokens": 100}}
    return plan(workload_from({"model": model, **base, **more}), FACTS)


def test_weights_as_published_are_searched() -> None:
    answer = planned("gpt-oss-20b", constraints={"gpus": ["h100"]})
    assert {c.layout["weights"] for c in answer.plans} == {"mxfp4"}
    assert {c.layout["weights"] for c in planned("Llama-3.1-8B", constraints={"gpus": ["h100"]}).front} <= {
        "bf16",
        "fp8",
    }


def test_a_device_without_bfloat16_runs_what_it_has() -> None:
    answer = planned("Llama-3.2-1B", constraints={"gpus": ["t4"], "weight_formats": ["bf16"]})
    assert {c.layout["weights"] for c in answer.plans} == {"fp16"}


def test_misses_say_by_how_much() -> None:
    answer = planned("Llama-3.1-70B", targets={"tpot": {"p95": "1ms"}})
    assert not answer.plans
    assert answer.misses[0].shortfall["tpot"] > 1
    assert any("reading the weights once" in r.reason for r in answer.ruled_out)


def test_levers_change_one_thing() -> None:
    answer = planned("Llama-3.1-8B", constraints={"gpus": ["h100"], "weight_formats": ["bf16"]})
    by_name = {lever.change: lever for lever in answer.levers}
    cache = by_name["KV cache in fp8"]
    assert cache.memory is not None
    assert cache.memory < 1
    assert cache.cost == pytest.approx(1.0, abs=0.5)
    traffic = by_name["twice the traffic"]
    assert traffic.memory == pytest.approx(1.0)


def test_a_decoder_asked_for_embeddings_answers_in_one_pass() -> None:
    answer = plan(
        workload_from(
            {"model": "Llama-3.1-8B", "task": "encode", "traffic": {"requests_per_s": 5, "input_tokens": 256}}
        ),
        FACTS,
    )
    assert answer.plans[0].figures["tpot_s"] is None


def test_more_traffic_never_costs_less() -> None:
    few = {"gpus": ["l4", "a100-80gb", "h100"]}
    costs = [
        planned(
            "Llama-3.1-8B", traffic={"requests_per_s": r, "input_tokens": 500, "output_tokens": 100}, constraints=few
        ).plans[0].cost_usd
        for r in (1, 20, 400)
    ]  # fmt: skip
    assert costs == sorted(costs)


def test_an_engine_is_planned_where_it_runs() -> None:
    answer = planned("Llama-3.1-8B", constraints={"gpus": ["H100-SXM-80", "mi300x"], "engine": "tensorrt-llm"})
    assert {c.gpu for c in answer.plans} == {"H100-SXM-80"}
    assert any("tensorrt-llm is not known to run there" in r.reason for r in answer.ruled_out)


@pytest.mark.parametrize(
    ("gpu", "model", "offered"),
    [
        ("v100", "Llama-3.2-1B", {"weights in bf16"}),
        ("t4", "Llama-3.2-1B", {"weights in awq", "weights in bf16"}),
        ("h100", "Llama-3.1-8B", {"weights in fp8", "weights in awq", "weights in nvfp4"}),
    ],
)
def test_levers_name_formats_that_the_device_runs(gpu: str, model: str, offered: set[str]) -> None:
    """Neither a V100 nor a T4 has kernels for fp8, the first none for AWQ; what runs in fp16 is stored in bf16, too."""
    levers = planned(model, constraints={"gpus": [gpu], "weight_formats": ["bf16" if gpu == "h100" else "fp16"]}).levers
    assert {lever.change for lever in levers if lever.change.startswith("weights")} == offered
    assert all("kernels" not in lever.note for lever in levers)


def test_any_searches_the_usual_formats_that_the_engine_runs() -> None:
    where = {"gpus": ["l4", "l40s"], "providers": ["runpod"]}
    found, narrow = (
        planned("Llama-3.1-8B", constraints={**where, "weight_formats": formats}, simulate=False)
        for formats in (["any"], ["bf16", "awq"])
    )
    assert found.plans[0].cost_usd <= narrow.plans[0].cost_usd
    assert any(text.startswith("weights in bf16, fp8, int8, awq, ") for text in found.assumptions)
    assert "any" not in {one.layout["weights"] for one in found.plans}


@pytest.mark.parametrize(
    ("traffic", "request_text"), [({"rate": 2}, "whole request p95"), ({"concurrency": 8}, "whole request")]
)
def test_without_targets_the_verdict_has_the_interval_of_a_request(traffic: dict[str, Any], request_text: str) -> None:
    verdict = flopwise.plan("Llama-3.1-8B", task="serve", gpu="h100", provider="lambda", **traffic).verdict
    assert re.search(rf"; {request_text} [\d.]+ m?s \(80 % interval: [\d.]+ m?s to [\d.]+ m?s\)\.$", verdict), verdict


def test_of_batches_at_one_price_an_encoder_takes_the_fastest() -> None:
    """20 a second fill a batch of 64 in 3.2 s, for the same machine that answers each at once in milliseconds.

    No batch takes more than waits, so that none of those that `serve` knows is faster than the one planned.
    """
    load = {"requests_per_s": 20, "input_tokens": 256}
    answer = plan(
        workload_from(
            {"model": "bert-base-uncased", "task": "encode", "traffic": load, "constraints": {"gpus": ["l4"]}}
        ),
        FACTS,
    )
    first = answer.plans[0]
    planned_s = first.figures["e2e_s"] or 0.0
    assert 0 < planned_s < 0.01
    for most in (1, 2, 8, 64):
        case: dict[str, Any] = {"gpu": "l4", "engine": first.layout["engine"], "weights": first.layout["weights"]}
        waits = flopwise.serve("bert-base-uncased", **case, rate=20, input_tokens=256, max_batch=most).under_load
        assert waits is not None
        assert planned_s <= waits.ttft_s["p95"] * 1.001, most


def test_the_verdict_of_a_hopeless_target_is_without_powers_of_ten() -> None:
    """It was 3.21e+05 times its limit."""
    hopeless = flopwise.plan("gpt2", task="serve", rate=1, gpu="h100", provider="lambda", latency="1us")
    assert re.search(r"whose latency is \d+,\d{3} times its limit\.$", hopeless.verdict), hopeless.verdict


def test_half_a_batch_takes_what_that_batch_takes() -> None:
    """15 sequences of an H100's memory beside 70 GB of weights: seven fit as well, and thirty do not."""
    answer = planned("Llama-3.1-70B", constraints={"instances": ["p5.4xlarge"]}, targets={"tpot": {"p95": "50ms"}})
    by_name, best = {lever.change: lever for lever in answer.levers}, answer.plans[0].layout
    half = by_name["half the batch"]
    alone = flopwise.serve(
        "Llama-3.1-70B", instance="p5.4xlarge", weights=best["weights"], kv_dtype=best["kv_dtype"], rate=0.5,
        input=500, output=100, max_batch=best["max_batch"] // 2, simulate=False,
    )  # fmt: skip
    assert half.changed is not None
    assert half.changed.memory_bytes == pytest.approx(alone.memory.per_gpu_bytes, rel=1e-6)
    twice = by_name["twice the batch"]
    assert not twice.fits
    assert f"batches end at {best['max_batch']} there" in twice.note


def test_batches_of_an_encoder_end_at_its_engine() -> None:
    traffic = {"requests_per_s": 500, "input_tokens": 300}
    answer = planned("bge-large-en-v1.5", task="encode", traffic=traffic, constraints={"gpus": ["rtx-a5000"]})
    by_name = {lever.change: lever for lever in answer.levers}
    assert by_name["half the batch"].fits
    assert "the engine's limit" in by_name["twice the batch"].note


def test_machines_of_another_target_have_all_their_devices() -> None:
    answer = planned(
        "Llama-3.1-70B", traffic={"requests_per_s": 5, "input_tokens": 1000, "output_tokens": 300},
        constraints={"instances": ["p5.4xlarge"]}, targets={"tpot": {"p95": "50ms"}},
    )  # fmt: skip
    degrees = []
    for text in filter(None, (row.instead for row in answer.target_costs)):
        found = {name: int(value) for name, value in re.findall(r", (tp|pp|dp) (\d+)", text)}
        instances, replicas = (int(n) for pair in re.findall(r"^(\d+) x|(\d+) replica", text) for n in pair if n)
        assert instances == found.get("tp", 1) * found.get("pp", 1) * found.get("dp", 1) * replicas
        degrees.append(found.get("pp", 1))
    assert max(degrees) > 1


def test_a_miss_of_the_price_an_hour_is_said_in_words() -> None:
    answer = planned("Llama-3.1-8B", constraints={"gpus": ["l40s"], "max_usd_per_hour": 0.5})
    assert not answer.plans
    assert ", whose price per hour is " in answer.verdict


def test_a_service_that_takes_fewer_gpus_than_asked_for_says_so() -> None:
    """One GPU holds the model, and 2 requests a second take few replicas: no option has 3,000 GPUs."""
    answer = planned("Llama-3.1-8B", constraints={"gpus": ["h100"], "min_gpus": 3000}, targets={"ttft": {"p95": "1s"}})
    assert not answer.plans
    reasons = {row.reason: row for row in answer.ruled_out}
    assert "takes fewer GPUs than --min-gpus asks for" in reasons
    assert not any(reason.startswith("misses") for reason in reasons)
    nearest = answer.misses[0]
    assert nearest.shortfall["min_gpus"] == pytest.approx(3000 / nearest.num_gpus)
    assert nearest.num_gpus == max(miss.num_gpus for miss in answer.misses)
    assert "--min-gpus asks for " in answer.verdict


def test_layouts_with_fewer_gpus_than_asked_for_are_counted() -> None:
    """A batch of 4 sequences has 4 replicas at most, each of as many GPUs as the model and its layers are cut into."""
    data = {"tokens": "1B", "global_batch": 4}
    run = {"model": "Llama-3.1-8B", "task": "pretrain", "data": data}
    limits = {"gpus": ["h100"], "instances": ["p5.48xlarge"]}
    none = plan(workload_from({**run, "constraints": {**limits, "min_gpus": 50_000}}), FACTS)
    (reason,) = {row.reason for row in none.ruled_out if "--min-gpus" in row.reason}
    most = int(re.findall(r": ([\d,]+) at most$", reason)[0].replace(",", ""))
    assert not none.plans
    assert most % 4 == 0
    some = plan(workload_from({**run, "constraints": {**limits, "min_gpus": most}}), FACTS)
    assert {row.reason for row in some.ruled_out if "--min-gpus" in row.reason} == {
        "fewer GPUs than --min-gpus asks for"
    }


def test_more_gpus_than_a_plan_has_at_most_say_how_to_allow_them() -> None:
    with pytest.raises(flopwise.SpecError, match=r"100,000 is more than max_gpus, 4,096 unless --max-gpus allows more"):
        planned("Llama-3.1-8B", constraints={"min_gpus": 100_000})
