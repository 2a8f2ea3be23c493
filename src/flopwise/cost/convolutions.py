"""Seconds of training a convolutional network on one accelerator: each layer as the matrix products that it is.

A convolution multiplies a (batch x positions) x (inputs x taps) matrix, which is never stored, by its weights; backward
the same work is done twice, for its inputs and for its weights. What follows it only moves bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.cost.kernels import Elements, matmul_s, pointwise_s
from flopwise.cost.rates import Rates
from flopwise.errors import SpecError
from flopwise.facts.samples import ConvolutionLayer
from flopwise.ops.types import Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import NDArray

PASSES: dict[str, float] = {"norm": 8.0, "relu": 5.0, "add": 4.0, "pool": 3.0, "copy": 4.0, "dropout": 5.0}
"""How often an operation reads or writes the layer's output, forward and backward together.

norm: statistics, then read and write; backward both sums, then input, gradient and result. relu: read and write;
backward output, gradient and result. add: two reads and a write; backward a sum. pool: a read; backward a read and a
write (what is pooled is small). copy (upsampling by a transposed product and joining): read and write, each way.
"""
FUSED_PASSES: dict[str, float] = {"relu": 0.0, "add": 2.0}
"""Passes of operations that follow a norm in 16 bits, in one kernel with it. The sum still reads its other input and
writes that one's gradient."""
UPDATE_PASSES, STATE_PASSES = 3.0, 2.0
"""Passes over fp32 parameters: weight and gradient read, weight written; each state read and written."""
MOMENTUM_BYTES = 4.0
"""State a parameter of stochastic gradient descent with momentum, with which convolutional networks are trained."""
ELEM_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0}


class Parts(NamedTuple):
    """Seconds of one training step by part.

    Source: as `convolution_step_s`. Assumes: the three follow one another.
    """

    convolutions_s: Floats
    pointwise_s: Floats
    update_s: Floats

    @property
    def seconds(self) -> Floats:
        """Their sum."""
        return self.convolutions_s + self.pointwise_s + self.update_s


def usable_precision(rates: Rates | None, precision: str) -> str:
    """`precision`, or fp32 for TF32 on a device without it, as frameworks run it; bf16 where there is no fp32, either.

    `rates`: of the device; None: of one that has all formats.

    Source: documentation of PyTorch, TensorFlow and XLA. Assumes: TF32 is not switched off.
    Raises: SpecError: convolutions are not timed in that format.
    """
    if precision not in ELEM_BYTES:
        raise SpecError(f"precision {precision!r} of convolutions; allowed: {', '.join(ELEM_BYTES)}")
    if precision != "tf32" or rates is None:
        return precision
    return next((known for known in ("tf32", "fp32") if known in rates.peak), "bf16")


def convolution_step_s(rates: Rates, layers: Sequence[ConvolutionLayer], batch: Ints, precision: str) -> Parts:
    """Seconds of one training step of `batch` samples; shape of `batch`.

    Source: Chetlur et al. 2014 (cuDNN, arXiv:1410.0759) section 3, implicit matrix products; kernel rates as
    `flopwise.cost.kernels`, nothing here is fitted. cuDNN 7.4 and later: cudnnBatchNormalizationForwardTrainingEx with
    activation and addition, for channels-last tensors of 16 bits.
    Assumes: inputs are read once from DRAM, whatever the taps; nothing is fused with a convolution; who trains in 16
    bits does so channels last; the host keeps up.
    """
    dtype = usable_precision(rates, precision)
    elem = ELEM_BYTES[dtype]
    size = np.asarray(batch, dtype=float)
    products: Floats = np.zeros(size.shape)
    moving: Floats = np.zeros(size.shape)
    for index, layer in enumerate(layers):
        products = products + layer.repeats * _products_s(rates, layer, size, dtype, elem, first=index == 0)
        output_bytes = size * layer.positions * layer.outputs * elem
        fused = FUSED_PASSES if elem == 2.0 and "norm" in layer.then else {}
        for operation in layer.then:
            passes = fused.get(operation, PASSES[operation])
            if passes:
                moving = moving + layer.repeats * pointwise_s(rates, passes * output_bytes).seconds
    update = update_s(rates, sum(layer.weights for layer in layers), MOMENTUM_BYTES)
    return Parts(products, moving, update + 0.0 * size)


def update_s(rates: Rates, parameters: Floats, state_bytes: Floats) -> Floats:
    """Seconds in which an optimizer with `state_bytes` a parameter updates `parameters` of 32 bits; broadcasts.

    Source: `UPDATE_PASSES`. Assumes: nothing else is read or written.
    """
    return pointwise_s(rates, (UPDATE_PASSES * 4.0 + STATE_PASSES * state_bytes) * parameters).seconds


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
