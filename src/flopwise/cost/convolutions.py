"""Seconds of training a network of images on one accelerator: each layer as the matrix products that it is.

A convolution multiplies a (batch x positions) x (inputs x taps) matrix, which is never stored, by its weights; backward
the same work is done twice, for its inputs and for its weights. What is before and after it only moves bytes. Denoisers
of images have linear layers, which are convolutions of one tap, and attention besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.cost.kernels import Elements, Heads, matmul_s, pointwise_s, prefill_attention_s
from flopwise.cost.rates import Rates
from flopwise.cost.sustained import ATTENTION, BACKWARD_RATE
from flopwise.errors import SpecError
from flopwise.facts.samples import ConvolutionLayer
from flopwise.ops.types import Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import NDArray

PASSES: dict[str, float] = {
    "norm": 8.0, "relu": 5.0, "add": 4.0, "pool": 3.0, "copy": 4.0, "dropout": 5.0, "group_norm": 8.0,
    "layer_norm": 7.0, "rms_norm": 7.0, "silu": 5.0, "gelu": 5.0, "gate": 8.5, "join": 4.0, "modulate": 11.0,
    "scale": 8.0, "rope": 48.0,
}  # fmt: skip
"""How often an operation reads or writes the layer's output (or input, before it), forward and backward together.

norm: statistics, then read and write; backward both sums, then input, gradient and result. relu: read and write;
backward output, gradient and result. add: two reads and a write; backward a sum. pool: a read; backward a read and a
write (what is pooled is small). copy (upsampling by a transposed product and joining): read and write, each way.
group_norm as norm; layer_norm, rms_norm: a row is read once and written; backward input, gradient and result, and the
first two again for the norm's weights. silu, gelu as relu. gate, of the two halves that a product makes: GELU of one,
times the other (2.5), backward both halves and their join (6). join as copy. modulate: times one row of a sample and
plus another, in two kernels (4), backward the sum of the gradient, both factors' and the sum of one (7). scale: times a
row (2), backward both factors' (6). rope, as diffusers has it, operation by operation in 32 bits (apply_rotary_emb:
turned pairs 3, casts 6, products 8, sum 6, cast 3; the same backward but for the sum).
"""
FUSED_PASSES: dict[str, float] = {"relu": 0.0, "add": 2.0}
"""Passes of operations that follow a norm in 16 bits, in one kernel with it. The sum still reads its other input and
writes that one's gradient."""
JOINED_PASSES: dict[str, float] = {"norm": 4.0, "relu": 0.0, "add": 4.0}
"""Passes where norms run in the kernels of the convolutions around them, in 16 bits. norm: statistics come with the
product and the next one reads what it normalises; backward the sums come with the gradient of the next input, which
reads the input once, and input, gradient and result pass once more. add: as fused, and what is added is written once
before the products that read it."""
TRANSPOSE_PASSES = 6.0
"""Passes over a convolution's input, and over its output, where channels come first and kernels want them last: each of
the three products turns one of its operands of either size, a read and a write."""
UPDATE_PASSES, STATE_PASSES = 3.0, 2.0
"""Passes over fp32 parameters: weight and gradient read, weight written; each state read and written."""
MOMENTUM_BYTES = 4.0
"""State a parameter of stochastic gradient descent with momentum, with which convolutional networks are trained."""
ELEM_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0}


class Parts(NamedTuple):
    """Seconds of one training step by part.

    Source: as `convolution_step_s`. Assumes: the first three follow one another.
    """

    convolutions_s: Floats
    pointwise_s: Floats
    update_s: Floats
    launch_s: Floats  # for which the device waits until the host has launched its kernels

    @property
    def seconds(self) -> Floats:
        """Their sum."""
        return self.convolutions_s + self.pointwise_s + self.update_s + self.launch_s


LAUNCHES = 3.0
"""Launches of an operation in a step: one forward, two backward."""


def num_launches(layers: Sequence[ConvolutionLayer]) -> float:
    """Operations that the host launches in a training step, the optimizer's apart.

    Source: `LAUNCHES`, as for layers of tokens. Assumes: nothing is fused but what a kernel of the library has.
    """
    return LAUNCHES * sum(layer.repeats * (1 + len(layer.before) + len(layer.then)) for layer in layers)


def usable_precision(rates: Rates | None, precision: str) -> str:
    """`precision`, or fp32 for TF32 on a device without it, as frameworks run it; bf16 where there is no fp32, either.

    And fp16 for bf16 on a device whose matrix units have the one and not the other.

    `rates`: of the device; None: of one that has all formats.

    Source: documentation of PyTorch, TensorFlow and XLA. Assumes: TF32 is not switched off.
    Raises: SpecError: convolutions are not timed in that format.
    """
    if precision not in ELEM_BYTES:
        raise SpecError(f"precision {precision!r} of convolutions; allowed: {', '.join(ELEM_BYTES)}")
    if precision == "bf16" and rates is not None and "bf16" not in rates.peak and "fp16" in rates.peak:
        return "fp16"
    if precision != "tf32" or rates is None:
        return precision
    return next((known for known in ("tf32", "fp32") if known in rates.peak), "bf16")


