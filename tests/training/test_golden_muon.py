"""Muon by hand: Jordan et al. 2024 for the iterations, Liu et al. 2025 (arXiv:2502.16982) for the distributed one."""

from __future__ import annotations

from typing import Any

import pytest
from lossless import (
    FFN,
    HBM,
    KV,
    LAYERS,
    MATRICES,
    MODEL,
    NORMS,
    NVLINK,
    PARAMS,
    PEAK,
    VOCAB,
    WIDTH,
    job,
    lines,
    machine,
)
from test_golden_training_step import EXPERT_FFN, EXPERTS, mixture_job

from flopwise.facts.models.catalog import load_model
from flopwise.training.estimate import estimate
from flopwise.training.frozen import Frozen
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout, Lora
from flopwise.training.memory import step_memory
from named import recipe_with

BF16, ITERATIONS = 2, 5
OTHERS = LAYERS * NORMS + WIDTH + 2 * VOCAB * WIDTH
"""Norms, embedding and head, which AdamW trains."""


def iteration(short: int, long: int) -> int:
    """A = X X^T: 2 m^2 n; B = b A + c A A: 2 m^3; a X + B X: 2 m^2 n (multiplying and adding are two)."""
    return 2 * short * short * long + 2 * short**3 + 2 * short * short * long


LAYER = ITERATIONS * (2 * iteration(WIDTH, WIDTH) + 2 * iteration(KV, WIDTH) + 3 * iteration(WIDTH, FFN))
LARGEST = ITERATIONS * iteration(WIDTH, FFN)
MUON = {"optimizer": "muon"}


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def test_seven_billion_parameters_of_matrices() -> None:
    """Llama 3.1 8B: 32 layers of q, o 4096 x 4096, k, v 1024 x 4096, gate, up, down 4096 x 14336: 6.7e14 FLOP."""
    flops = 32 * 5 * (2 * iteration(4096, 4096) + 2 * iteration(1024, 4096) + 3 * iteration(4096, 14336))
    assert flops == pytest.approx(6.66e14, rel=0.01)
    recipe = recipe_with(seq_len=4096, global_batch=8, stack="megatron-te", optimizer="muon")
    asked = TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=Layout(), cluster=machine())
    assert lines(asked)["newton_schulz"] == exactly(flops / PEAK)


def test_every_replica_orthogonalises_all_without_zero() -> None:
    assert lines(job(MUON))["newton_schulz"] == exactly(LAYERS * LAYER / PEAK)
    assert lines(job(MUON, dp=8))["newton_schulz"] == exactly(LAYERS * LAYER / PEAK)
    assert "newton_schulz" not in lines(job())


@pytest.mark.parametrize("zero", [1, 2])
def test_a_rank_orthogonalises_its_share_and_the_matrix_at_its_edge(zero: int) -> None:
    """Algorithm 1: a DP gather in 16 bits of the matrices that a rank's share of the flat buffer cuts."""
    dp = 8
    gather = (dp - 1) / dp * WIDTH * FFN * BF16 / NVLINK
    found = lines(job(MUON, dp=dp, zero=zero))
    assert found["newton_schulz"] == exactly((LAYERS * LAYER / dp + LARGEST) / PEAK + gather)


def test_even_slices_travel_to_the_rank_that_orthogonalises_them_and_back() -> None:
    dp = 8
    exchange = 2 * (dp - 1) / dp * LAYERS * MATRICES / dp * BF16 / NVLINK
    found = lines(job({**MUON, "stack": "fsdp-te"}, dp=dp, zero=3))
    assert found["newton_schulz"] == exactly(LAYERS * LAYER / dp / PEAK + exchange)


def test_tensor_ranks_gather_their_slices_and_do_the_same() -> None:
    """Section 2.3: with tensor parallelism a TP gather in 16 bits."""
    tp = 4
    gather = (tp - 1) / tp * LAYERS * MATRICES * BF16 / NVLINK
    assert lines(job(MUON, tp=tp))["newton_schulz"] == exactly(LAYERS * LAYER / PEAK + gather)


def test_experts_are_matrices_of_their_own() -> None:
    """Eight ranks hold two of sixteen experts each, whole; what all hold is shared over the eight."""
    ep = 8
    gate_up, down = iteration(WIDTH, 2 * EXPERT_FFN), iteration(EXPERT_FFN, WIDTH)
    expert = LAYERS * EXPERTS * ITERATIONS * (gate_up + down)
    dense = 2 * iteration(WIDTH, WIDTH) + 2 * iteration(KV, WIDTH) + iteration(EXPERTS, WIDTH)
    edge = ITERATIONS * iteration(WIDTH, WIDTH)
    gather = (ep - 1) / ep * WIDTH * WIDTH * BF16 / NVLINK
    found = lines(mixture_job({**MUON, "stack": "megatron-te"}, dp=ep, ep=ep, zero=1))
    assert found["newton_schulz"] == exactly((expert / ep + LAYERS * ITERATIONS * dense / ep + edge) / PEAK + gather)


def test_adapters_are_matrices_too() -> None:
    rank = 16
    pair = iteration(rank, WIDTH) * 2
    found = lines(job({**MUON, "lora": Lora(rank=rank, targets=("q", "o"))}))
    assert found["newton_schulz"] == exactly(LAYERS * ITERATIONS * 2 * pair / PEAK)


def test_one_state_for_matrices_and_two_for_the_rest() -> None:
    """Section 2.3: one momentum, half of AdamW's memory; AdamW for embedding, head and norms (section 2.2)."""
    layers = LAYERS * MATRICES
    for dp in (1, 8):
        found = lines(job(MUON, dp=dp, zero=1))
        # states read and written, 4 bytes of gradient, fp32 weight read and written, 16-bit copy written
        moved = layers * (2 * 4 + 4 + 8 + 2) + OTHERS * (2 * 8 + 4 + 8 + 2)
        assert found["optimizer"] == exactly(moved / dp / HBM)
        memory = step_memory(MODEL, job(MUON).recipe, Layout(dp=dp, zero=1))
        assert memory.items["optimizer states"] == exactly((layers * 4 + OTHERS * 8) / dp)
        assert memory.items["master weights"] == exactly(PARAMS * 4 / dp)
    asked = TrainJob(model=MODEL, recipe=job(MUON).recipe, layout=Layout(), cluster=machine(), tokens=1e9)
    run = estimate(asked).run
    assert run is not None
    assert run.checkpoint_bytes == exactly(PARAMS * (2 + 4) + layers * 4 + OTHERS * 8)


def test_stages_hold_the_states_of_what_they_hold() -> None:
    """Four stages of two layers: the first, the fullest, holds the embedding besides."""
    memory = step_memory(MODEL, job(MUON).recipe, Layout(pp=4))
    assert memory.worst_rank == "first pipeline stage"
    assert memory.items["optimizer states"] == exactly(2 * MATRICES * 4 + (2 * NORMS + VOCAB * WIDTH) * 8)


def test_what_is_not_trained_has_no_states_and_no_iterations() -> None:
    recipe = {**MUON, "frozen": Frozen(first=LAYERS // 2)}
    found = lines(job(recipe))
    assert found["newton_schulz"] == exactly(LAYERS / 2 * LAYER / PEAK)
    memory = step_memory(MODEL, job(recipe).recipe, Layout())
    others = LAYERS / 2 * NORMS + WIDTH + 2 * VOCAB * WIDTH
    assert memory.items["optimizer states"] == exactly(LAYERS / 2 * MATRICES * 4 + others * 8)
