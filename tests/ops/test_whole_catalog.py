"""Every model of the catalog goes through every count: finite, positive, or a sentence that says what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from each import each
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Model, Recurrence
from flopwise.facts.models.catalog import load_model
from flopwise.ops.cache import kv_bytes_per_token, kv_cache_bytes
from flopwise.ops.flops import backward_flops, causal_forward_flops, forward_flops, operations
from flopwise.ops.tensors import active_parameters, parameters, sharded_parameters
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Layout, Recipe
from named import FACTS, weight_bytes

SEQS = np.array([1, 256])


@cache
def described() -> list[str]:
    """Models whose layers are known."""
    return [name for name in FACTS.models.names if load_model(name).stacks]


@cache
def published() -> list[str]:
    """Models of which figures are known alone."""
    return [name for name in FACTS.models.names if not load_model(name).stacks]


def ranked(model: Model, tp: int) -> float:
    """Parameters on one rank of `tp`, all stacks."""
    total = 0.0
    for stack in model.stacks:
        layers = [i for k in stack.stored_order for i in stack.kinds[k].items]
        total += float(sharded_parameters([*stack.before, *layers, *stack.after], tp, 1))
    return total


@each("name", described)
def test_parameters(name: str) -> None:
    model = load_model(name)
    whole = parameters(model)
    assert 0 < active_parameters(model) <= whole
    assert ranked(model, 1) == whole
    assert whole / 2 <= ranked(model, 2) < whole
    assert weight_bytes(model, "bf16") == 2 * whole


@each("name", described)
def test_operations(name: str) -> None:
    model = load_model(name)
    forward = np.asarray(forward_flops(model, 2, SEQS)) + np.zeros(2)
    assert np.all(np.isfinite(forward))
    assert np.all(forward > 0)
    assert forward[1] == pytest.approx(float(forward_flops(model, 2, 256)), rel=1e-12)
    assert np.all(np.asarray(causal_forward_flops(model, 2, SEQS)) > 0)
    backward = np.asarray(backward_flops(model, 2, SEQS))
    assert np.all((backward > 1.3 * forward) & (backward <= 2.0 * forward))
    listed = operations(model, 2, 256)
    assert sum(float(o.flops) for o in listed) == pytest.approx(forward[1], rel=1e-9)
    assert all(np.isfinite(float(o.bytes)) and float(o.bytes) >= 0 for o in listed)


@each("name", described)
def test_activations(name: str) -> None:
    model = load_model(name)
    for stack in ("megatron-te", "fsdp-eager"):
        recipe = Recipe(seq_len=256, optimizer=FACTS.optimizer("adamw"), stack=FACTS.stack(stack))
        sums, _ = MemoryTable(model, recipe).sums(Layout(tp=2))
        none, selective, full = sums.activations[:3, -1, 0].tolist()
        assert none >= selective > 0
        assert math.isfinite(none)
        assert full > 0


@each("name", described)
def test_cache(name: str) -> None:
    model = load_model(name)
    if model.kind in ("encoder", "vision"):
        with pytest.raises(SpecError, match="keeps no cache"):
            kv_cache_bytes(model, 1024, 1, 2.0)
        return
    contexts = np.array([1024, 2**20])
    kept = np.asarray(kv_cache_bytes(model, contexts, 2, 2.0)) + np.zeros(2)
    assert np.all(np.isfinite(kept))
    assert 0 < kept[0] <= kept[1]
    grown = kv_bytes_per_token(model, 2.0)
    stateful = any(isinstance(i, Recurrence) for k in model.stacks[0].kinds for i in k.items)
    assert grown > 0 or stateful or kept[0] == kept[1] or kept[1] < 1024 * kept[0]  # windows and states stop growing
    halves = np.asarray(kv_cache_bytes(model, contexts, 2, 2.0, tp=2))
    assert np.all((halves >= kept / 2 - 1) & (halves <= kept))


@each("name", published)
def test_published_figures_or_a_clear_sentence(name: str) -> None:
    model = load_model(name)
    facts = model.published
    assert facts is not None
    counts: tuple[tuple[Callable[[], object], float | None], ...] = (
        (lambda: forward_flops(model, 3, 1), facts.forward_flops_per_sample),
        (lambda: parameters(model), facts.parameters),
    )
    for count, known in counts:
        if known is None:
            with pytest.raises(MissingFactError) as caught:
                count()
            assert name in str(caught.value)
            assert "add" in str(caught.value)
        else:
            assert count() in (known, 3 * known)
    unknowns: tuple[Callable[[], object], ...] = (
        lambda: kv_cache_bytes(model, 1, 1, 2.0),
        lambda: kv_bytes_per_token(model, 2.0),
    )
    for unknown in unknowns:
        with pytest.raises(MissingFactError, match=r"published figures only.*add its configuration"):
            unknown()


def _convolution(inputs: int, outputs: int, kernel: int, side: int) -> int:
    return 2 * inputs * outputs * kernel**3 * side**3


def test_cosmoflow_is_what_its_layers_make() -> None:
    channels = [4, 32, 64, 128, 256, 512]
    inner = sum(_convolution(a, b, 2, 128 >> i) for i, (a, b) in enumerate(pairwise(channels)))
    dense = 2 * (512 * 4**3 * 128 + 128 * 64 + 64 * 4)
    assert forward_flops(load_model("cosmoflow"), 1, 1) == inner + dense


def test_u_net_3d_is_what_its_layers_make() -> None:
    widths = [32, 64, 128, 256, 320, 320]
    sides = [128 >> i for i in range(6)]
    total = _convolution(1, 32, 3, 128) + _convolution(32, 3, 1, 128)
    total += sum(_convolution(w, w, 3, s) for w, s in zip(widths, sides, strict=True))  # the second of each block
    for level in range(1, 6):
        fine, coarse, side = widths[level - 1], widths[level], sides[level]
        total += _convolution(fine, coarse, 3, side)  # down, by a stride
        total += _convolution(coarse, fine, 2, side)  # up: each position makes 2 x 2 x 2
        total += _convolution(2 * fine, fine, 3, 2 * side) + _convolution(fine, fine, 3, 2 * side)
    assert forward_flops(load_model("unet3d"), 1, 1) == total


@pytest.mark.parametrize(
    "name",
    ["CosmoFlow", "DeepCAM", "Tiramisu", "ResNet-50", "SDXL", "FLUX.1-dev", "U-Net 3D", "CosmoFlow (Mathuriya 2018)"],
)
def test_networks_of_the_catalog_carry_their_figures(name: str) -> None:
    facts = load_model(name).published
    assert facts is not None
    assert facts.training_flops_per_sample
    assert facts.sample_bytes
    assert facts.parameters or "2018" in load_model(name).name  # the papers of 2018 do not say
