"""Commands of servers: every value of a plan is in its place, worked out by hand from the plan's numbers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest
import yaml
from engine_arguments import engine_args
from export_samples import expressible, sample_deployment, sample_export, sample_plan
from validators import shell

from flopwise.api.plan import plan
from flopwise.errors import InfeasibleError, SpecError
from flopwise.exports.command import with_slots
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import json_text
from flopwise.exports.replica import image
from flopwise.exports.server import SERVERS, serving_command
from flopwise.exports.spec import PLACEHOLDERS, ExportSettings
from flopwise.exports.targets import exported_plan
from flopwise.facts.catalog import load_facts
from flopwise.serving.estimate import job_memory
from named import FACTS

TARGETS = ("vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi", "tei")
PROGRAMS = Path(__file__).parents[2] / "src" / "flopwise" / "exports" / "programs"
CHAT = {"requests_per_s": 20, "input_tokens": 1000, "output_tokens": 250}


def deployed(engine: str = "vllm", settings: dict[str, Any] | None = None, **changes: Any) -> Deployment:
    """The best candidate of a small service on H100s, with other keys of its file."""
    constraints = {"providers": ["aws"], "gpus": ["h100"], "engine": engine} | changes.pop("constraints", {})
    workload = {"model": "Llama-3.1-8B", "task": "serve", "name": "chat", "simulate": False, "traffic": CHAT}
    found = plan(workload | changes | {"constraints": constraints})
    return Deployment.of_rank(found, 1, load_facts(), ExportSettings(**(settings or {})))


def options(deployment: Deployment) -> dict[str, str]:
    """Options of a deployment's server with their values; "" of flags."""
    args = serving_command(deployment).args
    pairs = itertools.pairwise([*args, "--"])
    return {word: "" if value.startswith("--") else value for word, value in pairs if word.startswith("--")}


def laid_out(deployment: Deployment, **layout: int) -> Deployment:
    """The same with another layout."""
    job, chosen = deployment.serving, deployment.candidate
    assert job is not None
    degrees = {name: value for name, value in layout.items() if name in {"tp", "pp", "dp", "ep"}}
    candidate = msgspec.structs.replace(chosen, layout={**chosen.layout, **layout})
    return replace(deployment, candidate=candidate, serving=replace(job, layout=replace(job.layout, **degrees)))


def test_vllm_has_every_value_of_the_plan() -> None:
    layout = sample_plan("serve").plans[0].layout
    found = options(sample_deployment("serve"))
    assert found == {
        "--tensor-parallel-size": str(layout["tp"]), "--quantization": "fp8_per_channel",
        "--kv-cache-dtype": {"fp8": "fp8", "bf16": "bfloat16"}[layout["kv_dtype"]],
        "--max-num-seqs": str(layout["max_batch"]), "--max-num-batched-tokens": "8192",
        "--max-model-len": str(1112 + 278 + 64), "--gpu-memory-utilization": "0.92", "--scheduling-policy": "fcfs",
        "--no-enable-prefix-caching": "", "--host": "0.0.0.0", "--port": "8000",  # noqa: S104 - a container's own
    }  # fmt: skip
    command = serving_command(sample_deployment("serve"))
    assert command.args[:3] == ("vllm", "serve", "meta-llama/Llama-3.1-70B")
    assert (command.port, command.health_path, command.metrics_path) == (8000, "/health", "/metrics")
    assert command.secret_env == {"HF_TOKEN": "weights_secret"}
    assert command.image.startswith("vllm/vllm-openai:v")


