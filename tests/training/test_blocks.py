"""Kernels of a block under a power limit, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.spec import with_power_limit
from flopwise.ops.types import Floats
from flopwise.training.blocks import kernels_of
from flopwise.training.estimate import single_table
from flopwise.training.frozen import split_model
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from flopwise.training.step_table import block_contexts, block_list
from named import FACTS, recipe_with


def test_products_of_a_micro_batch_run_at_the_clock_that_all_its_kernels_leave() -> None:
    """Forward and backward are longer by what computes over the clock, which the forward pass's mean power sets.

    The 32 layers of Llama 3.1 8B and its head, timed kernel by kernel; an H100 at 400 W.
    """
    model, recipe = FACTS.model("Llama-3.1-8B"), recipe_with(seq_len=4096, global_batch=8)
    limited = with_power_limit(FACTS.accelerator("H100-SXM-80"), 400)[0]
    machines = cluster(limited, gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    table = single_table(TrainJob(model=model, recipe=recipe, layout=Layout(dp=8, micro_batch=1), cluster=machines))
    split = split_model(model, recipe.frozen)
    [context] = block_contexts(
        model, recipe, table.rates, machines.fabric, table.inner, recipe.shape(model, table.inner.micro_batch)
    )
    kernels = [
        kernel
        for (items, _, inside), times in zip(block_list(split.model), (1, 32, 1), strict=True)
        for kernel in kernels_of(items, context, in_layers=inside)
        for _ in range(times)
    ]

    def seconds(*each: Floats) -> float:
        return sum(float(np.ravel(one)[0]) for one in each)

    forward, backward = ([k for k in kernels if k.forward is which] for which in (True, False))
    parts = []
    for some in (forward, backward):
        clocked_s = seconds(*(k.clocked_s for k in some if not seconds(k.memory_s)))
        parts.append((clocked_s, seconds(*(k.seconds for k in some)) - clocked_s))
    power = table.rates.value["train_joules_per_flop"] * 989.4e12 / (400 * 0.9)
    clock, (clocked_s, other_s) = seconds(table.kernels[0][0].clock_frac), parts[0]
    assert clock < 0.95
    drawn = power * seconds(*(k.peak_s for k in forward)) * clock ** (1 / table.rates.value["train_clock_exponent"] - 1)
    assert drawn + 0.5 * other_s == pytest.approx(other_s + clocked_s / clock, rel=1e-3)
    for line, (clocked_s, other_s) in enumerate(parts):
        assert float(table.model_parts[0, line, 0]) == pytest.approx(other_s + clocked_s / clock, rel=1e-9)
