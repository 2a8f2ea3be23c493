"""More replicas than the simulator has places for, and pools that leave a plan no accelerators, are refused."""

from __future__ import annotations

import pytest

from flopwise.api.plan import plan
from flopwise.api.serve import serve
from flopwise.api.simulate import simulate
from flopwise.errors import SpecError


def test_more_replicas_than_there_are_places_for_are_refused() -> None:
    """2^24 sequences, 1,024 a replica: 16,384 replicas."""
    with pytest.raises(SpecError, match=r"1,000,000 replicas .* allowed: up to 16,384 replicas"):
        simulate("Llama-3.1-8B", gpu="h100", rate=2, requests=10, replicas=1_000_000)
    with pytest.raises(SpecError, match="too many to simulate"):
        serve("Llama-3.1-8B", gpu="h100", rate=2, prefill_gpus=1_000_000)


def test_pools_leave_a_plan_accelerators_for_answers() -> None:
    with pytest.raises(SpecError, match="with 1,000,000 prefill GPUs none of a plan's 4,096 accelerators is left"):
        plan("Llama-3.1-8B", task="serve", gpus=["h100"], rate=2, prefill_gpus=1_000_000)


def test_a_plan_has_no_copies_of_experts_that_a_model_lacks() -> None:
    with pytest.raises(SpecError, match=r"2 redundant experts: Llama-3\.1-8B has no experts"):
        plan("Llama-3.1-8B", task="serve", gpus=["h100"], rate=2, redundant_experts=2)