@pytest.mark.parametrize(
    ("name", "variable"), [("serve", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"), ("serve-sglang", "SGLANG_TIMEOUT_KEEP_ALIVE")]
)
def test_a_server_keeps_idle_connections_longer_than_the_proxies_before_it(name: str, variable: str) -> None:
    longest_s = max({"nginx": 60, "AWS": 60, "Google": 600}.values())
    assert int(serving_command(sample_deployment(name)).env[variable]) > longest_s


def test_weights_in_16_bits_need_no_checkpoint_and_quantised_ones_say_which() -> None:
    plain = serving_command(deployed(constraints={"weight_formats": ["bf16"]}))
    assert "--dtype bfloat16" in " ".join(plain.args)
    assert not {"--quantization", "--kv-cache-dtype"} & set(plain.args)
    awq = deployed(constraints={"weight_formats": ["awq"], "kv_dtype": "bf16"})
    command = serving_command(awq)
    assert "change-me-model-path" in command.args
    assert command.secret_env == {}
    assert any("a checkpoint of Llama-3.1-8B in awq" in note for note in command.assumptions)
    found = options(awq)
    assert "--quantization" not in found
    assert found["--kv-cache-dtype"] == "bfloat16"  # checkpoints may ask for another
    given = serving_command(replace(awq, settings=ExportSettings(model_path="someone/model-AWQ")))
    assert given.args[2] == "someone/model-AWQ"
    assert given.secret_env == {"HF_TOKEN": "weights_secret"}


def test_lengths_are_the_longest_bounded_by_the_model() -> None:
    spread = {"requests_per_s": 3, "input_tokens": "100:900", "output_tokens": "50:150"}
    assert options(deployed(traffic=spread))["--max-model-len"] == str(900 + 150 + 64)
    drawn = deployed(traffic={**spread, "input_tokens": "lognormal:500:cv=1"})
    longest = int(options(drawn)["--max-model-len"]) - 64 - 150
    assert 500 * 8 < longest < 500 * 40  # of 10,000: 3.7 standard deviations of a lognormal with sigma 0.83
    whole = options(deployed(model="gpt2-xl", traffic={"requests_per_s": 1, "input_tokens": 800, "output_tokens": 224}))
    assert "--max-model-len" not in whole  # 1,024 positions


@pytest.mark.parametrize(
    ("traffic", "tokens"),
    [
        ({"requests_per_s": 2, "input_tokens": 900, "output_tokens": 90}, 1000 + 100),  # a ninth more, as simulated
        ({"requests_per_s": 2, "input_tokens": "900:900", "output_tokens": "90:90"}, 900 + 90),
        ({"requests_per_s": 0.2, "input_tokens": 500, "output_tokens": 200, "turns": 10}, 10 * (500 + 200)),
        ({"requests_per_s": 0.2, "input_tokens": 500, "output_tokens": 200, "turns": "1:9"}, 9 * (500 + 200)),
    ],
)
def test_no_request_of_the_plan_is_longer_than_the_server_takes(traffic: dict[str, Any], tokens: int) -> None:
    """Lengths as the plan simulates them; the last prompt of a session has all turns before it."""
    assert options(deployed(traffic=traffic))["--max-model-len"] == str(tokens + 64)


def test_a_limit_of_tokens_is_no_more_than_the_cache_holds() -> None:
    """vLLM does not start where one sequence of the longest length has no room (check_enough_kv_cache_memory)."""
    traffic = {"concurrency": 1, "input_tokens": 40_000, "output_tokens": 1000}
    alone = {"gpus": ["A100-SXM-80"], "weight_formats": ["bf16"], "max_gpus": 1}
    deployment = deployed(model="Qwen2.5-32B", traffic=traffic, constraints=alone | {"providers": []})
    command = serving_command(deployment)
    limit = int(options(deployment)["--max-model-len"])
    assert 41_000 + 64 <= limit < (40_000 + 1000) * 10 / 9
    assert limit == int(job_memory(deployment.serve_job).kv_capacity_tokens)
    assert any("as many as the cache holds" in note for note in command.assumptions)


def test_memory_techniques_and_drafts_reach_vllm() -> None:
    found = options(deployed(constraints={"memory_fraction": 0.8}, techniques={"shared_prefix": 400}))
    assert found["--gpu-memory-utilization"] == "0.8"
    assert "--enable-prefix-caching" in found
    draft = {"acceptance": 0.6, "draft_tokens": 3}
    for name, expected in (
        ("ngram", {"method": "ngram"}), ("suffix", {"method": "suffix"}), ("mtp", {"method": "mtp"}),
        ("eagle3", {"method": "eagle3", "model": "change-me-draft-path"}),
        ("Llama-3.2-1B", {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B"}),
    ):  # fmt: skip
        said = options(deployed(techniques={"draft": name, **draft}))["--speculative-config"]
        assert json.loads(said) == {**expected, "num_speculative_tokens": 3}
    own = deployed(techniques={"draft": "eagle", **draft}, settings={"draft_path": "someone/head"})
    assert json.loads(options(own)["--speculative-config"])["model"] == "someone/head"
    away = deployed(techniques={"offload_weights": 0.25}, constraints={"weight_formats": ["bf16"]})
    job = away.serving
    assert job is not None
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) * 2 / int(job.layout.tp * job.layout.pp)
    assert float(options(away)["--cpu-offload-gb"]) == pytest.approx(0.25 * layers / 2**30, abs=0.02)


def test_places_for_adapters_reach_the_servers() -> None:
    """vLLM has places for ranks of some sizes only: the next one; SGLang for any."""
    served = deployed(techniques={"adapters": 12, "adapter_rank": 24})
    found = options(served)
    assert any("add --lora-modules NAME=PATH" in text for text in serving_command(served).assumptions)
    assert not any("--lora-modules" in text for text in serving_command(deployed()).assumptions)
    assert "--enable-lora" in found
    assert (found["--max-loras"], found["--max-lora-rank"]) == ("12", "32")
    other = options(deployed("sglang", techniques={"adapters": 12, "adapter_rank": 24}))
    assert "--enable-lora" in other
    assert (other["--max-loras-per-batch"], other["--max-lora-rank"]) == ("12", "24")


def test_experts_and_attention_replicas() -> None:
    spread = laid_out(sample_deployment("serve"), tp=1, dp=8, ep=8)
    found = options(spread)
    assert (found["--data-parallel-size"], found["--tensor-parallel-size"]) == ("8", "1")
    assert "--enable-expert-parallel" in found
    with pytest.raises(InfeasibleError) as refused:
        serving_command(laid_out(sample_deployment("serve"), tp=2, dp=4, ep=4))
    assert "4 of 8 devices" in refused.value.reasons[0]
    sglang = options(laid_out(sample_deployment("serve-sglang"), tp=2, dp=4, ep=4, max_batch=100))
    assert [sglang[f"--{name}-size"] for name in ("tp", "attn-dp", "ep")] == ["8", "4", "4"]
    assert sglang["--max-running-requests"] == "400"  # of all attention replicas
    whole = deployed("tensorrt-llm", constraints={"instances": ["p5.48xlarge"]})
    trtllm = serving_command(laid_out(whole, tp=1, dp=8, ep=8))
    assert trtllm.args[trtllm.args.index("--tp_size") + 1] == "8"
    assert yaml.safe_load(trtllm.files["trtllm.yaml"])["enable_attention_dp"] is True


def run_echo(args: tuple[str, ...], **env: str) -> list[str]:
    """The words that a wrapped command would start its program with."""
    shown = [*args[:3], args[3], sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *args[4:]]
    done = subprocess.run(shown, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_replica_on_several_machines_is_started_on_each_by_variables() -> None:
    deployment = laid_out(sample_deployment("serve-nodes"), tp=8, pp=4, dp=1, ep=1)  # on four machines of 8
    args = serving_command(deployment).args
    first = run_echo(args, NODE_RANK="0", MASTER_ADDR="10.0.0.1")
    assert first[-6:] == ["--nnodes", "4", "--node-rank", "0", "--master-addr", "10.0.0.1"]
    last = run_echo(args, NODE_RANK="3", MASTER_ADDR="10.0.0.1")
    assert last[-7:] == ["--nnodes", "4", "--node-rank", "3", "--master-addr", "10.0.0.1", "--headless"]
    assert subprocess.run([*args], env={}, capture_output=True, check=False).returncode
    spread = serving_command(laid_out(deployment, tp=4, pp=1, dp=8, ep=32)).args
    second = run_echo(spread, NODE_RANK="1", MASTER_ADDR="10.0.0.1")
    tail = second[second.index("--data-parallel-size-local") :]
    assert tail == [
        "--data-parallel-size-local", "2", "--data-parallel-start-rank", "2", "--data-parallel-address", "10.0.0.1",
        "--data-parallel-rpc-port", "13345", "--headless",
    ]  # fmt: skip


def test_replicas_of_one_machine_have_their_own_devices_and_ports() -> None:
    script = sample_export("vllm", "serve").files["serve.sh"]  # tp 4 on a machine of 8
    shown = script.replace("exec vllm", 'echo "$CUDA_VISIBLE_DEVICES"; echo vllm')
    machine = {"PATH": "/usr/bin:/bin", "SLOT": "1"}
    done = subprocess.run(["bash", "-c", shown], env=machine, capture_output=True, text=True, check=True)  # noqa: S607
    devices, command = done.stdout.splitlines()
    assert devices == "4,5,6,7"
    assert command.endswith("--port 8001")


@pytest.mark.parametrize(("target", "sample"), [("tgi", "serve-tgi"), ("vllm", "batch")])
def test_scripts_start_their_program_with_its_variables(target: str, sample: str, tmp_path: Path) -> None:
    made = sample_export(target, sample)
    (name,) = {"serve.sh", "run-batch.sh"} & set(made.files)
    (tmp_path / name).write_text(made.files[name])
    for program in ("vllm", "text-generation-launcher"):
        (tmp_path / program).write_text('#!/bin/sh\necho "$DATA|$PREFIX_CACHING|$*"\n')
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(
        ["bash", name],  # noqa: S607
        cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    data, caching, words = done.stdout.split("|")
    assert (data, caching) == (("", "0") if target == "tgi" else ("/change-me-data", ""))
    assert words.startswith("--model-id" if target == "tgi" else "run-batch --model")


def test_processors_get_the_cache_that_the_plan_leaves_and_no_compilation() -> None:
    deployment = deployed(
        model="roberta-base", task="encode", traffic={"requests_per_s": 2, "input_tokens": 128},
        constraints={"gpus": ["Xeon Platinum 8488C"]},
    )  # fmt: skip
    found = options(deployment)
    assert int(found["--kv-cache-memory-bytes"]) > 2**30
    assert {"--enforce-eager", "--runner"} <= set(found)
    assert "--gpu-memory-utilization" not in found
    assert "--convert" not in found
    assert serving_command(deployment).image.startswith("vllm/vllm-openai-cpu:")
    vectors = deployed(task="encode", traffic={"requests_per_s": 2, "input_tokens": 512})
    assert (options(vectors)["--runner"], options(vectors)["--convert"]) == ("pooling", "embed")


def test_llama_cpp_shares_its_context_among_slots_that_fit() -> None:
    deployment = sample_deployment("serve-llamacpp")
    found, most = options(deployment), deployment.candidate.layout["max_batch"]
    slots = int(found["--parallel"])
    longest = 1112 + 278 + 64
    assert 0.9 * most * (1000 + 250 + 64) / longest < slots <= most  # each slot holds the longest request
    assert int(found["--ctx-size"]) == slots * longest
    assert (found["--cache-type-k"], found["--cache-type-v"], found["--flash-attn"]) == ("q8_0", "q8_0", "on")
    assert found["--n-gpu-layers"] == "all"
    away = deployed("llama.cpp", constraints={"weight_formats": ["Q4_K_M"]}, techniques={"gpu_layers": 20})
    assert options(away)["--n-gpu-layers"] == "20"
    hub = sample_deployment("serve-llamacpp", model_path="someone/model-GGUF")
    assert options(hub)["--hf-repo"] == "someone/model-GGUF:Q4_K_M"


def test_tgi_counts_tokens_of_all_that_run() -> None:
    deployment = sample_deployment("serve-tgi")
    most, found = deployment.candidate.layout["max_batch"], options(deployment)
    assert found["--max-batch-total-tokens"] == str(most * 1250)
    assert (found["--max-input-tokens"], found["--max-total-tokens"]) == (str(1112 + 64), str(1112 + 278 + 64))
    assert found["--max-concurrent-requests"] == str(4 * most)
    assert serving_command(deployment).env == {"PREFIX_CACHING": "0"}


def test_trtllm_has_the_rest_in_its_file() -> None:
    deployment = deployed("tensorrt-llm", techniques={"draft": "ngram", "acceptance": 0.5, "shared_prefix": 500})
    command = serving_command(deployment)
    config = yaml.safe_load(command.files["trtllm.yaml"])
    assert config["kv_cache_config"] == {"dtype": "fp8", "enable_block_reuse": True, "free_gpu_memory_fraction": 0.9}
    assert config["speculative_config"] == {"decoding_type": "NGram", "max_draft_len": 4}
    assert config["return_perf_metrics"] is True
    assert options(deployment)["--config"] == "trtllm.yaml"


@pytest.mark.parametrize(
    ("engine", "changes", "reason"),
    [
        ("hf", {}, "no server is exported for hf"),
        ("vllm", {"techniques": {"kv_keep": 0.5}}, "do not evict parts of a KV cache"),
        (
            "vllm",
            {"techniques": {"policy": "shortest"}, "simulate": True},
            "queue by fcfs or priority, not by shortest",
        ),
        ("sglang", {"techniques": {"preempt": "swap"}, "simulate": True}, "computes preempted sequences again"),
        ("vllm", {"techniques": {"adapters": 2, "adapter_rank": 1024}}, "up to rank 512"),
        ("tgi", {"techniques": {"adapters": 2}}, "not exported for tgi: plan again with --engine vllm or sglang"),
        ("tgi", {"techniques": {"draft": "eagle", "acceptance": 0.5}}, "n-grams, not with eagle"),
        ("sglang", {"constraints": {"kv_dtype": "int8"}}, "no cache in int8"),
        ("tensorrt-llm", {"task": "encode", "traffic": {"requests_per_s": 2}}, "not embeddings"),
        ("llama.cpp", {"constraints": {"weight_formats": ["Q4_K_M"], "kv_dtype": "fp8"}}, "no cache in fp8"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_with_the_way_out(
    engine: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InfeasibleError) as refused:
        serving_command(deployed(engine, **changes))
    assert any(reason in text for text in refused.value.reasons), refused.value.reasons


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_queue_by_priority_is_started_as_one(engine: str) -> None:
    traffic = {**CHAT, "priorities": "0=20%,1=80%"}
    by_class = deployed(engine, techniques={"policy": "priority"}, traffic=traffic, simulate=True)
    started, plain = options(by_class), options(deployed(engine))
    if engine == "vllm":
        assert (started["--scheduling-policy"], plain["--scheduling-policy"]) == ("priority", "fcfs")
    else:
        order = {"--enable-priority-scheduling", "--schedule-low-priority-values-first"}
        assert started.keys() - plain.keys() == order
    assert any("`priority`" in note for note in serving_command(by_class).assumptions)


def test_a_plan_of_another_engine_is_refused() -> None:
    for target in TARGETS:
        name = next(engine for engine, module in SERVERS.items() if module == target.replace("-", "_"))
        other = sample_deployment("serve-sglang" if name != "sglang" else "serve")
        if name == "tei":  # which is for another task than these
            other = deployed(task="encode", traffic={"requests_per_s": 2, "input_tokens": 512})
        with pytest.raises(InfeasibleError) as refused:
            exported_plan(target, other)
        assert f"--engine {name}" in refused.value.reasons[0]


WAYS: tuple[dict[str, Any], ...] = (
    {}, {"constraints": {"weight_formats": ["bf16"]}}, {"task": "batch", "traffic": {"requests": 1e5}},
    {"techniques": {"draft": "ngram", "acceptance": 0.5, "shared_prefix": 300}},
    {"techniques": {"draft": "mtp", "acceptance": 0.5}}, {"techniques": {"draft": "eagle3", "acceptance": 0.5}},
    {"techniques": {"draft": "Llama-3.2-1B", "acceptance": 0.5, "offload_weights": 0.2}},
    *({"task": "encode", "traffic": {"requests_per_s": 2, "input_tokens": size}} for size in (64, 512, 4000)),
    *({"task": "encode", "traffic": {"requests_per_s": 2}, "constraints": {"weight_formats": [form]}}
      for form in ("fp16", "fp32")),
    {"constraints": {"weight_formats": ["nf4"]}}, {"constraints": {"weight_formats": ["Q4_K_M"]}},
    {"model": "gpt2-xl", "traffic": {"requests_per_s": 1, "input_tokens": 800, "output_tokens": 224}},
    {"model": "DeepSeek-V3", "constraints": {"gpus": ["h200"]}},
)  # fmt: skip
"""Workloads that between them take every option that is ever written."""


@pytest.mark.parametrize("engine", SERVERS)
def test_options_are_those_of_the_named_release(engine: str) -> None:
    taken = 0
    for way in WAYS:
        try:
            command = serving_command(deployed(engine, **way))
        except (InfeasibleError, SpecError):  # what the engine cannot do
            continue
        first = next(i for i, word in enumerate(command.args) if word.startswith("--") and i > 0)
        taken += 1
        own = {"--enable-metrics"} if "run-batch" in command.args else set()  # of the batch runner, which is no server
        engine_args(engine, [word for word in command.args[first:] if word not in own])
    assert taken >= 5
    with pytest.raises(AssertionError):
        engine_args(engine, ("--no-such-option", "1"))


@pytest.mark.parametrize("target", [*TARGETS, "load-test"])
def test_scripts_pass_shellcheck(target: str) -> None:
    for sample in expressible(target):
        for path, text in sample_export(target, sample).files.items():
            if path.endswith(".sh"):
                shell(text)


def test_a_batch_is_dealt_out_to_replicas(tmp_path: Path) -> None:
    batch = deployed(task="batch", traffic={"requests": 5e7, "input_tokens": 1000, "output_tokens": 250})
    many = laid_out(batch, replicas=3)
    made = exported_plan("vllm", many)
    assert made.apply[-1] == "REPLICA=2 bash run-batch.sh"
    lines = [json.dumps({"custom_id": str(number)}) for number in range(7)]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "split.sh").write_text(made.files["split-requests.sh"])
    subprocess.run(["bash", "split.sh", "requests.jsonl", "."], cwd=tmp_path, check=True)  # noqa: S607
    shares = [(tmp_path / f"requests-{number}.jsonl").read_text().splitlines() for number in range(3)]
    assert shares == [lines[0::3], lines[1::3], lines[2::3]]
    words = run_echo(serving_command(many).args, DATA="/data", OUTPUT="/out", REPLICA="2")
    assert words[:2] == ["vllm", "run-batch"]
    assert words[-4:] == ["--input-file", "/data/requests-2.jsonl", "--output-file", "/out/results-2.jsonl"]
    example = made.files["requests.example.jsonl"].splitlines()
    assert [json.loads(line)["body"]["max_completion_tokens"] for line in example] == [250, 250]


class Answers(BaseHTTPRequestHandler):
    """A server that fails the first time it is asked anything."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body["prompt"])
        bad = {"bad": 400, "busy": 503 if self.asked.count("busy") < 2 else 200}.get(body["prompt"], 200)
        self.send_response(bad)
        self.end_headers()
        self.wfile.write(json.dumps({"text": body["prompt"].upper()}).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_the_batch_client_answers_every_request_once(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    requests = [
        {"custom_id": text, "method": "POST", "url": "/v1/completions", "body": {"prompt": text}}
        for text in ("good", "bad", "busy")
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    start = [
        sys.executable, str(PROGRAMS / "batch_client.py"), "--url", f"http://127.0.0.1:{server.server_port}",
        "--input-file", str(tmp_path / "in.jsonl"), "--output-file", str(tmp_path / "out.jsonl"),
        "--concurrency", "2", "--start-seconds", "5",
    ]  # fmt: skip
    for _ in range(2):  # the second time only what failed is left
        subprocess.run(start, check=True, timeout=60)
    server.shutdown()
    server.server_close()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    texts = {line["custom_id"]: line["response"]["body"]["text"] for line in lines if line["error"] is None}
    assert texts == {"good": "GOOD", "busy": "BUSY"}
    assert [line["error"]["code"] for line in lines if line["error"] is not None] == [400, 400]
    assert Answers.asked.count("good") == 1


def test_the_load_is_the_traffic_of_the_plan() -> None:
    made = sample_export("load-test", "serve")
    assert any("targets hold at p95, each separately" in text for text in made.assumptions)
    load, scenario = (json.loads(made.files[name]) for name in ("load.json", "guidellm.json"))
    assert load["requests_per_s"] == 28
    assert load["lengths"] == [[1000, 250]]
    assert load["targets"] == {"ttft": {"share": 0.95, "seconds": 1.0}, "tpot": {"share": 0.95, "seconds": 0.05}}
    assert scenario["spec"]["profile"] == {"kind": "poisson", "rate": 28.0}
    assert scenario["spec"]["metrics"]["slo"] == {"ttft_ms": 1000.0, "tpot_ms": 50.0}
    shared = json.loads(sample_export("load-test", "serve-prefix").files["guidellm.json"])["spec"]["data"][0]
    assert (shared["prompt_tokens"], shared["prefix_tokens"]) == (400, 600)
    drawn = deployed(traffic={"concurrency": 30, "input_tokens": "100:900", "output_tokens": 250})
    files = exported_plan("load-test", drawn).files
    lengths = json.loads(files["load.json"])["lengths"]
    assert (len(lengths), min(lengths)[0] >= 100, max(lengths)[0] <= 900) == (1000, True, True)
    spec = json.loads(files["guidellm.json"])["spec"]
    assert spec["profile"] == {"kind": "concurrent", "streams": 30}
    assert spec["data"][0]["prompt_tokens"] == pytest.approx(500, abs=25)
    assert spec["data"][0]["prompt_tokens_stdev"] == pytest.approx(800 / 12**0.5, abs=20)
    assert json_text(spec)


def test_an_image_is_a_fact_of_the_engine_with_its_version_and_day() -> None:
    for name in ("vllm", "sglang", "tensorrt-llm", "tgi", "tei", "llama.cpp"):
        engine = FACTS.engine(name)
        assert ":" in engine.nvidia_image
        assert engine.images_source
        assert engine.images_date >= "2026-11-22"
    deployment = sample_deployment("serve")
    assert image(deployment) == FACTS.engine("vllm").nvidia_image
    assert image(replace(deployment, accelerator=FACTS.accelerator("MI300X"))) == FACTS.engine("vllm").amd_image
    assert image(replace(deployment, accelerator=FACTS.accelerator("TPU v6e"))) == PLACEHOLDERS["image"]


def test_encoders_run_on_the_router_of_text_embeddings_inference() -> None:
    deployment = sample_deployment("encode")
    found, command = options(deployment), serving_command(deployment)
    most = deployment.candidate.layout["max_batch"]
    assert (found["--dtype"], found["--max-batch-requests"]) == ("float16", str(most))
    assert int(found["--max-batch-tokens"]) >= max(512, most * 128)
    assert (command.port, command.metrics_port, command.health_path) == (3000, 9000, "/health")
    tag = {"T4": "turing-1.9", "L4": "89-1.9"}[deployment.candidate.gpu]
    assert command.image == f"ghcr.io/huggingface/text-embeddings-inference:{tag}"
    slot = with_slots("router --port 3000 --prometheus-port 9000", command, 1)
    assert slot == 'router --port "$((3000 + 1 + slot))" --prometheus-port "$((9000 + slot))"'
