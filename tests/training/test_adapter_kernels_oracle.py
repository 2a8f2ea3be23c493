"""The elementwise kernels around an adapter's products: PEFT's own, and what a step pays for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.facts.models.catalog import load_model
from flopwise.training.adapters import fuses_adapters
from flopwise.training.blocks import ADAPTER_TRAFFIC, kernels_of
from flopwise.training.estimate import single_table
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import ALL_TARGETS, Layout
from flopwise.training.step_table import block_contexts
from moved_bytes import meta_tensor, moved_bytes
from named import FACTS, lora_with, recipe_with

TOKENS, INPUTS, OUTPUTS, RANK = 2048, 256, 384, 4
INPUTS_8B, OUTPUTS_8B = 6 * 4096 + 14336, 3 * 4096 + 2 * 1024 + 2 * 14336
"""Elements a token of the inputs and outputs of Llama-3.1-8B's seven projections in a layer."""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bytes_are_those_that_peft_moves(dtype: str) -> None:
    """In all but the three products, whose bytes are counted here; casts of weights are a percent or less."""
    torch = pytest.importorskip("torch", reason="PyTorch counts the bytes: `make oracle` installs it")
    peft = pytest.importorskip("peft", reason="its layer is what is counted: `make oracle` installs it")
    base = torch.nn.Sequential(torch.nn.Linear(INPUTS, OUTPUTS, bias=False)).to(torch.bfloat16)
    config = peft.LoraConfig(r=RANK, target_modules=["0"])
    layer = peft.get_peft_model(base, config, autocast_adapter_dtype=dtype == "fp32")
    given = torch.empty(TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "fp32"):
        moved = moved_bytes(layer, given * 1.0)
    products = sum(2.0 * (TOKENS * (n + m) + n * m) for n, m in ((INPUTS, OUTPUTS), (INPUTS, RANK), (RANK, OUTPUTS)))
    for total, passes in zip(moved, zip(*ADAPTER_TRAFFIC.values(), strict=True), strict=True):
        elems = {name: sum(each) for name, each in zip(ADAPTER_TRAFFIC, passes, strict=True)}
        casts = elems["cast"] if dtype == "fp32" else 0.0
        expected = 2.0 * TOKENS * (INPUTS * (elems["gradients"] + casts) + OUTPUTS * elems["sum"])
        assert total - products == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("name", "wide"), [("dropout", 2), ("wide dropout", 4)])
