from __future__ import annotations

import pytest

from flopwise.errors import UnknownNameError
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
