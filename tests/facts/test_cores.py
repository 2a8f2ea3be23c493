"""Cores and tensor cores of devices, against what their makers publish for whole devices."""

from __future__ import annotations

import pytest

from flopwise.facts.catalog import load_facts


@pytest.mark.parametrize(
    ("name", "cores", "tensor_cores"),
    [
        ("K80", 2496, 0), ("P100-SXM2-16", 3584, 0), ("P4", 2560, 0), ("V100-SXM2-16", 5120, 640), ("T4", 2560, 320),
        ("A10G", 10_240, 320), ("A100-SXM-80", 6912, 432), ("L4", 7424, 232), ("L40S", 18_176, 568),
        ("RTX 4090", 16_384, 512), ("H100-SXM-80", 16_896, 528), ("H100-PCIe-80", 14_592, 456), ("B200", 18_944, 592),
        ("RTX 5090", 21_760, 680), ("MI100", 7680, 480), ("MI250X", 14_080, 880), ("MI300X", 19_456, 1216),
        ("MI355X", 16_384, 1024),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_datasheets(name: str, cores: int, tensor_cores: int) -> None:
    device = load_facts().accelerator(name)
    assert (device.num_cores, device.num_tensor_cores) == (cores, tensor_cores)


def test_devices_without_such_cores_say_nothing() -> None:
    for name in ("TPU v6e", "Trainium2", "Gaudi3", "Graviton4", "Apple M4 Max"):
        device = load_facts().accelerator(name)
        assert (device.num_cores, device.num_tensor_cores) == (None, None), name


def test_a_share_of_a_device_has_its_share_of_cores() -> None:
    half = load_facts().accelerator("A10").partition(0.5)
    assert (half.num_cores, half.num_tensor_cores) == (4608, 144)
