"""Which offer a number of accelerators is priced and joined as."""

import pytest

from flopwise.cost.spec import MachineSpec
from flopwise.facts.catalog import load_facts

FACTS = load_facts()


@pytest.mark.parametrize(("gpu", "count", "instance"), [
    ("tpu-v5p", 64, "tpu-v5p-128"), ("tpu-v5p", 3, "tpu-v5p-8"), ("tpu-v5p", 6144, "tpu-v5p-12288"),
    ("tpu-v6e", 256, "tpu-v6e-256"), ("tpu-v6e", 8, "tpu-v6e-8"),
])  # fmt: skip
def test_a_slice_of_tpus_is_as_large_as_it_is_needed(gpu: str, count: int, instance: str) -> None:
    """4.20 and 2.70 USD a chip and hour: not those of the largest slice, and its chips are joined by ICI."""
    machines = MachineSpec(gpu=gpu).cluster(count, FACTS)
    assert instance in machines.price_source
    assert machines.usd_per_gpu_hour == pytest.approx({"tpu-v5p": 4.2, "tpu-v6e": 2.7}[gpu])
    assert machines.gpus_per_node >= count


@pytest.mark.parametrize(("gpu", "count", "per_node"), [
    ("rtx4090", 4, 4), ("rtx4090", 12, 6), ("rtx4090", 1, 1), ("rtx3090", 2, 2), ("a100-pcie", 8, 8), ("a6000", 8, 8),
    ("l40s", 10, 10), ("l40s", 20, 10), ("h100-sxm", 3, 4), ("gb200", 8, 4), ("epyc-9r45", 4, 2),
])  # fmt: skip
def test_cards_share_a_machine_though_they_are_rented_one_by_one(gpu: str, count: int, per_node: int) -> None:
    """RunPod's price is of one RTX 4090; who writes four means one box. Sockets and boards are as they are sold."""
    machines = MachineSpec(gpu=gpu).cluster(count, FACTS)
    assert machines.gpus_per_node == per_node
    assert (machines.usd_per_gpu_hour or 0) > 0
    if gpu == "rtx4090":
        assert MachineSpec(gpu=gpu, instance="1x RTX 4090 secure").cluster(count, FACTS).gpus_per_node == 1
