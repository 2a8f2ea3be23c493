"""What any model of serving must get right: memory that starves a replica, and links that make more GPUs useless."""

from typing import Any

import pytest

import flopwise


def tokens_per_s(**how: Any) -> float:
    found = flopwise.serve(**how).estimate.output_tokens_per_s
    assert found is not None
    return float(found.value)


@pytest.mark.parametrize(("tp", "measured"), [(1, 840), (2, 4391), (4, 7431), (8, 11451)])
def test_70b_in_fp8_is_starved_on_one_h100(tp: int, measured: float) -> None:
    """TensorRT-LLM documentation, performance overview of 0.17: 1,000 in, 1,000 out, all requests at once."""
    said = tokens_per_s(
        model="Llama-3.1-70B", gpu="h100", tp=tp, weights="fp8", kv_dtype="fp8", engine="tensorrt-llm-v0",
        input_tokens=1000, output_tokens=1000,
    )  # fmt: skip
    assert said == pytest.approx(measured, rel=0.35)


def test_two_gpus_are_five_times_one_where_the_cache_was_starved() -> None:
    one, two = (
        tokens_per_s(model="Llama-3.1-70B", gpu="h100", tp=tp, weights="fp8", kv_dtype="fp8",
                     engine="tensorrt-llm-v0", input_tokens=1000, output_tokens=1000)
        for tp in (1, 2)
    )  # fmt: skip
    assert two / one == pytest.approx(4391 / 840, rel=0.3)


def test_tensor_parallelism_stops_paying_over_pcie_and_not_over_nvlink() -> None:
    def curve(gpu: str) -> list[float]:
        shape = {"input_tokens": 1000, "output_tokens": 250, "gpus_per_node": 8, "concurrency": 64}
        return [tokens_per_s(model="Llama-3.1-8B", gpu=gpu, tp=tp, **shape) for tp in (1, 2, 4, 8)]

    pcie, nvlink = curve("l40s"), curve("h100")
    assert pcie[3] < 1.5 * pcie[0]  # eight cards do not do the work of one and a half
    assert nvlink[1] > nvlink[0]
    assert nvlink[2] > nvlink[1]
    assert nvlink[3] / nvlink[0] > 1.5 * pcie[3] / pcie[0]
