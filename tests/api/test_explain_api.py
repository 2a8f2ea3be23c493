"""The tree behind an answer: every headline is in it, every formula gives its value, every leaf has an origin."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flopwise
from flopwise.changes.explanation import Explanation, answer_figure
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.provenance import Figure, format_value, walk
from flopwise.search.plan import candidate_figure
from flopwise.serving.sim.explain import SimulatedFigureTree
from formulas import is_arithmetic, recomputed

TRAINING: list[dict[str, Any]] = [
    {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 8, "tokens": 1e9, "fsdp": True, "seq": 2048},
    {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 16, "tp": 2, "pp": 4, "zero": 1, "recompute": "full",
     "tokens": 1e9},
    {"model": "Llama-3.1-8B", "gpu": "a100-80gb", "gpus": 32, "tp": 2, "pp": 2, "interleave": 2, "cp": 2, "seq": 8192},
    {"model": "Mixtral-8x7B", "gpu": "h100", "gpus": 16, "ep": 8, "fsdp": True, "precision": "fp8",
     "recompute": "selective"},
    {"model": "Llama-3.1-8B", "gpu": "rtx 4090", "gpus": 1, "qlora": True, "seq": 1024, "tokens": 1e7, "micro_batch": 1,
     "recompute": "full", "tp": 1},
    {"model": "Qwen3-0.6B", "gpu": "rtx 3090", "gpus": 1, "power_limit": 220, "seq": 1024, "micro_batch": 1},
    {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 8, "price": 2.0, "tokens": 1e9, "zero": 2},
    {"model": "bert-base-uncased", "gpu": "t4", "gpus": 1, "seq": 128, "precision": "fp16", "tp": 1, "tokens": 1e6},
    {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 64, "fsdp": True, "seq": 2048, "tokens": 1e10, "jitter": 0.02,
     "validate_every": 100, "validate_batches": 5, "loader_rate": 3.0, "failures": "rsc-1", "repair": 3600.0,
     "spares": 1, "async_checkpoints": True, "checkpoint_storage": "lustre"},
    {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 16, "fsdp": True, "seq": 2048, "samples": 1e6, "epochs": 2,
     "node_mtbf": 3e6, "restart": 300.0, "checkpoint_bandwidth": 2e10, "checkpoint_every": 1800.0,
     "provider": "aws", "purchase": "spot"},
    {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 16, "seq": 2048, "tokens": 1e9, "storage_bandwidth": 1e5},
    {"model": "bert-base-uncased", "gpu": "t4", "gpus": 1, "seq": 128, "tp": 1, "storage": "hdd"},
]  # fmt: skip
SERVING: list[dict[str, Any]] = [
    {"model": "Llama-3.1-8B", "gpu": "h100", "concurrency": 32},
    {"model": "Llama-3.1-8B", "gpu": "l40s", "weights": "fp8", "gpus": 4, "rate": 6.0},
    {"model": "Llama-3.1-70B", "gpu": "h100", "tp": 4, "kv_dtype": "fp8", "concurrency": 5000},
    {"model": "Mixtral-8x7B", "instance": "p5.48xlarge", "tp": 4, "pp": 2, "static": True, "concurrency": 16},
    {"model": "bert-base-uncased", "gpu": "t4", "input_tokens": 128, "weights": "fp16"},
    {"model": "Llama-3.1-8B", "gpu": "a10g", "weights": "awq", "price": 1.5},
    {"model": "Llama-3.1-8B", "gpu": "a100-80gb", "kv_dtype": "fp8", "concurrency": 16, "input_tokens": 4000},
    {"model": "Qwen3.5-35B-A3B", "gpu": "Arc Pro B70", "engine": "llama.cpp", "weights": "Q4_K_M", "concurrency": 1},
    {"model": "Qwen3-Next-80B-A3B", "gpu": "MI300X", "engine": "llama.cpp-2025", "weights": "Q4_K_M"},
    {"model": "Llama-3.1-8B", "gpu": "MI100", "engine": "vllm-2025", "concurrency": 4},
]
MEMORY: list[dict[str, Any]] = [
    {"model": "Llama-3.1-8B", "gpu": "h100", "dp": 8, "fsdp": True},
    {"model": "Llama-3.1-8B", "gpu": "h100", "dp": 32, "shard": 8},
    {
        "model": "Llama-3.1-8B",
        "task": "serve",
        "gpu": "a100-80gb",
        "weights": "fp8",
        "concurrency": 64,
        "context": 4096,
    },
    {"model": "Llama-3.1-8B", "lora": 8},
    {"model": "Llama-3.1-70B", "task": "serve", "gpu": "h100"},
    {"model": "Llama-3.1-8B", "gpu": "l4", "dp": 2},
]
CASES = [
    (kind, asked) for kind, cases in (("train", TRAINING), ("serve", SERVING), ("memory", MEMORY)) for asked in cases
]


def answer_to(kind: str, asked: dict[str, Any]) -> Any:
    return getattr(flopwise, kind)(**asked)


def headline(kind: str, answer: Any) -> dict[str, tuple[Any, bool]]:
    """Name in the tree: the value that the commands print, and whether it has to be there."""
    if kind == "memory":
        return {
            "memory per GPU": (answer.per_gpu_bytes, True),
            "memory per GPU, low": (answer.low_bytes, True),
            "memory per GPU, high": (answer.high_bytes, True),
            "margin": (answer.margin_bytes, answer.capacity_bytes is not None),
            "chance to fit": (answer.fits_probability, answer.fits_probability is not None),
        }
    found = answer.estimate
    if kind == "train":
        run = found.run
        return {
            "step time": (found.step_s, True),
            "throughput": (found.tokens_per_s, True),
            "throughput per GPU": (found.tokens_per_s_per_gpu, True),
            "throughput per GPU, low": (found.low, True),
            "throughput per GPU, high": (found.high, True),
            "MFU": (found.mfu_frac, True),
            "MFU, attention in full": (found.mfu_full_attention_frac, True),
            "HFU": (found.hfu_frac, True),
            "lower bound of the step": (found.lower_bound_s, True),
            "upper bound of the step": (found.upper_bound_s, True),
            "memory per GPU": (float(found.memory.total_bytes), True),
            "run time": (run and run.seconds, run is not None),
            "goodput": (run and run.goodput_frac, run is not None),
            "checkpoint": (run and run.checkpoint_bytes, run is not None),
            "checkpoint write": (run and run.checkpoint_write_s, run is not None),
            "checkpoint interval": (run and run.checkpoint_interval_s, run is not None),
            "time between interruptions": (run and run.mtbf_s, run is not None),
            "GPU-hours": (run and run.gpu_hours, run is not None),
            "cost": (run and run.cost_usd, run is not None and run.cost_usd is not None),
            "energy": (run and run.energy_joules, run is not None),
            **{name.replace("_", " "): (seconds, True) for name, seconds in found.breakdown},
        }
    rate = found.output_tokens_per_s
    return {
        "TTFT": (found.ttft_s.value, True),
        "TTFT, low": (found.ttft_s.low, True),
        "TPOT": (found.tpot_s and found.tpot_s.value, found.tpot_s is not None),
        "whole request": (found.e2e_s, found.tpot_s is not None),
        "throughput": (rate and rate.value, rate is not None),
        "throughput, high": (rate and rate.high, rate is not None),
        "requests per second": (found.requests_per_s, True),
        "maximum concurrency": (found.max_concurrency, True),
        "cache capacity": (found.kv_capacity_tokens, True),
        "memory per GPU": (float(found.memory.total_bytes), True),
        "cost per million output tokens": (
            found.usd_per_million_output_tokens,
            rate is not None and found.usd_per_hour is not None,
        ),
        "cost per million input tokens": (found.usd_per_million_input_tokens, found.usd_per_hour is not None),
        "energy per output token": (found.joules_per_output_token, found.joules_per_output_token is not None),
    }


@pytest.mark.parametrize(("kind", "asked"), CASES, ids=str)
def test_every_formula_gives_the_value_beside_it_and_every_headline_is_explained(
    kind: str, asked: dict[str, Any]
) -> None:
    answer = answer_to(kind, asked)
    figures = list(walk(answer_figure(answer)))
    arithmetic = [f for f in figures if is_arithmetic(f)]
    assert len(arithmetic) >= 3
    for figure in arithmetic:
        assert figure.value is not None
        assert recomputed(figure) == pytest.approx(float(figure.value), rel=1e-6, abs=1e-12), (
            f"{figure.name} = {figure.formula}"
        )
    by_name: dict[str, Figure] = {}
    for figure in figures:
        by_name.setdefault(figure.name, figure)
    for name, (value, there) in headline(kind, answer).items():
        assert (name in by_name) == there, name
        if there:
            assert by_name[name].value == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(("kind", "asked"), CASES, ids=str)
def test_leaves_are_facts_with_a_source_calibrations_with_their_data_or_given(kind: str, asked: dict[str, Any]) -> None:
    figures = list(walk(answer_figure(answer_to(kind, asked))))
    facts = [f for f in figures if f.kind == "fact"]
    assert facts
    assert all(f.source for f in facts)
    assert all(f.fitted_on and f.source for f in figures if f.kind == "calibration")
    datasheet = [f for f in facts if f.name.endswith((" memory", " memory bandwidth"))]
    assert all(f.date and f.confidence for f in datasheet)
    assert datasheet or kind == "memory"
    if asked.get("price"):
        assert any(f.name == "price per device and hour" and f.kind == "given" for f in figures)


def test_kernels_take_no_less_than_their_work_at_datasheet_rates() -> None:
    answer = answer_to("train", TRAINING[0])
    kernels = [f for f in walk(answer_figure(answer)) if f.formula == "kernel model" and len(f.inputs) == 4]
    assert len(kernels) > 15
    for kernel in kernels:
        flops, moved, rate, bandwidth = (float(f.value or 0) for f in kernel.inputs)
        peak, hbm = (float(f.inputs[0].value or 0) for f in kernel.inputs[2:])
        assert float(kernel.value or 0) >= max(flops / peak, 0.6 * moved / hbm), kernel.name
        assert rate <= peak
        assert bandwidth <= hbm


PASSES: list[dict[str, Any]] = [
    {"model": "gpt2", "gpu": "l4", "batch": 2, "seq": 512},
    {"model": "gpt2", "gpu": "rtx 3090", "power_limit": 220, "task": "serve", "batch": 2, "seq": 512},
    {"model": "Mixtral-8x7B", "gpu": "h100", "task": "serve", "batch": 16, "seq": 2048, "tp": 2},
    {"model": "DeepSeek-V2-Lite", "gpu": "h100", "seq": 1024},
]


@pytest.mark.parametrize("asked", PASSES, ids=str)
def test_each_operation_of_a_pass_says_where_it_comes_from(asked: dict[str, Any]) -> None:
    answer = flopwise.advise(**asked)
    tree = answer.figure()
    for figure in filter(is_arithmetic, walk(tree)):
        assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6, abs=1e-12), figure.formula
    named = {one.name: one for one in tree.inputs}
    assert len(named) == len(tree.inputs), "two operations of one name"
    assert named["pass"].value == answer.pass_s
    for one in answer.operations:
        label = one.name if one.forward else f"{one.name}, backward"
        each = named[label]
        assert each.value == one.seconds
        assert named[f"share of {label}"].value == one.share_frac
        values = {below.name: float(below.value or 0.0) for below in each.inputs}
        assert values["bytes moved"] == one.bytes
        if one.kind == "matmul":
            assert one.m is not None
            assert one.n is not None
            assert one.k is not None
            assert values["FLOP"] == pytest.approx(2 * one.m * one.n * one.k)
        peaks = [float(leaf.value or 0) for leaf in walk(each) if leaf.unit == "FLOP/s" and leaf.kind == "fact"]
        assert bool(peaks) == (one.kind in ("matmul", "grouped", "attention"))
        assert one.seconds >= max([one.flops / peak for peak in peaks], default=0.0)


def test_each_figure_of_a_format_says_where_it_comes_from() -> None:
    answer = flopwise.fit("Llama-3.1-8B", gpu="rtx4090", context=4096, formats="bf16,awq,fp8")
    tree = answer.figure()
    for figure in filter(is_arithmetic, walk(tree)):
        assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6, abs=1e-12), figure.formula
    named = {one.name: one.value for one in tree.inputs}
    for row in answer.formats:
        shown = row.document()
        for name, key in {
            "memory": "total_bytes", "chance to fit": "fits_probability", "longest context": "longest_context",
            "requests at once": "most_requests", "tokens/s": "tokens_per_s", "TTFT": "ttft_s", "TPOT": "tpot_s",
            "cost per million input tokens": "usd_per_million_input_tokens",
            "cost per million output tokens": "usd_per_million_output_tokens",
        }.items():  # fmt: skip
            assert named[f"{name} in {row.weights}"] == pytest.approx(shown[key]), name
        if row.quality is not None:
            assert named[f"scores kept in {row.weights}"] == row.quality[0]
    assert any(name.startswith("scores kept") for name in named)


def test_percentiles_of_a_load_and_sums_over_replicas_say_where_they_come_from() -> None:
    answer = flopwise.serve("Llama-3.1-8B", gpu="l40s", gpus=4, rate=6.0)
    named = {one.name: one for one in answer_figure(answer).inputs}
    shown, load = answer.document(), answer.under_load
    assert load is not None
    for percentile in ("p50", "p99"):
        assert named[f"TTFT at {percentile}"].value == load.ttft_s[percentile]
        ends = [named[f"TPOT at {percentile}, {word}"].value for word in ("low", "high")]
        assert ends == pytest.approx(load.ends("tpot_s", percentile))
    assert named["share of what it sustains"].value == load.utilisation_frac
    for name, key in {
        "throughput": "output_tokens_per_s", "maximum concurrency": "max_concurrency",
        "cache capacity": "kv_capacity_tokens",
    }.items():  # fmt: skip
        assert named[f"{name} of all replicas"].value == shown[key] == 4 * float(named[name].value or 0.0)
    assert named["requests per second of all replicas"].value == pytest.approx(6.0)
    assert named["share of datasheet rates"].value == pytest.approx(shown["utilisation_frac"])
    one = {figure.name for figure in answer_figure(flopwise.serve("Llama-3.1-8B", gpu="l40s", rate=6000.0)).inputs}
    assert "TTFT at p50" not in one, "nothing waits for ever"


def _effects(found: Explanation) -> dict[str, dict[str, float]]:
    """The figures that each change moves, over what they were; those that are known."""
    return {s.change: {n: e for n, e in s.effects.items() if e is not None} for s in found.sensitivities}


def test_sensitivities_are_ranked_and_point_the_right_way() -> None:
    found = flopwise.explain("train", "Llama-3.1-8B", gpu="h100", gpus=16, tp=2, zero=1)
    sizes = [s.size for s in found.sensitivities]
    assert sizes == sorted(sizes, reverse=True)
    effects = _effects(found)
    assert 1 / 1.1 <= effects["peak compute +10 %"]["time per token"] < 1
    assert 1 / 1.1 <= effects["memory bandwidth +10 %"]["time per token"] <= 1
    assert effects["recompute full"]["memory"] < 1 < effects["recompute full"]["time per token"]
    assert effects["network bandwidth +10 %"]["time per token"] <= 1
    assert "precision nvfp4" not in effects, "this device has no such units"

    found = flopwise.explain("serve", "Llama-3.1-8B", gpu="h100", concurrency=32)
    effects = _effects(found)
    assert effects["requests in flight x 2"]["throughput per GPU"] > 1
    assert effects["weights in fp8"]["TPOT"] < 1
    assert effects["memory bandwidth +10 %"]["TPOT"] < 1

    found = flopwise.explain("memory", "Llama-3.1-8B", gpu="h100")
    assert found.sensitivities
    assert all(effects["memory"] < 1 for effects in _effects(found).values())


def test_only_questions_can_be_explained() -> None:
    with pytest.raises(SpecError, match="train, serve, memory"):
        flopwise.explain("gpus", "h100")  # type: ignore[call-overload] # on purpose


def kinds_of(kind: str, asked: dict[str, Any]) -> dict[str, str]:
    return {figure.name: figure.kind for figure in walk(answer_figure(answer_to(kind, asked)))}


def test_only_what_was_said_is_called_given() -> None:
    train = {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 8}
    kinds = kinds_of("train", train)
    assert {kinds[name] for name in ("dp", "micro-batch", "recompute", "ZeRO stage")} == {"chosen"}
    assert {kinds[name] for name in ("global batch", "sequence length")} == {"default"}
    assert kinds["GPUs"] == "given"
    assert kinds["passes"] == "derived"
    said = kinds_of("train", train | {"dp": 8, "fsdp": True, "seq": 2048, "global_batch": 64, "micro_batch": 1})
    assert {said[name] for name in ("dp", "ZeRO stage", "sequence length", "global batch", "micro-batch")} == {"given"}
    assert said["tp"] == "default"
    serve = {"model": "Llama-3.1-8B", "gpu": "h100"}
    assert {kinds_of("serve", serve)[n] for n in ("input tokens", "output tokens", "memory fraction")} == {"default"}
    assert kinds_of("serve", serve | {"input_tokens": 2000})["input tokens"] == "given"


def test_memory_calls_nothing_given_that_nobody_said() -> None:
    plain = kinds_of("memory", {"model": "Llama-3.1-8B", "gpu": "h100"})
    assert "given" not in plain.values()
    said = kinds_of("memory", {"model": "Llama-3.1-8B", "seq": 2048, "dp": 8, "zero": 3, "lora": 8})
    assert {name for name, kind in said.items() if kind == "given"} == {
        "sequence length",
        "dp",
        "ZeRO stage",
        "LoRA rank",
    }
    serve = {"model": "Llama-3.1-8B", "task": "serve", "gpu": "h100"}
    assert "given" not in kinds_of("memory", serve).values()
    tp = kinds_of("memory", serve | {"tp": 2, "kv_dtype": "fp8"})
    assert {name for name, kind in tp.items() if kind == "given"} == {"tp", "KV dtype"}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"task": "pretrain", "data": {"tokens": "10B"}}, {"tokens"}),
        ({"task": "pretrain", "data": {"tokens": "10B", "seq_len": 2048, "global_batch": 512}},
         {"tokens", "sequence length", "global batch"}),
        ({"task": "serve", "traffic": {"requests_per_s": 2}, "simulate": False}, {"requests/s at the peak"}),
        ({"task": "serve", "traffic": {"requests_per_s": 2, "input_tokens": 500}, "simulate": False,
          "constraints": {"gpus": ["h100"], "memory_fraction": 0.8}},
         {"requests/s at the peak", "input tokens", "memory fraction"}),
    ],
)  # fmt: skip
def test_a_plan_calls_its_own_choices_chosen(asked: dict[str, Any], given: set[str]) -> None:
    limits = {"constraints": {"gpus": ["h100"], "max_gpus": 16, **asked.get("constraints", {})}}
    found = flopwise.plan({"model": "Llama-3.1-8B", **asked, **limits})
    kinds = {figure.name: figure.kind for figure in walk(candidate_figure(found, found.plans[0], load_facts()))}
    assert {name for name, kind in kinds.items() if kind == "given"} == given
    assert {kinds[name] for name in ("tp", "pp", "GPUs") if name in kinds} == {"chosen"}


PLANNED: list[dict[str, Any]] = [
    {"task": "serve", "rate": 2, "ttft": "1s", "tpot": "p99=50ms", "budget": 5000, "simulate": False},
    {"task": "serve", "rate": 2, "ttft": "1s"},
    {"task": "serve", "rate": 30, "peak": 2, "latency": "8s", "simulate": False, "purchase": ["spot"]},
    {"task": "serve", "concurrency": 16, "simulate": False},
    {"task": "serve", "rate": 2, "turns": 4, "think": "10s", "kv_stores": "host=40GB", "simulate": False},
    {"task": "batch", "requests": 100_000, "deadline": "1d"},
    {"task": "finetune", "lora": 16, "tokens": "20M", "deadline": "1d", "budget": 100},
    {"task": "encode", "model": "bert-base-uncased", "rate": 20, "latency": "1s"},
    {"task": "serve", "rate": 2, "ttft": "1ms", "simulate": False},
]


@pytest.mark.parametrize("asked", PLANNED, ids=str)
def test_each_figure_of_a_plan_says_where_it_comes_from(asked: dict[str, Any]) -> None:
    places: dict[str, Any] = {"gpu": ["l40s"], "provider": ["aws"], "max_gpus": 8}
    found = flopwise.plan(
        asked.get("model", "Llama-3.1-8B"), **{k: v for k, v in asked.items() if k != "model"}, **places
    )
    for row in (found.plans or found.misses)[:2]:
        tree = candidate_figure(found, row, load_facts())
        figures = list(walk(tree))
        for figure in filter(is_arithmetic, figures):
            assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6, abs=1e-12), figure.formula
        named = {one.name: one for one in tree.inputs}
        shown = {
            "cost of the plan": row.cost_usd, "price of all machines": row.usd_per_hour,
            **{f"chance of {target}": chance for target, chance in row.meets.items()},
        }  # fmt: skip
        names = {
            "ttft_s": "TTFT of the plan", "tpot_s": "TPOT of the plan", "e2e_s": "whole request of the plan",
            "busy_frac": "busy", "requests_per_s_capacity": "requests/s it sustains", "tokens_per_s": "throughput",
            "output_tokens_per_s": "output tokens/s of the plan", "step_s": "step time", "gpu_hours": "GPU-hours",
            "usd_per_million_tokens": "cost per million tokens of the plan", "usd_per_session": "cost per session",
            "tokens_per_s_per_gpu": "throughput per GPU", "prompt_found_frac": "share of prompts found in caches",
        }  # fmt: skip
        shown |= {names[name]: value for name, value in row.figures.items() if value is not None}
        time = {"finetune": "run time", "batch": "time of the batch"}.get(asked["task"], "whole request of the plan")
        for word in ("low", "high"):
            shown[f"cost of the plan, {word}"] = getattr(row, f"cost_usd_{word}")
            shown[f"{time}, {word}"] = getattr(row, f"seconds_{word}")
        everything = {one.name: one.value for one in figures}
        for name, value in shown.items():
            assert everything[name] == pytest.approx(value, rel=1e-6), name
        price = next(one for one in figures if one.name.startswith(f"price of {row.provider} {row.instance}"))
        assert (price.kind, price.source, price.date) == ("fact", row.price_source, row.price_date)
        if any(target in ("ttft", "tpot", "latency") for target in row.meets):
            chance = named[next(f"chance of {target}" for target in ("ttft", "tpot", "latency") if target in row.meets)]
            assert {"calibration"} <= {one.kind for one in chance.inputs}


@pytest.mark.parametrize("kind", ["train", "serve"])
def test_the_ends_of_the_memory_say_where_they_come_from(kind: str) -> None:
    question = {"gpu": "h100", "gpus": 8} if kind == "train" else {"gpu": "l40s", "rate": 2}
    found = getattr(flopwise, kind)("Llama-3.1-8B", **question)
    named, memory = {one.name: one for one in walk(answer_figure(found))}, found.memory
    assert recomputed(named["memory per GPU, low"]) == pytest.approx(memory.low_bytes)
    assert recomputed(named["memory per GPU, high"]) == pytest.approx(memory.high_bytes)
    assert memory.low_bytes < memory.per_gpu_bytes < memory.high_bytes


def test_the_ends_of_a_run_say_where_they_come_from() -> None:
    found = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=8, tokens="20B", provider="aws")
    tree = flopwise.explain("train", "Llama-3.1-8B", gpu="h100", gpus=8, tokens="20B", provider="aws").figure
    named, run = {one.name: one for one in walk(tree)}, found.document()["run"]
    for name, key in (("run time", "seconds"), ("cost", "cost_usd"), ("energy", "energy_joules")):
        for word in ("low", "high"):
            end = named[f"{name}, {word}"]
            assert end.value == pytest.approx(run[f"{key}_{word}"])
            assert recomputed(end) == pytest.approx(run[f"{key}_{word}"])
        assert named[f"{name}, low"].value < named[name].value < named[f"{name}, high"].value  # type: ignore[operator]  # numbers


ROOFS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {"flops": 1e15, "bytes": "2TB", "gpu": "h100", "provider": "aws"}),
    (None, {"flops": 1e15, "bytes": "2TB", "gpu": "a100-80gb", "gpus": 12, "efficiency": 0.5}),
    (None, {"flops": 1e12, "bytes": "2TB", "gpu": "h100", "dtype": "fp64"}),
    (None, {"bytes": "2TB", "gpu": "h100"}),
    ("Llama-3.1-8B", {"gpu": "l40s", "batch": 4, "seq": 2048, "training": True}),
    ("resnet50", {"gpu": "v100", "batch": 8}),
]


@pytest.mark.parametrize(("model", "asked"), ROOFS, ids=str)
def test_each_figure_of_a_roofline_says_where_it_comes_from(model: str | None, asked: dict[str, Any]) -> None:
    found = flopwise.roofline(model, **asked)
    tree = answer_figure(found)
    named = {one.name: one for one in walk(tree)}
    for figure in filter(is_arithmetic, walk(tree)):
        assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6), figure.formula
    names = {
        "seconds": "time", "compute_s": "compute time", "memory_s": "memory time", "lower_bound_s": "lower bound",
        "flops": "FLOP", "bytes": "bytes moved", "intensity_flops_per_byte": "FLOP per byte",
        "ridge_flops_per_byte": "ridge", "utilisation_frac": "share of datasheet rates", "num_gpus": "GPUs",
        "bandwidth_frac": "share of the bandwidth", "samples_per_s": "samples per second", "cost_usd": "cost",
        "energy_joules": "energy",
    }  # fmt: skip
    document = found.document()
    for key, name in names.items():
        value = document[key] if document[key] is not None else document.get(f"{key}_at_least")
        if value is not None:
            assert named[name].value == pytest.approx(value), name
    facts = [one for one in walk(tree) if one.kind == "fact"]
    assert any("peak" in one.name and one.source and one.date for one in facts)
    assert ("calibration" in {one.kind for one in walk(tree)}) == ("efficiency" not in asked)


@pytest.mark.parametrize("replicas", [1, 3])
def test_each_figure_of_a_simulation_says_where_it_comes_from(replicas: int) -> None:
    asked: dict[str, Any] = {"gpu": "l40s", "rate": 3, "duration": 60, "provider": "aws", "ttft": 1.0}
    found = flopwise.simulate("Llama-3.1-8B", replicas=replicas, **asked)
    figures = list(walk(SimulatedFigureTree(found).tree()))
    arithmetic = [one for one in figures if is_arithmetic(one)]
    assert {"replica-hours", "cost of the run", "price of a replica"} <= {one.name for one in arithmetic}
    for figure in arithmetic:
        assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6, abs=1e-12), figure.formula
    named, summary = {one.name: one for one in figures}, found.summary
    shown = {
        "TTFT p95": summary.ttft_s.p95, "TPOT p50": summary.tpot_s.p50, "whole request p99": summary.e2e_s.p99,
        "between tokens p90": summary.itl_s.p90, "answered": summary.completed, "busy": summary.utilisation_frac,
        "within all targets": summary.goodput_frac, "cache at most": summary.kv_peak_frac,
        "cost of the run": found.cost_usd, "replica-hours": summary.replica_hours,
    }  # fmt: skip
    assert {name: named[name].value for name in shown} == pytest.approx(shown)
    assert named["limit of ttft_s"].kind == "given"
    price = named["price per device and hour"]
    assert price.kind == "fact"
    assert "aws" in price.source
    assert [one.name for one in named["TTFT p95"].inputs] == ["answered", "mean step"]
    for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("whole request", "e2e_s")):
        for percentile, ends in found.intervals[key].items():
            words = [named[f"{name} {percentile}, {word}"] for word in ("low", "high")]
            assert tuple(one.value for one in words) == pytest.approx(ends)
            assert all("calibration" in {below.kind for below in one.inputs} for one in words)
    assert named["running on average"].value == summary.mean_running
    assert named["waiting on average"].value == summary.mean_queue
    assert {"decoding step", "step with prefill"} <= named.keys()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7990.4, "tokens/s", "7,990 tokens/s"), (10_361.2, "tokens/s", "10,361 tokens/s"), (0.0, "s", "0 s"),
        (1.2, "J", "1.2 J"), (7200.0, "J", "2.00 Wh"), (7.282e-13, "J/FLOP", "0.7282 pJ/FLOP"),
        (0.00001234, "", "0.00001234"), (0.25, "", "0.25"),
    ],
)  # fmt: skip
def test_values_are_written_without_powers_of_ten(value: float, unit: str, text: str) -> None:
    assert format_value(Figure("x", value, unit, kind="given")) == text


@pytest.mark.parametrize(
    ("asked", "change", "option"),
    [
        ({"model": "Llama-3.1-70B", "task": "serve", "gpu": "h100"}, "weights in awq", {"weights": "awq"}),
        ({"model": "Llama-3.1-70B", "task": "serve", "gpu": "h100"}, "tp 2", {"tp": 2}),
        ({"model": "Llama-3.1-8B", "gpu": "l4", "dp": 2}, "Adafactor", {"optimizer": "adafactor"}),
        (
            {"model": "Llama-3.1-8B", "gpu": "t4", "lora": 16, "recompute": "none"},
            "QLoRA (base weights in NF4)",
            {"qlora": True},
        ),
    ],
)
def test_what_a_change_saves_is_the_difference_of_two_answers(
    asked: dict[str, Any], change: str, option: dict[str, Any]
) -> None:
    found, then = flopwise.memory(**asked), flopwise.memory(**asked, **option)
    named = {one.name: one for one in walk(answer_figure(found))}
    after, saved = named[f"memory with the change: {change}"], named[f"saved by the change: {change}"]
    assert after.value == pytest.approx(then.per_gpu_bytes)
    assert saved.value == pytest.approx(found.per_gpu_bytes - then.per_gpu_bytes)
    assert {one.name.partition(" with the change")[0]: one.value for one in after.inputs} == pytest.approx(
        {name: size for name, size in then.items if size}
    )
    remedy = next(one for one in found.remedies if one.change == change)
    assert saved.value == remedy.saves_bytes
    assert remedy.fits == then.fits


def _rule(named: dict[str, Figure], name: str) -> tuple[float, dict[str, float], float]:
    """What a rule of thumb says, the values that its formula names, and how far it is off."""
    said = named[f"{name} by the rule"]
    off = named[f"error of the rule: {name}"]
    assert recomputed(off) == pytest.approx(float(off.value or 0.0))
    return float(said.value or 0.0), {one.name: float(one.value or 0.0) for one in said.inputs}, float(off.value or 0.0)


def test_rules_of_thumb_say_what_they_are_made_of() -> None:
    """By hand: Llama-3.1-8B has 8,030,261,248 parameters in 16 bits; an L40S has 864 GB/s, an H100 85.5 GB."""
    served = flopwise.serve("Llama-3.1-8B", gpu="l40s", rate=2.0)
    named = {one.name: one for one in walk(answer_figure(served))}
    said, values, off = _rule(named, "time per token")
    assert values == {"weights of the model": 16_060_522_496, "L40S memory bandwidth": 864e9}
    assert said == pytest.approx(16_060_522_496 / 864e9)
    assert off == pytest.approx(said / float(served.estimate.tpot_s.value) - 1)  # type: ignore[union-attr]  # it decodes

    trained = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=8, tokens=1e9)
    named = {one.name: one for one in walk(answer_figure(trained))}
    said, values, _ = _rule(named, "6 N D")
    assert values == {"active parameters of the model": 8_030_261_248, "tokens trained on": 1e9}
    assert said == pytest.approx(6 * 8_030_261_248 * 1e9)
    said, values, off = _rule(named, "16 bytes per parameter")
    assert (said, off) == pytest.approx(
        (values["parameters of the model"] * (2 + 14 / 8), said / trained.memory.per_gpu_bytes - 1)  # type: ignore[union-attr]  # token layers
    )
    said, values, _ = _rule(named, "GPUs")
    assert values == {
        "parameters of the model": 8_030_261_248,
        "bytes of a parameter": 2,
        "H100-SXM-80 memory": 85_520_809_984,
    }
    assert said == math.ceil(6 * 8_030_261_248 * 2 / 85_520_809_984) == 2
    step = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=8, seq=2048, global_batch=64)
    named = {one.name: one for one in walk(answer_figure(step))}
    assert _rule(named, "6 N D")[1]["tokens trained on"] == 2048 * 64


@pytest.mark.parametrize(
    ("model", "asked", "fits"),
    [
        ("Llama-3.1-70B", {"gpu": "h100", "concurrency": 8}, False),
        ("Llama-3.1-8B", {"gpu": "l4", "concurrency": 200}, True),
        ("Llama-3.1-8B", {"gpu": "4xh100", "dp": 2, "tp": 2, "concurrency": 8}, True),
    ],
)
def test_the_memory_of_a_service_is_explained_for_the_requests_that_it_holds(
    model: str, asked: dict[str, Any], *, fits: bool
) -> None:
    """One where none fits, and not all that are asked for where fewer do."""
    answer = flopwise.serve(model, **asked)
    named = {one.name: one.value for one in walk(answer_figure(answer))}
    assert answer.fits is fits
    assert named["memory per GPU"] == pytest.approx(answer.memory.per_gpu_bytes)
    assert named["KV cache"] == pytest.approx(dict(answer.memory.items)["KV cache"])


@pytest.mark.parametrize(
    "asked",
    [
        {"gpu": "l4", "samples": 1e6},
        {"gpu": "h100", "gpus": 16, "samples": 1e8, "provider": "aws"},
        {"gpu": "t4", "micro_batch": 320},
        {"gpu": "t4", "micro_batch": 4096},
    ],
)
def test_networks_known_by_their_samples_say_where_their_figures_come_from(asked: dict[str, Any]) -> None:
    found = flopwise.train("resnet50", **asked)
    figures = list(walk(answer_figure(found)))
    for figure in filter(is_arithmetic, figures):
        assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6, abs=1e-12), figure.formula
    named, shown = {one.name: one.value for one in figures}, found.document()
    keys = {
        "step time": "step_s", "samples per second": "samples_per_s", "MFU": "mfu_frac",
        "samples per second per GPU, low": "low", "samples per second per GPU, high": "high",
        "lower bound of the step": "lower_bound_s",
    }  # fmt: skip
    if found.can_run:
        assert {name: named[name] for name in keys} == pytest.approx({name: shown[key] for name, key in keys.items()})
    else:  # nobody sees a step of it
        assert asked["micro_batch"] == 4096
        assert not keys.keys() & named.keys()
        assert {shown[key] for key in keys.values()} == {None}
    memory = flopwise.memory("resnet50", **{key: asked[key] for key in ("gpu", "micro_batch") if key in asked})
    assert found.memory is not None
    assert named["memory per GPU"] == pytest.approx(found.memory.per_gpu_bytes)
    assert answer_figure(memory).inputs[0].value == pytest.approx(memory.per_gpu_bytes)
    for remedy in found.memory.remedies:
        assert named[f"saved by the change: {remedy.change}"] == remedy.saves_bytes
    assert bool(found.memory.remedies) == ("micro_batch" in asked)
    run = shown["run"]
    if run is None:
        assert "run time" not in named
        return
    for name, key in (("run time", "seconds"), ("cost", "cost_usd"), ("energy", "energy_joules")):
        ends = {f"{name}{word}": named[f"{name}{word}"] for word in ("", ", low", ", high")}
        assert list(ends.values()) == pytest.approx([run[f"{key}{word}"] for word in ("", "_low", "_high")])
        assert named[f"{name}, low"] < named[name] < named[f"{name}, high"]  # type: ignore[operator]  # numbers


def test_a_power_limit_stands_beside_what_a_device_reaches_without_it() -> None:
    """By hand, as in tests/cost/test_sustained.py: an RTX 3090 at 220 of 350 W reads at 0.692 of its rate."""
    asked: dict[str, Any] = {"model": "gpt2", "gpu": "rtx 3090", "task": "serve", "batch": 2, "seq": 512}
    named = {one.name: one for one in walk(flopwise.advise(**asked, power_limit=220).figure())}
    share = named["share of the bandwidth under the power limit"]
    assert share.value == pytest.approx(0.692, abs=1e-3)
    assert named["dram_frac"].value == 0.96
    assert not any("under the power limit" in one.name for one in walk(flopwise.advise(**asked).figure()))
