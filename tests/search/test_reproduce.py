"""The command that a plan prints for its first row gives the row's own figures."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import flopwise
from flopwise import cli, options
from flopwise.cost.spec import MachineSpec
from flopwise.search.answer import Candidate, Plan
from flopwise.serving.spec import PriorityClass, RequestSpec, ServingSpec, TechniqueRequest
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.spec import DataSpec, TrainingSpec

ROOT = Path(__file__).parents[2]
ROWS = 3
CLOUDS = {"providers": ["aws", "gcp", "azure"]}
FEW = {"gpus": ["h100", "a100-80gb", "l40s", "l4"], **CLOUDS}
"""Machines of few kinds: searches that take a second."""
CUSTOM = "custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB,link=50GB/s,price=1.5"
TRAINING: dict[str, dict[str, Any]] = {
    "pretrain": {"model": "7B", "data": {"tokens": "100B"}, "constraints": FEW},
    "lora": {"model": "Llama-3.1-8B", "data": {"tokens": "50M"}, "method": {"kind": "lora"}, "constraints": FEW},
    "qlora on spot": {
        "model": "Llama-3.1-8B", "data": {"tokens": "100M"},
        "method": {"kind": "qlora", "rank": 32, "targets": ["qv"]}, "constraints": {"purchase": ["spot"], **FEW},
    },
    "full with epochs and checkpoints": {
        "model": "Llama-3.1-8B", "task": "finetune", "optimizer": "adamw-8bit", "constraints": FEW,
        "data": {"samples": "100k", "seq_len": 4096, "epochs": 3, "padded_frac": 0.2},
        "checkpoints": {"every": "1h", "asynchronous": True},
    },
    "experts over a given network": {
        "model": "Mixtral-8x7B", "data": {"tokens": "1T"}, "routing": {"expert_skew": 1.3},
        "constraints": {"gpus": ["h100"], "network": "25GB/s", "max_gpus": 64, **CLOUDS},
    },
    "network of an instance": {
        "model": "7B", "data": {"tokens": "10B", "global_batch_tokens": "2M"},
        "constraints": {"gpus": ["a100"], "inter_node_bandwidth": "100GB/s", "min_gpus": 16, "max_gpus": 32, **CLOUDS},
    },
    "long context": {
        "model": "Llama-3.1-70B", "data": {"tokens": "100B", "seq_len": 65536, "global_batch_tokens": "4M"},
        "constraints": {"gpus": ["h100", "h200"], "min_gpus": 128, "max_gpus": 256, "precision": ["any"]},
    },
    "devices without bf16": {
        "model": "gpt2", "data": {"tokens": "100M"}, "constraints": {"gpus": ["t4", "v100", "k80"]},
    },
    "the stack of a month": {
        "model": "Llama-3.1-8B", "data": {"tokens": "50M"}, "method": {"kind": "lora"},
        "constraints": {"software_month": "2026-08", **FEW},
    },
    "hypothetical devices": {"model": "gpt2-xl", "data": {"tokens": "1B"}, "constraints": {"gpus": [CUSTOM]}},
    "packed, on assumed spot prices of TPUs": {
        "model": "7B", "data": {"tokens": "10B", "packing": "packed", "mean_length": 600, "seq_len": 4096},
        "software": ["any"], "constraints": {"gpus": ["tpu-v6e", "a10g"], "purchase": ["spot"]}, "spot": "assume",
    },
    "offloaded": {
        "model": "Llama-7B", "data": {"tokens": "10M", "seq_len": 1024}, "task": "finetune",
        "constraints": {"gpus": ["a100-80gb"], "max_gpus": 1},
    },
}  # fmt: skip
ASKED = {"requests_per_s": 10, "input_tokens": 1000, "output_tokens": 200}
SERVING: dict[str, dict[str, Any]] = {
    "at a rate": {"model": "Llama-3.1-8B", "traffic": ASKED, "constraints": FEW},
    "quantised": {
        "model": "Llama-3.1-70B", "traffic": ASKED, "constraints": {"weight_formats": ["fp8", "awq"], **FEW},
    },
    "speculating": {
        "model": "Llama-3.1-70B", "traffic": ASKED, "constraints": {"gpus": ["h100"]},
        "techniques": {"draft": "Llama-3.2-1B", "acceptance": 0.7},
    },
    "with a shared prefix": {
        "model": "Llama-3.1-8B", "traffic": ASKED, "techniques": {"shared_prefix": 400}, "constraints": FEW,
    },
    "with hits of the cache": {
        "model": "Llama-3.1-8B", "traffic": ASKED, "techniques": {"prefix_hit": 0.5}, "constraints": FEW,
    },
    "for users": {
        "model": "Llama-3.1-8B", "traffic": {"concurrency": 50, "input_tokens": 2000, "output_tokens": 500},
        "constraints": FEW,
    },
    "for more users than one replica holds": {
        "model": "Llama-3.1-70B", "traffic": {"concurrency": 50, "input_tokens": 30000, "output_tokens": 2000},
        "constraints": {"gpus": ["a100-80gb", "l40s"], **CLOUDS},
    },
    "batch": {
        "model": "Llama-3.1-8B", "task": "batch", "targets": {"deadline": "2h"}, "constraints": FEW,
        "traffic": {"requests": 100_000, "input_tokens": 2000, "output_tokens": 500},
    },
    "experts over attention replicas": {
        "model": "DeepSeek-V3", "traffic": ASKED, "constraints": {"gpus": ["h200", "b200"]},
    },
    "peaks in less memory": {
        "model": "Mixtral-8x7B", "traffic": {**ASKED, "peak": 3}, "constraints": {"memory_fraction": 0.8, **FEW},
    },
    "embeddings of a decoder": {
        "model": "Llama-3.1-8B", "task": "encode", "traffic": {"requests_per_s": 20, "input_tokens": 300},
        "targets": {"latency": {"p99": "2s"}}, "constraints": FEW,
    },
    "lengths that are drawn": {
        "model": "Llama-3.1-8B", "targets": {"ttft": {"p90": "1s"}}, "constraints": {"gpus": ["l4", "l40s"], **CLOUDS},
        "traffic": {"requests_per_s": 5, "input_tokens": "lognormal:500:cv=1", "output_tokens": "50:300"},
    },
    "another engine and cache": {
        "model": "Llama-3.1-8B", "traffic": ASKED, "techniques": {"kv_keep": 0.3},
        "constraints": {"engine": "sglang", "kv_dtype": "fp8", **FEW},
    },
}  # fmt: skip


def answer_of(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the command line gives as JSON."""
    program, *words = shlex.split(line)
    assert program == "flopwise"
    capsys.readouterr()
    cli.main([*words, "--json"])
    out = capsys.readouterr()
    assert out.out, out.err
    found: dict[str, Any] = json.loads(out.out)
    return found