def test_a_dropped_input_is_read_and_written_with_a_mask_of_a_byte(name: str, wide: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch counts the bytes: `make oracle` installs it")
    given = meta_tensor(TOKENS, INPUTS, dtype={2: "bfloat16", 4: "float32"}[wide])
    moved = moved_bytes(lambda x: torch.native_dropout(x, 0.05, train=True)[0], given)
    assert [each / (TOKENS * INPUTS) for each in moved] == [2 * sum(passes) for passes in ADAPTER_TRAFFIC[name]]


@pytest.mark.parametrize(
    ("what", "stack", "lora", "by_hand"),
    [  # bytes forward and backward, of the inputs and outputs of all projections
        ("sum", "litgpt", {}, (10 * OUTPUTS_8B, 4 * OUTPUTS_8B)),
        ("gradients", "fsdp-eager", {}, (0, 6 * INPUTS_8B)),
        ("cast", "hf-trainer", {}, (12 * INPUTS_8B, 12 * INPUTS_8B)),
        ("cast", "hf-trainer-liger", {}, (12 * INPUTS_8B, 12 * INPUTS_8B)),
        ("cast", "hf-trainer", {"adapter_dtype": "bf16"}, (0, 0)),
        ("cast", "hf-trainer", {"base": "nf4"}, (0, 0)),
        ("cast", "deepspeed-zero3", {}, (0, 0)),
        ("dropout", "deepspeed-zero3", {"dropout": True}, (5 * INPUTS_8B, 5 * INPUTS_8B)),
        ("wide dropout", "hf-trainer", {"dropout": True}, (9 * INPUTS_8B, 9 * INPUTS_8B)),
        ("clone", "hf-trainer", {"base": "nf4"}, (4 * OUTPUTS_8B, 0)),
        ("clone", "litgpt", {"base": "nf4"}, (0, 0)),
        ("sum", "unsloth", {}, (0, 0)),
        ("sum", "torchtune-compile", {}, (0, 0)),
        ("sum", "nemo", {}, (0, 0)),
    ],
)
def test_a_layer_pays_for_them_where_they_run(
    what: str, stack: str, lora: dict[str, Any], by_hand: tuple[float, float]
) -> None:
    """A layer of Llama-3.1-8B, 4,096 tokens, adapters on all seven projections: bytes over the rate, and starts."""
    model, device = load_model("Llama-3.1-8B"), cluster(FACTS.accelerator("A100-SXM-80"))
    recipe = recipe_with(seq_len=4096, stack=stack, lora=lora_with(rank=16, targets=ALL_TARGETS, **lora))
    table = single_table(TrainJob(model=model, recipe=recipe, layout=Layout(), cluster=device))
    shape = recipe.shape(model, table.inner.micro_batch)
    [context] = block_contexts(model, recipe, table.rates, device.fabric, table.inner, shape)
    every = list(kernels_of(model.stacks[0].kinds[0].items, context, in_layers=True))
    for suffix, nbytes in zip(("", "/grad"), by_hand, strict=True):
        kernels = [k for k in every if k.work.name.endswith(f"/{what}{suffix}")]
        assert len(kernels) == 7 * (nbytes > 0)
        assert all(k.forward == (not suffix) for k in kernels)
        by_rate_s = 4096 * nbytes / table.rates.read_bytes_per_s + len(kernels) * table.rates.value["kernel_s"]
        assert sum(float(np.ravel(k.seconds)[0]) for k in kernels) == pytest.approx(by_rate_s, rel=1e-3)


def test_each_adapter_keeps_the_input_that_it_casts() -> None:
    """Adapters in 16 bits on q, k and v share their input, of 4,096 elements of 2 bytes a token; casts are three."""
    kept = []
    for dtype in ("bf16", "fp32"):
        lora = lora_with(targets=("q", "k", "v"), adapter_dtype=dtype)
        table = MemoryTable(load_model("Llama-3.1-8B"), recipe_with(seq_len=4096, stack="hf-trainer", lora=lora))
        kept.append(float(table.sums(Layout())[0].activations[0, -1, 0]))
    assert kept[1] - kept[0] == 32 * 4096 * 4096 * 2 * (3 - 1)


def test_a_mask_of_dropout_is_a_byte_an_element() -> None:
    """Beside the inputs that q, k and v cast each for itself: three masks of 4,096 elements a token, in 32 layers."""
    kept = []
    for dropout in (False, True):
        lora = lora_with(targets=("q", "k", "v"), dropout=dropout)
        table = MemoryTable(load_model("Llama-3.1-8B"), recipe_with(seq_len=4096, stack="hf-trainer", lora=lora))
        kept.append(float(table.sums(Layout())[0].activations[0, -1, 0]))
    assert kept[1] - kept[0] == 32 * 4096 * 4096 * 3


def test_own_kernels_leave_dropout_and_dora_to_peft() -> None:
    """Unsloth: fast_lora.py is chosen where dropout is 0 and a module has no magnitudes."""
    ways: tuple[dict[str, Any], ...] = ({}, {"dropout": True}, {"method": "dora"})
    assert [fuses_adapters(recipe_with(seq_len=4096, stack="unsloth", lora=lora_with(**one))) for one in ways] == [
        True,
        False,
        False,
    ]
    assert not fuses_adapters(recipe_with(seq_len=4096, stack="hf-trainer", lora=lora_with()))
