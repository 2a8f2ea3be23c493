"""Weights of a convolutional network's layers, and what a training step keeps of them until its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from flopwise.facts.samples import ConvolutionLayer

INDEX_BYTES = 8.0
"""Of the place that a largest value came from, which pooling keeps: torch.int64."""
MASK_BYTES = 1.0
"""Of what dropout has left, by element: torch.bool."""


class KeptSample(NamedTuple):
    """What is kept of one sample: elements in the format of the products, and bytes that are in formats of their own.

    Source and assumptions: as `kept_sample`.
    """

    elements: float  # results of layers
    other_bytes: float  # places of largest values, masks of dropout
    input_elements: float  # the sample as it is fed
    widest: float  # elements of the largest result of a layer

    def nbytes(self, elem_bytes: float) -> float:
        """Bytes of one sample, its input apart."""
        return self.elements * elem_bytes + self.other_bytes


def convolution_weights(layers: Sequence[ConvolutionLayer]) -> int:
    """Weights of all layers, without those of norms and biases.

    Source: definition. Assumes: no groups: each output is made of all inputs.
    """
    return sum(layer.inputs * layer.outputs * layer.taps * layer.repeats for layer in layers)


def kept_sample(layers: Sequence[ConvolutionLayer]) -> KeptSample:
    """What PyTorch's autograd keeps of one sample in a training step.

    A convolution keeps its input, which is the result of what comes before it; a norm its input; a ReLU its result; max
    pooling the places of its results; dropout a mask. A sum keeps nothing, and so does what only feeds one.

    Source: derivatives.yaml of PyTorch (convolution, native_batch_norm, threshold_backward,
    max_pool2d_with_indices, native_dropout), held against its saved tensors in tests/ops/test_kept_convolutions.py.
    Assumes: nothing is recomputed, what two operations keep is kept once; statistics of norms, one number a channel,
    are not counted; what follows pooling has as many positions as it (or is a matrix on all of its values).
    """
    elements = other = 0.0
    for layer, following in pairwise((*layers, None)):
        assert layer is not None
        out = float(layer.positions * layer.outputs)
        here = out * ("norm" in layer.then) + out * ("relu" in layer.then) + out * ("dropout" in layer.then)
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
