from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.api.compare import compare
from flopwise.cli import main
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.spec import SourceSpec
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


@pytest.mark.parametrize(
    ("engine", "gpu", "narrow", "wide"),
    [
        ("sglang", "B200", 512, 512), ("sglang", "H200", 256, 512), ("sglang", "A100-80GB", 256, 512),
        ("sglang", "L40S", 32, 160), ("sglang", "A100-40GB", 32, 160), ("sglang", "RTX 5090", 24, 80),
        ("sglang", "L4", 24, 80), ("sglang", "T4", 8, 8), ("sglang", "Ascend 910B3", 64, 128),
        ("sglang-2025", "H100-SXM", 256, 512), ("sglang-2024", "H100-SXM", 160, 160),
        ("sglang-2024", "RTX 4090", 8, 80), ("sglang", "TPU v6e", 0, 0), ("vllm", "H100-SXM", 0, 0),
    ],
)  # fmt: skip
def test_sglang_captures_steps_by_the_memory_of_a_device(engine: str, gpu: str, narrow: int, wide: int) -> None:
    """SGLang, ServerArgs: cuda_graph_max_bs below and from tp 4 on; 160 in 2024, less below 25 GB."""
    served = FACTS.engine(engine).on(FACTS.resolve(gpu).accelerator)
    assert (served.graph_batch, served.wide_graph_batch) == (narrow, wide)


def test_limits_by_device_are_read_strictly(tmp_path: Path) -> None:
    limits = {"source": "a test", "date": "2026-11-27", "step_limits": ["A100: 256 sequences"]}
    (tmp_path / "engines.json").write_text(json.dumps({"vllm": {"limits": limits}}), encoding="utf-8")
    with pytest.raises(SpecError, match="N sequences, N tokens"):
        load_facts(tmp_path)