def same_run(one: Candidate, found: dict[str, Any]) -> None:
    """The step, rates, memory, time, and the cost with its start and its interval."""
    run = found["run"]
    pairs = {
        "step": (found["step_s"], one.figures["step_s"]),
        "tokens": (found["useful_tokens_per_s"], one.figures["tokens_per_s"]),
        "memory": (found["memory"]["per_gpu_bytes"], one.memory_bytes),
        "hour": (found["usd_per_gpu_hour"] * one.num_gpus, one.usd_per_hour),
        "energy": (run["energy_joules"], one.energy_joules),
    }
    for name in ("seconds", "start_s", "cost_usd", "seconds_low", "seconds_high"):
        pairs[name] = (run[name], getattr(one, name))
    if one.usd_per_hour_interval is None:  # an assumed price has an interval of its own
        pairs |= {end: (run[end], getattr(one, end)) for end in ("cost_usd_low", "cost_usd_high")}
    for name, (there, here) in pairs.items():
        assert there == (None if here is None else pytest.approx(here, rel=1e-6)), (name, one.reproduce)


def same_service(plan: Plan, one: Candidate, found: dict[str, Any]) -> None:
    """Memory, price, latencies at the percentiles of the plan, what it sustains and how busy it is."""
    figures = one.figures
    assert found["memory"]["per_gpu_bytes"] == pytest.approx(one.memory_bytes, rel=1e-6), one.reproduce
    assert found["usd_per_hour"] == pytest.approx(one.usd_per_hour, rel=1e-6), one.reproduce
    load = found["under_load"]
    if load is None:
        assert found["ttft_s"] == pytest.approx(figures["ttft_s"], rel=1e-6), one.reproduce
        assert found["e2e_s"] == pytest.approx(figures["e2e_s"], rel=1e-6), one.reproduce
        assert found["requests_per_s"] == pytest.approx(figures["requests_per_s_capacity"], rel=1e-6), one.reproduce
        if figures["tpot_s"] is not None:
            assert found["tpot_s"] == pytest.approx(figures["tpot_s"], rel=1e-6), one.reproduce
        return
    targets = plan.workload.get("targets", {})
    percentile = next((p for held in targets.values() if isinstance(held, dict) for p in held), "p95")
    assert load["ttft_s"][percentile] == pytest.approx(figures["ttft_s"], rel=1e-6), one.reproduce
    assert load["utilisation_frac"] == pytest.approx(figures["busy_frac"], rel=1e-6), one.reproduce
    if one.energy_joules is not None and not {"peak", "profile"} & {*plan.workload["traffic"]}:
        month_j = found["joules_per_request"] * load["requests_per_s"] * 730 * 3600
        assert month_j == pytest.approx(one.energy_joules, rel=0.15), one.reproduce
    sustained = load["requests_per_s"] / load["utilisation_frac"]
    assert sustained == pytest.approx(figures["requests_per_s_capacity"], rel=1e-6), one.reproduce
    if figures["tpot_s"] is not None:
        assert load["tpot_s"][percentile] == pytest.approx(figures["tpot_s"], rel=1e-6), one.reproduce


