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