@pytest.mark.parametrize(
    ("given", "engine"),
    [("LM Studio", "llama.cpp"), ("koboldcpp", "llama.cpp"), ("llama-server", "llama.cpp"), ("vllm-ascend", "vllm"),
     ("huggingface", "hf"), ("optimum-neuron", "neuron"), ("ollama", "llama.cpp"), ("trtllm", "tensorrt-llm"),
     ("SGLang-JAX", "sglang"), ("ATOM", "atom")],
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


@pytest.mark.parametrize(
    ("name", "month", "row"),
    [
        ("vllm", "2023-09", "vllm-2023"), ("vllm", "2024-01", "vllm-2023"), ("vllm", "2024-02", "vllm-2024"),
        ("vllm", "2025-03-17", "vllm-v0"), ("vllm", "2025-03-18", "vllm-2025"), ("vllm", "2026-03", "vllm-2026"),
        ("vllm", "2026-10", "vllm"), ("trt-llm", "2024-06", "tensorrt-llm-v0"), ("ollama", "2024-06", "llama.cpp-2024"),
        ("sglang", "2026-05", "sglang-2026"), ("megatron", "2021-06", "megatron-2021"),
        ("megatron-lm", "2024-06", "megatron-te"), ("megatron", "2026-08", "megatron-2026"),
        ("fsdp-compile", "2024-12", "fsdp-compile"), ("fsdp-compile", "2025-06", "fsdp-compile-2025"),
        ("hf", "2024-01", "hf-trainer-2023"), ("hf", "2025-01", "hf-trainer"), ("nanotron", "2024-01", "nanotron"),
        ("tgi", "2024-01", "tgi"), ("vllm-2024", "2024-05", "vllm-2024"), ("sglang", "2025-03", "sglang-2024"),
    ],
)  # fmt: skip
def test_a_month_tells_the_generation(name: str, month: str, row: str) -> None:
    """Release dates of PyPI: vLLM 0.3.0 on 2024-01-31, 0.8.0 on 2025-03-18, 0.14.0 on 2026-01-20."""
    dated = FACTS.at(month)
    found = dated.engine(name) if row in FACTS.engines else dated.stack(name)
    assert found.name == row
    again = dated.engine(row) if row in FACTS.engines else dated.stack(row)
    assert again == found
    assert FACTS.at(None) is FACTS


def test_no_software_is_older_than_itself() -> None:
    with pytest.raises(SpecError, match=r"2022-06: the first vllm is of 2023-06"):
        FACTS.at("2022-06").engine("vllm")
    with pytest.raises(SpecError, match=r"vllm-2024 is of another time; name vllm-2025, or vllm"):
        FACTS.at("2025-08").engine("vllm-2024")
    with pytest.raises(UnknownNameError, match="vllm"):
        FACTS.at("2025-08").engine("vlm")


def test_generations_follow_one_another() -> None:
    """One end after another, one newest, of rows that exist; only the oldest says when the software began."""
    for head in {one.of for one in FACTS.generations.values()}:
        kin = [one for one in FACTS.generations.values() if one.of == head]
        ends = [one.until for one in kin]
        assert ends[-1] == ""
        assert ends[:-1] == sorted(set(ends[:-1]))
        assert all(one.source for one in kin)
        assert not any(one.since for one in kin[1:])
        assert {one.name for one in kin} <= ({*FACTS.engines} if head in FACTS.engines else {*FACTS.stacks})
        assert head in {one.name for one in kin}


def test_answers_are_of_the_month() -> None:
    """The same rows as those that their names tell."""

    def token_s(**how: Any) -> float:
        found = flopwise.serve("Llama-3.1-8B", gpu="h100", concurrency=8, **how).estimate.tpot_s
        assert found is not None
        return found.value

    def step_s(**how: Any) -> float:
        return flopwise.train("Llama-3.1-8B", gpu="8xh100", micro_batch=1, dp=8, zero=3, **how).estimate.step_s

    def memory_bytes(**how: Any) -> float:
        return flopwise.memory("Llama-3.1-8B", gpu="a100-80gb", micro_batch=2, **how).per_gpu_bytes

    assert token_s(software_month="2024-06") == token_s(engine="vllm-2024") > token_s()
    assert step_s(stack="hf", software_month="2026-03") == step_s(stack="hf-trainer-2026") != step_s(stack="hf")
    past = memory_bytes(stack="torchtune", software_month="2024-06")
    assert past == memory_bytes(stack="torchtune-2024") > memory_bytes(stack="torchtune")
    simulated = flopwise.simulate("Llama-3.1-8B", gpu="h100", rate=1, requests=200, software_month="2023-08")
    assert simulated.job.engine.name == "vllm-2023"
    compared = compare("gpt2", gpu="2xh100", global_batch=8, software_month="2022-06")
    assert compared.recipe.stack.name == "fsdp-2023"
    undated: Any = SourceSpec()
    whole = flopwise.memory("Llama-3.1-8B", gpu="a100-80gb", source=undated, stack="litgpt", micro_batch=8)
    assert whole.per_gpu_bytes > 0
    with pytest.raises(SpecError, match="is no month"):
        flopwise.train("gpt2", gpu="h100", software_month="2025")


@pytest.mark.parametrize(
    ("line", "software"),
    [
        ("plan llama-2-7b --task serve --rate 1 --gpu a100-80gb --software-month 2023-08", "vllm-2023"),
        ("serve llama-2-7b --gpu a100-80gb --explain --software-month 2023-08", "vllm-2023"),
        ("train llama-2-7b --gpu a100-80gb --finetune --lora 16 --software-month 2023-04", "hf-trainer-2023"),
        ("train gpt2 --gpu a100-80gb --stack megatron-te --software-month 2022-02", "megatron-2021"),
        ("train gpt2 --gpu a100-80gb --software-month 2022-08", "fsdp-2023"),
        ("train gpt2 --gpu tpu-v4 --software-month 2022-08", "xla"),
        ("plan gpt2 --task pretrain --tokens 1e9 --gpu a100-80gb --software-month 2022-08", "fsdp-2023"),
    ],
)  # fmt: skip
def test_software_that_is_only_compared_is_left_out_before_it_came(
    line: str, software: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody asked for is no reason to refuse; before torch.compile people ran FSDP without it."""
    code = main(line.split())
    assert code == 0, capsys.readouterr().err
    assert software in capsys.readouterr().out
