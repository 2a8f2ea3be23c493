"""Tiles, waves, alignment and ridge: what a device makes of one operation's shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.cost.kernels import FLASH_DIMS, TILES, flash_dim
from flopwise.cost.rates import Rates, rates
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.shapes import Work
from flopwise.shapes.kernels import (
    aligned_elems,
    kernel_names,
    l2_ridge_flops_per_byte,
    preferred_elems,
    ridge_flops_per_byte,
    tiling,
)


def device(name: str) -> Rates:
    return rates(load_facts().accelerator(name))


def product(m: float, n: float, k: float) -> Work:
    return Work(name="p", kind="matmul", flops=2 * m * n * k, causal_flops=2 * m * n * k, m=m, n=n, k=k)


def test_alignment_is_as_nvidia_states_it() -> None:
    # Matrix Multiplication Background User's Guide, table 1: multiples of 16 bytes on Volta, of 128 bytes on A100
    assert {d: aligned_elems(d) for d in ("bf16", "fp16", "fp8", "int8", "nvfp4", "fp32")} == {
        "bf16": 8, "fp16": 8, "fp8": 16, "int8": 16, "nvfp4": 32, "fp32": 4,
    }  # fmt: skip
    assert preferred_elems("fp16", "7.0") == 8
    assert preferred_elems("fp16", "8.0") == 64
    assert preferred_elems("int8", "8.0") == 128
    assert preferred_elems("bf16", None) == 64


def test_heads_run_at_dimensions_that_flash_kernels_have() -> None:
    asked = (64, 72, 80, 96, 112, 128, 160, 192, 256, 300)
    assert [flash_dim(d) for d in asked] == [64, 96, 96, 96, 128, 128, 192, 192, 256, 320]
    assert all(flash_dim(d) == d for d in FLASH_DIMS)


def test_a_full_wave_is_full_and_one_tile_more_starts_another() -> None:
    found = device("a100-80gb")  # 108 SMs
    full = tiling(found, product(12 * 256, 9 * 128, 8192), "bf16")
    assert full is not None
    assert (full.rows, full.columns, full.tiles) == (256, 128, 108)
    assert (full.waves, full.last_wave_frac) == (1.0, 1.0)
    more = tiling(found, product(12 * 256, 10 * 128, 8192), "bf16")
    assert more is not None
    assert more.tiles == 120
    assert more.last_wave_frac == pytest.approx(12 / 108)


@given(m=st.integers(1, 40_000), n=st.integers(1, 40_000), k=st.integers(1, 20_000))
def test_tiles_cover_the_product_and_the_last_wave_is_never_empty(m: int, n: int, k: int) -> None:
    cut = tiling(device("h100"), product(float(m), float(n), float(k)), "bf16")
    assert cut is not None
    assert (float(cut.rows), float(cut.columns)) in TILES
    assert cut.tiles * cut.rows * cut.columns >= m * n
    assert (cut.tiles - 1) * cut.rows * cut.columns < 4 * (m + cut.rows) * (n + cut.columns)
    assert 0 < cut.last_wave_frac <= 1 + 1e-9


def test_the_ridge_lies_where_computing_and_reading_take_as_long() -> None:
    found = device("h100")
    ridge = ridge_flops_per_byte(found, "bf16")
    assert 1e12 / found.matmul_flops_per_s("bf16") == pytest.approx(1e12 / ridge / found.read_bytes_per_s)
    cache = l2_ridge_flops_per_byte(found, "bf16")
    assert cache is not None
    assert cache < ridge < ridge_flops_per_byte(found, "fp8")


def test_a_kernel_is_named_by_all_that_runs_in_it() -> None:
    items = load_model("Llama-3.1-8B").stacks[0].kinds[0].items
    assert kernel_names(items, fused=True)["attention/q_proj"] == "attention/q_proj+k_proj+v_proj"
    assert kernel_names(items, fused=False)["attention/q_proj"] == "attention/q_proj"
