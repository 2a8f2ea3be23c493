"""Memory of training a network that is known by its samples: what its layers keep, its weights and their states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from flopwise.cost.convolutions import ELEM_BYTES
from flopwise.facts.samples import ConvolutionLayer
from flopwise.facts.software import Optimizer, TrainingStack
from flopwise.training.memory import reported_bytes
from flopwise.training.samples import SampledWorkload, num_parameters
from flopwise.values import dataclass

PARAMETER_BYTES = 4.0
"""Bytes of a weight, a gradient and each state: automatic mixed precision keeps all of them in 32 bits."""
INDEX_BYTES = 8.0
"""Bytes of the index of a maximum, which pooling keeps: torch.int64."""
MASK_BYTES = 1.0
"""Bytes per element of dropout's mask: torch.bool."""
KEPT = {"norm": 1.0, "relu": 1.0, "dropout": 1.0, "silu": 2.0, "gelu": 2.0, "gate": 2.0, "scale": 1.0, "rms_norm": 1.0}
"""Times that an operation after a product keeps that product's result, with its own where a product reads it: silu and
gelu both; gate what it halves, the GELU of one half and what both make; scale its input."""
KEPT_BEFORE = {"group_norm": 1.0, "layer_norm": 1.0, "silu": 1.0, "modulate": 1.0}
"""Times that an operation before a product keeps its own input; what the product reads is kept besides."""
EVERY_REPLICA = "every device has all weights, gradients and states: only token layers are sharded (ZeRO, FSDP)"
GRADIENTS, WEIGHTS, STATES = "gradients", "weights", "optimizer states"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecipe:
    """The recipe of one device in a pass: `batch` samples of `work` in a precision, weights updated by an optimizer."""

    work: SampledWorkload
    batch: int
    precision: str  # of the products
    optimizer: Optimizer
    stack: TrainingStack


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMemory:
    """Bytes on one device, item by item; `counts_activations`: whether those are among them."""

    items: dict[str, float]
    total_bytes: float  # what the driver would report
    floor_bytes: float  # weights and states, which are counted exactly
    counts_activations: bool
    assumptions: tuple[str, ...]


class KeptSample(NamedTuple):
    """The activations kept of one sample: elements in the format of the products, and bytes in formats of their own.

    Source and assumptions: as `kept_sample`.
    """

    elements: float  # results of layers
    other_bytes: float  # places of largest values, masks of dropout
    input_elements: float  # the sample as it is fed
    widest: float  # elements of the largest result of a layer

    def nbytes(self, elem_bytes: float) -> float:
        """Bytes of one sample, its input apart."""
        return self.elements * elem_bytes + self.other_bytes


def kept_sample(layers: Sequence[ConvolutionLayer]) -> KeptSample:
    """The activations that PyTorch's autograd keeps of one sample in a training step.

    A convolution keeps its input, which is the result of what comes before it; a norm its input; a ReLU its result; max
    pooling the places of its results; dropout a mask. A sum keeps nothing, and so does what only feeds one. What stands
    before a product keeps its own input, as the product does its; attention its queries, keys and values.

    Source: derivatives.yaml of PyTorch (convolution, native_batch_norm, threshold_backward,
    max_pool2d_with_indices, native_dropout, native_group_norm, native_layer_norm, silu, gelu, mul,
    _scaled_dot_product_flash_attention), held against its saved tensors in tests/training/test_kept_samples.py.
    Assumes: nothing is recomputed, what two operations keep is kept once; statistics of norms, one number a channel,
    are not counted; what follows pooling has as many positions as it (or is a matrix on all of its values).
    """
    elements = other = 0.0
    for layer, following in pairwise((*layers, None)):
        assert layer is not None
        out = float(layer.positions * layer.outputs)
        here = out * sum(KEPT.get(operation, 0.0) for operation in layer.then)
        if layer.before:
            kept = 1.0 + sum(KEPT_BEFORE.get(operation, 0.0) for operation in layer.before)
            here += kept * layer.positions * layer.inputs
        if layer.keys is not None:
            here += float((layer.positions + 2 * layer.keys) * layer.outputs)
        beside = MASK_BYTES * out * ("dropout" in layer.then)
        if following is not None and {"pool", "copy"} & set(layer.then):
            fed = float(following.inputs * following.positions)
            here += fed
            beside += INDEX_BYTES * fed * ("pool" in layer.then)
        elements += layer.repeats * here
        other += layer.repeats * beside
    first = layers[0]
    fed = float(first.inputs * (first.input_positions or first.positions))
    return KeptSample(elements, other, fed, max(float(layer.positions * layer.outputs) for layer in layers))


def state_bytes(optimizer: Optimizer) -> float:
    """Bytes of an optimizer's states for each parameter. Source: data/optimizers.csv. Assumes: states in 32 bits."""
    return optimizer.states * PARAMETER_BYTES + optimizer.packed_bytes


def saved_bytes(count: float, optimizer: Optimizer) -> float:
    """Bytes of a checkpoint of `count` parameters: weights and an optimizer's states. Source: as `state_bytes`."""
    return count * (PARAMETER_BYTES + state_bytes(optimizer))


def sampled_memory(recipe: SampledRecipe, device_kind: str = "gpu") -> SampledMemory | None:
    """Bytes on each device in a step; None where the parameters are not known.

    Weights, gradients and states in 32 bits; what layers keep as `kept_sample` counts it, in the products' format, and
    in 16 bits a copy of the weights; the sample as it is fed, in 32 bits and in that format; the gradients of the
    widest result and of its input while both are there.

    Source: `kept_sample`; documentation of torch.amp. data/stacks.json for what the software adds.
    Assumes: every replica has all of it; workspaces of cuDNN are not counted; norms and biases keep nothing else.
    """
    count, layers = num_parameters(recipe.work), recipe.work.layers
    if count is None:
        return None
    elem, states = ELEM_BYTES[recipe.precision], state_bytes(recipe.optimizer)
    items = {WEIGHTS: PARAMETER_BYTES * count, GRADIENTS: PARAMETER_BYTES * count, STATES: states * count}
    floor = items[WEIGHTS] + items[STATES]
    if elem < PARAMETER_BYTES:
        items["weights in 16 bits"] = elem * count
    notes = [EVERY_REPLICA, "workspaces of cuDNN are not counted"]
    if layers is None:
        notes = [EVERY_REPLICA, f"{recipe.work.name}: no layers are known, so activations are not counted"]
    else:
        kept = kept_sample(layers)
        fed = PARAMETER_BYTES + (elem if elem < PARAMETER_BYTES else 0.0)
        items["activations"] = recipe.batch * kept.nbytes(elem)
        items["samples"] = recipe.batch * kept.input_elements * fed
        items["gradients of activations"] = 2.0 * recipe.batch * kept.widest * elem
    allocated = sum(items.values())
    total = float(reported_bytes(allocated, recipe.stack, device_kind))
    items["allocator, driver context and communicators"] = total - allocated
    return SampledMemory(
        items=items,
        total_bytes=total,
        floor_bytes=floor,
        counts_activations=layers is not None,
        assumptions=tuple(notes),
    )
