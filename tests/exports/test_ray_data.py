"""Ray Data: the engine is told what vLLM's own command says, and Ray's configuration takes it."""

from __future__ import annotations

import ast
import json

import pytest
from export_samples import sample_deployment, sample_export
from tools import accepted, interpreter

from flopwise.errors import InfeasibleError
from flopwise.exports.targets.vllm import engine_options

CHECK = """
import json, sys
from ray.data.llm import vLLMEngineProcessorConfig
for job in json.load(sys.stdin):
    try:
        vLLMEngineProcessorConfig(**job["processor"])
    except ValueError as error:
        print(json.dumps(str(error)))
    else:
        print("null")
"""
"""What Ray says against each job, a line each; one process for all jobs, since its imports are slow."""


def test_the_engine_is_told_what_the_plan_has() -> None:
    deployment = sample_deployment("batch", data="/requests.jsonl", output="/answers")
    exported = sample_export("ray-data", "batch", data="/requests.jsonl", output="/answers")
    job = json.loads(exported.files["batch.json"])
    assert (job["input"], job["output"]) == ("/requests.jsonl", "/answers")
    assert job["max_tokens"] == 200
    processor, layout = job["processor"], deployment.candidate.layout
    assert processor["concurrency"] == deployment.replicas
    assert processor["engine_kwargs"]["tensor_parallel_size"] == layout["tp"]
    assert processor["engine_kwargs"]["max_num_seqs"] == layout["max_batch"]
    in_flight = processor["batch_size"] * processor["max_concurrent_batches"]
    assert 2 * layout["max_batch"] <= in_flight < 2 * layout["max_batch"] + 8
    ast.parse(exported.files["ray_batch.py"])


def test_words_of_vllm_s_command_are_the_engine_s_options() -> None:
    words = (
        "bash", "-c", 'exec "$@"', "replica", "vllm", "run-batch", "--model", "a/b", "--dtype", "bfloat16",
        "--max-num-seqs", "8", "--gpu-memory-utilization", "0.9", "--no-enable-prefix-caching", "--enforce-eager",
        "--speculative-config", '{"method": "ngram"}', "--host", "::", "--port", "8000", "--enable-metrics",
    )  # fmt: skip
    assert engine_options(words) == (
        "a/b",
        {
            "dtype": "bfloat16", "max_num_seqs": 8, "gpu_memory_utilization": 0.9, "enable_prefix_caching": False,
            "enforce_eager": True, "speculative_config": {"method": "ngram"},
        },
    )  # fmt: skip
    assert engine_options(("vllm", "serve", "a/b", "--tensor-parallel-size", "2"))[0] == "a/b"


def test_services_are_refused() -> None:
    with pytest.raises(InfeasibleError):
        sample_export("ray-data", "serve")


@pytest.mark.exports
def test_ray_takes_the_configuration() -> None:
    job = json.loads(sample_export("ray-data", "batch").files["batch.json"])
    wrong = {"processor": {**job["processor"], "concurrencies": job["processor"]["concurrency"]}}
    said = accepted([str(interpreter("ray-data")), "-c", CHECK], json.dumps([job, wrong])).splitlines()
    taken, refused = map(json.loads, said[-2:])
    assert taken is None
    assert "concurrencies" in refused