def checked(
    asked: dict[str, Any] | str, capsys: pytest.CaptureFixture[str]
) -> tuple[Plan, list[tuple[Candidate, dict[str, Any]]]]:
    """The plan of a workload, and its first rows with the answers of their commands, which are the same."""
    found: Plan = flopwise.plan(asked)
    assert found.plans
    answers = [(one, answer_of(one.reproduce, capsys)) for one in found.plans[:ROWS]]
    for one, there in answers:
        if found.task in ("pretrain", "finetune"):
            same_run(one, there)
        else:
            same_service(found, one, there)
    return found, answers


@pytest.mark.parametrize("name", TRAINING)
def test_the_command_of_a_training_plan_gives_its_figures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = TRAINING[name]
    task = "finetune" if "method" in asked else "pretrain"
    found, _ = checked({"task": task, **asked}, capsys)
    if name == "offloaded":
        assert any("--offload optimizer" in one.reproduce for one in found.plans), "the case shows nothing else"
    if name == "long context":
        assert "--cp " in found.plans[0].reproduce


@pytest.mark.parametrize("name", SERVING)
def test_the_command_of_a_serving_plan_gives_its_figures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    checked({"task": "serve", "simulate": False, **SERVING[name]}, capsys)


USERS: dict[str, dict[str, Any]] = {
    "wait for one another's prompts": {"traffic": {"concurrency": 500, "input_tokens": 2000, "output_tokens": 300}},
    "with short answers": {"traffic": {"concurrency": 64, "input_tokens": 2000, "output_tokens": 40}},
    "with pools for prompts": {
        "traffic": {"concurrency": 64, "input_tokens": 2000, "output_tokens": 300}, "techniques": {"prefill_gpus": 1},
        "constraints": {"gpus": ["h100"], "instances": ["p5.4xlarge", "H100"]},
    },
    "with pools of several replicas on one machine": {
        "traffic": {"concurrency": 800, "input_tokens": 2000, "output_tokens": 300}, "techniques": {"prefill_gpus": 5},
        "constraints": {"gpus": ["h100"], "instances": ["gpu_4x_h100_sxm5"]},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", USERS)
def test_the_command_of_a_simulated_plan_for_users_gives_its_estimate(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It simulated them by itself, begun together: 4 to 11 % off, with pools twice the first token's time."""
    _, answers = checked(
        {"task": "serve", "model": "Llama-3.1-8B", "constraints": {"gpus": ["l40s"]}} | USERS[name], capsys
    )
    for one, there in answers:
        assert one.simulated is not None
        assert one.figures["ttft_s"] == pytest.approx(there["ttft_s"], rel=1e-6)
        assert one.figures["tpot_s"] == pytest.approx(there["tpot_s"], rel=1e-6)


ENCODING: dict[str, dict[str, Any]] = {
    "embeddings of a decoder": SERVING["embeddings of a decoder"],
    "an encoder": {"model": "bge-m3", "traffic": {"requests_per_s": 500, "input_tokens": 256}},
    "lengths that are drawn": {
        "model": "bge-m3", "traffic": {"requests_per_s": 300, "input_tokens": "64:512"},
        "targets": {"latency": {"p99": "100ms"}},
    },
    "served without a length": {"model": "bge-m3", "task": "serve", "traffic": {"requests_per_s": 200}},
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODING)
def test_the_command_of_a_plan_that_answers_in_one_pass_gives_its_percentiles(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are simulated: the plan had a closed form, up to twice as long, that `serve` had to be asked for."""
    _, answers = checked({"task": "encode", "constraints": FEW, **ENCODING[name]}, capsys)
    for one, there in answers:
        assert one.simulated is not None
        assert "--closed-form" not in one.reproduce
        for percentile, seconds in there["under_load"]["ttft_s"].items():
            assert one.simulated.e2e_s[percentile] == pytest.approx(seconds, rel=1e-6), one.reproduce


def test_bursts_of_inputs_are_simulated_and_the_command_gives_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = {"requests_per_s": 100, "input_tokens": 256, "arrivals": "gamma", "burstiness": 3}
    _, answers = checked({"task": "encode", "model": "bge-m3", "traffic": traffic, "constraints": FEW}, capsys)
    for one, _ in answers:
        assert one.simulated is not None
        assert "--closed-form" in one.reproduce
        p95_s = one.simulated.e2e_s["p95"]
        assert p95_s is not None
        assert p95_s > 1.5 * (one.figures["e2e_s"] or 0.0), "inputs that come in bursts wait longer"


@pytest.mark.parametrize("path", sorted(p for p in (ROOT / "examples").glob("[0-9]*.yaml")), ids=lambda path: path.name)
def test_the_commands_of_the_examples_give_their_figures(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the simulator, which changes the number of replicas alone."""
    asked = yaml.safe_load(path.read_text(encoding="utf-8"))
    checked(asked if asked["task"] in ("pretrain", "finetune") else {**asked, "simulate": False}, capsys)


def test_the_simulator_s_replicas_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"model": "Llama-3.1-8B", "task": "serve", "traffic": {**ASKED, "arrivals": "gamma", "burstiness": 4}}
    wanted = {"targets": {"ttft": {"p95": "800ms"}}, "constraints": {"gpus": ["l40s"], "providers": ["aws"]}}
    found, _ = checked({**asked, **wanted}, capsys)
    assert "replicas raised" in found.plans[0].note, "the case shows nothing else"


@pytest.mark.parametrize(
    "traffic",
    [
        {"requests": 300, "input_tokens": 1000, "output_tokens": 200},
        {"requests": 6000, "input_tokens": "200:1800", "output_tokens": "50:350"},
        {"requests": 100_000, "input_tokens": 1000, "output_tokens": 200},
    ],
    ids=["drawn several times", "run whole", "goes on at its pace"],
)
def test_the_command_of_a_simulated_batch_gives_its_figures(
    traffic: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, answers = checked({"model": "Llama-3.1-8B", "task": "batch", "traffic": traffic, "constraints": FEW}, capsys)
    assert all(one.simulated is not None for one, _ in answers), "the case shows nothing else"
    for one, there in answers:
        assert traffic["requests"] / there["requests_per_s"] == pytest.approx(one.seconds, rel=1e-9)
        assert there["output_tokens_per_s"] == pytest.approx(one.figures["output_tokens_per_s"], rel=1e-6)


def test_the_command_stands_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "gpt2", "--task", "pretrain", "--tokens", "1B", "--gpu", "a100-80gb", "--max-gpus", "1"]
    cli.main([*line, "--json"])
    rows = json.loads(capsys.readouterr().out)["plans"]
    cli.main(line)
    text = capsys.readouterr().out
    assert f"Row 1 in full, with the same figures:\n  {rows[0]['reproduce']}\n" in text


def test_a_miss_has_its_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"model": "7B", "task": "pretrain", "data": {"tokens": "1T"}, "targets": {"budget": 100}}
    found = flopwise.plan({**asked, "constraints": {"gpus": ["h100"], **CLOUDS}})
    assert not found.plans
    same_run(found.misses[0], answer_of(found.misses[0].reproduce, capsys))


def test_the_command_names_the_folder_of_facts(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "examples" / "private-facts"
    asked = {"model": "gpt2", "task": "pretrain", "data": {"tokens": "1B"}, "constraints": {"providers": ["onprem"]}}
    found = flopwise.plan(asked, facts=folder)
    line = found.plans[0].reproduce
    assert f"--facts {folder}" in line
    same_run(found.plans[0], answer_of(line, capsys))


@pytest.mark.parametrize(
    ("name", "specs"),
    [
        ("train", (MachineSpec, DataSpec, TrainingSpec, RunConditionsSpec)),
        ("serve", (MachineSpec, ServingSpec, RequestSpec, TechniqueRequest)),
    ],
)
def test_every_option_is_written_so_that_the_command_reads_it_back(name: str, specs: tuple[type, ...]) -> None:
    command: click.Command = import_module(f"flopwise.cli.commands.{name}").command
    read = set[str]()
    for spec in specs:
        for field, declared in options.options_of(spec).items():
            for text in ("3", "0.25", "nf4", "123456789", "1e-7", *declared.kind.choices, True, False):
                try:
                    value = declared.parse([text] if declared.repeated else text, field)
                except flopwise.errors.SpecError:
                    continue
                words = declared.arguments(value)
                if declared.flags and (words or value is not False):
                    context = command.make_context(name, ["gpt2", *words])
                    assert context.params[field] == value, words
                    read.add(field)
    assert len(read) > 30


def test_the_order_of_a_queue_that_no_command_plays_is_left_out() -> None:
    """Batches of models with an encoder and a decoder are estimated: `serve` has no queue there."""
    found = flopwise.plan(
        "whisper-large-v3", task="batch", requests="20k", output=400, weights=("bf16",), gpus=("l40s",),
        policy="priority", priorities=(PriorityClass(0, 0.2), PriorityClass(1, 0.8)),
    )  # fmt: skip
    assert "--policy" not in found.plans[0].reproduce
