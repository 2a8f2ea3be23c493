"""Which software runs on which device."""

from __future__ import annotations

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.facts.software import Software, platform

FACTS = load_facts()


def _software(name: str) -> Software:
    return FACTS.stacks[name] if name in FACTS.stacks else FACTS.engines[name]


@pytest.mark.parametrize("name", [*FACTS.stacks, *FACTS.engines])
def test_all_software_says_what_it_runs_on(name: str) -> None:
    row = _software(name)
    assert row.platforms
    assert row.platforms_source
    assert row.platforms_date
    assert any(row.runs_on(device) for device in FACTS.accelerators.values())


@pytest.mark.parametrize(
    ("software", "device", "runs"),
    [
        ("megatron-te", "H100-SXM-80", True),
        ("megatron-te", "MI300X", True),
        ("megatron-te", "TPU v6e", False),
        ("megatron-2021", "Gaudi2", False),
        ("fsdp-compile", "Gaudi2", True),
        ("fsdp-compile", "Trainium1", False),
        ("fsdp-compile", "K80", False),
        ("xla", "TPU v5e", True),
        ("xla", "Trainium2", True),
        ("xla", "MI300X", False),
        ("vllm", "T4", True),
        ("vllm", "P100-PCIe-16", False),
        ("vllm", "Inferentia2", True),
        ("vllm", "Inferentia1", False),
        ("tensorrt-llm", "T4", False),
        ("tensorrt-llm-v0", "A100-SXM-80", True),
        ("tensorrt-llm", "MI300X", False),
        ("mlx", "H100-SXM-80", False),
        ("vllm", "Ascend 910B3", True),
        ("sglang", "Ascend 910C", True),
        ("tensorrt-llm", "Ascend 910B3", False),
        ("megatron-te", "Ascend 910B3", False),
        ("in-house", "TPU v4", True),
    ],
)
def test_devices_that_documentation_names(software: str, device: str, *, runs: bool) -> None:
    row = _software(software)
    assert row.runs_on(FACTS.accelerator(device)) is runs
    assert bool(row.unsupported_note(FACTS.accelerator(device))) is not runs


def test_every_shipped_device_has_a_platform() -> None:
    assert {name for name, device in FACTS.accelerators.items() if platform(device) is None} == set()


def test_a_note_names_the_platforms_that_are_known() -> None:
    """TensorRT-LLM: NVIDIA's devices from compute capability 8.0."""
    engine = FACTS.engine("tensorrt-llm")
    (note,) = engine.unsupported_note(FACTS.accelerator("MI300X"))
    assert "not known to run on MI300X (platforms: nvidia from compute capability 8)" in note
    assert engine.unsupported_note(FACTS.accelerator("H100-SXM-80")) == ()
