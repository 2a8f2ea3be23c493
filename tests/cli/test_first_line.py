"""The first line answers: its figures are those of the document, and the lines at the end can be run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flopwise import units

Run = Callable[..., tuple[int, str, str]]
TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth" / "weights.csv"


def answers(run: Run, line: str) -> tuple[str, dict[str, Any]]:
    """The first line of the text, and the document, which holds the same sentence."""
    first = run(line)[1].split("\n")[0]
    document = json.loads(run(f"{line} --json")[1])
    assert document["verdict"] == first
    return first, document


def test_memory_says_whether_it_fits_how_sure_that_is_and_what_would_do(run: Run) -> None:
    first, found = answers(run, "memory Llama-3.3-70B --gpu 2xa100-80gb --context 32k --memory-fraction 0.9")
    needed, usable = units.format_gib(found["per_gpu_bytes"]), units.format_gib(found["usable_bytes"])
    odds = f"{100 * found['fits_probability']:.0f} % chance that it runs"
    assert first.startswith(f"Does not fit 2 x A100-SXM-80: {needed} of {usable} each, {odds}. It would fit with ")
    assert found["remedies"][0]["change"] in first
    first, found = answers(run, "memory Llama-3.1-8B --gpu h100 --context 8k --weights fp8")
    assert first.startswith("Fits 1 x H100-SXM-80: ")
    assert first.endswith(f" At most {found['max_concurrency']:,.0f} sequences of 8,192 tokens at once.")
    first, found = answers(run, "memory gpt2 --seq 512")
    assert first.startswith(
        f"Training takes {units.format_gib(found['per_gpu_bytes'])} per accelerator (80 % interval: "
    )
    assert first.endswith("Name a device (--gpu) to see whether it fits.")


def test_serve_says_speed_price_and_what_stands_in_the_way(run: Run) -> None:
    line = "serve Llama-3.1-8B --gpu l40s --input 512 --output 128"
    first, found = answers(run, f"{line} --concurrency 8")
    speed = f"1 x L40S serves {found['output_tokens_per_s']:,.0f} tokens/s (80 % interval: "
    assert first.startswith(speed)
    assert f"one every {units.format_seconds(found['tpot_s'])}, with 8 in flight" in first
    read, made = (units.format_cost(found[f"usd_per_million_{kind}_tokens"]) for kind in ("input", "output"))
    assert first.endswith(f"; {read} per million input and {made} per million output tokens.")
    first, found = answers(run, f"{line} --rate 2")
    load = found["under_load"]
    for name, text in (("ttft_s", "TTFT {} (80 % interval: {} to {})"), ("tpot_s", "TPOT {} ({} to {})")):
        ends = (load[key]["p95"] for key in (name, f"{name}_low", f"{name}_high"))
        assert text.format(*map(units.format_seconds, ends)) in first
        for p in ("p50", "p90", "p95", "p99"):
            assert load[f"{name}_low"][p] < load[name][p] < load[f"{name}_high"][p]
    first, found = answers(run, f"{line} --rate 200")
    assert first.startswith("Too slow: 200 requests/s is ")
    assert first.endswith(f"; {found['under_load']['replicas_needed']:,} are needed.")
    first, _ = answers(run, "serve Llama-3.1-70B --gpu l40s")
    assert first.startswith("Does not fit 1 x L40S: ")
    first, _ = answers(run, "serve bge-m3 --gpu l4 --input 256")
    assert re.match(
        r"1 x L4 serves [\d,.]+ inputs/s \(80 % interval: [\d,.]+ to [\d,.]+\), each answered within ", first
    )
    first, found = answers(run, "serve bge-m3 --gpu l4 --input 256 --rate 1")
    share = units.format_percent(found["under_load"]["utilisation_frac"])
    assert first.startswith(f"1 x L4 serves 1 input/s, {share} of capacity: latency ")
    assert first.endswith(f"; ${found['usd_per_million_requests']:.2f} per million inputs.")
    text = run("serve bge-m3 --gpu l4 --input 256 --rate 5000")[1]
    assert text.startswith("Too slow: 5,000 inputs/s is ")
    assert "WARNING: 5,000 inputs/s is " in text
    assert "256 tokens per input; 5,000 inputs/s" in text
    first, _ = answers(run, f"{line} --sweep batch")
    assert first.startswith("Saturated from ")


def test_train_says_speed_and_what_the_run_takes(run: Run) -> None:
    first, found = answers(run, "train gpt2 --gpu 4xh100 --seq 1024 --global-batch 64 --tokens 1B")
    low, high = found["low"] * 4, found["high"] * 4
    assert first.startswith(
        f"4 x H100-SXM-80 train {found['tokens_per_s']:,.0f} tokens/s (80 % interval: {low:,.0f} to {high:,.0f}), MFU "
    )
    run_of = found["run"]
    ends = f"({units.format_seconds(run_of['seconds_low'])} to {units.format_seconds(run_of['seconds_high'])})"
    assert f"1.00 B tokens take {units.format_seconds(run_of['seconds'])} {ends} and $" in first
    assert run("train Llama-3.1-70B --gpu h100")[1].startswith("Does not fit 1 x H100-SXM-80 in training: ")
    first, found = answers(run, "train gpt2 --gpu 4xh100 --seq 1024 --global-batch 64 --compare")
    best = max((p for p in found["points"] if p["num_gpus"] == 4 and p["fits"]), key=lambda p: p["samples_per_s"])
    rate = f"{best['samples_per_s'] * 1024:,.0f} tokens/s (80 % interval: "
    assert first.startswith(f"The fastest layout on 4 x H100-SXM-80 ({best['strategy']}) is dp 4, ")
    assert f": {rate}" in first
    first, found = answers(run, "train Llama-3.1-8B --gpu l4 --gpus 2 --compare")
    least = min(p["memory_bytes"] for p in found["points"] if p["num_gpus"] == 2 and p["memory_bytes"])
    needs = f"{units.format_gib(least)} of 22.49 GiB each at least"
    assert first == f"Llama-3.1-8B does not fit 2 x L4 in any layout: {needs}."


def test_other_questions_have_theirs(run: Run) -> None:
    first, found = answers(run, "roofline --flops 1e15 --bytes 2TB --gpu 4xh100")
    time, least = (units.format_seconds(found[name]) for name in ("seconds", "lower_bound_s"))
    where = f"4 x H100-SXM-80 (at least {least} at datasheet rates)"
    assert first.startswith(f"{time} on {where}, bound by {found['bound']}: ")
    first, found = answers(run, "io cosmoflow --gpu v100 --gpus 8 --storage nfs")
    assert first.startswith(f"Reads {units.format_rate(found['read_bytes_per_s_per_node'])} a node")
    first, found = answers(run, "io Llama-3.1-8B --gpu 16xh100")
    ends = [units.format_rate(8 * found[end]) for end in ("low", "high")]
    each = units.format_rate(found["read_bytes_per_s_per_node"])
    assert first.startswith(f"Reads {each} a node (80 % interval: {' to '.join(ends)}), ")
    first, found = answers(run, "simulate Llama-3.1-8B --gpu h100 --rate 2 --duration 20s --ttft 1s")
    ends = [units.format_seconds(found[f"ttft_s_p95_{end}"]) for end in ("low", "high")]
    assert f"TTFT {units.format_seconds(found['ttft_s']['p95'])} (80 % interval: {' to '.join(ends)})" in first
    assert found["ttft_s_p95_low"] < found["ttft_s"]["p95"] < found["ttft_s_p95_high"]
    first, found = answers(run, "plan gpt2 --task pretrain --tokens 10M --gpu 2xa100-80gb")
    best = found["plans"][0]
    assert first.startswith(f"{best['num_instances']} x {best['provider']} {best['instance']}")
    assert f": {units.format_usd(best['cost_usd'])} (80 % interval: " in first
    assert {plan["num_gpus"] for plan in found["plans"]} <= {1, 2}
    first = run("plan Llama-3.1-8B --task serve --rate 2 --ttft 1ms --gpu l4 --max-gpus 1")[1].split("\n")[0]
    assert re.match(
        r"No plan meets every target\. The nearest is 1 x .* \(1 x L4\), whose TTFT is .* times its lim", first
    )


@pytest.mark.parametrize("task", ["train", "serve", "memory"])
def test_an_explanation_opens_with_what_it_explains(run: Run, task: str) -> None:
    first, _ = answers(run, f"explain {task} gpt2 --gpu h100")
    assert first == run(f"{task} gpt2 --gpu h100")[1].split("\n")[0]


def test_shapes_open_with_their_largest_gain(run: Run) -> None:
    first, found = answers(run, "explain gpt2-xl --gpu a100-80gb --batch 8 --seq 1024")
    assert first.startswith(f"A pass of GPT-2 XL on A100-SXM-80 takes {units.format_seconds(found['pass_s'])}, ")
    best = found["advice"][0]
    assert f"{best['what']} {best['better']} instead of {best['now']}" in first


def test_lists_open_with_a_sentence(run: Run) -> None:
    """How many rows there are, and what counts most among them."""

    def both(line: str) -> tuple[str, Any]:
        return run(line)[1].split("\n")[0], json.loads(run(f"{line} --json")[1])

    first, rows = both("gpus --vendor AMD")
    fastest = max(rows, key=lambda row: row["hbm_bytes_per_s"])
    assert first.startswith(f"{len(rows)} accelerators of AMD; {fastest['name']} has the fastest memory, ")
    first, one = both("gpus h100")
    assert first.startswith(f"{one['name']}: {units.format_rate(one['peak']['bf16'], 'FLOP/s')} dense in bf16, ")
    first, rows = both("models llama-3.2")
    assert first == f"{len(rows)} models have llama-3.2 in the name or type; no model has exactly that name."
    first, one = both("models Mixtral-8x7B")
    assert first == (
        "Mixtral-8x7B (decoder, mixtral): 46.7 B parameters, 12.9 B of them active for a token; contexts of up to "
        "32,768 tokens."
    )
    first, rows = both("instances --provider aws --gpu h100")
    keys = ("on_demand_usd_per_hour", "spot_usd_per_hour", "reserved_1y_usd_per_hour", "reserved_3y_usd_per_hour")
    least = min(row[key] / row["count"] for row in rows for key in keys if row[key] is not None)
    assert first.startswith(
        f"{len(rows)} offers of aws; the cheapest accelerator-hour is {units.format_usd(least)}: aws p5"
    )
    first, ages = both("prices")
    stale = sum(row["stale"] for row in ages["providers"])
    assert f": {stale:,} prices are older than 180 days, " in first


@pytest.mark.parametrize(
    "line",
    [
        "memory Llama-3.1-8B --gpu 2xl40s --context 4k --weights fp8 --concurrency 4",
        "memory gpt2 --gpu 2xh100 --seq 512 --lora 16",
        "fit Llama-3.1-8B --gpu rtx4090 --context 4k",
        "serve Llama-3.1-8B --gpu l40s --concurrency 8",
        "train gpt2 --gpu 2xh100 --seq 512 --global-batch 64",
        "serve gpt2 --gpu l4 --sweep concurrency",
        "serve gpt2 --gpu l4 --sweep=batch",
        "serve Llama-3.1-8B --gpu h100 --sweep tp",
        "prices own L40S",
        "train gpt2 --gpu h100 --gpus 4 --seq 512 --global-batch 64 --compare --weak",
        "simulate gpt2 --gpu l4 --rate 1 --turns 3 --think 2 --input 100 --output 20 --requests 30",
        "explain gpt2 --gpu l4 --batch 8 --seq 512 --precision fp16 --tp 2",
        "explain Qwen3-30B-A3B --gpu h100 --task serve --batch 8 --weights fp8 --tp 2",
        f"backtest weights {TRUTH}",
    ],
)
def test_the_lines_at_the_end_go_deeper(run: Run, line: str) -> None:
    _, out, _ = run(line)
    further = [part.strip() for part in out.split("\n") if part.startswith("  flopwise ")]
    assert further
    for one in further:
        code, deeper, err = run(one.removeprefix("flopwise "))
        assert (code, err) == (0, "")
        assert deeper


@pytest.mark.parametrize(
    "line",
    [
        "simulate gpt2 --gpu l4 --rate 2 --requests 50 --provider aws --ttft p95=1s",
        "simulate gpt2 --gpu l4 --users 4 --requests 20 --provider aws --weights fp16",
        "simulate gpt2 --gpu l4 --rate 1 --arrivals diurnal --peak 2 --duration 60s --shared-prefix 50 --provider aws",
        "simulate Llama-3.2-1B --gpu l4 --trace examples/trace.csv --provider aws",
        "simulate gpt2 --gpu l4 --replay examples/observed",
        "gpus l4 --largest",
        "export --list",
        "observe --load examples/guidellm.json",
        "simulate Llama-3.2-1B --gpu l4 --queue 1000 --provider aws --deadline 2h --trials 20",
        "compare Llama-3.1-8B --tokens-per-month 5B --way api --way open --provider aws --gpu l4 --no-simulate",
        "roofline gpt2 --gpu l4 --batch 2 --efficiency 0.5",
        "io resnet50 --gpu v100",
        "gpus l4",
        "models gpt2",
        "plan gpt2 --task pretrain --tokens 10M --gpu l4",
    ],
)
def test_every_answer_ends_with_a_line_that_can_be_run(run: Run, line: str, tmp_path: Path) -> None:
    last = run(line)[1].rstrip().split("\n")[-1]
    assert last.startswith("  flopwise ")
    words = last.removeprefix("  flopwise ")
    if any(word.isupper() and word.isalpha() for word in words.split()):  # a name to fill in
        return
    code, deeper, _ = run(words.replace("-o seen", f"-o {tmp_path / 'seen'}"))
    assert code == 0
    assert deeper


def test_a_plan_of_a_simulated_load_keeps_what_was_stated(run: Run) -> None:
    line = "simulate gpt2 --gpu l4 --rate 2 --requests 30 --input 200:400 --shared-prefix 50"
    last = run(f"{line} --burstiness 2 --arrivals gamma")[1].rstrip().split("\n")[-1]
    for part in (
        "--rate 2 ",
        "--input 200:400",
        "--shared-prefix 50",
        "--burstiness 2",
        "--arrivals gamma",
        "--gpu l4",
    ):
        assert part in f"{last} ", part
    queue = "--policy shortest --preempt swap --response-cache 50 --distinct 80 --repeated 0.7"
    assert queue in run(f"{line} {queue}")[1].rstrip().split("\n")[-1]


def test_answers_about_runs_end_with_a_line_on_the_same_store(run: Run, tmp_path: Path) -> None:
    store, file = tmp_path / "runs.db", tmp_path / "run.jsonl"

    def last(line: str) -> str:
        code, out, _ = run(f"runs {line} --store {store}")
        assert code == 0
        return out.rstrip().split("\n")[-1].removeprefix("  flopwise ")

    shown = last("import examples/vllm-bench-serve.json --model Llama-3.2-1B --gpu l4")
    assert last("list") == shown == f"runs show {shown.split()[2]} --store {store}"
    estimate = last("show vllm-bench-serve")
    assert estimate.startswith("serve Llama-3.2-1B --gpu l4 ")
    assert run(estimate)[0] == 0
    assert last(f"export vllm-bench-serve -o {file}") == f"runs import {file} --store STORE"
    other = last("import tests/records/imports/samples/guidellm-benchmarks.json --model Llama-3.2-1B --gpu l4")
    assert last(f"compare vllm-bench-serve {other.split()[2]}") == shown
    assert last("delete vllm-bench-serve --yes") == f"runs list --store {store}"


def test_a_sweep_names_the_line_of_its_first_plan(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("{model: gpt2, task: pretrain, data: {tokens: 10M}, sweep: {gpus: [l4, t4]}}", encoding="utf-8")
    out = run(f"plan {file}")[1].rstrip().split("\n")
    assert out[-2] == "The best plan of gpus l4 in full, with the same figures:"
    assert out[-1].startswith("  flopwise train gpt2 ")
    assert run(out[-1].removeprefix("  flopwise "))[0] == 0


def test_fit_recommends_the_format_that_a_model_is_published_in(run: Run) -> None:
    """gpt-oss comes in MXFP4; NVFP4, of which the scales take more bits, is not what anybody serves."""
    out = run("fit gpt-oss-20b --gpu rtx4090 --context 8k --formats nvfp4,mxfp4,awq")[1]
    assert " at once in mxfp4, " in out.split("\n")[0]
    assert out.rstrip().split("\n")[-2:][0] == "mxfp4 in full:"


def test_a_store_without_runs_and_rows_that_cannot_be_predicted_say_what_comes_next(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("runs list")
    assert code == 0
    assert out == (
        "No recorded run matches. `flopwise.callbacks` records runs as they go.\n\n"
        "Runs from files of other tools:\n  flopwise runs import FILE\n"
    )
    rows = tmp_path / "rows.csv"
    rows.write_text(TRUTH.read_text(encoding="utf-8").split("\n")[0] + "\n", encoding="utf-8")
    with rows.open("a", encoding="utf-8") as file:
        file.write(",".join("no-such-model" for _ in range(rows.read_text(encoding="utf-8").count(",") + 1)) + "\n")
    code, out, _ = run(f"backtest weights {rows}")
    assert code == 0
    assert out.endswith(f"Every row with the reason:\n  flopwise backtest weights {rows} --json\n")


def test_the_rules_of_watch_open_with_how_they_are_applied(run: Run) -> None:
    code, out, _ = run("watch --rules")
    assert code == 0
    count = len(json.loads(run("watch --rules --json")[1]))
    assert out.startswith(
        f"{count} rules, tried in this order: the first whose conditions all hold is the diagnosis.\n"
    )
    assert out.endswith("  flopwise watch --once\n")


def test_fit_is_a_matrix_that_exits_with_one_where_nothing_fits(run: Run) -> None:
    first, found = answers(run, "fit Llama-3.1-8B --gpu rtx4090 --context 16k --formats bf16,fp8")
    counts = [row["most_requests"] for row in found["formats"]]
    assert first == f"1 x RTX 4090 holds {counts[0]} requests of 16,384 tokens at once in bf16, {counts[1]} in fp8."
    code, out, _ = run("fit Llama-3.1-70B --gpu rtx4090 --context 16k")
    assert code == 1
    assert out.startswith("No format fits 1 x RTX 4090 with a request of 16,384 tokens: bf16 (<1 % chance), ")
    assert out.rstrip().endswith(
        "\n  flopwise plan Llama-3.1-70B --task serve --concurrency 1 --input 16128 --output 256"
    )
    assert run("fit Llama-3.1-8B --gpu rtx4090 --context 16q")[0] == 2


def test_lists_take_a_number_too(run: Run) -> None:
    assert run("gpus 8xh100")[1] == run("gpus h100")[1]
    counts = {row["count"] for row in json.loads(run("instances --gpu 8xh100 --provider aws --json")[1])}
    assert counts == {8}
    assert 1 in {row["count"] for row in json.loads(run("instances --gpu h100 --provider aws --json")[1])}
    code, _, err = run("plan gpt2 --task pretrain --tokens 10M --gpu 2xa100-80gb --max-gpus 3")
    assert code == 2
    assert "3, but" in err


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ("100T", r"interruptions +\d[\d,.]* expected, one every "),
        ("1B", r"interruptions +under 0.1 % chance of one; "),
    ],
)
def test_interruptions_are_a_number_or_a_chance(run: Run, tokens: str, shown: str) -> None:
    _, out, _ = run(f"train gpt2 --gpu 8xh100 --seq 1024 --tokens {tokens}")
    assert re.search(shown, out)
    assert re.search(r"unit costs +\$[\d.]+ per hour; ", out)
