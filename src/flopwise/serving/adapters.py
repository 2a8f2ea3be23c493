"""Low-rank adapters on one base model, one for each tenant: their memory, and what they add to a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.cost.kernels import pointwise_s
from flopwise.facts.architecture import Item, Linear, Model
from flopwise.ops.backward import adapter_items
from flopwise.ops.tensors import sharded_parameters
from flopwise.serving.iteration import Runner, StepLoad, StepTime, layer_kinds

if TYPE_CHECKING:
    from flopwise.ops.types import Floats, Ints
    from flopwise.serving.memory import ServingLayout

ELEMENT_BYTES = 2.0
"""Bytes per element of an adapter's weights and of activations: 16 bits."""
BUFFER_BYTES = 4.0
"""Bytes per element between the two products: vLLM's buffer is fp32."""


def _adapted_products(items: Iterable[Item]) -> list[Linear]:
    """The projections of one layer that get an adapter: all dense ones but routers.

    Source: vLLM, LoRA adapters: linear layers of attention and MLP. Assumes: experts of a mixture have none.
    """
    return [item for item in items if isinstance(item, Linear) and not item.tied and not item.name.endswith("router")]


def adapter_bytes(model: Model, count: Ints, rank: int, layout: ServingLayout) -> Floats:
    """Weights of `count` adapters on one GPU; shape of the layout.

    Source: Hu et al. 2021 (arXiv:2106.09685) section 4.1; vLLM, layers with LoRA: of a projection cut by columns the
    second matrix is cut, of one cut by rows the first.
    Assumes: places for all adapters are taken when the engine starts, at one rank; layers as even as they divide.
    """
    per_layer = [
        sharded_parameters([part for item in _adapted_products(kind.items) for part in adapter_items(item, rank)],
                           layout.tp, 1) * layers
        for kind, layers in layer_kinds(model.stacks[0])
    ]  # fmt: skip
    total: Floats = sum(per_layer, start=0.0) / np.asarray(layout.pp)
    return total * count * ELEMENT_BYTES


def distinct_adapters(count: Ints, sequences: Floats) -> Floats:
    """Adapters that at least one of `sequences` uses, of `count`; broadcasts.

    N (1 - (1 - 1 / N)^s).

    Source: balls in bins. Assumes: each sequence's adapter is drawn independently, all alike often.
    """
    present: Floats = count * (1.0 - (1.0 - 1.0 / np.asarray(count)) ** np.asarray(sequences))
    return present


def _packed_products(items: Iterable[Item]) -> Iterator[list[Linear]]:
    """Adapted projections that share a pair of kernels: those that read the same tensor (q, k and v; gate and up)."""
    named = enumerate(_adapted_products(items))
    for _, group in groupby(named, key=lambda pair: pair[1].reads or pair[0]):
        yield [item for _, item in group]


class Adapters(NamedTuple):
    """Adapters of one rank; each sequence uses one of them."""

    number: int
    rank: int

    def step(self, runner: Runner, load: StepLoad, split: ServingLayout) -> StepTime:
        """The time that adapters add to a step: two kernels for each projection, or group that reads the same tensor.

        The first reads activations and the first matrices of all adapters that the step's sequences use, and writes
        `rank` numbers a token; the second reads these and the second matrices, and adds to the projection's results. A
        token takes 2 x rank operations for each input and output: memory takes longer than they do.

        Source: Chen et al. 2023 (arXiv:2310.18547) section 4, SGMV; vLLM, lora_shrink and lora_expand (one launch for
        all slices of a packed projection).
        Assumes: adapters as `distinct_adapters`; kernels at the rate of norms.
        """
        tokens = np.asarray(load.decode_batch * load.decode_tokens + load.prefill_tokens, dtype=float)
        reading = np.asarray(load.prefill_tokens) > 0
        present = distinct_adapters(self.number, load.decode_batch + np.where(reading, load.prompts, 0.0))
        tp, rates = np.asarray(split.tp), runner.own_rates
        zero = 0.0 * tokens
        total = StepTime(*(zero for _ in StepTime._fields))
        for kind, layers in layer_kinds(runner.model.stacks[0]):
            for group in _packed_products(kind.items):
                rows = group[0].inputs / (tp if group[0].shard == "row" else 1)
                columns = sum(item.outputs / (tp if item.shard == "column" else 1) for item in group)
                between = tokens * self.rank * len(group) * BUFFER_BYTES
                first, second = present * self.rank * len(group) * rows, present * self.rank * columns
                down = ELEMENT_BYTES * (tokens * rows + first) + between
                up = ELEMENT_BYTES * (2.0 * tokens * columns + second) + between
                for moved, weights in ((down, first), (up, second)):
                    timing = runner.among_others(pointwise_s(rates, moved))
                    total = total.plus(_kernel(timing.seconds, timing.memory_s, weights, runner), layers)
                flops = 2.0 * tokens * self.rank * (rows * len(group) + columns)
                total = total._replace(flops=total.flops + flops * layers)
        return total


def _kernel(seconds: Floats, memory_s: Floats, weights: Floats, runner: Runner) -> StepTime:
    """One kernel that memory bounds; `weights` are read from the device's memory at least."""
    zero = 0.0 * np.asarray(seconds)
    floor_s = weights * ELEMENT_BYTES / runner.rates.hbm_bytes_per_s
    return StepTime(
        seconds=seconds, compute_s=zero, memory_s=memory_s, communication_s=zero, overhead_s=seconds - memory_s,
        floor_s=floor_s, flops=zero, conversion_s=zero, launches=zero + 1.0, read_bytes=zero + weights * ELEMENT_BYTES,
    )  # fmt: skip
