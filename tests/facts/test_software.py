from __future__ import annotations

import pytest

from flopwise.errors import UnknownNameError
from flopwise.facts.software import Optimizer, engine, engine_names, optimizer, read_rows, stack, stack_names


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_is_possible(name: str) -> None:
    row = stack(name)
    assert row.source
    assert row.meaning
    assert 2 <= row.loss_bytes <= 24
    assert row.loss_chunks >= 1
    assert 0 <= row.fragmentation_frac <= 0.3
    assert 0 < row.context_bytes <= 4e9
    assert row.activations in ("eager", "sdpa", "fused")


@pytest.mark.parametrize("name", read_rows("optimizers.csv", Optimizer)[0])
def test_every_optimizer_keeps_at_most_two_states(name: str) -> None:
    row = optimizer(name)
    assert row.source
    assert 0 <= row.states <= 2
    assert 0 <= row.packed_bytes <= 3


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_takes_a_share_of_the_card(name: str) -> None:
    row = engine(name)
    assert row.source
    assert 0 < row.memory_frac <= 1
    assert row.block_tokens >= 1
    assert row.max_batch >= 1


def test_aliases_and_unknown_names() -> None:
    assert optimizer("Adam").name == "adamw"
    assert stack("torchtitan").name == "fsdp-eager"
    assert engine("TRT-LLM").name == "tensorrt-llm"
    with pytest.raises(UnknownNameError, match="adamw-8bit"):
        optimizer("adamw-8bits")