def convolution_step_s(
    rates: Rates, layers: Sequence[ConvolutionLayer], batch: Ints, precision: str, launch_s: float = 0.0,
    state_bytes: float = MOMENTUM_BYTES, *, norm_passes: Mapping[str, float] = FUSED_PASSES, transposed: bool = False,
) -> Parts:  # fmt: skip
    """Seconds of one training step of `batch` samples; shape of `batch`.

    `launch_s`: host time of a launch; `state_bytes`: of the optimizer, a parameter; `norm_passes`: passes of a norm in
    16 bits and of what follows it, where they are other than `PASSES` because kernels join them; `transposed`: operands
    of each product are turned before and after it. Seconds of attention are among those of the products.

    Source: Chetlur et al. 2014 (cuDNN, arXiv:1410.0759) section 3, implicit matrix products; kernel rates as
    `flopwise.cost.kernels`, nothing here is fitted. cuDNN 7.4 and later: cudnnBatchNormalizationForwardTrainingEx with
    activation and addition, for channels-last tensors of 16 bits. cuDNN 8 developer guide, runtime fusion engines:
    ConvBNfprop (scale, bias, ReLU, convolution, statistics), ConvBNwgrad and DgradDreluBNBwdWeight (`JOINED_PASSES`).
    Assumes: inputs are read once from DRAM, whatever the taps; nothing is fused with a convolution; who trains in 16
    bits does so channels last; the host launches ahead of the device.
    """
    dtype = usable_precision(rates, precision)
    elem = ELEM_BYTES[dtype]
    size = np.asarray(batch, dtype=float)
    products: Floats = np.zeros(size.shape)
    moving: Floats = np.zeros(size.shape)
    for index, layer in enumerate(layers):
        if layer.keys is not None:
            products = products + layer.repeats * _attention_s(rates, layer, size, dtype, elem)
            continue
        products = products + layer.repeats * _products_s(rates, layer, size, dtype, elem, first=index == 0)
        output_bytes = size * layer.positions * layer.outputs * elem
        input_bytes = size * layer.positions * layer.inputs * elem
        if transposed:
            turned_bytes = TRANSPOSE_PASSES * (input_bytes + output_bytes)
            moving = moving + layer.repeats * pointwise_s(rates, turned_bytes).seconds
        for operation in layer.before:
            moving = moving + layer.repeats * pointwise_s(rates, PASSES[operation] * input_bytes).seconds
        own_passes = norm_passes if elem == 2.0 and "norm" in layer.then else {}
        for operation in layer.then:
            passes = own_passes.get(operation, PASSES[operation])
            if passes:
                moving = moving + layer.repeats * pointwise_s(rates, passes * output_bytes).seconds
    update = update_s(rates, sum(layer.weights for layer in layers), state_bytes)
    waiting = np.maximum(num_launches(layers) * launch_s - products - moving, 0.0)
    return Parts(products, moving, update + 0.0 * size, waiting)


def update_s(rates: Rates, parameters: Floats, state_bytes: Floats) -> Floats:
    """Seconds in which an optimizer with `state_bytes` a parameter updates `parameters` of 32 bits; broadcasts.

    Source: `UPDATE_PASSES`. Assumes: nothing else is read or written.
    """
    return pointwise_s(rates, (UPDATE_PASSES * 4.0 + STATE_PASSES * state_bytes) * parameters).seconds


BACKWARD_PRODUCTS = 2.5
"""Products of flash attention's backward pass over the forward one's."""


def _attention_s(
    rates: Rates, layer: ConvolutionLayer, batch: NDArray[np.float64], dtype: str, elem: float
) -> Floats:  # fmt: skip
    """Seconds of an attention, forward and backward.

    Source: Dao 2023 (arXiv:2307.08691) section 4.1 for the backward pass, which computes scores again; rates as in
    whole training steps (`cost.sustained`). Assumes: every query sees every key; kernels of flash attention 2, which
    PyTorch and xFormers run.
    """
    assert layer.keys is not None
    assert layer.head_dim is not None
    heads = layer.outputs // layer.head_dim
    elements = Elements("fp32" if elem > 2.0 else dtype, act_bytes=elem, kv_bytes=elem)
    queries, keys = layer.positions, layer.keys
    of_heads = Heads(heads, heads, layer.head_dim, layer.head_dim)
    timing = prefill_attention_s(rates, of_heads, float(queries) * keys, batch, queries, keys, elements)
    [frac] = ATTENTION["fa2"]
    slower = rates.value["attention_frac"] / rates.value.get(frac, rates.value["attention_frac"])
    forward_s = np.maximum(timing.compute_s * slower, timing.memory_s) + rates.value["attention_s"]
    passes = BACKWARD_PRODUCTS / (BACKWARD_RATE if rates.matrix_unit_dim is None else 1.0)
    backward_s = np.maximum(passes * slower * timing.compute_s, 2.0 * timing.memory_s) + rates.value["attention_s"]
    return forward_s + backward_s


def _products_s(
    rates: Rates, layer: ConvolutionLayer, batch: NDArray[np.float64], dtype: str, elem: float, *, first: bool
) -> Floats:
    """Seconds of a layer's products, forward and backward; the first layer needs no gradient of its input."""
    rows, inputs, outputs, taps = batch * layer.positions, layer.inputs, layer.outputs, layer.taps
    moved_s = (rows * (inputs + outputs) + inputs * outputs * taps) * elem / rates.read_bytes_per_s
    shapes: list[tuple[Ints, Ints, Ints]] = [(rows, outputs, inputs * taps), (inputs * taps, outputs, rows)]
    if not first:
        shapes.append((rows, inputs, outputs * taps))
    total: Floats = 0.0
    for m, n, k in shapes:
        compute_s = matmul_s(rates, m, n, k, Elements(dtype, act_bytes=elem)).compute_s
        total = total + np.maximum(compute_s, moved_s) + rates.value["kernel_s"]
    return total
