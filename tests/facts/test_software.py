from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from named import FACTS


@pytest.mark.parametrize("name", FACTS.stacks)
def test_every_stack_is_possible(name: str) -> None:
    row = FACTS.stack(name)
    assert row.source
    assert row.meaning
    assert 2 <= row.loss_bytes <= 24
    assert row.loss_chunks >= 1
    assert 0 <= row.fragmentation_frac <= 0.3
    assert 0 < row.context_bytes <= 4e9
    assert row.activations in ("eager", "sdpa", "fused")


@pytest.mark.parametrize("name", FACTS.optimizers)
def test_every_optimizer_keeps_at_most_two_states(name: str) -> None:
    row = FACTS.optimizer(name)
    assert row.source
    assert 0 <= row.states <= 2
    assert 0 <= row.packed_bytes <= 3


@pytest.mark.parametrize("name", FACTS.engines)
def test_every_engine_takes_a_share_of_the_card(name: str) -> None:
    row = FACTS.engine(name)
    assert row.source
    assert 0 < row.memory_frac <= 1
    assert row.block_tokens >= 1
    assert row.max_batch >= 1


def test_aliases_and_unknown_names() -> None:
    assert FACTS.optimizer("Adam").name == "adamw"
    assert FACTS.stack("torchtitan").name == "fsdp-eager"
    assert FACTS.engine("TRT-LLM").name == "tensorrt-llm"
    with pytest.raises(UnknownNameError, match="adamw-8bit"):
        FACTS.optimizer("adamw-8bits")


@pytest.mark.parametrize(
    ("engine", "gpu", "sequences", "tokens", "offline"),
    [
        ("vllm", "H100-SXM", 1024, 8192, 16_384), ("vllm", "MI300X", 1024, 8192, 16_384),
        ("vllm", "A100-80GB", 256, 2048, 8192), ("vllm", "L40S", 256, 2048, 8192),
        ("vllm", "RTX 4090", 256, 2048, 8192), ("vllm", "TPU v6e", 256, 1024, 2048),
        ("vllm", "Xeon Platinum 8480+", 128, 2048, 4096), ("vllm-2025", "A100-80GB", 256, 2048, 8192),
        ("vllm-v0", "H100-SXM", 256, 2048, 2048),  # before sizes went by the device
        ("sglang", "B200", 4096, 16_384, 16_384), ("sglang", "H200", 4096, 8192, 8192),
        ("sglang", "L40S", 4096, 4096, 4096), ("sglang", "RTX 4090", 4096, 2048, 2048),
        ("tensorrt-llm", "L40S", 2048, 8192, 8192),
    ],
)  # fmt: skip
def test_engines_take_on_what_their_sources_say_of_a_device(
    engine: str, gpu: str, sequences: int, tokens: int, offline: int
) -> None:
    """vLLM, EngineArgs.get_batch_defaults; SGLang, ServerArgs: by memory, and A100s by name."""
    chip, row = FACTS.resolve(gpu).accelerator, FACTS.engine(engine)
    served = row.on(chip)
    assert (served.max_batch, served.prefill_tokens) == (sequences, tokens)
    assert row.on(chip, offline=True).prefill_tokens == offline
    assert served.on(chip) == served
    large = FACTS.resolve("B200").accelerator
    assert served.on(large) == row.on(large)


def test_limits_by_device_are_read_strictly(tmp_path: Path) -> None:
    limits = {"source": "a test", "date": "2026-11-27", "step_limits": ["A100: 256 sequences"]}
    (tmp_path / "engines.json").write_text(json.dumps({"vllm": {"limits": limits}}), encoding="utf-8")
    with pytest.raises(SpecError, match="N sequences, N tokens"):
        load_facts(tmp_path)


@pytest.mark.parametrize(
    ("given", "engine"),
    [("LM Studio", "llama.cpp"), ("koboldcpp", "llama.cpp"), ("llama-server", "llama.cpp"), ("vllm-ascend", "vllm"),
     ("huggingface", "hf"), ("optimum-neuron", "neuron"), ("ollama", "llama.cpp"), ("trtllm", "tensorrt-llm")],
)  # fmt: skip
def test_programs_built_on_an_engine_are_that_engine(given: str, engine: str) -> None:
    assert load_facts().engine(given).name == engine


@pytest.mark.parametrize(
    ("given", "stack"),
    [("Megatron-LM", "megatron-te"), ("LLaMA-Factory", "hf-trainer"), ("FSDP2", "fsdp-compile"), ("t5x", "xla"),
     ("neuronx-distributed", "xla"), ("NeMo", "nemo"), ("Megatron-Bridge", "megatron-te"),
     ("dgxc-benchmarking", "nemo"), ("nanoGPT", "fsdp-compile"), ("mosaicml", "fsdp-fused")],
)  # fmt: skip
def test_programs_built_on_a_stack_are_that_stack(given: str, stack: str) -> None:
    assert load_facts().stack(given).name == stack
