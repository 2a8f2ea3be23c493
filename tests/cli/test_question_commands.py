"""memory, train, serve, roofline, explain: keys, one answer in table, JSON and Python, exit codes, messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import flopwise
from flopwise import units
from named import train_answer

Run = Callable[..., tuple[int, str, str]]

MEMORY_KEYS = {"per_gpu_bytes", "low_bytes", "high_bytes", "items", "capacity_bytes", "fits", "remedies"}
TRAIN_KEYS = {
    "step_s", "tokens_per_s", "tokens_per_s_per_gpu", "low", "high", "lower_bound_s", "upper_bound_s", "mfu_frac",
    "hfu_frac", "bound", "breakdown", "memory", "run",
}  # fmt: skip
SERVE_KEYS = {
    *(f"{name}{end}" for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu")
      for end in ("", "_low", "_high")),
    "max_concurrency", "kv_capacity_tokens", "bound", "usd_per_million_output_tokens",
}  # fmt: skip


@pytest.fixture
def document(run: Run) -> Callable[[str], dict[str, Any]]:
    def go(line: str) -> dict[str, Any]:
        code, out, err = run(f"{line} --json")
        assert code in {0, 1}, err
        return dict(json.loads(out))

    return go


def test_memory_has_its_keys_and_its_items_add_up(document: Callable[[str], dict[str, Any]]) -> None:
    found = document("memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp --seq 4096")
    assert found.keys() >= MEMORY_KEYS
    assert sum(i["bytes"] for i in found["items"]) == pytest.approx(found["per_gpu_bytes"])
    assert found["low_bytes"] < found["per_gpu_bytes"] < found["high_bytes"]
    assert found["capacity_bytes"] == 85_520_809_984
    assert found["fits"] is True
    assert found["remedies"] == []
    assert found["margin_bytes"] == pytest.approx(found["capacity_bytes"] - found["per_gpu_bytes"])


def test_groups_of_hsdp_share_the_shards_alone(document: Callable[[str], dict[str, Any]]) -> None:
    """The weights of 64 GPUs in groups of 8 are those of 8 GPUs; `--hsdp` is the same."""
    line = "memory Llama-3.1-8B --gpu h100 --seq 4096"
    groups, alone, whole = (document(f"{line} {w}") for w in ("--dp 64 --shard 8", "--dp 8 --fsdp", "--dp 64 --fsdp"))
    assert groups["per_gpu_bytes"] == alone["per_gpu_bytes"] > whole["per_gpu_bytes"]
    assert document(f"{line} --dp 64 --hsdp 8")["items"] == groups["items"]
    assert document(f"{line} --dp 64 --shard 64")["items"] == whole["items"]
    run = document("train Llama-3.1-8B --gpu h100 --gpus 64 --shard 8")
    assert (run["layout"]["zero"], run["layout"]["shard"], run["laid_out"]) == (3, 8, "given")


def test_memory_without_a_device_knows_no_capacity_and_claims_nothing(
    document: Callable[[str], dict[str, Any]],
) -> None:
    found = document("memory Llama-3.1-8B --lora 16")
    assert found.keys() >= MEMORY_KEYS
    assert (found["capacity_bytes"], found["fits"], found["fits_probability"]) == (None, None, None)


@pytest.mark.parametrize("line", ["--gpu a100-80gb --seq 8192", "--task serve --gpu l4 --concurrency 64"])
def test_what_does_not_fit_is_an_answer_with_ranked_remedies(
    document: Callable[[str], dict[str, Any]], run: Run, line: str
) -> None:
    found = document(f"memory Llama-3.1-8B {line}")
    assert found["fits"] is False
    remedies = found["remedies"]
    assert remedies
    assert all(r["saves_bytes"] > 0 and r["change"] for r in remedies)
    assert [(not r["fits"], -r["saves_bytes"]) for r in remedies] == sorted(
        (not r["fits"], -r["saves_bytes"]) for r in remedies
    )
    code, out, _ = run(f"memory Llama-3.1-8B {line}")
    assert code == 0
    assert "does not fit" in out
    assert remedies[0]["change"] in out


def test_a_service_that_does_not_fit_shows_no_speed(document: Callable[[str], dict[str, Any]], run: Run) -> None:
    line = "serve Llama-3.1-70B --gpu h100 --rate 1"
    found, (code, out, _) = document(line), run(line)
    assert (code, found["fits"]) == (1, False)
    for name in (
        "ttft_s", "tpot_s", "e2e_s_high", "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu",
        "total_tokens_per_s", "tokens_per_s_per_user", "concurrency", "mfu_frac", "bound", "breakdown", "under_load",
        "usd_per_million_output_tokens", "joules_per_output_token",
    ):  # fmt: skip
        assert found[name] is None, name
    assert found["memory"]["per_gpu_bytes"] > found["memory"]["capacity_bytes"]
    assert found["usd_per_hour"] > 0
    for word in ("tokens/s", "TTFT", "TPOT", "One step of the engine", "per million"):
        assert word not in out
    points = document("serve Llama-3.1-70B --gpu h100 --concurrency 8 --sweep tp")["points"]
    assert [(p["value"], p["fits"], p["tokens_per_s"] is None) for p in points[:2]] == [
        (1, False, True),
        (2, True, False),
    ]


def test_a_sweep_has_the_whole_bill_of_each_point(document: Callable[[str], dict[str, Any]], run: Run) -> None:
    """Prompts and answers together pay for the hour; models that answer in one pass pay for their inputs."""
    line = "serve Llama-3.1-8B --gpu h100 --input 1000 --output 500 --price 3 --sweep concurrency"
    for p in document(line)["points"]:
        requests = p["tokens_per_s"] / 500 * 3600
        paid = (p["usd_per_million_input_tokens"] * 1000 + p["usd_per_million_output_tokens"] * 500) / 1e6 * requests
        assert paid == pytest.approx(3.0)
        assert p["usd_per_million_requests"] * requests / 1e6 == pytest.approx(3.0)
    assert "$/M input  $/M output" in run(line)[1]
    line = "serve bge-m3 --gpu h100 --price 3 --sweep batch"
    for p in document(line)["points"]:
        assert p["usd_per_million_requests"] * p["tokens_per_s"] * 3600 / 1e6 == pytest.approx(3.0)
    assert "$/M inputs" in run(line)[1]
    assert "tokens/s" not in run(line)[1]


def test_sound_is_priced_by_request(document: Callable[[str], dict[str, Any]], run: Run) -> None:
    """Four tokens start a transcript: what its sound costs is no matter of input tokens."""
    line = "serve whisper-large-v3 --gpu l4 --concurrency 8 --price 1"
    found = document(line)
    assert found["usd_per_million_requests"] == pytest.approx(1 / 3600 / found["requests_per_s"] * 1e6)
    assert "per million requests" in run(line)[1]
    assert "per million requests" not in run("serve t5-base --gpu l4 --concurrency 8")[1]


def test_a_sweep_of_degrees_names_none_of_them_as_that_of_all(run: Run) -> None:
    _, out, _ = run("serve Llama-3.1-8B --gpu h100 --sweep tp")
    assert "layout" not in out
    assert "replicas" not in out


def test_a_remedy_does_what_it_says(document: Callable[[str], dict[str, Any]]) -> None:
    before = document("memory Llama-3.1-8B --gpu a100-80gb --seq 8192")
    after = document("memory Llama-3.1-8B --gpu a100-80gb --seq 8192 --optimizer adamw-8bit")
    saved = next(r["saves_bytes"] for r in before["remedies"] if r["change"] == "8-bit AdamW")
    assert before["per_gpu_bytes"] - after["per_gpu_bytes"] == pytest.approx(saved)


def test_train_has_its_keys_and_its_parts_agree(document: Callable[[str], dict[str, Any]]) -> None:
    found = document("train Llama-3.1-8B --gpu h100 --gpus 16 --tp 2 --zero 1 --tokens 1T --provider aws")
    assert found.keys() >= TRAIN_KEYS
    assert found["memory"].keys() >= MEMORY_KEYS
    assert found["run"].keys() >= {"seconds", "gpu_hours", "goodput_frac", "cost_usd", "energy_joules"}
    assert sum(line["seconds"] for line in found["breakdown"]) == pytest.approx(found["step_s"])
    assert found["tokens_per_s"] == pytest.approx(16 * found["tokens_per_s_per_gpu"])
    assert found["tokens_per_s"] * found["step_s"] == pytest.approx(found["global_batch"] * found["seq_len"])
    assert found["low"] < found["tokens_per_s_per_gpu"] < found["high"]
    assert found["lower_bound_s"] <= found["step_s"] <= found["upper_bound_s"]
    assert found["mfu_frac"] < found["mfu_full_attention_frac"]
    run = found["run"]
    assert run["gpu_hours"] == pytest.approx(16 * run["seconds"] / 3600)
    paid_hours = (run["start_s"] + run["seconds"]) / 3600
    assert run["cost_usd"] == pytest.approx(16 * paid_hours * found["usd_per_gpu_hour"], rel=1e-6)
    assert "aws" in found["price_source"]
    assert re.search(r"20\d\d-\d\d-\d\d", found["price_source"])


def test_train_chooses_a_layout_that_fits_and_is_no_slower_than_a_plain_one(
    document: Callable[[str], dict[str, Any]],
) -> None:
    best = document("train Llama-3.1-8B --gpu h100 --gpus 16 --global-batch 256")
    plain = document("train Llama-3.1-8B --gpu h100 --gpus 16 --global-batch 256 --fsdp --recompute full")
    assert best["fits"]
    assert best["step_s"] <= plain["step_s"] * 1.0001
    layout = best["layout"]
    assert layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"] == 16


def test_a_layout_that_does_not_fit_is_estimated_with_a_warning_and_exit_code_one(run: Run) -> None:
    code, out, _ = run("train Llama-3.2-1B --gpu l4 --dp 1")
    assert code == 1
    assert "WARNING" in out
    assert "tokens/s" in out
    code, out, _ = run("train Llama-3.2-1B --gpu l4 --dp 1 --json")
    assert (code, json.loads(out)["fits"]) == (1, False)
    assert json.loads(out)["step_s"] > 0
    code, out, _ = run("serve Llama-3.1-70B --gpu h100 --json")
    assert (code, json.loads(out)["max_concurrency"]) == (1, 0)


@pytest.mark.parametrize(
    "question", ["Llama-3.1-8B --gpu l4 --gpus 4 --tp 1 --tokens 1B", "resnet50 --gpu t4 --micro-batch 4096"]
)
def test_what_certainly_cannot_run_shows_no_speed(question: str, run: Run) -> None:
    """Its memory and the reasons stay, and the exit code; an explanation has memory alone."""
    code, out, _ = run(f"train {question}")
    assert code == 1
    assert "does not fit the memory: there is no speed to show" in out
    assert "Memory per accelerator" in out
    assert not any(word in out for word in ("tokens/s", "samples/s", "One step", "The run", "throughput"))
    code, out, _ = run(f"train {question} --json")
    found = json.loads(out)
    assert (code, found["fits"]) == (1, False)
    assert found["memory"]["per_gpu_bytes"] > found["memory"]["capacity_bytes"]
    speed = {"step_s", "low", "high", "lower_bound_s", "upper_bound_s", "mfu_frac", "bound", "run", "interval"}
    assert {found[name] for name in speed} == {None}
    assert found["breakdown"] == []
    code, out, _ = run(f"train {question} --explain")
    assert code == 1
    assert "memory per GPU" in out
    assert "step time" not in out


def test_what_cannot_run_has_sensitivities_of_its_memory_alone(run: Run) -> None:
    _, out, _ = run("explain train Llama-3.1-8B --gpu l4 --gpus 4 --tp 1 --json")
    assert {name for one in json.loads(out)["sensitivities"] for name in one["effects"]} == {"memory"}


def test_serve_has_its_keys_and_its_parts_agree(document: Callable[[str], dict[str, Any]]) -> None:
    found = document("serve Llama-3.1-8B --gpu h100 --gpus 4 --tp 2 --concurrency 64 --price 2.50")
    assert found.keys() >= SERVE_KEYS
    assert (found["replicas"], found["num_gpus"]) == (2, 4)
    assert found["output_tokens_per_s"] == pytest.approx(4 * found["output_tokens_per_s_per_gpu"])
    for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]
    assert found["usd_per_hour"] == pytest.approx(10.0)
    outputs, inputs = found["output_tokens_per_s"], found["requests_per_s"] * 1024
    paid = found["usd_per_million_output_tokens"] * outputs + found["usd_per_million_input_tokens"] * inputs
    assert paid * 3600 / 1e6 == pytest.approx(10.0)  # together they are the bill, once
    assert found["usd_per_million_output_tokens"] > found["usd_per_million_input_tokens"]
    assert found["e2e_s"] == pytest.approx(found["ttft_s"] + 255 * found["tpot_s"])


def test_serve_under_load_gives_percentiles_that_rise_and_nothing_where_it_cannot_keep_up(
    document: Callable[[str], dict[str, Any]],
) -> None:
    calm = document("serve Llama-3.1-8B --gpu h100 --rate 4")["under_load"]
    busy = document("serve Llama-3.1-8B --gpu h100 --rate 12")["under_load"]
    for load in (calm, busy):
        assert list(load["ttft_s"].values()) == sorted(load["ttft_s"].values())
    assert busy["ttft_s"]["p99"] >= calm["ttft_s"]["p99"]
    assert calm["utilisation_frac"] < busy["utilisation_frac"] < 1
    drowned = document("serve Llama-3.1-8B --gpu h100 --rate 100000")["under_load"]
    assert drowned["utilisation_frac"] > 1
    assert set(drowned["ttft_s"].values()) == {None}


def test_a_rate_that_is_not_sustained_has_no_latency_and_exit_code_one(run: Run) -> None:
    line = "serve Llama-3.1-8B --gpu l40s --rate 100"
    code, out, _ = run(f"{line} --json")
    found = json.loads(out)
    assert code == 1
    assert (found["ttft_s"], found["ttft_s_high"], found["tpot_s"], found["e2e_s"]) == (None, None, None, None)
    needed = found["under_load"]["replicas_needed"]
    code, out, _ = run(line)
    assert code == 1
    assert f"{needed:,} replicas" in out
    assert "TTFT" not in out
    assert run(f"{line} --gpus {needed}")[0] == 0
    assert run(f"{line} --gpus {needed - 1}")[0] == 1


@pytest.mark.parametrize("model", ["bert-base-uncased", "ViT-L/16", "CLIP-ViT-L/14"])
def test_models_that_do_not_generate_speak_of_inputs(
    run: Run, document: Callable[[str], dict[str, Any]], model: str
) -> None:
    line = f"serve {model} --gpu h100 --concurrency 32 --price 2"
    found, (code, out, _) = document(line), run(line)
    assert code == 0
    for name in ("tpot_s", "output_tokens_per_s", "kv_capacity_tokens", "usd_per_million_output_tokens"):
        assert found[name] is None
    assert found["requests_per_s_low"] < found["requests_per_s"] < found["requests_per_s_high"]
    paid = found["usd_per_million_requests"] * found["requests_per_s"] * 3600 / 1e6
    assert paid == pytest.approx(2.0)
    assert "inputs/s" in out
    for word in ("TPOT", "TTFT", "KV", "output token", "decoding", "tokens/s"):
        assert word not in out
    assert run(f"{line} --explain")[0] == 0


def test_requests_that_are_not_given_fit_the_context(document: Callable[[str], dict[str, Any]]) -> None:
    for model, made in (("gpt2", "1,024"), ("t5-3b", "512"), ("whisper-large-v3", "448")):
        found = document(f"serve {model} --gpu h100 --concurrency 1")
        assert found["fits"]
        assert any(f"is {made} tokens" in text for text in found["assumptions"])
    assert not any(
        "because the context of" in text for text in document("serve Llama-3.1-8B --gpu h100")["assumptions"]
    )
    assert any("longer than" in text for text in document("serve t5-3b --gpu h100 --input 700")["assumptions"])


def test_weights_are_taken_as_they_are_published(document: Callable[[str], dict[str, Any]]) -> None:
    for model, form, gib in (("gpt-oss-120b", "mxfp4", 65.97), ("DeepSeek-V3", "fp8-block", 626)):  # vLLM issue 23278
        found = document(f"memory {model} --task serve")
        assert any(f"weights in {form}" in text for text in found["assumptions"])
        weights = next(i["bytes"] for i in found["items"] if i["name"] == "weights")
        assert weights / 2**30 == pytest.approx(gib, rel=0.04)
        plain = document(f"memory {model} --task serve --weights bf16")
        assert next(i["bytes"] for i in plain["items"] if i["name"] == "weights") > 1.9 * weights


def test_one_capacity_in_every_place(document: Callable[[str], dict[str, Any]], run: Run) -> None:
    line = "Llama-3.1-70B --gpu h100 --weights fp8 --memory-fraction 0.9"
    served = [document(f"serve {line} --concurrency {n}") for n in (1, 4)]
    held = document(f"memory {line} --task serve --context 1280 --concurrency 4")
    answers = (*served, *(s["memory"] for s in served))
    assert {a["max_whole_contexts"] for a in answers} == {held["max_concurrency"]} == {held["max_whole_contexts"]}
    assert {a["kv_capacity_tokens"] for a in answers} == {held["kv_capacity_tokens"]}
    (most,) = {a["max_concurrency"] for a in answers}
    assert 0 < held["max_concurrency"] < most  # answers grow as they run
    _, out, _ = run(f"serve {line} --concurrency 4")
    assert out.count("at most ") == 1
    whole = f"{held['max_concurrency']:,.0f} at full length"
    said = rf"{most:,.0f} in flight \(80 % interval: .*\), each with half .*; {whole}"
    assert re.search(said, out)
    fixed = document(f"serve {line} --static --concurrency 3")
    assert fixed["max_concurrency"] == fixed["max_whole_contexts"] == held["max_concurrency"]
    reserved = document(f"serve {line} --engine tensorrt-llm --concurrency 1")
    assert reserved["max_concurrency"] == reserved["max_whole_contexts"]


@pytest.mark.parametrize("line", ["Llama-3.1-8B --gpu h100 --concurrency 1", "Llama-3.1-70B --gpu h100 --weights fp8"])
def test_no_interval_crosses_what_the_datasheet_allows(document: Callable[[str], dict[str, Any]], line: str) -> None:
    found = document(f"serve {line}")
    size, read = (70.6e9, 69.5e9) if "70B" in line else (8.03e9, 15.0e9)  # parameters, and bytes of layers and head
    assert found["tpot_s_low"] > read / 3.35e12
    assert found["ttft_s_low"] > 2 * 0.8 * size * 1024 / 1979e12


def test_a_format_without_units_is_said(document: Callable[[str], dict[str, Any]]) -> None:
    for gpu in ("v100-32gb", "t4"):
        found = document(f"serve Llama-3.2-1B --gpu {gpu} --concurrency 1")
        assert any("no bf16 units: products run in fp16" in text for text in found["assumptions"])


def test_table_json_and_python_say_the_same(run: Run, document: Callable[[str], dict[str, Any]]) -> None:
    line = "train Llama-3.1-8B --gpu h100 --gpus 8 --fsdp --global-batch 64 --seq 4096"
    answer = train_answer("Llama-3.1-8B", gpu="h100", gpus=8, fsdp=True, global_batch=64, seq=4096)
    found, (_, out, _) = document(line), run(line)
    assert found["step_s"] == pytest.approx(answer.estimate.step_s)
    assert f"{answer.estimate.tokens_per_s:,.0f} tokens/s" in out
    assert units.format_seconds(answer.estimate.step_s) in out
    assert units.format_percent(answer.estimate.mfu_frac) in out

    line = "serve Llama-3.1-8B --gpu h100 --concurrency 16"
    served = flopwise.serve("Llama-3.1-8B", gpu="h100", concurrency=16)
    found, (_, out, _) = document(line), run(line)
    assert found["ttft_s"] == pytest.approx(served.estimate.ttft_s.value)
    assert units.format_seconds(served.estimate.ttft_s.value) in out

    line = "memory Llama-3.1-8B --gpu h100 --dp 8 --zero 2"
    held = flopwise.memory("Llama-3.1-8B", gpu="h100", dp=8, zero=2)
    found, (_, out, _) = document(line), run(line)
    assert found["per_gpu_bytes"] == pytest.approx(held.per_gpu_bytes)
    assert units.format_gib(held.per_gpu_bytes) in out


def test_roofline_is_the_longer_of_compute_and_memory(document: Callable[[str], dict[str, Any]]) -> None:
    found = document("roofline --flops 989.4e12 --bytes 3.35TB --gpu h100 --efficiency 1 --price 3.6")
    assert found["compute_s"] == pytest.approx(1.0)
    assert found["memory_s"] == pytest.approx(1.0)
    assert found["cost_usd"] == pytest.approx(0.001)
    half = document("roofline --flops 989.4e12 --bytes 1TB --gpu h100 --efficiency 50%")
    assert (half["bound"], half["seconds"]) == ("compute", pytest.approx(2.0))
    assert half["utilisation_frac"] == pytest.approx(0.5)
    moved = document("roofline --bytes 3.35TB --gpu h100 --efficiency 1 --gpus 2")
    assert (moved["bound"], moved["seconds"]) == ("memory bandwidth", pytest.approx(0.5))
    assert found["intensity_flops_per_byte"] == pytest.approx(found["ridge_flops_per_byte"])


def test_roofline_takes_published_figures_of_models_without_layers(document: Callable[[str], dict[str, Any]]) -> None:
    one = document("roofline ResNet-50 --gpu t4 --batch 1 --dtype fp16")
    many = document("roofline ResNet-50 --gpu t4 --batch 64 --dtype fp16")
    assert 7e9 < one["flops"] < 9e9  # 4.1 GMAC (He et al. 2015)
    assert many["flops"] == pytest.approx(64 * one["flops"])
    assert any("published" in text or "activations" in text for text in one["assumptions"])


def test_roofline_of_published_figures_is_a_limit_and_no_estimate(
    document: Callable[[str], dict[str, Any]], run: Run
) -> None:
    line = "roofline ResNet-50 --gpu h100 --batch 256 --training --price 2"
    found, (_, out, _) = document(line), run(line)
    assert found["partial"]
    assert (found["samples_per_s"], found["cost_usd"], found["energy_joules"]) == (None, None, None)
    assert found["samples_per_s_at_most"] == pytest.approx(256 / found["seconds"])
    assert "upper limit" in out
    assert "at most" in out
    whole = document("roofline Llama-3.1-8B --gpu h100")
    assert (whole["partial"], whole["samples_per_s_at_most"]) == (False, None)
    assert whole["samples_per_s"] > 0
    assert any("no bf16 units" in text for text in document("roofline Llama-3.2-1B --gpu t4")["assumptions"])


@pytest.mark.parametrize(("gpus", "told"), [(8, False), (16, True)])
def test_the_network_is_assumed_only_for_jobs_of_several_nodes(
    document: Callable[[str], dict[str, Any]], gpus: int, told: bool
) -> None:
    found = document(f"train Llama-3.1-8B --gpu a100-80gb --gpus {gpus} --fsdp --price 1")
    assert any("network between nodes" in text for text in found["assumptions"]) == told


def test_explain_gives_the_tree_and_the_ranked_changes(document: Callable[[str], dict[str, Any]], run: Run) -> None:
    found = document("explain serve Llama-3.1-8B --gpu h100 --concurrency 32 --weights fp8")
    assert {"provenance", "assumptions", "sensitivities"} <= found.keys()
    assert found["provenance"]["inputs"][0]["name"] == "TTFT"
    assert all({"change", "effects", "note"} <= s.keys() for s in found["sensitivities"])
    code, out, _ = run("explain train Llama-3.1-8B --gpu h100 --gpus 8 --depth 2")
    assert code == 0
    assert "Effect of single changes" in out
    assert out.count("\n") < 120


@pytest.mark.parametrize(("name", "shows"), [("fit", True), ("plan", True), ("gpus", False), ("nope", False)])
def test_explain_of_another_command_says_whether_that_shows_its_own_tree(run: Run, name: str, *, shows: bool) -> None:
    code, _, err = run(f"explain {name} Llama-3.1-8B")
    assert code == 2
    assert f"nothing to explain by the name '{name}'; allowed: train, serve, memory, or a MODEL" in err
    assert (f"`flopwise {name} ... --explain`" in err) == shows


def test_a_slip_in_what_is_explained_is_answered_with_the_nearest(run: Run) -> None:
    code, _, err = run("explain trian Llama-3.1-8B --gpu h100")
    assert code == 2
    assert "nothing to explain by the name 'trian'; nearest: train; allowed: train, serve, memory, or a MODEL" in err


@pytest.mark.parametrize("command", ["memory", "train", "serve"])
def test_explain_as_an_option_adds_the_tree_to_the_answer(run: Run, command: str) -> None:
    line = f"{command} Llama-3.1-8B --gpu h100"
    code, out, _ = run(f"{line} --explain")
    assert code in {0, 1}
    assert "Where the figures come from" in out
    assert "NVIDIA H100 datasheet" in out
    code, out, _ = run(f"{line} --explain --json")
    assert json.loads(out)["provenance"][0]["inputs"]
    code, out, _ = run(f"{line} --json")
    assert "provenance" not in json.loads(out)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --tp 3", "divide"),
        ("train Llama-3.1-8B --gpu h100 --gpus 6 --tp 6", "32 attention heads"),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --tp 2 --dp 2", "2 x tp 2"),
        ("train Llama-3.1-8B --gpu h100 --gpus 64 --pp 64", "32 layers"),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --ep 2", "no experts"),
        ("train Mixtral-8x7B --gpu h100 --gpus 6 --ep 3", "8 experts"),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --fsdp --zero 1", "ZeRO 1"),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --fsdp --global-batch 12", "multiple of 8"),
        ("train Llama-3.1-8B --gpu h100 --gpus 0", "--gpus"),
        ("train Llama-3.1-8B --gpu h1000", "unknown accelerator"),
        ("train Llama-3.1-8B", "no accelerator is given"),
        ("train Lama-3.1-8B --gpu h100", "Llama-3.1-8B"),
        ("train Llama-3.1-8B --gpu h100 --seq 9999999", "made for"),
        ("train Llama-3.1-8B --gpu h100 --optimizer adamx", "adamw"),
        ("train Llama-3.1-8B --gpu h100 --stack megatrn", "megatron"),
        ("train Llama-3.1-8B --gpu h100 --lora-targets q,k", "needs adapters"),
        ("train Llama-3.1-8B --gpu h100 --lora 8 --lora-targets z", "LoRA targets"),
        ("train Llama-3.1-8B --gpu h100 --global-batch 8 --global-batch-tokens 1M", "one of them"),
        ("train Llama-3.1-8B --gpu t4 --precision fp8 --tp 1", "fp8"),
        ("train Llama-3.1-8B --gpu h100 --provider nobody", "nobody"),
        ("train ResNet-50 --gpu h100 --tp 1", "only for models with token layers"),
        ("serve ResNet-50 --gpu h100", "roofline"),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --dp 3 --tp 2", "dp 3 x tp 2 x pp 1 x cp 1 is 6 GPUs, but 8"),
        ("train Llama-3.1-8B --gpu h100 --gpus 8 --tokens 1000", "shorter than"),
        ("serve Llama-3.1-8B --gpu h100 --tp 2 --gpus 3", "divided into replicas"),
        ("serve Llama-3.1-8B --gpu h100 --rate 2 --concurrency 8", "either the requests in flight"),
        ("serve Llama-3.1-8B --gpu h100 --input 20000000", "context"),
        ("serve bert-base-uncased --gpu h100 --input 4096", "shorten it to 512"),
        ("memory gpt2 --seq 2048", "shorten it to 1,024"),
        ("serve Llama-3.1-8B --gpu t4 --weights fp8", "use fp16"),
        ("serve Llama-3.1-8B --gpu h100 --weights int3", "format"),
        ("serve Llama-3.1-8B --gpu h100 --engine vlm", "vllm"),
        ("memory Llama-3.1-8B --task serve --lora 8", "--lora: does not go with --task serve"),
        ("memory Llama-3.1-8B --task train --kv-dtype fp8", "--kv-dtype: does not go with --task train"),
        ("memory Llama-3.1-8B --offload parameters", "ZeRO 3"),
        ("roofline --gpu h100", "--flops and --bytes"),
        ("roofline Llama-3.1-8B --flops 1e12 --gpu h100", "both a model and FLOP or bytes are given"),
        ("roofline --flops 1e12 --gpu h100 --dtype int3", "int3"),
        ("roofline --flops 1e12 --gpu h100 --efficiency 1.5", "--efficiency"),
        ("explain gpus h100", "gpus"),
        ("explain train Llama-3.1-8B --gpu h100 --tpp 2", "--tp"),
        ("explain memory Llama-3.1-8B --task serve --lora 8", "--lora: does not go"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(run: Run, line: str, said: str) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1
    assert said in err


def test_an_offer_that_does_not_exist_is_no_feasible_answer(run: Run) -> None:
    code, _, err = run("train Llama-3.1-8B --gpu mi300x --provider lambda")
    assert code == 1
    assert "lambda" in err


@pytest.mark.parametrize("line", ["train Llama-3.1-8B --gpu h100 --gpus 64", "memory Llama-3.1-8B"])
def test_a_sequence_beyond_the_model_is_answered_with_a_note(run: Run, line: str) -> None:
    assert "longer than the 131,072" in run(f"{line} --seq 262144")[1]
    assert "longer than" not in run(f"{line} --seq 131072")[1]


def test_a_micro_batch_that_does_not_divide_is_the_reason_given(run: Run) -> None:
    code, _, err = run("train Llama-3.1-8B --gpu h100 --gpus 64 --global-batch 512 --micro-batch 3")
    assert (code, "micro-batch 3 does not divide the global batch of 512" in err) == (1, True)


def test_memory_of_a_context_is_that_of_serving(document: Callable[[str], dict[str, Any]]) -> None:
    short = document("memory Llama-3.1-8B --gpu a100-80gb --context 8192 --concurrency 4")
    assert short == document("memory Llama-3.1-8B --task serve --gpu a100-80gb --context 8192 --concurrency 4")
    assert document("memory Llama-3.1-8B --gpu a100-80gb --weights fp8") == document(
        "memory Llama-3.1-8B --task serve --gpu a100-80gb --weights fp8"
    )
    assert document("memory Llama-3.1-8B --gpu a100-80gb --dp 8") == document(
        "memory Llama-3.1-8B --task train --gpu a100-80gb --dp 8"
    )
    assert flopwise.memory("Llama-3.1-8B", gpu="a100-80gb", context=8192).task == "serve"
    assert flopwise.memory("Llama-3.1-8B", gpu="a100-80gb", weights="fp8").task == "serve"
    assert flopwise.memory("Llama-3.1-8B", gpu="a100-80gb", dp=8).task == "train"


@pytest.mark.parametrize("load", ["--rate 8", "--concurrency 8"])
def test_no_token_follows_an_answer_of_one(run: Run, document: Callable[[str], dict[str, Any]], load: str) -> None:
    line = f"serve Llama-3.1-8B --gpu h100-sxm-80gb --input 100 --output 1 {load}"
    found, (code, out, _) = document(line), run(line)
    assert code == 0
    assert (found["tpot_s"], found["tpot_s_low"], found["tokens_per_s_per_user"]) == (None, None, None)
    seen = found["under_load"] or found["closed_loop"]
    assert set(seen["tpot_s"].values()) == {None}
    assert seen["ttft_s"]["p95"] > 0
    shown = out.partition("Assumptions")[0]
    assert "TTFT" in shown
    assert "output tokens" in shown
    for word in ("TPOT", "per user", "time per token"):
        assert word not in shown


def test_the_line_below_a_comparison_of_an_encoder_can_be_run(run: Run) -> None:
    code, out, _ = run("compare bge-large-en-v1.5 --tokens-per-month 5B --no-simulate --way open --gpu l4")
    assert code == 0
    [line] = re.findall(r"^  flopwise (plan .*)$", out, re.MULTILINE)
    assert "--output" not in line
    assert run(f"{line} --no-simulate")[0] == 0
