"""What a stage holds and launches whatever the device and its links: what has gradients, and what has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.architecture import Experts, Item
from flopwise.facts.formats import BF16
from flopwise.ops.tensors import sharded_parameters
from flopwise.ops.weights import frozen_bytes
from flopwise.training.adapters import adapter_parameters, extra_items
from flopwise.training.block_lines import block_list
from flopwise.training.stages import heaviest
from flopwise.training.state_bytes import ACT_BYTES
from flopwise.training.towers import tower_items

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.software import TrainingStack
    from flopwise.training.frozen import Block, SplitModel
    from flopwise.training.layout import Inner, Recipe


def stage_parameters(
    split: SplitModel,
    inner: Inner,
    recipe: Recipe,
    software: TrainingStack,
    weights: NDArray[np.float64],
    starts: NDArray[np.intp],
) -> tuple[NDArray[np.float64], ...]:
    """(dense, experts' parameters, frozen bytes, host seconds) of the heaviest stage: what no link changes; (d, n)."""
    model = split.model
    listed = [items for items, _, _ in block_list(model)]
    params = [
        _rank_parameters(model, items, block, inner, recipe) for items, block in zip(listed, split.blocks, strict=True)
    ]
    beside = _rank_parameters(model, tower_items(model), split.towers, inner, recipe)
    params[0] = params[0] + beside
    held = np.minimum(weights, 1.0) if model.stacks[0].shared_weights else weights
    dense, expert, still = (heaviest(starts, held, np.stack([p[i] for p in params])) for i in range(3))
    launched = [(*listed[0], *tower_items(model)), *listed[1:]]
    host = heaviest(starts, weights, _host_s(launched, [*split.blocks], software))
    return dense, expert, still, np.repeat(host, len(inner.tp), axis=1)


def _host_s(listed: list[tuple[Item, ...]], blocks: list[Block], software: TrainingStack) -> NDArray[np.float64]:
    """Host time to launch one micro-batch of each block, (blocks, 1): one launch an item forward, two backward.

    A block with experts takes `routing_s` besides, a third of it forward: counts of tokens come back to the host, which
    sizes what it launches next by them.

    Source: PyTorch eager dispatch, about 5-10 µs an operator; CUDA graphs and compiled code amortise it (`stacks.csv`);
    Megatron Core MoE report (arXiv:2603.07685) on hosts that fine-grained experts keep busy.
    Assumes: one launching thread a GPU; routing takes as long however many experts there are.
    """
    passes = np.array([3.0 if block.backward else 1.0 for block in blocks])
    routed = np.array([any(isinstance(i, Experts) for i in items) for items in listed])
    each = np.array([len(items) for items in listed]) * software.launch_s + routed * software.routing_s / 3.0
    return (passes * each)[:, None]


def _rank_parameters(
    model: Model, items: tuple[Item, ...], block: Block, inner: Inner, recipe: Recipe
) -> NDArray[np.float64]:
    """(dense, experts' parameters with gradients, bytes of those without) on one rank, of a block; (3, n)."""
    one, lora = np.ones(len(inner.tp)), recipe.lora
    whole = [] if lora is None else extra_items(model, lora)
    trained = [i for i in items if (block.trains(i) if lora is None else i in whole)]
    dense = sharded_parameters((i for i in trained if not isinstance(i, Experts)), inner.tp, 1)
    experts = sharded_parameters((i for i in trained if isinstance(i, Experts)), inner.tp, inner.ep)
    if lora is not None:
        dense = dense + adapter_parameters((i for i in items if not isinstance(i, Experts)), lora, inner.tp)
    base = BF16 if lora is None else lora.base
    still = frozen_bytes(model, (i for i in items if i not in trained), base, inner.tp, inner.ep, most=ACT_BYTES)
    return np.stack([dense * one, experts * one, still * one])
