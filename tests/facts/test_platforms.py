"""Which software runs on which device."""

from __future__ import annotations

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.facts.platforms import platform, runs_on, support, unsupported_note
from flopwise.facts.software import engine_names, stack_names

FACTS = load_facts()


@pytest.mark.parametrize("name", [*stack_names(), *engine_names()])
def test_all_software_says_what_it_runs_on(name: str) -> None:
    row = support(name)
    assert row.platforms
    assert row.source
    assert any(runs_on(name, device) for device in FACTS.accelerators.values())


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
        ("in-house", "TPU v4", True),
    ],
)
def test_devices_that_documentation_names(software: str, device: str, *, runs: bool) -> None:
    assert runs_on(software, FACTS.accelerator(device)) is runs
    assert bool(unsupported_note(software, FACTS.accelerator(device))) is not runs


def test_every_shipped_device_has_a_platform() -> None:
    assert {name for name, device in FACTS.accelerators.items() if platform(device) is None} == set()
