"""Rules of thumb by hand, and what the estimate says beside them."""

from __future__ import annotations

from math import ceil

import pytest

import flopwise
from named import train_answer

PARAMETERS = 8_030_261_248
H100_BYTES = 85_520_809_984


@pytest.mark.parametrize(
    ("zero", "each"),
    [(0, 16.0), (1, 2 + 2 + 12 / 8), (2, 2 + (2 + 12) / 8), (3, 16 / 8)],
)
def test_sixteen_bytes_a_parameter_as_zero_shards_them(zero: int, each: float) -> None:
    """Rajbhandari et al. 2019, figure 1: 2 of weights, 2 of gradients, 12 of Adam's states; tp 2 halves them all."""
    rules = flopwise.memory("Llama-3.1-8B", gpu="h100", dp=8, tp=2, zero=zero, stack="fsdp-eager").quick
    states = next(rule for rule in rules if rule.name == "16 bytes per parameter")
    assert states.value == pytest.approx(PARAMETERS / 2 * each)


def test_six_times_the_weights_in_gpus() -> None:
    gpus = next(rule for rule in flopwise.memory("Llama-3.1-8B", gpu="h100").quick if rule.name == "GPUs")
    assert gpus.value == ceil(6 * 2 * PARAMETERS / H100_BYTES) == 2
    assert gpus.estimate in {2.0, 4.0}


def test_six_n_d() -> None:
    found = train_answer("Llama-3.1-8B", gpu="h100", gpus=16, tokens=1e9)
    rule = next(rule for rule in found.quick if rule.name == "6 N D")
    assert rule.value == pytest.approx(6 * PARAMETERS * 1e9)


def test_weights_over_memory_and_over_bandwidth() -> None:
    found = flopwise.serve("Llama-3.1-70B", gpu="h100", tp=4)
    rules = {rule.name: rule for rule in found.quick}
    weights = 2 * 70_553_706_496
    assert rules["time per token"].value == pytest.approx(weights / 4 / 3.35e12, rel=1e-3)
    assert rules["GPUs"].value == ceil(weights / H100_BYTES) == 2
