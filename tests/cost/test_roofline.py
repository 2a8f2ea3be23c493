"""The roofline by hand: datasheet numbers read from the facts, the rest multiplied out here."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise
from flopwise.cost.rates import rates
from flopwise.cost.spec import MachineSpec
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model

H100 = load_facts().accelerator("H100-SXM-80")
PEAK, BANDWIDTH = H100.peak["bf16"], H100.hbm_bytes_per_s


def test_compute_and_memory_times_of_given_work_at_given_efficiency() -> None:
    """Williams et al. 2009: the longer of FLOP / rate and bytes / bandwidth; four devices share the work evenly."""
    found = flopwise.roofline(flops=4e15, bytes=2e12, gpu="h100", gpus=4, efficiency=0.5)
    compute_s, memory_s = 4e15 / (PEAK * 0.5 * 4), 2e12 / (BANDWIDTH * 0.5 * 4)
    assert found.compute_s == pytest.approx(compute_s)
    assert found.memory_s == pytest.approx(memory_s)
    assert found.seconds == pytest.approx(max(compute_s, memory_s))
    assert found.lower_bound_s == pytest.approx(max(4e15 / (4 * PEAK), 2e12 / (4 * BANDWIDTH)))
    assert found.bound == "compute"
    assert found.intensity_flops_per_byte == pytest.approx(2000.0)
    assert found.ridge_flops_per_byte == pytest.approx(PEAK / BANDWIDTH)
    assert found.utilisation_frac == pytest.approx(0.5)
    assert found.bandwidth_frac == pytest.approx(2e12 / (4 * BANDWIDTH * compute_s))


def test_calibrated_fractions_are_those_of_large_kernels() -> None:
    value = rates(H100).value
    found = flopwise.roofline(flops=1e15, bytes=1e12, gpu="h100")
    assert found.compute_s == pytest.approx(1e15 / (PEAK * value["matmul_frac.bf16"]))
    assert found.memory_s == pytest.approx(1e12 / (BANDWIDTH * value["dram_frac"]))
    assert found.efficiency_source == "calibrated on large kernels"


@pytest.mark.parametrize(("work", "share"), [({"flops": 1e18}, 0.95), ({"bytes": 1e15}, 0.65)])
def test_cost_and_energy_of_whole_nodes(work: dict[str, Any], share: float) -> None:
    """Two nodes of eight for ten devices; a device draws 95 % of its limit in compute, 65 % in memory (Latif et al.
    2024, Patel et al. 2023), its host half of the limit, and the site 1.2 times that."""
    place = MachineSpec(gpu="h100", gpus_per_node=8, price=3.0)
    found = flopwise.roofline(**work, gpus=10, machines=place)
    hours = found.seconds / 3600
    assert found.cost_usd == pytest.approx(16 * 3.0 * hours)
    assert H100.tdp_w is not None
    assert found.energy_joules == pytest.approx(10 * H100.tdp_w * (share + 0.5) * 1.2 * found.seconds)


def test_a_training_step_of_a_model_moves_thrice_the_bytes_of_a_forward_pass() -> None:
    forward, step = (flopwise.roofline("Llama-3.1-8B", gpu="h100", seq=2048, training=t) for t in (False, True))
    assert step.bytes == pytest.approx(3 * forward.bytes)
    # 2 FLOP a weight and token, embedding apart, and causal attention: 32 layers, 4,096 wide, half of 2,048 keys each
    weights = 8_030_261_248 - 128_256 * 4096
    by_hand = 2 * weights * 2048 + 4 * 32 * 4096 * 2048 * 2049 / 2
    assert forward.flops == pytest.approx(by_hand, rel=0.002)
    backward = 2 * (2 * weights * 2048 + 4 * 32 * 4096 * 2048 * 2048)  # attention in full, as PyTorch's counter has it
    assert step.flops == pytest.approx(by_hand + backward, rel=0.002)
    assert forward.samples_per_s == pytest.approx(1 / forward.seconds)


def test_published_figures_move_samples_and_weights_only() -> None:
    """64 samples, and 16-bit weights thrice in training; FLOP as published."""
    published = load_model("ResNet-50").published
    assert published is not None
    assert published.sample_bytes is not None
    assert published.parameters is not None
    assert published.training_flops_per_sample is not None
    found = flopwise.roofline("ResNet-50", gpu="h100", batch=64, training=True)
    assert found.bytes == pytest.approx(64 * published.sample_bytes + 3 * 2 * published.parameters)
    assert found.flops == pytest.approx(64 * published.training_flops_per_sample)
    assert found.partial
    assert found.samples_per_s_at_most == pytest.approx(64 / found.seconds)
