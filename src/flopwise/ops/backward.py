"""The backward pass of a layer, as works; and the small products that adapters add."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flopwise.facts.architecture import Linear
from flopwise.ops.shapes import Trainable, Work
from flopwise.values import replace

_NO_GRADIENT = "indexer/"  # chooses keys by rank: nothing flows back
BACKWARD_FLASH = 2.5  # five matrix products backward (scores again, dV, dP, dQ, dK) for two forward
BACKWARD_SCAN = 2.5  # ten for four: two of the forward pass again (scores and states of blocks), and two for each


def _product_gradients(work: Work, *, weight: bool, inputs: bool) -> list[Work]:
    """The two products behind y = x W: dx = dy W^T and dW = x^T dy, with the same operations each."""
    grads = []
    if inputs:
        name = f"{work.name}/dgrad"
        grads.append(replace(work, name=name, n=work.k, k=work.n, in_elems=work.out_elems, out_elems=work.in_elems))
    if weight:
        each = np.maximum(work.touched, 1.0) if work.kind == "grouped" else 1  # an expert sums over its own rows
        rows, inner = None if work.k is None else work.k * each, None if work.m is None else work.m / each
        gradient = replace(
            work, name=f"{work.name}/wgrad", m=rows, k=inner, in_elems=work.in_elems + work.out_elems,
            out_elems=work.weight_elems, weight_elems=0.0,
        )  # fmt: skip
        grads.append(gradient)
    return grads


def _attention_gradient(work: Work) -> Work:
    return replace(
        work,
        name=f"{work.name}/grad",
        flops=2.0 * work.flops,
        causal_flops=BACKWARD_FLASH * work.causal_flops,
        in_elems=work.in_elems + 2.0 * work.out_elems,
        out_elems=work.in_elems,
    )


def _moving_gradient(work: Work) -> Work:
    """Backward of memory-bound work: reads what came in and the gradient, writes the gradient of what came in."""
    return replace(
        work,
        name=f"{work.name}/grad",
        flops=2.0 * work.flops,
        causal_flops=2.0 * work.causal_flops,
        in_elems=work.in_elems + work.out_elems,
        out_elems=work.in_elems,
    )


def _scan_gradient(work: Work) -> Work:
    return replace(_moving_gradient(work), causal_flops=BACKWARD_SCAN * work.causal_flops)


_SINGLE: dict[str, Callable[[Work], Work]] = {
    "attention": _attention_gradient,
    "recurrence": _scan_gradient,
    **dict.fromkeys(("norm", "pointwise", "gather"), _moving_gradient),
}


def backward_works(
    works: list[Work], *, trainable: Trainable = "all", no_input_grad: frozenset[str] = frozenset()
) -> list[Work]:
    """The works of the backward pass, last item first.

    Two products for each forward one (towards the input and towards the weight), attention 2 (as PyTorch's unfused
    code) or 2.5 (flash: scores once more) times forward, scans as much. `trainable` other than "all" drops the
    weights' gradients; adapters bring their own works. `no_input_grad` names items whose input needs no gradient
    (pixels, audio frames).

    Source: Kaplan et al. 2020 (arXiv 2001.08361) section 2.1; Dao 2023 (arXiv 2307.08691) section 4.1 for attention;
    mamba_ssm, `_mamba_chunk_scan_combined_bwd`, and flash-linear-attention, `chunk_gated_delta_rule_bwd`, for scans.
    Assumes: embeddings are trained when everything is, so the first layer has an input gradient.
    """
    backward: list[Work] = []
    for work in reversed(works):
        if work.name.startswith(_NO_GRADIENT):
            continue
        if work.kind in _SINGLE:
            if not (work.kind == "gather" and trainable != "all"):
                backward.append(_SINGLE[work.kind](work))
        else:
            backward += _product_gradients(work, weight=trainable == "all", inputs=work.name not in no_input_grad)
    return backward


def adapter_items(item: Linear, rank: int) -> tuple[Linear, Linear]:
    """The two products of a low-rank adapter on `item`: inputs x rank and rank x outputs, cut as the item itself is.

    Source: Hu et al. 2021 (arXiv 2106.09685) section 4.1.
    Assumes: an adapter of one rank on the whole item, without a bias.
    """
    down = Linear(
        name=f"{item.name}/lora_a", inputs=item.inputs, outputs=rank, shard="row" if item.shard == "row" else "",
        shard_unit=item.shard_unit if item.shard == "row" else 1, stream=item.stream, reads=item.reads,
    )  # fmt: skip
    up = Linear(
        name=f"{item.name}/lora_b", inputs=rank, outputs=item.outputs,
        shard="column" if item.shard == "column" else "",
        shard_unit=item.shard_unit if item.shard == "column" else 1, heads=item.heads, stream=item.stream,
    )  # fmt: skip
    return down, up
